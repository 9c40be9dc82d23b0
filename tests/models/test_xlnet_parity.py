"""XLNet against Hugging Face's torch class: float32, every parameter random."""

import dataclasses
import functools
import json

import jax
import numpy as np
import parity
import pytest
from flax import linen as nn

from bertfam import api
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.layers.execution import Execution
from bertfam.models.encoder import init_encoder_parts
from bertfam.models.xlnet import XLNET, Memory, XLNetConfig

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SIZES = {"d_model": 48, "n_layer": 2, "n_head": 4, "d_inner": 72}
LENGTHS, MEMORY, REUSED, PREDICTIONS = (17, 5, 9, 12), 5, 4, 3
LAYERS, WIDTH = SIZES["n_layer"], SIZES["d_model"]
STREAMS, BOTH = {"predicted"}, {"predicted", "memory"}


def torch_model(folder, kind=None, **options):
    config = transformers.XLNetConfig(
        vocab_size=parity.VOCABULARY, attn_implementation="eager", **(SIZES | {"mem_len": MEMORY, "reuse_len": REUSED} | options)
    )
    return parity.randomised((kind or transformers.XLNetLMHeadModel)(config), folder)


def batch(parts=(), side="right", is_reversed=False):
    """Return ragged rows of random tokens of three segments, with padding on one side, and the named parts of the rest."""
    generator = np.random.default_rng(0)
    shape = (len(LENGTHS), max(LENGTHS))
    real = np.arange(shape[1]) < np.array(LENGTHS)[:, None]
    real = real[:, ::-1] if side == "left" else real
    inputs = {
        "tokens": generator.integers(0, parity.VOCABULARY, shape),
        "segment_ids": real.astype(np.int32),
        "token_type_ids": np.sort(generator.integers(0, 3, shape), axis=1).astype(np.int32),
    }
    if "predicted" in parts:
        predicted = np.stack([generator.choice(np.flatnonzero(row), PREDICTIONS, replace=False) for row in real])
        ranks = np.where(generator.random(shape) < 0.4, 0, generator.permuted(np.tile(np.arange(shape[1]), (4, 1)), axis=1) + 1)
        # Tokens to predict have ranks of their own; each sees another token at least.
        np.put_along_axis(ranks, predicted, np.argsort(predicted, axis=1) + 30, axis=1)
        inputs |= {"predicted": predicted.astype(np.int32), "ranks": ranks.astype(np.int32)}
    if "memory" in parts:
        hidden = generator.standard_normal((len(LENGTHS), LAYERS, MEMORY, WIDTH)).astype(np.float32)
        inputs["memory"] = Memory(hidden, np.ones((len(LENGTHS), MEMORY), np.int32))
    if is_reversed:
        inputs["is_reversed"] = np.array([False, False, True, True])
    return inputs


def torch_outputs(model, inputs):
    """Return hidden states and attention weights of both streams, content first, logits and the new memory."""
    tensors = {"attention_mask": torch.tensor(inputs["segment_ids"], dtype=torch.float32)}
    tensors["token_type_ids"] = torch.tensor(inputs["token_type_ids"], dtype=torch.long)
    if "predicted" in inputs:
        ranks, length = inputs["ranks"], inputs["tokens"].shape[1]
        is_predicted = (np.arange(length) == inputs["predicted"][:, :, None]).any(axis=1)
        own = np.where(is_predicted, ranks - 1, ranks)  # a token to predict does not see itself
        tensors["perm_mask"] = torch.tensor(own[:, :, None] < ranks[:, None], dtype=torch.float32)
        tensors["target_mapping"] = torch.tensor(np.eye(length, dtype=np.float32)[inputs["predicted"]])
    if "memory" in inputs:
        # [batch, layers, memory, embed] -> layers x [memory, batch, embed]
        tensors["mems"] = list(torch.tensor(np.transpose(inputs["memory"].hidden, (1, 2, 0, 3)).copy()))
        tensors["use_mems"] = True
    model.config.bi_data = model.transformer.bi_data = "is_reversed" in inputs
    with torch.no_grad():
        output = model(torch.tensor(inputs["tokens"]), output_hidden_states=True, output_attentions=True, **tensors)
    states, weights = output.hidden_states, output.attentions
    if "predicted" in inputs:
        states = [torch.cat(pair, dim=1) for pair in zip(states[::2], states[1::2], strict=True)]
        # The query stream's weights are of all places of the row, those that are not predicted included.
        rows = torch.tensor(inputs["predicted"], dtype=torch.long)[:, None, :, None].expand(-1, 4, -1, weights[0][1].shape[3])
        weights = [torch.cat([content, torch.gather(query, 2, rows)], dim=2) for content, query in weights]
    outputs = {"hidden_states": torch.stack(list(states)), "attention_probs": torch.stack(list(weights)), "logits": output.logits}
    if "memory" in inputs:
        outputs["memory"] = torch.stack(output.mems).permute(2, 0, 1, 3)
    return {name: value.numpy() for name, value in outputs.items()}


@functools.cache
def compiled(config, execution, has_memory):
    collect = frozenset({"hidden_states", "attention_probs"} | ({"memory"} if has_memory else set()))

    def run(params, inputs):
        options = {"reused": REUSED} if has_memory else {}
        encoder = config.encoder(execution)
        hidden, outputs = encoder.apply({"params": params["encoder"]}, **inputs, **options, train=False, collect=collect)
        return outputs | {"logits": parity.masked_lm(config)(params, hidden)}

    return jax.jit(run)


def run(config, params, inputs, execution=Execution()):  # noqa: B008
    with jax.default_matmul_precision("highest"):
        outputs = jax.device_get(compiled(config, execution, "memory" in inputs)(params, inputs))
    if "memory" in outputs:
        outputs["memory"] = outputs["memory"].hidden
    return outputs


def errors(actual, expected, inputs):
    """Return the largest differences at real tokens and at the predictions."""
    real = inputs["segment_ids"] > 0
    queries = np.concatenate([real, np.ones((len(real), expected["hidden_states"].shape[2] - real.shape[1]), bool)], axis=1)
    where = {
        "hidden_states": queries[None, :, :, None],
        "attention_probs": queries[None, :, None, :, None],
        "logits": True if "predicted" in inputs else real[..., None],
        # The memory of padding holds nothing that is read.
        "memory": np.concatenate([np.ones((len(real), MEMORY - REUSED), bool), real[:, :REUSED]], axis=1)[:, None, :, None],
    }
    return {name: float(np.max(np.abs(actual[name] - expected[name]) * where[name])) for name in expected}


def agree(actual, expected, inputs):
    return all(
        error <= (parity.LOGITS if name == "logits" else parity.HIDDEN)
        for name, error in errors(actual, expected, inputs).items()
    )


CASES = [
    pytest.param({}, {}, id="one stream"),
    pytest.param({}, {"side": "left"}, id="padding on the left"),
    pytest.param({}, {"parts": STREAMS}, id="two streams"),
    pytest.param({"ff_activation": "gelu_new"}, {"parts": BOTH, "side": "left"}, id="memory"),
    pytest.param({"ff_activation": "relu", "layer_norm_eps": 0.1}, {"parts": BOTH, "is_reversed": True}, id="reversed rows"),
    pytest.param({"tie_word_embeddings": False}, {"parts": STREAMS}, id="untied head"),
]


@pytest.mark.parametrize(("options", "rows"), CASES)
def test_outputs_match_torch(tmp_path, options, rows):
    """Hidden states and attention weights of both streams, logits and the new memory agree; padding is ragged."""
    model, inputs = torch_model(tmp_path / "theirs", **options), batch(**rows)
    config, params, ignored = huggingface.read(tmp_path / "theirs")
    assert isinstance(config, XLNetConfig) and ignored == ()
    actual, expected = run(config, params, inputs), torch_outputs(model, inputs)
    assert agree(actual, expected, inputs), errors(actual, expected, inputs)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = batch(parts=BOTH)
    expected = torch_outputs(torch_model(tmp_path), inputs)
    agrees = functools.partial(agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


def test_transformers_loads_exported_model(tmp_path):
    torch_model(tmp_path / "theirs")
    config, params, _ = huggingface.read(tmp_path / "theirs")
    assert huggingface.write(tmp_path / "ours", config, params) == "XLNetLMHeadModel"
    model, info = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    state = model.state_dict()
    for name, tensor in huggingface.to_tensors(XLNET, config, params).items():
        np.testing.assert_array_equal(state[name].numpy(), tensor)


def test_attention_dropout_survives_a_round_trip(tmp_path):
    torch_model(tmp_path / "theirs")
    config, params, _ = huggingface.read(tmp_path / "theirs")
    assert (config.dropout_rate, config.attention_dropout_rate) == (0.1, 0.1)
    changed = dataclasses.replace(config, attention_dropout_rate=0.0)
    huggingface.write(tmp_path / "ours", changed, params)
    assert huggingface.read(tmp_path / "ours").config == changed


def test_initial_deviations_match_torch():
    """Every tensor agrees; the deviation of 1,500 values has an error of 2 %."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "d_model": 128, "n_layer": 3, "n_head": 4, "d_inner": 96}
    model = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**sizes))
    torch_tensors = {name: value.detach().numpy() for name, value in model.named_parameters()}
    config, parts = XLNET.config_from_huggingface(model.config.to_dict()), frozenset({"encoder", "mlm_head"})
    params = jax.jit(lambda key: nn.unbox(init_encoder_parts(config, key, parts, {})))(jax.random.key(0))
    tensors = huggingface.to_tensors(XLNET, config, params)
    assert tensors.keys() == torch_tensors.keys()
    for name, value in tensors.items():
        theirs = torch_tensors[name]
        assert value.shape == theirs.shape
        many = value.size > 1000
        assert value.std() == pytest.approx(theirs.std(), rel=0.05 if many else 0.3), name
        assert value.mean() == pytest.approx(theirs.mean(), abs=1e-3 if many else 6e-3), name


@pytest.mark.parametrize(("layers", "hidden", "heads", "size"), [(12, 768, 12, 3072), (24, 1024, 16, 4096)])
def test_published_sizes_match_torch(layers, hidden, heads, size):
    with torch.device("meta"):
        model = transformers.XLNetLMHeadModel(
            transformers.XLNetConfig(d_model=hidden, n_layer=layers, n_head=heads, d_inner=size, vocab_size=32_000)
        )
    config = XLNetConfig(32_000, num_layers=layers, hidden_size=hidden, num_heads=heads, feed_forward_size=size)
    shapes = huggingface.shapes_of(config, frozenset({"encoder", "mlm_head"}))
    count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert sum(parameter.numel() for parameter in model.parameters()) == count - (config.padded_vocab_size - 32_000) * (
        hidden + 1
    )


PUBLISHED = {"model_type": "xlnet", "vocab_size": 32000, "n_layer": 12, "d_model": 768, "n_head": 12, "d_inner": 3072}
PUBLISHED |= {"attn_type": "bi", "bi_data": False, "clamp_len": -1, "d_head": 64, "untie_r": True, "same_length": False}


def test_published_config():
    assert XLNET.config_from_huggingface(PUBLISHED | {"dropout": 0.1, "ff_activation": "gelu"}) == XLNetConfig(32_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type": "uni"}, "attn_type = 'uni' is not supported, only 'bi'"),
        ({"same_length": True}, "same_length = True"),
        ({"clamp_len": 5}, "clamp_len = 5"),
        ({"bi_data": True}, "bi_data = True"),
        ({"untie_r": False}, "untie_r = False"),
        ({"d_head": 32}, "d_head = 32 is not supported, only d_model / n_head"),
        ({"d_model": None}, "d_model must be stated, as int"),
        ({"dropout": "much"}, "dropout must be of type int or float"),
        ({"ff_activation": "mish"}, "ff_activation = 'mish' is not supported"),
        ({"n_head": 7, "d_head": None}, "hidden_size = 768 is not a multiple of num_heads = 7"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | changes))
    with pytest.raises(UserError, match=message) as error:
        huggingface.read(tmp_path)
    assert "\n" not in str(error.value)


def test_predictions_of_a_loaded_model_are_those_of_the_query_stream(tmp_path, vocabulary):
    """`model.apply` predicts from all tokens but those at the positions, as transformers does with their mask and mapping."""
    config = transformers.XLNetConfig(vocab_size=vocabulary.size, attn_implementation="eager", **SIZES)
    model = parity.randomised(transformers.XLNetLMHeadModel(config), tmp_path)
    vocabulary.save(tmp_path)
    inputs = batch()
    tokens, positions = inputs["tokens"] + 10, np.array([[1, 3], [0, 2], [5, 4], [11, 3]])
    loaded = api.load(tmp_path)
    found = loaded.apply(tokens, segment_ids=inputs["segment_ids"], masked_positions=positions)
    hidden = np.zeros((4, 17, 17), np.float32)
    hidden[np.arange(4)[:, None, None], np.arange(17)[None, :, None], positions[:, None]] = 1
    with torch.no_grad():
        expected = model(
            torch.tensor(tokens),
            attention_mask=torch.tensor(inputs["segment_ids"], dtype=torch.float32),
            perm_mask=torch.tensor(hidden),
            target_mapping=torch.tensor(np.eye(17, dtype=np.float32)[positions]),
        ).logits.numpy()
    np.testing.assert_allclose(found["mlm_logits"], expected, atol=parity.LOGITS)
    changed = tokens.copy()
    np.put_along_axis(changed, positions, 7, axis=1)
    other = loaded.apply(changed, segment_ids=inputs["segment_ids"], masked_positions=positions)
    np.testing.assert_array_equal(other["mlm_logits"], found["mlm_logits"])

"""BigBird: against Hugging Face's torch class, its random blocks, and sizes."""

import dataclasses
import functools

import flax.linen as nn
import jax
import numpy as np
import parity
import pytest

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.interop import huggingface
from bertfam.kernels.attention.patterns import FULL, BlockSparse, ExtraTokens
from bertfam.layers.execution import Execution
from bertfam.models.bert import BertConfig
from bertfam.models.bigbird import BigBirdConfig, published_lists
from bertfam.models.conversion import Conversion, adopted
from bertfam.models.encoder import pooler, sentence_head
from bertfam.objectives.mlm import Mlm

LENGTHS = (45, 31, 8)


def torch_model(folder, **options):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72}
    sizes |= {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 64}
    config = transformers.BigBirdConfig(
        vocab_size=parity.VOCABULARY,
        type_vocab_size=2,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        **sizes | options,
    )
    return parity.randomised(transformers.BigBirdForPreTraining(config), folder)


def batch(lengths=LENGTHS):
    generator = np.random.default_rng(0)
    shape = (len(lengths), max(lengths))
    segment_ids = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int32)
    tokens = generator.integers(1, parity.VOCABULARY, shape) * segment_ids
    return {"tokens": tokens, "segment_ids": segment_ids, "token_type_ids": generator.integers(0, 2, shape) * segment_ids}


def torch_outputs(model, inputs):
    import torch

    tensors = {name: torch.tensor(np.int64(value)) for name, value in inputs.items()}
    with torch.no_grad():
        output = model(
            tensors["tokens"],
            attention_mask=tensors["segment_ids"],
            token_type_ids=tensors["token_type_ids"],
            output_hidden_states=True,
        )
    return {
        # All but the last are those of rows that are filled up to whole blocks.
        "hidden_states": torch.stack([hidden[:, : inputs["tokens"].shape[1]] for hidden in output.hidden_states]).numpy(),
        "mlm": output.prediction_logits.numpy(),
        "nsp": output.seq_relationship_logits.numpy(),
    }


@functools.cache
def nsp(config):
    def head(params, hidden):
        pooled = pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])
        return sentence_head(config).apply({"params": params["nsp_head"]}, pooled)

    return head


def run(config, params, inputs):
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config), nsp=nsp(config))


def agree(actual, expected, inputs):
    return parity.agree(actual, expected, inputs, everywhere=("nsp",))


@functools.cache
def compiled_encoder(config, execution):
    return jax.jit(functools.partial(config.encoder(execution).apply, train=False))


def encode(config, params, inputs, **execution):
    """Return the hidden states of the jitted encoder."""
    with jax.default_matmul_precision("highest"):
        return np.asarray(compiled_encoder(config, Execution(**execution))(params, **inputs)[0])


def random_params(config):
    """Return random parameters of the encoder, at a scale where attention matters."""
    leaves, tree = jax.tree.flatten(nn.meta.unbox(jax.eval_shape(encoder_of(config))))
    generator = np.random.default_rng(1)
    return tree.unflatten([generator.normal(0, 0.3, leaf.shape).astype(np.float32) for leaf in leaves])


@pytest.mark.parametrize("training", [False, True])
def test_outputs_match_torch(tmp_path, training):
    """In training, without dropout, transformers draws the published random blocks; otherwise it takes the first block."""
    model = torch_model(tmp_path).train(training)
    config, params, ignored = huggingface.read(tmp_path)
    assert ignored == () and config.patterns[0].within(45) == BlockSparse(4, 1, blocks=12)
    assert config == dataclasses.replace(config, attention="block_sparse", block_size=4, num_random_blocks=1)
    config = dataclasses.replace(config, random_lists="published" if training else "first")
    expected, actual = torch_outputs(model, batch()), run(config, params, batch())
    assert agree(actual, expected, batch()), parity.errors(actual, expected, batch())
    if training:
        hidden = encode(config, {"params": params["encoder"]}, batch(), attention="block_sparse")
        real = batch()["segment_ids"] > 0
        assert np.max(np.abs(hidden - expected["hidden_states"][-1])[real]) < parity.HIDDEN


def test_short_rows_have_full_attention(tmp_path):
    inputs = batch((28, 5))
    model = torch_model(tmp_path)
    config, params, _ = huggingface.read(tmp_path)
    assert config.patterns[0].within(28) == FULL and config.layer_arrays(28) is None
    expected, actual = torch_outputs(model, inputs), run(config, params, inputs)
    assert agree(actual, expected, inputs), parity.errors(actual, expected, inputs)


def test_full_attention_matches_torch(tmp_path):
    model = torch_model(tmp_path, attention_type="original_full", hidden_act="gelu")
    config, params, _ = huggingface.read(tmp_path)
    assert config.attention == "full" and config.activation == "gelu"
    expected, actual = torch_outputs(model, batch()), run(config, params, batch())
    assert agree(actual, expected, batch()), parity.errors(actual, expected, batch())


def test_rows_of_4096_tokens_match_torch(tmp_path):
    """Blocks have the published size and number."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "block_size": 64, "num_random_blocks": 3}
    model = torch_model(tmp_path, max_position_embeddings=4096, **sizes).train()
    config, params, _ = huggingface.read(tmp_path)
    inputs = batch((4096, 3001))
    hidden = encode(config, {"params": params["encoder"]}, inputs)
    expected = torch_outputs(model, inputs)["hidden_states"][-1]
    assert np.max(np.abs(hidden - expected)[inputs["segment_ids"] > 0]) < parity.HIDDEN


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = batch((28, 5))
    expected = torch_outputs(torch_model(tmp_path), inputs)
    agrees = functools.partial(agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


def test_import_and_export_round_trip(tmp_path):
    torch_model(tmp_path / "theirs")
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


@pytest.mark.parametrize("length", [1024, 3072, 4096, 2048, 8192])
def test_random_blocks_are_the_published_ones(length):
    """The lists equal those of transformers, whose functions are the published code's."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BigBirdConfig(max_position_embeddings=4096, hidden_size=24, num_attention_heads=2)
    attention = transformers.models.big_bird.modeling_big_bird.BigBirdBlockSparseAttention(config, seed=5).train()
    np.random.seed(5)  # noqa: NPY002 - the generator that transformers uses
    if length in (1024, 3072, 4096):
        lists = [attention._bigbird_block_rand_mask(4096, 4096, 64, 64, 3, last_idx=1024)[: length // 64 - 2] for _ in range(2)]
    else:
        plan = attention._get_rand_attn_plan(length, 64, 3)
        lists = attention._bigbird_block_rand_mask_with_head(length, length, 64, 64, 2, *plan)
    np.testing.assert_array_equal(published_lists(5, length // 64, 64, 3, 2, 64), np.stack(lists))


def test_heads_and_layers_have_blocks_of_their_own():
    config = BigBirdConfig(num_layers=2, num_heads=3, hidden_size=24, vocab_size=99)
    lists = config.layer_arrays(2000)["random_blocks"]
    assert lists.shape == (2, 3, 30, 3)
    assert len({array.tobytes() for layer in lists for array in layer}) == 6
    assert not config.layer_arrays(704) and not dataclasses.replace(config, attention="full").layer_arrays(2000)
    # No query attends to a block twice.
    pattern = config.patterns[0].within(2000)
    places = np.arange(2000)
    repeats = jax.jit(lambda layer: pattern.repeats(places[:, None], places[None], {"random_blocks": layer}))
    for layer in lists:
        assert np.max(repeats(layer)) == 1


def test_scan_and_unroll_agree():
    config = BigBirdConfig(
        num_layers=3,
        num_heads=2,
        hidden_size=16,
        feed_forward_size=24,
        vocab_size=parity.VOCABULARY,
        max_length=64,
        block_size=4,
        num_random_blocks=1,
    )
    params = random_params(config)
    hidden = [encode(config, params, batch(), layers=layers) for layers in ("scan", "unroll")]
    np.testing.assert_allclose(*hidden, atol=1e-5)


def extended(**changes):
    """Return a model with extra global tokens, its parameters, and a function of tokens that gives its hidden states."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_size": 16, "feed_forward_size": 24, "vocab_size": parity.VOCABULARY}
    config = BigBirdConfig(
        **sizes | {"max_length": 64, "block_size": 5, "num_random_blocks": 0, "num_global_tokens": 3} | changes
    )
    params = random_params(config)
    return config, params, lambda tokens, **execution: encode(config, params, batch() | {"tokens": tokens}, **execution)


def test_extra_global_tokens():
    config, params, hidden = extended()
    tokens, real = batch()["tokens"], batch()["segment_ids"] > 0
    assert config.patterns == (ExtraTokens(3, 5),)
    assert params["params"]["embeddings"]["extra_tokens"]["table"].shape == (3, 16)
    states = hidden(tokens, attention="blocks")
    assert states.shape == (*tokens.shape, 16)
    assert np.max(np.abs(states - hidden(tokens, attention="reference"))[real]) < parity.HIDDEN


def test_extra_global_tokens_carry_text_from_far_away():
    """A token sees its block and the blocks beside it in a layer, and through global tokens all others in the next."""
    changed = batch()["tokens"].copy()
    changed[0, 0] = changed[0, 0] % 20 + 1
    assert changed[0, 0] != batch()["tokens"][0, 0]
    for layers in (1, 2):
        _, _, hidden = extended(num_layers=layers)
        before, after = (hidden(tokens, attention="blocks") for tokens in (batch()["tokens"], changed))
        differences = np.max(np.abs(after - before)[0], axis=-1)
        assert np.all(differences[:10] > 0)
        assert np.all(differences[10:] > 0) if layers == 2 else np.all(differences[10:] == 0)


def test_extra_global_tokens_require_rows_of_one_document(tmp_path):
    config, params, _ = extended()
    with pytest.raises(UserError, match="DocSentences"):
        Mlm(config).features(RowShape(45, 7, examples=2))
    positions = np.zeros_like(batch()["tokens"])
    with pytest.raises(UserError, match="packed"):
        config.encoder().apply(params, **batch(), positions=positions, train=False)
    with pytest.raises(UserError, match="num_global_tokens"):
        dataclasses.replace(config, num_random_blocks=1)
    with pytest.raises(UserError, match="num_global_tokens = 3"):
        huggingface.write(tmp_path / "theirs", config, {"encoder": params["params"]})
    assert not (tmp_path / "theirs").exists()


def test_extra_global_tokens_are_not_started_from_a_model_without_them():
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_size": 16, "feed_forward_size": 24, "vocab_size": 99, "max_length": 64}
    old = BertConfig(**sizes)
    new = adopted(BigBirdConfig, old, {"num_global_tokens": 64, "num_random_blocks": 0})
    given, boxed = (jax.eval_shape(encoder_of(config))["params"] for config in (old, new))
    with pytest.raises(UserError, match="embeddings/extra_tokens/table.*--init_from"):
        Conversion(old, new).params(boxed, nn.meta.unbox(given))


def test_published_size_with_extra_global_tokens():
    """It has the parameters of BigBird-base and 256 rows for the global tokens; its rows are counted with them."""
    base, extra = (
        load([f"models/{name}.gin", "objectives/mlm.gin", "runs/defaults.gin"]).build("Run").objective.model.sized(50_358)
        for name in ("bigbird_base", "bigbird_etc_base")
    )
    counts = [sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(encoder_of(config)))) for config in (base, extra)]
    assert counts[1] - counts[0] == 256 * 768
    pairs = extra.patterns[0].pairs(4096 + 256)
    assert pairs < 4352 * (512 + 3 * 84)
    per_token = 8 * 768**2 + 4 * 768 * 3072
    assert extra.flops(4096, 0) == 3 * 12 * (4352 * per_token + 4 * 768 * pairs)


def encoder_of(config):
    tokens = np.zeros((1, 8), np.int32)
    return lambda: config.encoder().init(jax.random.key(0), tokens, segment_ids=tokens, token_type_ids=tokens, train=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [({"use_bias": False}, "use_bias"), ({"attention_type": "sparse"}, "attention_type"), ({"block_size": "64"}, "block_size")],
)
def test_other_variants_are_refused(content, message):
    from bertfam.models.bigbird import config_from_huggingface

    with pytest.raises(UserError, match=message):
        config_from_huggingface(content)

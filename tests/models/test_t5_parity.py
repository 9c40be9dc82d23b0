"""T5 and mT5 against Hugging Face's torch classes."""

import dataclasses
import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import encoder_decoder_parity as seq2seq_parity
import jax
import numpy as np
import parity
import pytest
import xla
from flax import linen as nn

from bertfam import api
from bertfam.decoding.stepper import Ends
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.layers.heads.pretraining import NO_TOKEN_LOGIT
from bertfam.models import language_model
from bertfam.models.encoder_decoder import EncoderOnlyConfig
from bertfam.models.language_model import init_language_model
from bertfam.models.mt5 import MT5Config
from bertfam.models.t5 import T5Config

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")

# Three heads of width 8 in a model of width 32.
SIZES = {"d_model": 32, "d_kv": 8, "num_heads": 3, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3}
V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
OPTIONS = [
    pytest.param("t5", {}, True, {"activation": "relu", "gated": False, "tie_embeddings": True, "scale_logits": True}, id="1.0"),
    pytest.param(
        "t5", V1_1, False, {"activation": "gelu_tanh", "gated": True, "tie_embeddings": False, "scale_logits": False}, id="1.1"
    ),
    pytest.param(
        "mt5",
        {"num_decoder_layers": None, "feed_forward_proj": "gated-silu"},
        False,
        {"num_encoder_layers": None, "tie_embeddings": False, "activation": "silu", "gated": True},
        id="mt5",
    ),
    pytest.param(
        "t5",
        {"feed_forward_proj": "gelu", "tie_word_embeddings": False, "layer_norm_epsilon": 0.1, "num_decoder_layers": 1},
        True,
        {"activation": "gelu", "tie_embeddings": True, "scale_logits": False, "layer_norm_epsilon": 0.1},
        id="tied, not scaled",
    ),
    pytest.param(
        "t5",
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9, "feed_forward_proj": "gated-gelu_python"}
        | {"num_decoder_layers": 1},
        False,
        {"relative_buckets": 8, "relative_max_distance": 9, "activation": "gelu", "scale_logits": True, "tie_embeddings": False},
        id="scaled head of its own, few buckets",
    ),
]
CLASSES = {"t5": "T5", "mt5": "MT5"}


def torch_model(folder, kind="t5", tied=True, **options):
    """Return a model with random parameters, saved in `folder`; untied heads have values of their own, as in published files.

    All values deviate by 0.3 from 0 or 1: norms before every product keep scores, which are not divided, at about 10.
    """
    name = CLASSES[kind]
    config = getattr(transformers, f"{name}Config")(vocab_size=parity.VOCABULARY, decoder_start_token_id=0, **(SIZES | options))
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    return seq2seq_parity.loaded(parity.randomised(kind(config), folder), folder, None if tied else "shared.weight")


@pytest.mark.parametrize(("kind", "options", "tied", "fields"), OPTIONS)
def test_outputs_match_torch(tmp_path, kind, options, tied, fields):
    """All hidden states, attention weights of all layers and logits agree, with ragged rows in encoder and decoder."""
    model = torch_model(tmp_path / "theirs", kind, tied, **options)
    config, params, ignored = huggingface.read(tmp_path / "theirs")
    assert type(config) is {"t5": T5Config, "mt5": MT5Config}[kind] and ignored == ()
    assert {name: getattr(config, name) for name in fields} == fields and ("lm_head" in params) == (not tied)
    inputs = seq2seq_parity.batch()
    actual, expected = seq2seq_parity.jax_outputs(config, params, inputs), seq2seq_parity.torch_outputs(model, inputs)
    assert len(expected["encoder/attention_probs"]) == 2 and len(expected["decoder/attention_probs"]) == config.num_layers
    assert seq2seq_parity.agree(actual, expected, inputs), seq2seq_parity.errors(actual, expected, inputs)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_encoder_alone_matches_torch_encoder_model(tmp_path):
    torch_model(tmp_path)
    encoder = transformers.T5EncoderModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens, segment_ids = seq2seq_parity.batch()["encoder"]
    with torch.no_grad():
        output = encoder(
            input_ids=torch.tensor(tokens).long(),
            attention_mask=torch.tensor(segment_ids),
            output_hidden_states=True,
            output_attentions=True,
        )
    config, params, _ = huggingface.read(tmp_path)
    vocabulary = types.SimpleNamespace(size=parity.VOCABULARY)
    model = api.LanguageModel(config, params, vocabulary, Ends((), 0, 0))
    collect = ("hidden_states", "attention_probs")
    actual = model.encode(tokens, segment_ids=segment_ids, collect=collect)
    alone = EncoderOnlyConfig(config)
    as_encoder = api.Model(alone, alone.params_of(params), vocabulary).apply(tokens, segment_ids=segment_ids, collect=collect)
    assert as_encoder.keys() == actual.keys() and all(np.array_equal(as_encoder[name], actual[name]) for name in actual)
    assert np.array_equal(actual.pop("hidden"), actual["hidden_states"][-1])
    real = segment_ids > 0
    where = {"hidden_states": real[..., None], "attention_probs": real[:, None, :, None] & real[:, None, None, :]}
    expected = {"hidden_states": output.hidden_states, "attention_probs": output.attentions}
    for name, values in expected.items():
        torch_values = torch.stack(values).numpy()
        assert (
            actual[name].shape == torch_values.shape
            and np.max(np.abs(actual[name] - torch_values) * where[name]) <= parity.HIDDEN
        ), name


@pytest.mark.parametrize(("options", "tied"), [({}, True), (V1_1, False)], ids=["1.0", "1.1"])
def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch, options, tied):
    inputs = seq2seq_parity.batch()
    expected = seq2seq_parity.torch_outputs(torch_model(tmp_path, "t5", tied, **options), inputs)
    agrees = functools.partial(seq2seq_parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(
        monkeypatch, tmp_path, functools.partial(seq2seq_parity.jax_outputs, inputs=inputs), agrees
    )


def test_float64_outputs_match_torch_in_float64(tmp_path, monkeypatch):
    """Differences in float32 are rounding, which grows with width and depth in a residual sum without norms."""
    # The last of the options above with as many layers as the first, where float32 differs by 2e-4.
    options = {
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 9,
        "feed_forward_proj": "gated-gelu_python",
    }
    model = torch_model(tmp_path, "t5", False, **options)
    inputs = seq2seq_parity.batch()
    np.savez(tmp_path / "inputs.npz", **{name: np.stack(values) for name, values in inputs.items()})
    script = Path(__file__).with_name("encoder_decoder_float64.py")
    environment = os.environ | xla.device_environment() | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, str(script), str(tmp_path / "inputs.npz"), str(tmp_path)], check=True, env=environment)
    # transformers computes the statistics of norms in float32 in a model of any dtype.
    monkeypatch.setattr(torch, "float32", torch.float64)
    expected = seq2seq_parity.torch_outputs(model.double(), inputs)
    assert {value.dtype.name for value in expected.values()} == {"float64"}
    assert max(seq2seq_parity.errors(dict(np.load(tmp_path / "outputs.npz")), expected, inputs).values()) < 1e-10


@pytest.mark.parametrize(
    ("kind", "options", "tied"),
    [("t5", {}, True), ("t5", V1_1, False), ("t5", {"tie_word_embeddings": False}, True), ("mt5", {}, False), ("mt5", {}, True)],
)
def test_transformers_loads_exported_model(tmp_path, kind, options, tied):
    """An export leaves out the padding of the vocabulary, and keeps an untied head and the scaling of logits."""
    original = torch_model(tmp_path / "theirs", kind, tied, **options)
    config, params, _ = huggingface.read(tmp_path / "theirs")
    assert params["embeddings"]["table"].shape == (128, 32)
    name = f"{CLASSES[kind]}ForConditionalGeneration"
    assert huggingface.write(tmp_path / "ours", config, params) == name
    model, info = getattr(transformers, name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    before, after = original.state_dict(), model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    changed = {name for name, value in original.config.to_dict().items() if model.config.to_dict().get(name) != value}
    # The export of a run takes ids from its vocabulary.
    ids = {f"{name}_token_id" for name in ("eos", "pad", "decoder_start")}
    assert changed <= {"_name_or_path", "architectures", "dtype"} | ids, changed


CONFIG = {"model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6}


@pytest.mark.parametrize(
    ("fields", "scaled"),
    [
        ({}, True),  # as version 1.0 was published
        ({"tie_word_embeddings": True}, True),
        ({"tie_word_embeddings": False}, False),  # as version 1.1 was published
        ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False),  # the same, saved again by transformers 5
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, True),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, True),
    ],
)
def test_head_options_of_config_json(fields, scaled):
    """The scaling is read as by transformers 5; the tensors tell if the head is tied. mT5 never scales."""
    config = huggingface.FAMILIES["t5"].config_from_huggingface(CONFIG | fields)
    assert (config.scale_logits, config.tie_embeddings) == (scaled, True)
    assert transformers.T5Config(**CONFIG, **fields).scale_decoder_outputs == scaled
    other = huggingface.FAMILIES["mt5"].config_from_huggingface(CONFIG | fields)
    assert type(other) is MT5Config and other.logit_scale == 1 and other.gated


def test_copies_of_the_word_table(tmp_path):
    """Old files have a copy for each network, and a table that nothing reads; a copy with other values is refused."""
    torch_model(tmp_path)
    path, expected = tmp_path / "model.safetensors", huggingface.read(tmp_path)
    tensors = safetensors.load_file(path)
    table = tensors.pop("shared.weight")
    unread = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((32, 3), np.float32)}
    copies = {"encoder.embed_tokens.weight": table, "decoder.embed_tokens.weight": table, "lm_head.weight": table}
    safetensors.save_file(tensors | copies | unread, path)
    actual = huggingface.read(tmp_path)
    assert actual.config == expected.config and actual.ignored == ()
    jax.tree.map(np.testing.assert_array_equal, actual.params, expected.params)
    safetensors.save_file(tensors | copies | {"decoder.embed_tokens.weight": table + 1}, path)
    with pytest.raises(UserError, match="there are two of shared.weight, with different values"):
        huggingface.read(tmp_path)


def test_rows_without_a_token_are_kept_and_never_predicted(tmp_path):
    """The published tables have 28 such rows after their 32,100 pieces."""
    model = torch_model(tmp_path / "theirs", "t5", False, **V1_1)
    config, params, _ = huggingface.read(tmp_path / "theirs")
    config = huggingface.with_vocabulary(config, types.SimpleNamespace(size=90), tmp_path)
    assert (config.vocab_size, config.table_rows, config.padded_vocab_size) == (90, 101, 128)
    hidden = np.ones((1, 2, 32), np.float32)
    logits = jax.jit(lambda params: language_model.logits(config, params, hidden))(params)
    expected = model.lm_head(torch.tensor(hidden)).detach().numpy()
    np.testing.assert_allclose(logits[..., :90], expected[..., :90], atol=1e-5)
    assert np.all(logits[..., 90:] == NO_TOKEN_LOGIT)
    huggingface.write(tmp_path / "ours", config, params)
    before, after = (safetensors.load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)


def test_initial_deviations_match_torch():
    """Every tensor agrees, also of relative positions; an untied head, tied in torch, starts at 1 / sqrt(width) here."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "d_model": 96, "d_kv": 16, "num_heads": 9, "d_ff": 200, "num_layers": 3}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **V1_1))
    torch_tensors = {name: value.detach().numpy() for name, value in model.named_parameters()}
    config = huggingface.FAMILIES["t5"].config_from_huggingface(model.config.to_dict())
    config = dataclasses.replace(config, tie_embeddings=False)
    tensors = huggingface.to_tensors(
        huggingface.FAMILIES["t5"], config, jax.jit(lambda key: nn.unbox(init_language_model(config, key)))(jax.random.key(0))
    )
    assert tensors.pop("lm_head.weight").std() == pytest.approx(96**-0.5, rel=0.02)
    assert tensors.keys() == torch_tensors.keys()
    for name, value in tensors.items():
        # The deviation of n values has a relative error of 1 / sqrt(2 n).
        error = 5 / np.sqrt(2 * value.size) + 5 / np.sqrt(2 * torch_tensors[name].size)
        assert (
            value.shape == torch_tensors[name].shape
            and abs(value.mean() - torch_tensors[name].mean()) <= error * torch_tensors[name].std() + 1e-9
        )
        assert value.std() == pytest.approx(torch_tensors[name].std(), rel=error, abs=1e-9), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": None}, "d_model must be stated, as int"),
        ({"relative_attention_num_buckets": "many"}, "relative_attention_num_buckets must be of type int"),
        ({"dropout_rate": True}, "dropout_rate must be of type int or float"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be of type bool"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False is not supported, only True"),
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj = 'gated-tanh' is not supported, only relu"),
        ({"relative_attention_max_distance": 16}, "relative_max_distance = 16 must be at least 17"),
        ({"num_heads": 0}, "num_heads = 0 must be at least 1"),
    ],
)
def test_unsupported_configs_are_refused(changes, message):
    with pytest.raises(UserError, match=message) as error:
        huggingface.FAMILIES["t5"].config_from_huggingface(CONFIG | changes)
    assert "\n" not in str(error.value)

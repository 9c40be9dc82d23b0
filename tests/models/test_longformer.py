"""Longformer: against Hugging Face's torch class, global tokens, windows of each layer, and sizes."""

import dataclasses
import functools
import re

import jax
import numpy as np
import parity
import pytest
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.kernels.attention.choice import choose
from bertfam.kernels.attention.interface import Request
from bertfam.kernels.attention.patterns import GlobalTokens, Window
from bertfam.layers.execution import Execution
from bertfam.models.conversion import Conversion, adopted
from bertfam.models.encoder import init_encoder
from bertfam.models.longformer import LongformerConfig
from bertfam.models.roberta import RobertaConfig


def torch_model(folder, windows=(4, 8), length=20, hidden_size=48):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LongformerConfig(
        vocab_size=parity.VOCABULARY,
        hidden_size=hidden_size,
        num_hidden_layers=len(windows),
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=length + 2,
        type_vocab_size=1,
        pad_token_id=1,
        layer_norm_eps=1e-5,
        attention_window=list(windows),
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    return parity.randomised(transformers.LongformerForMaskedLM(config), folder)


def batch():
    """Return ragged rows with two global tokens, one, or none."""
    inputs = parity.batch(1)
    inputs["global_tokens"] = np.zeros(inputs["tokens"].shape, bool)
    inputs["global_tokens"][0, [0, 9]] = inputs["global_tokens"][2, 3] = True
    return inputs


def torch_outputs(model, inputs):
    import torch

    flags = {"attention_mask": inputs["segment_ids"], "global_attention_mask": inputs["global_tokens"]}
    flags = {name: torch.tensor(np.int64(value)) for name, value in flags.items()}
    with torch.no_grad():
        output = model(torch.tensor(np.int64(inputs["tokens"])), **flags, output_hidden_states=True)
    return {"hidden_states": torch.stack(output.hidden_states).numpy(), "mlm": output.logits.numpy()}


def run(config, params, inputs):
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config))


def test_outputs_match_torch(tmp_path):
    model = torch_model(tmp_path)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, LongformerConfig) and ignored == () and config.window == (4, 8)
    expected = torch_outputs(model, batch())
    actual = run(config, params, batch())
    assert parity.agree(actual, expected, batch()), parity.errors(actual, expected, batch())
    # without global tokens, and by blocks in place of the reference
    inputs = batch() | {"global_tokens": np.zeros_like(batch()["global_tokens"])}
    expected = torch_outputs(model, inputs)
    del inputs["global_tokens"]
    with jax.default_matmul_precision("highest"):
        encoder = config.encoder(Execution(attention="blocks"))
        hidden, _ = jax.jit(functools.partial(encoder.apply, train=False))({"params": params["encoder"]}, **inputs)
    actual = {"hidden_states": np.asarray(hidden)}
    expected = {"hidden_states": expected["hidden_states"][-1]}
    assert parity.errors(actual, expected, inputs)["hidden_states"] < parity.HIDDEN


def test_rows_of_4096_tokens_match_torch(tmp_path):
    """Attention is computed by blocks, with 33 global tokens in the first row and padding in the second."""
    length = 4096
    model = torch_model(tmp_path, windows=(64,), length=length, hidden_size=16)
    config, params, _ = huggingface.read(tmp_path)
    generator = np.random.default_rng(0)
    inputs = {
        "tokens": generator.integers(2, parity.VOCABULARY, (2, length)),
        "segment_ids": np.int32(np.arange(length) < np.array([[length], [3001]])),
        "token_type_ids": np.zeros((2, length), np.int32),
        "global_tokens": np.zeros((2, length), bool),
    }
    inputs["tokens"] = np.where(inputs["segment_ids"], inputs["tokens"], 1)
    inputs["global_tokens"][0, ::128] = inputs["global_tokens"][0, 77] = True
    assert choose(Request("float32", length, 4, config.patterns[0]).here())[0].name == "blocks"
    encoder = config.encoder()
    with jax.default_matmul_precision("highest"):
        hidden, _ = jax.jit(functools.partial(encoder.apply, train=False))({"params": params["encoder"]}, **inputs)
    expected = torch_outputs(model, inputs)["hidden_states"][-1]
    assert np.max(np.abs(hidden - expected)[inputs["segment_ids"] > 0]) < parity.HIDDEN


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    expected = torch_outputs(torch_model(tmp_path), batch())
    agrees = functools.partial(parity.agree, expected=expected, inputs=batch())
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=batch()), agrees)


def test_import_and_export_round_trip(tmp_path):
    torch_model(tmp_path / "theirs")
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


CONFIG = LongformerConfig(
    vocab_size=99,
    num_layers=3,
    hidden_size=32,
    num_heads=2,
    feed_forward_size=48,
    max_length=64,
    window=(4, 8, 4),
    dilation=(1, 1, 2),
)


def test_files_of_a_model_without_global_projections_have_copies_of_the_others(tmp_path):
    pytest.importorskip("transformers")
    config = dataclasses.replace(CONFIG, dilation=1, global_projections=False)
    params = jax.tree.map(
        lambda leaf: np.random.default_rng(leaf.size).standard_normal(leaf.shape, np.float32),
        huggingface.shapes_of(config, frozenset({"encoder", "mlm_head"})),
    )
    huggingface.write(tmp_path, config, params)
    read = huggingface.read(tmp_path)
    assert read.config == dataclasses.replace(config, global_projections=True)
    attention = read.params["encoder"]["layers"]["attention"]
    for name in ("query", "key", "value"):
        assert np.array_equal(attention[name]["kernel"], attention[f"{name}_global"]["kernel"])
        assert np.array_equal(attention[name]["kernel"], params["encoder"]["layers"]["attention"][name]["kernel"])


def test_a_converted_roberta_computes_what_it_did():
    """In rows that its window covers; later tokens have the positions of the first ones again."""
    options = {"vocab_size": 99, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "feed_forward_size": 48}
    short = RobertaConfig(**options, max_length=16, position_offset=1)
    long = adopted(LongformerConfig, short, {"window": 80, "max_length": 40})
    assert (long.max_length, long.hidden_size, long.window, long.position_offset) == (40, 32, 80, 1)
    boxed = jax.eval_shape(lambda key: init_encoder(long, key), jax.random.key(0))
    theirs = jax.tree.map(
        lambda leaf: np.random.default_rng(leaf.size).standard_normal(leaf.shape, np.float32) / 3,
        huggingface.shapes_of(short, frozenset({"encoder"}))["encoder"],
    )
    ours = Conversion(short, long).params(boxed, theirs)
    assert jax.tree.map(np.shape, ours) == jax.tree.map(np.shape, nn.unbox(boxed))
    tokens = np.random.default_rng(0).integers(1, 99, (1, 40))

    def encoder_of(config):
        def run(params, row):
            ones = np.ones(row.shape, np.int32)
            return config.encoder().apply({"params": params}, row, segment_ids=ones, token_type_ids=0 * ones, train=False)[0]

        return jax.jit(run)

    run_short, run_long = encoder_of(short), encoder_of(long)
    hidden = [run_short(theirs, tokens[:, :16]), run_long(ours, tokens[:, :16]), run_long(ours, tokens)]
    np.testing.assert_allclose(hidden[0], hidden[1], atol=1e-5)
    assert not np.allclose(hidden[2][:, :16], hidden[1], atol=1e-3)
    # Tokens 0 to 15 and 16 to 31 have the same positions, so that they may change places.
    again = np.concatenate([tokens[:, 16:32], tokens[:, :16], tokens[:, 32:]], axis=1)
    changed = run_long(ours, again)
    np.testing.assert_allclose(changed[:, :16], hidden[2][:, 16:32], atol=1e-5)


def test_first_tokens_of_packed_examples_are_global():
    """What the first token of an example says reaches every token of it, and none of the other example."""
    config = dataclasses.replace(CONFIG, num_layers=1, window=4, dilation=1, global_tokens="first", dropout_rate=0.0)
    segment_ids = np.array([[1] * 20 + [2] * 30 + [0] * 4], np.int32)
    positions = np.concatenate([np.arange(20), np.arange(30), np.zeros(4)]).astype(np.int32)[None]
    tokens = np.random.default_rng(0).integers(1, 99, segment_ids.shape)
    encoder = config.encoder()
    options = {"segment_ids": segment_ids, "positions": positions, "token_type_ids": np.zeros_like(tokens), "train": False}
    generator = np.random.default_rng(1)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: encoder.init(key, tokens, **options), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: generator.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    run = jax.jit(lambda tokens: encoder.apply(params, tokens, **options)[0])
    before, after = run(tokens), run(np.where(np.arange(54) == 20, tokens % 98 + 1, tokens))
    changed = np.any(np.asarray(before != after)[0], axis=-1)
    assert np.array_equal(changed, segment_ids[0] == 2)


def test_patterns_and_flops_of_layers_with_different_windows():
    assert CONFIG.layer_windows == (Window(2, 2), Window(4, 4), Window(4, 4, dilation=2))
    assert CONFIG.patterns == CONFIG.layer_windows
    first = dataclasses.replace(CONFIG, global_tokens="first", max_global_tokens=2)
    assert first.patterns[0] == GlobalTokens(Window(2, 2), 2)
    pairs = sum(
        abs(i - j) <= side and (i - j) % gap == 0 for side, gap in ((2, 1), (4, 1), (4, 2)) for i in range(30) for j in range(30)
    )
    assert CONFIG.flops(30, 4) == 3 * (3 * 30 * (8 * 32**2 + 4 * 32 * 48) + 4 * 32 * pairs + 4 * (2 * 32**2 + 2 * 32 * 99))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": (4, 8)}, "window = (4, 8) must have 3"),
        ({"window": 0}, "window = 0 must be a whole number"),
        ({"dilation": (1, 0, 1)}, "dilation = (1, 0, 1) must be a whole number"),
        ({"global_tokens": "all"}, "global_tokens"),
        ({"global_tokens": "first", "global_projections": False}, "requires global_projections"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        dataclasses.replace(CONFIG, **options)


def test_dilated_windows_are_not_exported(tmp_path):
    params = huggingface.shapes_of(CONFIG, frozenset({"encoder"}))
    with pytest.raises(UserError, match="dilation"):
        huggingface.write(tmp_path / "out", CONFIG, jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), params))

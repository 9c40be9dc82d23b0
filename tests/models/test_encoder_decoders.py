"""Encoder-decoders: parameter trees, visible tokens, caches, loops over layers, dropout, lengths, FLOPs."""

import dataclasses
import functools
import json
from pathlib import Path

import encoder_decoder_parity as seq2seq_parity
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.kernels.attention import reference
from bertfam.layers import dropout
from bertfam.layers.attention.key_value_cache import empty
from bertfam.layers.execution import Execution
from bertfam.models.bart import BartConfig
from bertfam.models.language_model import init_language_model, logits, word_embeddings
from bertfam.models.mt5 import MT5Config
from bertfam.models.t5 import T5Config

GOLDEN = Path(__file__).parent / "golden" / "encoder_decoder_parameters.json"
SIZES = {"vocab_size": 101, "num_layers": 3, "num_encoder_layers": 2, "hidden_size": 32, "feed_forward_size": 40}
RATES = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "feed_forward_dropout_rate": 0.0}
CONFIGS = {
    "t5": T5Config(**SIZES, num_heads=3, head_dim=8, dropout_rate=0.0),
    "mt5": MT5Config(**SIZES, num_heads=3, head_dim=8, dropout_rate=0.0),
    "bart": BartConfig(**SIZES, num_heads=4, num_encoder_heads=2, max_length=17, **RATES),
}


@functools.cache
def boxed_shapes(config):
    return jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0))


@functools.cache
def random_params(name):
    return seq2seq_parity.random_params(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_parameter_trees(name):
    boxes = jax.tree_util.tree_leaves_with_path(
        boxed_shapes(CONFIGS[name]), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    assert tree == json.loads(GOLDEN.read_text())[name]


# Tokens of two examples, in encoder and decoder.
FIRST, SECOND = (6, 4), (8, 5)


def packed_rows():
    """Return both examples in row 0, each alone in rows 1 and 2; row 3 has nothing in the encoder."""
    generator, rows = np.random.default_rng(0), {}
    for network, length, first, second in zip(("encoder", "decoder"), (17, 11), FIRST, SECOND, strict=True):
        texts = [generator.integers(3, 101, size) for size in (first, second)]
        tokens, segments, positions = np.zeros((3, 4, length), np.int32)
        last = ([], []) if network == "encoder" else ([texts[0]], [1])
        for row, (parts, ids) in enumerate(((texts, [1, 2]), (texts[:1], [1]), (texts[1:], [1]), last)):
            place = 0
            for part, segment in zip(parts, ids, strict=True):
                span = slice(place, place + len(part))
                tokens[row, span], segments[row, span], positions[row, span] = part, segment, np.arange(len(part))
                place += len(part)
        rows[network] = (tokens, segments, positions)
    return rows


def change_tokens(rows, network, where):
    tokens, *rest = rows[network]
    return rows | {network: (np.where(where, (tokens + 1) % 101, tokens), *rest)}


@pytest.mark.parametrize("name", ["mt5", "bart"])
def test_tokens_see_only_allowed_tokens_of_their_example(name):
    """A token sees, in both networks and in cross-attention, only its own example and, in the decoder, no later token."""
    rows = packed_rows()

    def run(rows):
        return np.asarray(seq2seq_parity.jax_outputs(CONFIGS[name], random_params(name), rows)["logits"])

    before = run(rows)
    assert np.all(np.isfinite(before))
    first, second = np.s_[0, : FIRST[1]], np.s_[0, FIRST[1] : FIRST[1] + SECOND[1]]
    np.testing.assert_allclose(before[first], before[1, : FIRST[1]], atol=1e-5)
    np.testing.assert_allclose(before[second], before[2, : SECOND[1]], atol=1e-5)
    for network in ("encoder", "decoder"):
        after = run(change_tokens(rows, network, rows[network][1] == 1 & (np.arange(4) == 0)[:, None]))
        assert np.array_equal(after[second], before[second])
        assert np.all(np.any(after[first] != before[first], axis=-1))
        padding = rows[network][1] == 0
        after, real = run(change_tokens(rows, network, padding)), rows["decoder"][1][:3] > 0
        assert np.array_equal(after[:3][real], before[:3][real])
    after = run(change_tokens(rows, "decoder", np.arange(11) >= 2))
    assert np.array_equal(after[:, :2], before[:, :2]) and np.all(np.any(after[:3, 2] != before[:3, 2], axis=-1))

    # Rows of one example each agree without positions, too.
    plain = {network: values[:2] for network, values in rows.items()}
    np.testing.assert_allclose(run(plain)[1:3, :4], before[1:3, :4], atol=1e-5)


def test_backends_and_unrolled_layers_agree_on_packed_rows():
    """Attention is bidirectional and causal, with relative positions as terms of scores, and between the networks."""
    config, params, rows = CONFIGS["mt5"], halved(random_params("mt5")), packed_rows()
    execution = Execution(attention="xla", layers="unroll")

    @jax.jit
    def run(params):
        return logits(config, params, seq2seq_parity.outputs(config, params, rows, execution, train=False)[0])

    actual, expected = np.asarray(run(params))[..., :101], np.asarray(seq2seq_parity.jax_outputs(config, params, rows)["logits"])
    real = rows["decoder"][1] > 0
    real[3] = False  # a query that sees no key has finite outputs, which differ between backends
    assert np.all(np.isfinite(actual))
    np.testing.assert_allclose(actual[real], expected[real], atol=1e-5)


@pytest.mark.parametrize("name", ["mt5", "bart"])
def test_cache_changes_no_logits(name):
    """A prefix with the encoder's output, then single tokens without it, in a cache with unused slots, match whole rows."""
    config, params, rows = CONFIGS[name], halved(random_params(name)), seq2seq_parity.batch()
    # Prefixes are padded on the left.
    real = np.flip(rows["decoder"][1], axis=1)
    positions = np.maximum(np.cumsum(real, axis=1) - 1, 0).astype(np.int32)
    decoder_inputs = {"tokens": np.flip(rows["decoder"][0], axis=1), "segment_ids": real, "positions": positions}
    rows = rows | {"decoder": tuple(decoder_inputs.values())}
    expected = np.asarray(seq2seq_parity.jax_outputs(config, params, rows)["logits"])

    @jax.jit
    def encode(params):
        row = {"segment_ids": rows["encoder"][1], "train": False}
        return config.encoder().apply({"params": params["encoder"]}, word_embeddings(params), rows["encoder"][0], **row)[0]

    @jax.jit
    def step(params, cache, inputs, encoded):
        options = {"encoded": encoded, "encoded_segment_ids": rows["encoder"][1], "train": False, "cache": cache}
        hidden, outputs = config.decoder().apply({"params": params["decoder"]}, word_embeddings(params), **inputs, **options)
        return logits(config, params, hidden), outputs["cache"]

    cache, outputs = empty(config.num_layers, 4, 13, config.num_kv_heads, config.head_dim, jnp.float32), []
    with jax.default_matmul_precision("highest"):
        encoded = encode(params)
        for places in (slice(0, 6), *(slice(place, place + 1) for place in range(6, 11))):
            inputs = {key: value[:, places] for key, value in decoder_inputs.items()}
            part, cache = step(params, cache, inputs, encoded if places.start == 0 else None)
            outputs.append(part)
    assert int(cache.filled) == 11 and np.array_equal(cache.segment_ids[:, :11], real)
    assert cache.cross_keys.shape == (3, 4, 17, config.num_heads, config.head_dim)
    outputs = np.concatenate(outputs, axis=1)[..., :101]
    assert np.all(np.isfinite(outputs))
    np.testing.assert_allclose(outputs[real > 0], expected[real > 0], atol=1e-4)
    # The same rows, padded on the right, are other rows.
    right = (
        np.flip(expected, axis=1)[0],
        np.asarray(seq2seq_parity.jax_outputs(config, params, seq2seq_parity.batch())["logits"])[0],
    )
    assert not np.allclose(*right, atol=1e-3)  # their tokens are in the opposite order
    if name == "bart":
        without = {name: value for name, value in inputs.items() if name != "positions"}
        with pytest.raises(ValueError, match="positions must be given"):
            step(params, cache, without, None)


def test_gradients_are_finite():
    """Dropout is on, and a row has nothing in the encoder."""
    config = dataclasses.replace(CONFIGS["mt5"], num_layers=1, num_encoder_layers=1, dropout_rate=0.2)
    params, rows = halved(seq2seq_parity.random_params(config)), packed_rows()

    def loss(params):
        execution, rngs = Execution(attention="reference", layers="unroll"), {"dropout": jax.random.key(3)}
        hidden, _ = seq2seq_parity.outputs(config, params, rows, execution, train=True, rngs=rngs)
        return jnp.mean(jax.nn.logsumexp(logits(config, params, hidden, execution), axis=-1))

    gradient = jax.device_get(jax.jit(jax.grad(loss))(params))
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


def halved(params):
    """Halve the parameters: scores are not divided, so that large ones harden attention and amplify rounding and gradients."""
    return jax.tree.map(lambda leaf: leaf / 2, params)


def test_logits_bias_of_bart_is_not_trained():
    config, params = CONFIGS["bart"], random_params("bart")
    hidden = np.ones((1, 2, 32), np.float32)

    def loss(head):
        return jnp.sum(jax.nn.log_softmax(logits(config, params | {"lm_head": head}, hidden))[..., 5])

    run = jax.jit(jax.value_and_grad(loss))
    value, gradient = jax.device_get(run(params["lm_head"]))
    assert not np.any(gradient["bias"])
    assert run({"bias": params["lm_head"]["bias"] + np.eye(128, dtype=np.float32)[5]})[0] > value + 0.5


def test_bfloat16_is_finite_and_near():
    """This includes feed-forward products beyond 65,504, the maximum of float16, as T5-base has."""
    config, params, rows, narrow = CONFIGS["t5"], random_params("t5"), packed_rows(), Execution(dtype="bfloat16")
    wide, actual = (
        seq2seq_parity.jax_outputs(config, params, rows)["logits"],
        seq2seq_parity.jax_outputs(config, params, rows, narrow),
    )
    assert actual["decoder/hidden_states"].dtype == jnp.bfloat16 and actual["logits"].dtype == jnp.float32
    real = rows["decoder"][1] > 0
    assert np.all(np.isfinite(actual["logits"]))
    assert np.mean(np.abs(actual["logits"] - wide)[real]) < 0.1 * np.std(wide[real])
    layers = params["encoder"]["layers"]
    output = {"output": jax.tree.map(lambda leaf: leaf * 30_000, layers["feed_forward"]["output"])}
    layers = layers | {"feed_forward": layers["feed_forward"] | output}
    actual = seq2seq_parity.jax_outputs(config, params | {"encoder": params["encoder"] | {"layers": layers}}, rows, narrow)
    assert np.max(np.abs(np.float32(actual["encoder/hidden_states"][1]))) > 65_504
    assert np.all(np.isfinite(actual["logits"]))


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [
        # embeddings, attention probabilities, attention, hidden layer, feed-forward, output of the network
        ("t5", "e p e f e e", "e p e p e f e e"),
        # embeddings, attention probabilities, attention, hidden layer, feed-forward
        ("bart", "e p e f e", "e p e p e f e"),
    ],
)
def test_places_of_dropout(monkeypatch, name, encoder, decoder):
    drawn = []

    def record(key, inputs, rate):
        drawn.append(({32: "e", 40: "f"}.get(inputs.shape[-1], "p"), rate))
        return inputs

    monkeypatch.setattr(dropout, "dropout", record)
    monkeypatch.setattr(reference, "dropout", record)
    rates = {name: 0.1 * (number + 1) for number, name in enumerate(RATES)} if name == "bart" else {"dropout_rate": 0.1}
    config = dataclasses.replace(CONFIGS[name], num_layers=1, num_encoder_layers=1, **rates)
    execution = Execution(layers="unroll", attention="reference")
    jax.eval_shape(
        lambda params: seq2seq_parity.outputs(
            config, params, packed_rows(), execution, train=True, rngs={"dropout": jax.random.key(0)}
        )[0],
        nn.unbox(boxed_shapes(config)),
    )
    rate_of = dict(zip("epf", rates.values(), strict=True)) if name == "bart" else dict.fromkeys("epf", 0.1)
    assert drawn == [(place, rate_of[place]) for place in (encoder + " " + decoder).split()]


def test_bart_rows_have_at_most_max_length_tokens():
    """1,024 tokens fit the published sizes, in both networks and in a cache; 1,025 are refused."""
    config = BartConfig(101, hidden_size=32, num_heads=4, num_layers=1)
    params = nn.unbox(boxed_shapes(config))

    def shapes(lengths, slots=None):
        cache = empty(1, 1, slots, 4, 8, jnp.float32) if slots else None
        rows = {
            name: tuple(np.ones((3, 1, length), np.int32)) for name, length in zip(("encoder", "decoder"), lengths, strict=True)
        }

        def run(params):
            if cache is None:
                return seq2seq_parity.outputs(config, params, rows, Execution(), train=False)[0]
            tokens, segment_ids, positions = rows["decoder"]
            row = {"segment_ids": segment_ids, "positions": positions, "train": False, "cache": cache}
            encoded = {"encoded": np.ones((1, 5, 32), np.float32), "encoded_segment_ids": np.ones((1, 5), np.int32)}
            return config.decoder().apply({"params": params["decoder"]}, word_embeddings(params), tokens, **row, **encoded)[0]

        return jax.eval_shape(run, params).shape

    assert shapes((1024, 1024)) == (1, 1024, 32) and shapes((1, 7), slots=1024) == (1, 7, 32)
    for lengths, slots in (((1025, 7), None), ((7, 1025), None), ((1, 7), 1025)):
        with pytest.raises(UserError, match="rows of 1025 tokens do not fit a model with max_length 1024"):
            shapes(lengths, slots)


def test_t5_rows_have_any_length():
    config = CONFIGS["t5"]
    assert config.max_length is None
    rows = {"encoder": tuple(np.ones((2, 1, 3000), np.int32)), "decoder": tuple(np.ones((2, 1, 2000), np.int32))}
    shape = jax.eval_shape(
        lambda params: seq2seq_parity.outputs(config, params, rows, Execution(), train=False)[0], nn.unbox(boxed_shapes(config))
    )
    assert shape.shape == (1, 2000, 32)


def test_flops():
    """FLOPs are those of the products in the traced program, except that causal attention counts half."""
    for name in ("t5", "mt5", "bart"):
        config = dataclasses.replace(CONFIGS[name], num_layers=1, num_encoder_layers=1, vocab_size=128)
        rows = {"encoder": tuple(np.ones((2, 1, 16), np.int32)), "decoder": tuple(np.ones((2, 1, 8), np.int32))}
        execution = Execution(layers="unroll", attention="reference")

        def run(params, config=config, rows=rows, execution=execution):
            return logits(config, params, seq2seq_parity.outputs(config, params, rows, execution, train=False)[0], execution)

        jaxpr = jax.make_jaxpr(run)(nn.unbox(boxed_shapes(config)))
        inner = config.num_heads * config.head_dim
        causal = 2 * 8 * 8 * inner  # the half that does not count: queries x keys x width, for scores and sums
        assert config.flops(16, 8) == 3 * (count_flops(jaxpr.jaxpr) - causal), name


def count_flops(jaxpr):
    """Count the FLOPs of all matrix products, except lookups by one-hot rows."""
    flops = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and equation.params["precision"] is None:
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            flops += 2 * int(np.prod(equation.outvars[0].aval.shape)) * int(np.prod([shape[axis] for axis in contracted]))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            flops += count_flops(inner) if hasattr(inner, "eqns") else 0
    return flops


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("t5", {"num_layers": 0}, "T5Config.num_layers = 0 must be at least 1"),
        ("t5", {"num_encoder_layers": 0}, "num_encoder_layers = 0"),
        ("t5", {"head_dim": 0}, "head_dim = 0"),
        ("t5", {"vocab_size": 9, "table_rows": 8}, "table_rows = 8 must be at least 9"),
        ("t5", {"relative_buckets": 3}, "relative_buckets = 3 must be at least 4"),
        ("t5", {"relative_max_distance": 16}, "relative_max_distance = 16 must be at least 17"),
        ("t5", {"dropout_rate": 1.0}, "dropout_rate = 1.0"),
        ("t5", {"activation": "swish"}, "activation = 'swish' is not one of gelu, gelu_tanh, relu, silu"),
        ("mt5", {"layer_norm_epsilon": 0.0}, "MT5Config.layer_norm_epsilon = 0.0"),
        ("bart", {"num_heads": 5}, "hidden_size = 32 is not a multiple of num_heads = 5"),
        ("bart", {"num_encoder_heads": 5}, "hidden_size = 32 is not a multiple of num_encoder_heads = 5"),
        ("bart", {"feed_forward_dropout_rate": -0.1}, "feed_forward_dropout_rate = -0.1"),
        ("bart", {"initializer_range": 0.0}, "initializer_range = 0.0 must be above 0"),
    ],
)
def test_config_names_clashing_values(name, change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIGS[name], **change)

"""Decoders of all families: parameter trees, visible tokens, caches, loops over layers, FLOPs."""

import dataclasses
import functools
import json
from pathlib import Path

import decoder_parity
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.layers.attention.key_value_cache import empty
from bertfam.layers.execution import Execution
from bertfam.models.gpt import GptConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model, logits, word_embeddings
from bertfam.models.opt import OptConfig
from bertfam.models.palm import PalmConfig

GOLDEN = Path(__file__).parent / "golden" / "decoder_parameters.json"
SIZES = {"vocab_size": 101, "num_layers": 3, "hidden_size": 32, "num_heads": 4, "feed_forward_size": 40, "max_length": 16}
CONFIGS = {
    "gpt": GptConfig(**SIZES),
    "gpt2": Gpt2Config(**SIZES, scale_attention_by_layer=True),
    "opt": OptConfig(**SIZES),
    "opt_350m": OptConfig(**SIZES, embedding_size=24, block="post_norm", last_norm=False, tie_embeddings=False),
    "palm": PalmConfig(**SIZES, head_size=6),
}
FAMILIES = tuple(CONFIGS)


@functools.cache
def boxed_shapes(config):
    return jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_parameter_trees(name):
    boxes = jax.tree_util.tree_leaves_with_path(
        boxed_shapes(CONFIGS[name]), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    assert tree == json.loads(GOLDEN.read_text())[name]


@functools.cache
def random_params(name):
    return decoder_parity.random_params(CONFIGS[name])


def run(name, inputs):
    """Return the logits float32[batch, length, vocabulary] of rows with explicit positions."""
    return np.asarray(decoder_parity.jax_outputs(CONFIGS[name], random_params(name), inputs)["logits"])


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_see_only_earlier_tokens_of_their_example(name):
    """A token sees no later token, no other example of its row and no padding; alone in a row its outputs are the same."""
    inputs = decoder_parity.batch("left")
    before = run(name, inputs)
    assert np.all(np.isfinite(before))
    for place in (3, 7, 10):
        changed = np.arange(11) >= place
        after = run(name, inputs | {"tokens": np.where(changed, (inputs["tokens"] + 1) % 101, inputs["tokens"])})
        assert np.array_equal(before[:, :place], after[:, :place])
        real = inputs["segment_ids"][:, place] > 0
        assert np.all(np.any(before[real, place] != after[real, place], axis=-1))
    padding = inputs["segment_ids"] == 0
    after = run(name, inputs | {"tokens": np.where(padding, 7, inputs["tokens"])})
    assert np.array_equal(before[~padding], after[~padding])

    # Rows 0 and 4 have 9 and 7 tokens, of which 4 and 7 are packed here.
    segments, positions = np.array([1] * 4 + [2] * 7, np.int32), np.array([*range(4), *range(7)], np.int32)
    tokens = np.concatenate([inputs["tokens"][0, 2:6], inputs["tokens"][4, 4:]])
    rows = {"tokens": tokens, "segment_ids": segments, "positions": positions}
    packed = run(name, {key: np.broadcast_to(value, (5, 11)) for key, value in rows.items()})
    np.testing.assert_allclose(packed[0, :4], before[0, 2:6], atol=1e-5)
    np.testing.assert_allclose(packed[0, 4:], before[4, 4:], atol=1e-5)
    other = rows | {"tokens": np.where(segments == 1, (tokens + 1) % 101, tokens)}
    after = run(name, {key: np.broadcast_to(value, (5, 11)) for key, value in other.items()})
    assert np.array_equal(after[:, 4:], packed[:, 4:]) and not np.array_equal(after[:, :4], packed[:, :4])


@pytest.mark.parametrize("name", ["gpt2", "opt_350m", "palm"])
def test_cache_changes_no_logits(name):
    """A prompt and then single tokens, in a cache with unused slots, give the logits of whole rows."""
    config, params, inputs = CONFIGS[name], random_params(name), decoder_parity.batch("left")
    expected, real = run(name, inputs), inputs["segment_ids"] > 0

    @jax.jit
    def step(params, cache, inputs):
        hidden, outputs = config.decoder().apply(
            {"params": params["decoder"]}, word_embeddings(params), **inputs, train=False, cache=cache
        )
        return logits(config, params, hidden), outputs["cache"]

    cache, outputs = empty(config.num_layers, 5, 13, config.num_kv_heads, config.head_dim, jnp.float32), []
    with jax.default_matmul_precision("highest"):
        for places in (slice(0, 6), *(slice(place, place + 1) for place in range(6, 11))):
            part, cache = step(params, cache, {key: value[:, places] for key, value in inputs.items()})
            outputs.append(part)
    assert int(cache.filled) == 11 and np.array_equal(cache.segment_ids[:, :11], inputs["segment_ids"])
    outputs = np.concatenate(outputs, axis=1)[..., :101]
    assert np.all(np.isfinite(outputs))
    np.testing.assert_allclose(outputs[real], expected[real], atol=1e-4)
    with pytest.raises(ValueError, match="positions must be given"):
        config.decoder().apply({"params": params["decoder"]}, word_embeddings(params), tokens=np.zeros((5, 1), np.int32),
                               segment_ids=np.ones((5, 1), np.int32), train=False, cache=cache)  # fmt: skip


def test_gradients_are_finite():
    """Dropout is on, and there are rows of padding."""
    config = dataclasses.replace(CONFIGS["palm"], num_layers=1, dropout_rate=0.2, attention_dropout_rate=0.1)
    params, inputs = decoder_parity.random_params(config), decoder_parity.batch("left")

    def loss(params):
        execution = Execution(attention="reference", layers="unroll")
        hidden, _ = config.decoder(execution).apply(
            {"params": params["decoder"]}, word_embeddings(params), **inputs, train=True, rngs={"dropout": jax.random.key(3)}
        )
        return jnp.mean(jax.nn.logsumexp(logits(config, params, hidden, execution), axis=-1))

    gradient = jax.device_get(jax.jit(jax.grad(loss))(params))
    assert all(np.all(np.isfinite(leaf)) and np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


def test_unrolled_layers_match_the_loop():
    """GPT-2 has a scale for each layer."""
    inputs = decoder_parity.batch("left")
    unrolled = decoder_parity.jax_outputs(CONFIGS["gpt2"], random_params("gpt2"), inputs, Execution(layers="unroll"))
    np.testing.assert_allclose(unrolled["logits"], run("gpt2", inputs), rtol=0, atol=1e-5)


def test_bfloat16_is_finite_and_near():
    config, inputs = CONFIGS["palm"], decoder_parity.batch("left")
    wide = run("palm", inputs)
    narrow = decoder_parity.jax_outputs(config, random_params("palm"), inputs, Execution(dtype="bfloat16"))
    assert narrow["output"].dtype == jnp.bfloat16 and narrow["logits"].dtype == jnp.float32
    difference = np.abs(narrow["logits"] - wide)[inputs["segment_ids"] > 0]
    assert np.all(np.isfinite(narrow["logits"])) and np.mean(difference) < 0.02 * np.std(wide) * 3


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt", {"hidden_size": 30}, "GptConfig.hidden_size = 30 is not a multiple of num_heads = 4"),
        ("palm", {"num_key_value_heads": 3}, "PalmConfig.num_key_value_heads = 3 does not divide num_heads = 4"),
        ("palm", {"head_size": 5}, "rotary_theta = 10000.0 turns pairs, and heads are 5 wide"),
        ("palm", {"table_initializer_range": None}, "table_initializer_range = None must be set where initializer_range is None"),
        ("palm", {"rotary_theta": 0.0}, "rotary_theta = 0.0 must be above 0"),
        ("gpt2", {"initializer_range": None}, "Gpt2Config.initializer_range = None must be a number"),
        ("opt", {"block": "parallel"}, "block = 'parallel' is not one of post_norm, pre_norm"),
        ("gpt2", {"activation": "swish"}, "activation = 'swish' is not one of gelu, gelu_tanh, relu, silu"),
        ("opt", {"position_offset": -1}, "position_offset = -1 must be at least 0"),
        ("opt", {"embedding_dropout_rate": 1.0}, "embedding_dropout_rate = 1.0"),
    ],
)
def test_config_names_clashing_values(name, change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIGS[name], **change)


@pytest.mark.parametrize("name", ["gpt", "palm"])
def test_rows_longer_than_the_model_are_refused(name):
    tokens = np.ones((1, 17), np.int32)
    shapes = nn.unbox(boxed_shapes(CONFIGS[name]))
    with pytest.raises(UserError, match="rows of 17 tokens do not fit a model with max_length 16"):
        jax.eval_shape(
            lambda params: (
                CONFIGS[name]
                .decoder()
                .apply({"params": params["decoder"]}, word_embeddings(params), tokens, segment_ids=tokens, train=False)
            ),
            shapes,
        )


def test_flops():
    """FLOPs of 10 tokens: attention projections, half of all pairs, feed-forward projections, and the head."""
    gpt = 3 * (8 * 32 * 32 + 2 * 10 * 32 + 4 * 32 * 40)
    assert CONFIGS["gpt"].flops(10, 10) == 3 * 10 * (gpt + 2 * 32 * 101)
    small = 3 * 10 * (gpt + 2 * 24 * 101 + 4 * 32 * 24)
    assert CONFIGS["opt_350m"].flops(10, 10) == small
    # 4 query heads of width 6, one head of keys and one of values, three feed-forward projections
    palm = 3 * (4 * 32 * 24 + 4 * 32 * 6 + 2 * 10 * 24 + 6 * 32 * 40)
    assert CONFIGS["palm"].flops(10, 10) == 3 * 10 * (palm + 2 * 32 * 101)


def test_position_table_of_gpt2_starts_from_smaller_values():
    """Radford et al. publish 0.02 for words and 0.01 for positions; GPT has 0.02 for both."""
    sizes = {"vocab_size": 400, "num_layers": 1, "hidden_size": 64, "num_heads": 2, "max_length": 400}

    @jax.jit
    def deviations_of(key):
        trees = {family: nn.unbox(init_language_model(family(**sizes), key)) for family in (Gpt2Config, GptConfig)}
        tables = {
            family: [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim == 2 and len(leaf) >= 400]
            for family, tree in trees.items()
        }
        return [[jnp.std(table) for table in tables[family]] for family in trees]

    values = jax.device_get(deviations_of(jax.random.key(0)))
    deviations = dict(zip((Gpt2Config, GptConfig), (sorted(map(float, of_family)) for of_family in values), strict=True))
    assert deviations[Gpt2Config] == pytest.approx([0.01, 0.02], rel=0.05)
    assert deviations[GptConfig] == pytest.approx([0.02, 0.02], rel=0.05)

"""ERNIE with entities against its equations in float64, as no library has it."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import erf

from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.models.encoder import init_encoder
from bertfam.models.entity_ernie import AlignedEntities, EntityErnieConfig

CONFIG = EntityErnieConfig(
    vocab_size=50,
    num_layers=5,
    hidden_size=16,
    num_heads=2,
    feed_forward_size=24,
    max_length=12,
    entity_size=6,
    entity_heads=3,
    text_layers=2,
    layer_norm_epsilon=1e-5,
)
BATCH, LENGTH = 3, 12
COLLECTED = frozenset({"hidden_states", "attention_probs"})


@pytest.fixture(scope="module")
def params():
    generator = np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda: init_encoder(CONFIG, jax.random.key(0), LENGTH)))
    return jax.tree.map(lambda leaf: np.float32(generator.normal(0, 0.3, leaf.shape)), shapes)


@pytest.fixture(scope="module")
def batch():
    """Return rows of 12, 9 and 5 tokens; the last has no entity."""
    generator = np.random.default_rng(1)
    real = np.arange(LENGTH) < np.array([[12], [9], [5]])
    present = real & (generator.random(real.shape) < 0.4) & (np.arange(LENGTH) > 0) & np.array([[True], [True], [False]])
    assert present.any(axis=1).tolist() == [True, True, False]
    vectors = np.where(present[..., None], generator.normal(size=(*real.shape, CONFIG.entity_size)), 0)
    inputs = {
        "tokens": np.where(real, generator.integers(5, 50, real.shape), 0).astype(np.int32),
        "segment_ids": real.astype(np.int32),
        "token_type_ids": (real & (np.arange(LENGTH) > 3)).astype(np.int32),
    }
    return inputs, AlignedEntities(np.float32(vectors), present)


@functools.cache
def compiled(layers):
    encoder = CONFIG.encoder(Execution(layers=layers))
    return jax.jit(lambda params, inputs: encoder.apply({"params": params}, **inputs, train=False, collect=COLLECTED))


def run(params, batch, layers="scan", **changes):
    inputs, entities = batch
    return compiled(layers)(params, inputs | {"entities": entities, "positions": None} | changes)


def norm(params, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + CONFIG.layer_norm_epsilon) * params["scale"] + params["bias"]


def attend(params, x, keys):
    """Attend from tokens [length, width] to those where `keys` bool[length] is True."""
    q, k, v = (
        np.einsum("le,ehd->hld", x, params[name]["kernel"]) + params[name]["bias"][:, None] for name in ("query", "key", "value")
    )
    scores = np.where(keys, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    return np.einsum("hld,hde->le", mixed, params["output"]["kernel"]) + params["output"]["bias"]


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def layer(params, w, e, real, aligned):
    """Compute equations 2 to 5, or BERT's layer where there are no entities."""
    w = norm(params["attention_norm"], w + attend(params["attention"], w, real))
    inner = params["feed_forward"]
    h = w @ inner["intermediate"]["kernel"] + inner["intermediate"]["bias"]
    if "entity_intermediate" in inner:
        if "entity_attention" in params:
            e = norm(params["entity_attention_norm"], e + attend(params["entity_attention"], e, aligned))
        e = e * aligned[:, None]
        h = gelu(h + e @ inner["entity_intermediate"]["kernel"])
        e = norm(params["entity_feed_forward_norm"], e + h @ inner["entity_output"]["kernel"] + inner["entity_output"]["bias"])
    else:
        h = gelu(h)
    return norm(params["feed_forward_norm"], w + h @ inner["output"]["kernel"] + inner["output"]["bias"]), e


def test_hidden_states_equal_the_equations(params, batch):
    (hidden, collected), (inputs, entities) = run(params, batch), batch
    states = np.asarray(collected["hidden_states"])
    assert states.shape == (6, BATCH, LENGTH, 16) and collected["attention_probs"].shape == (5, BATCH, 2, LENGTH, LENGTH)
    np.testing.assert_array_equal(states[-1], hidden)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    stacks = [
        (wide[name], index) for name, count in (("first_layers", 2), ("mixed_layer", 1), ("layers", 2)) for index in range(count)
    ]
    layers = [
        params
        if "kernel" in params["attention"]["query"] and params["attention"]["query"]["kernel"].ndim == 3
        else jax.tree.map(lambda leaf, index=index: leaf[index], params)
        for params, index in stacks
    ]
    for row in range(BATCH):
        real = inputs["segment_ids"][row] > 0
        aligned = (entities.present[row] | (np.arange(LENGTH) == 0)) & real
        w, e = np.asarray(states[0, row], np.float64), np.asarray(entities.vectors[row], np.float64)
        for number, own in enumerate(layers, start=1):
            w, e = layer(own, w, e, real, aligned)
            np.testing.assert_allclose(states[number, row][real], w[real], atol=1e-4)


def test_scan_and_unroll_are_equal(params, batch):
    looped, unrolled = (run(params, batch, layers)[1] for layers in ("scan", "unroll"))
    for name, values in looped.items():
        np.testing.assert_allclose(values, unrolled[name], atol=1e-5)


def test_a_text_without_entities_is_one_whose_entities_are_absent(params, batch):
    inputs, entities = batch
    nothing = AlignedEntities(np.zeros_like(entities.vectors), np.zeros_like(entities.present))
    alone, absent, seen = run(params, batch, entities=None)[0], run(params, (inputs, nothing))[0], run(params, batch)[0]
    np.testing.assert_allclose(alone, absent, atol=1e-5)
    np.testing.assert_allclose(seen[2][:5], alone[2][:5], atol=1e-6)  # the row without an entity
    assert np.abs(seen[:2] - alone[:2]).max() > 0.1


def test_packed_examples_do_not_see_each_other(params, batch):
    """Two rows in one, with positions that start anew, are those of the rows alone."""
    inputs, entities = batch
    sizes = (7, 5)
    segments, positions = (np.repeat([1, 2], sizes)[None], np.r_[np.arange(7), np.arange(5)][None])
    packed = {name: np.concatenate([value[row, :size] for row, size in enumerate(sizes)])[None] for name, value in inputs.items()}
    both = AlignedEntities(*(np.concatenate([value[row, :size] for row, size in enumerate(sizes)])[None] for value in entities))
    together = run(params, (packed, both), segment_ids=np.int32(segments), positions=np.int32(positions))[0][0]
    alone = run(params, batch, segment_ids=np.int32(np.arange(LENGTH) < np.array([[7], [5], [0]])))[0]
    for row, (begin, end) in enumerate(((0, 7), (7, 12))):
        np.testing.assert_allclose(together[begin:end], alone[row, : end - begin], atol=1e-5)


def test_sizes_of_the_published_model():
    """BERT-base with 7 fusions of 100 numbers and 6 attentions among them."""
    published = EntityErnieConfig(vocab_size=30_522)
    shapes = nn.meta.unbox(jax.eval_shape(lambda: init_encoder(published, jax.random.key(0))))
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    bert = 30_522 * 768  # the rows of the table beyond the vocabulary are padding
    padding = published.padded_vocab_size * 768 - bert
    base = 108_891_648  # BERT-base without its pooler
    fusion = 100 * 3072 + 3072 * 100 + 100 + 2 * 100
    attention = 4 * (100 * 100 + 100) + 2 * 100
    assert count - padding == base + 7 * fusion + 6 * attention


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"entity_heads": 4}, "entity_heads, 4"),
        ({"text_layers": 4}, "at most 3"),
        ({"causal": True}, "causal"),
        ({"entity_size": 0}, "entity_size"),
    ],
)
def test_sizes_that_clash_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        dataclasses.replace(CONFIG, **changes)


def test_gradients_are_finite_where_no_row_has_an_entity(params, batch):
    inputs, _ = batch
    encoder = CONFIG.encoder(Execution(layers="scan"))

    def total(params):
        return jnp.sum(encoder.apply({"params": params}, **inputs, train=False)[0])

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(jax.grad(total))(params)))

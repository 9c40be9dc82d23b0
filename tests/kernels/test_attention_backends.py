"""Every backend that runs here against the reference, and the choice among backends."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.errors import UserError
from bertfam.kernels.attention.choice import BACKENDS, choose
from bertfam.kernels.attention.cudnn import MIN_LENGTH
from bertfam.kernels.attention.interface import Inputs, Request
from bertfam.kernels.attention.patterns import CAUSAL, FULL, BlockSparse, ExtraTokens, GlobalTokens, Window

BATCH, LENGTH, HEADS, HEAD_DIM = 3, 24, 2, 8
PADDED = np.array([[1] * 24, [1] * 10 + [0] * 14, [0] * 24], np.int32)  # the last row is nothing but padding
PACKED = np.array([[1] * 9 + [2] * 15, [1] * 4 + [2] * 3 + [3] * 10 + [0] * 7, [0] * 24], np.int32)
HERE = [name for name, backend in BACKENDS.items() if jax.default_backend() in backend.platforms]
PATTERNS = [FULL, CAUSAL, Window(3, 3), Window(5, 0), Window(1, 17), Window(4, 4, dilation=2)]


def backends_for(*patterns, without=()):
    """Return the pairs of a backend that runs here and a pattern that it supports, as parameters of a test."""
    requests = [(pattern, Request("float32", LENGTH, HEAD_DIM, pattern).here()) for pattern in patterns]
    pairs = [
        (name, pattern)
        for name in HERE
        if name not in without
        for pattern, request in requests
        if not BACKENDS[name].clashes(request)
    ]
    return [pytest.param(*pair, id=f"{pair[0]}, {pair[1].describe()}") for pair in pairs]


TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


def inputs(dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (BATCH, LENGTH, HEADS, HEAD_DIM)).astype(dtype) for key in keys]


def run(name, arrays, segment_ids, packed, bias=None, **options):
    request = Request(str(arrays[0].dtype), LENGTH, HEAD_DIM, packed=packed, bias=bias is not None, **options).here()
    if BACKENDS[name].clashes(request):
        pytest.skip("; ".join(BACKENDS[name].clashes(request)))
    return BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids), bias=bias), request)


def real(values, segment_ids):
    return np.where(segment_ids[:, :, None, None] > 0, np.asarray(values, np.float32), 0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("name", "pattern"), backends_for(*PATTERNS, without=("reference",)))
def test_outputs_and_gradients_match_the_reference(name, pattern, dtype, packed, with_bias):
    arrays, segment_ids = inputs(dtype), PACKED if packed else PADDED
    bias = jax.random.normal(jax.random.key(3), (1, HEADS, LENGTH, LENGTH)) if with_bias else None
    weights = jax.random.normal(jax.random.key(4), arrays[0].shape)

    def loss(name, arrays):
        mixed, _ = run(name, arrays, segment_ids, packed, bias, pattern=pattern)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, mixed.astype(jnp.float32) * weights, 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    np.testing.assert_allclose(real(actual[1], segment_ids), real(expected[1], segment_ids), atol=TOLERANCE[dtype])
    for one, other in zip(actual[0], expected[0], strict=True):
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(np.float32(one), np.float32(other), atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize(
    "pattern", [FULL, CAUSAL, Window(20, 9), Window(12, 0, dilation=3)], ids=lambda pattern: pattern.describe()
)
def test_splash_kernel_matches_the_reference(pattern):
    """The kernel is interpreted, on rows that its blocks of 128 do not divide."""
    length, segment_ids = 200, np.array([[1] * 70 + [2] * 100 + [0] * 30, [0] * 200], np.int32)
    arrays = [jax.random.normal(key, (2, length, HEADS, HEAD_DIM)) for key in jax.random.split(jax.random.key(0), 3)]
    request = Request("float32", length, HEAD_DIM, pattern, packed=True)

    def loss(name, arrays):
        mixed, _ = BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids)), request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in ("splash", "reference"))
    np.testing.assert_allclose(real(actual[1], segment_ids), real(expected[1], segment_ids), atol=1e-5)
    for one, other in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.max(jnp.abs(other))))


@pytest.mark.parametrize("most", [2, 5])
@pytest.mark.parametrize("name", ["blocks", "xla"])
def test_window_with_global_tokens_matches_the_reference(name, most):
    """Rows have 4, 0 and 3 global tokens in several segments, near and far; the window is seven tokens wide."""
    length = 75
    segment_ids = np.array([[1] * 40 + [2] * 30 + [0] * 5, [1] * 75, [1] * 70 + [0] * 5], np.int32)
    flags = np.zeros((3, length), bool)
    flags[0, [0, 1, 38, 60]] = flags[2, [5, 6, 69]] = True
    arrays = [jax.random.normal(key, (3, length, HEADS, HEAD_DIM)) for key in jax.random.split(jax.random.key(0), 3)]
    request = Request("float32", length, HEAD_DIM, GlobalTokens(Window(3, 3), most), packed=True).here()

    def loss(name, arrays):
        inputs = Inputs(*arrays, jnp.asarray(segment_ids), arrays={"global_tokens": jnp.asarray(flags)})
        mixed, weights = BACKENDS[name].run(inputs, dataclasses.replace(request, return_weights=name == "reference"))
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), (mixed, weights)

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    seen = [key for key in range(length) if expected[1][1][0, 0, 20, key] > 0]
    assert seen == [0, 1, *range(17, 24), *([38] if most == 5 else [])]
    np.testing.assert_allclose(real(actual[1][0], segment_ids), real(expected[1][0], segment_ids), atol=1e-5)
    for one, other in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.max(jnp.abs(other))))


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("name", ["block_sparse", "xla"])
def test_block_sparse_attention_matches_the_reference(name, key_heads):
    """Rows have several segments and a short last block; some random blocks are repeated, or are attended to anyway."""
    length, block = 93, 8
    segment_ids = np.array([[1] * 40 + [2] * 30 + [0] * 23, [1] * 93, [0] * 93], np.int32)
    lists = np.random.default_rng(0).integers(0, 12, (HEADS, 10, 2))
    shapes = [(3, length, heads, HEAD_DIM) for heads in (HEADS, key_heads, key_heads)]
    arrays = [jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes)]
    request = Request("float32", length, HEAD_DIM, BlockSparse(block, random=2), packed=True).here()

    def loss(name, arrays):
        inputs = Inputs(*arrays, jnp.asarray(segment_ids), arrays={"random_blocks": jnp.asarray(lists)})
        mixed, _ = BACKENDS[name].run(inputs, request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    np.testing.assert_allclose(real(actual[1], segment_ids), real(expected[1], segment_ids), atol=1e-5)
    for one, other in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.max(jnp.abs(other))))


@pytest.mark.parametrize("key_heads", [1, 2])
@pytest.mark.parametrize("name", ["blocks", "xla"])
def test_extra_global_tokens_match_the_reference(name, key_heads):
    """Rows have a short last block, padding within a block and over several, and nothing but extra tokens."""
    length = 64
    segment_ids = (np.arange(length) < np.array([[64], [30], [7]])).astype(np.int32)
    shapes = [(3, length, heads, HEAD_DIM) for heads in (HEADS, key_heads, key_heads)]
    arrays = [jax.random.normal(jax.random.key(number), shape) for number, shape in enumerate(shapes)]
    request = Request("float32", length, HEAD_DIM, ExtraTokens(7, 10)).here()

    def loss(name, arrays):
        mixed, _ = BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids)), request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    np.testing.assert_allclose(real(actual[1], segment_ids), real(expected[1], segment_ids), atol=1e-5)
    for one, other in zip(actual[0], expected[0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(jnp.max(jnp.abs(other))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("segment_ids", "packed"), [(PADDED, False), (PACKED, True)])
@pytest.mark.parametrize(("name", "pattern"), backends_for(FULL, Window(1, 1)))
def test_rows_of_padding_give_no_nan(name, pattern, segment_ids, packed, dtype):
    def loss(arrays):
        return jnp.sum(jnp.square(run(name, arrays, segment_ids, packed, pattern=pattern)[0].astype(jnp.float32)))

    value, gradient = jax.value_and_grad(loss)(inputs(dtype))
    assert jnp.isfinite(value) and all(jnp.all(jnp.isfinite(leaf)) for leaf in gradient)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "pattern"), backends_for(FULL, Window(9, 9)))
def test_packed_examples_do_not_see_each_other(name, pattern, dtype):
    arrays = inputs(dtype)
    # another first example, whose values would dwarf those of the second
    changed = [jnp.where(PACKED[:, :, None, None] == 1, 1e4 * array, array) for array in arrays]
    before, after = (run(name, which, PACKED, True, pattern=pattern)[0] for which in (arrays, changed))
    other = PACKED != 1
    assert np.array_equal(np.float32(before)[other], np.float32(after)[other])
    assert not np.array_equal(np.float32(before)[~other], np.float32(after)[~other])


def test_weights_are_probabilities_within_the_segment():
    _, weights = run("reference", inputs("bfloat16"), PACKED, True, return_weights=True)
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH) and weights.dtype == jnp.float32
    np.testing.assert_allclose(jnp.sum(weights, -1), 1, atol=1e-6)
    assert np.all(np.asarray(weights[0, :, :9, 9:]) == 0) and np.all(np.asarray(weights[0, :, 9:, :9]) == 0)


@pytest.mark.parametrize("side", [0, 3, 22, 23, 1000])
def test_a_window_has_the_places_of_both_sides(side):
    """Attention is dense among tokens of a segment at most `side` places apart; a window over the whole row is no window."""
    pattern = Window(side, side)
    query, key, value = (np.float64(array) for array in inputs("float32"))
    mixed, returned_weights = run("reference", inputs("float32"), PACKED, True, return_weights=True, pattern=pattern)
    assert pattern.within(LENGTH) == (pattern if side < LENGTH - 1 else FULL)
    for row, place in ((0, 0), (0, 8), (0, 9), (0, 23), (1, 5), (1, 10)):
        near = range(max(0, place - side), min(LENGTH, place + side + 1))
        visible = [other for other in near if PACKED[row, other] == PACKED[row, place]]
        scores = np.einsum("hd,khd->hk", query[row, place], key[row, visible]) / np.sqrt(HEAD_DIM)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(mixed[row, place], np.einsum("hk,khd->hd", weights, value[row, visible]), atol=1e-5)
        np.testing.assert_allclose(returned_weights[row, :, place, visible], weights.T, atol=1e-6)
        assert np.all(np.delete(np.asarray(returned_weights[row, :, place]), visible, axis=1) == 0)


KEYS, OFFSET = 31, 5


def cross_attention_inputs(dtype, key_heads):
    """Return queries of the test's rows, and keys and values of longer rows, and the segments 1, 2 and 0 of these."""
    shapes = [(BATCH, LENGTH, 4, HEAD_DIM), *[(BATCH, KEYS, key_heads, HEAD_DIM)] * 2]
    keys = jax.random.split(jax.random.key(6), 3)
    arrays = [jax.random.normal(key, shape).astype(dtype) for key, shape in zip(keys, shapes, strict=True)]
    return arrays, np.array([[1] * 14 + [2] * 17, [0] * 3 + [1] * 12 + [2] * 16, [0] * KEYS], np.int32)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in HERE if name in ("reference", "xla")])
def test_keys_of_another_sequence_or_of_a_cache(name, causal, key_heads):
    """Outputs are sums over the keys that a query sees: of its segment and, if causal, not after its place OFFSET + i."""
    arrays, key_segment_ids = cross_attention_inputs("float32", key_heads)
    pattern = CAUSAL if causal else FULL
    request = Request("float32", LENGTH, HEAD_DIM, pattern, packed=True, key_length=KEYS, scale=0.7).here()
    run_backend = jax.jit(partial(BACKENDS[name].run, request=request))
    mixed, _ = run_backend(Inputs(*arrays, jnp.asarray(PACKED), jnp.asarray(key_segment_ids), jnp.int32(OFFSET)))
    assert np.isfinite(mixed).all()  # also where a query sees nothing
    query, key, value = (np.float64(array) for array in arrays)
    key, value = (np.repeat(side, 4 // key_heads, axis=2) for side in (key, value))
    compared = 0
    for row, place in np.argwhere(PACKED > 0):
        visible = key_segment_ids[row] == PACKED[row, place]
        if causal:
            visible &= np.arange(KEYS) <= OFFSET + place
        if visible.any():
            scores = 0.7 * np.einsum("hd,khd->hk", query[row, place], key[row, visible])
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            expected = np.einsum("hk,khd->hd", weights, value[row, visible])
            np.testing.assert_allclose(mixed[row, place], expected, atol=1e-5)
            compared += 1
    assert compared > 20


@pytest.mark.parametrize(("segment_ids", "packed"), [(PADDED, False), (PACKED, True)])
@pytest.mark.parametrize(("name", "pattern"), backends_for(CAUSAL, Window(9, 0)))
def test_causal_token_sees_no_later_token(name, pattern, segment_ids, packed):
    arrays = inputs("float32")
    changed = [array.at[:, 8:].multiply(-3) for array in arrays]
    before, after = (run(name, which, segment_ids, packed, pattern=pattern)[0] for which in (arrays, changed))
    assert np.array_equal(before[:, :8], after[:, :8]) and not np.array_equal(before[:2, 9], after[:2, 9])


def test_reference_drops_probabilities():
    """Values are the rows of a unit matrix, so that the outputs are the weights themselves."""
    rate, length, head_dim = 0.25, 64, 64
    keys = jax.random.split(jax.random.key(0), 2)
    query, key = (jax.random.normal(k, (8, length, 4, head_dim)) for k in keys)
    value = jnp.broadcast_to(jnp.eye(length)[:, None], query.shape)
    request = Request("float32", length, head_dim, dropout_rate=rate, return_weights=True).here()
    arrays = Inputs(query, key, value, jnp.ones((8, length), jnp.int32), dropout_key=jax.random.key(1))
    # [batch, queries, heads, keys] -> [batch, heads, queries, keys]
    mixed, probabilities = BACKENDS["reference"].run(arrays, request)
    weights = np.moveaxis(np.asarray(mixed), 1, 2)
    kept = weights > 0
    np.testing.assert_allclose(weights[kept], (np.asarray(probabilities) / (1 - rate))[kept], rtol=1e-5)
    # 131,072 draws: the share has a deviation of 0.0012, that of one query among 64 of 0.054
    assert abs(np.mean(~kept) - rate) < 0.006
    assert abs(np.std(np.mean(~kept, axis=-1)) - 0.054) < 0.006


GPU = Request("bfloat16", MIN_LENGTH, 64, platform="gpu", compute_capability=8.0)


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        ({}, "cudnn", "fastest"),
        ({"length": MIN_LENGTH - 1}, "xla", "fastest"),
        ({"dtype": "float32"}, "xla", "because the dtype is float32"),
        ({"packed": True}, "xla", "because rows are packed"),
        ({"head_dim": 20}, "xla", "heads are 20 wide"),
        ({"pattern": Window(32, 32)}, "xla", "because tokens attend to 32 tokens on each side"),
        ({"compute_capability": 7.5}, "xla", "compute capability 7.5"),
        ({"return_weights": True}, "reference", "because attention weights are requested"),
        ({"dropout_rate": 0.1}, "cudnn", "attention dropout 0.1 is not applied"),
        ({"bias": True, "pattern": CAUSAL, "key_length": 512, "scale": 1.0}, "cudnn", "fastest"),
        ({"platform": "cpu"}, "xla", "on cpu"),
        ({"platform": "tpu"}, "xla", "on tpu"),
        ({"platform": "tpu", "length": 512}, "splash", "on tpu"),
        ({"platform": "tpu", "length": 512, "bias": True}, "xla", "not splash, because scores have a bias"),
        ({"platform": "cpu", "length": 1024, "pattern": Window(64, 64)}, "blocks", "on cpu"),
        ({"length": 4352, "pattern": ExtraTokens(256, 84)}, "blocks", "not hopper"),
        ({"length": 1024, "pattern": Window(64, 64), "packed": True}, "blocks", "not cudnn, because rows are packed"),
    ],
)
def test_auto_chooses_the_fastest_capable_backend_with_a_reason(change, name, message):
    backend, reason = choose(dataclasses.replace(GPU, **change))
    assert backend.name == name
    assert reason.startswith(f"{name}: ") and message in reason


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cudnn", {"packed": True}, "rows are packed"),
        ("cudnn", {"dtype": "float32"}, "the dtype is float32"),
        ("cudnn", {"platform": "cpu"}, "the platform is cpu"),
        ("cudnn", {"pattern": Window(32, 32)}, "32 tokens on each side"),
        ("xla", {"return_weights": True}, "attention weights are requested"),
        ("xla", {"dropout_rate": 0.1}, "attention_dropout_rate is 0.1"),
    ],
)
def test_named_backend_that_cannot_run_is_refused(name, change, message):
    with pytest.raises(UserError, match=message) as error:
        choose(dataclasses.replace(GPU, **change), name)
    assert "Execution.attention = 'auto'" in str(error.value) and "\n" not in str(error.value)


def test_named_backend_that_can_run_is_used():
    assert choose(GPU, "cudnn")[0].name == "cudnn"
    assert choose(dataclasses.replace(GPU, dropout_rate=0.1, return_weights=True), "reference")[0].name == "reference"

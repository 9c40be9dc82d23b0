"""Every backend that runs here against the reference, and the choice among backends."""

import dataclasses
import functools

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


def random_arrays(*shapes, seed=0, dtype="float32"):
    """Return normal values that NumPy draws, which compiles nothing."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape, np.float32).astype(jnp.dtype(dtype)) for shape in shapes]


def inputs(dtype):
    return random_arrays(*[(BATCH, LENGTH, HEADS, HEAD_DIM)] * 3, dtype=dtype)


def run(name, arrays, segment_ids, packed, bias=None, **options):
    request = Request(str(arrays[0].dtype), LENGTH, HEAD_DIM, packed=packed, bias=bias is not None, **options).here()
    if BACKENDS[name].clashes(request):
        pytest.skip("; ".join(BACKENDS[name].clashes(request)))
    return BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids), bias=bias), request)


def compiled(name, packed, pattern, **options):
    """Return a jitted function of (arrays, segment_ids) to the outputs, or to (outputs, weights) with `return_weights`."""

    def forward(arrays, segment_ids):
        mixed, weights = run(name, arrays, segment_ids, packed, pattern=pattern, **options)
        return (mixed, weights) if options.get("return_weights") else mixed

    return jax.jit(forward)


def real(values, segment_ids):
    return np.where(segment_ids[:, :, None, None] > 0, np.asarray(values, np.float32), 0)


@functools.cache
def compiled_gradient(name, pattern, packed):
    """Return a jitted function of (arrays, bias, weights, segment_ids) to the gradients of a loss and the outputs."""

    def loss(arrays, bias, weights, segment_ids):
        mixed, _ = run(name, arrays, segment_ids, packed, bias, pattern=pattern)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, mixed.astype(jnp.float32) * weights, 0)), mixed

    return jax.jit(jax.grad(loss, has_aux=True))


def assert_equal_results(actual, expected, segment_ids, tolerance=1e-5):
    """Compare (gradients, outputs); gradients relative to the largest of an array, outputs at tokens."""
    np.testing.assert_allclose(real(actual[1], segment_ids), real(expected[1], segment_ids), atol=tolerance)
    for one, other in zip(*(map(np.float32, gradients) for gradients, _ in (actual, expected)), strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize(
    ("dtype", "packed", "with_bias"),  # every pair of two values
    [("float32", False, True), ("float32", True, False), ("bfloat16", False, False), ("bfloat16", True, True)],
)
@pytest.mark.parametrize(("name", "pattern"), backends_for(*PATTERNS, without=("reference",)))
def test_outputs_and_gradients_match_the_reference(name, pattern, dtype, packed, with_bias):
    arrays, segment_ids = inputs(dtype), PACKED if packed else PADDED
    bias, weights = random_arrays((1, HEADS, LENGTH, LENGTH), arrays[0].shape, seed=3)
    given = arrays, bias if with_bias else None, weights, segment_ids
    # The reference has one program for both kinds of rows.
    actual, expected = (compiled_gradient(*which)(*given) for which in ((name, pattern, packed), ("reference", pattern, True)))
    assert_equal_results(actual, expected, segment_ids, TOLERANCE[dtype])


@pytest.mark.parametrize("pattern", [FULL, CAUSAL, Window(12, 0, dilation=3)], ids=lambda pattern: pattern.describe())
def test_splash_kernel_matches_the_reference(pattern):
    """The kernel is interpreted, on rows that its blocks of 128 do not divide; test_attention_meshes.py has other windows."""
    length, segment_ids = 200, np.array([[1] * 70 + [2] * 100 + [0] * 30, [0] * 200], np.int32)
    arrays = random_arrays(*[(2, length, HEADS, HEAD_DIM)] * 3)
    request = Request("float32", length, HEAD_DIM, pattern, packed=True)

    def loss(name, arrays):
        mixed, _ = BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids)), request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in ("splash", "reference"))
    assert_equal_results(actual, expected, segment_ids)


@pytest.mark.parametrize("most", [2, 5])
@pytest.mark.parametrize("name", ["blocks", "xla"])
def test_window_with_global_tokens_matches_the_reference(name, most):
    """Rows have 4, 0 and 3 global tokens in several segments, near and far; the window is seven tokens wide."""
    length = 75
    segment_ids = np.array([[1] * 40 + [2] * 30 + [0] * 5, [1] * 75, [1] * 70 + [0] * 5], np.int32)
    flags = np.zeros((3, length), bool)
    flags[0, [0, 1, 38, 60]] = flags[2, [5, 6, 69]] = True
    arrays = random_arrays(*[(3, length, HEADS, HEAD_DIM)] * 3)
    request = Request("float32", length, HEAD_DIM, GlobalTokens(Window(3, 3), most), packed=True).here()

    def loss(name, arrays):
        inputs = Inputs(*arrays, jnp.asarray(segment_ids), arrays={"global_tokens": jnp.asarray(flags)})
        mixed, weights = BACKENDS[name].run(inputs, dataclasses.replace(request, return_weights=name == "reference"))
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), (mixed, weights)

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    seen = np.flatnonzero(np.asarray(expected[1][1])[0, 0, 20] > 0).tolist()
    assert seen == [0, 1, *range(17, 24), *([38] if most == 5 else [])]
    outputs = ((gradients, mixed) for gradients, (mixed, _) in (actual, expected))
    assert_equal_results(*outputs, segment_ids)


@pytest.mark.parametrize("name", ["block_sparse", "xla"])
def test_block_sparse_attention_matches_the_reference(name):
    """Rows have several segments and a short last block; some random blocks are repeated, or are attended to anyway."""
    length, block = 93, 8
    segment_ids = np.array([[1] * 40 + [2] * 30 + [0] * 23, [1] * 93, [0] * 93], np.int32)
    lists = np.random.default_rng(0).integers(0, 12, (HEADS, 10, 2))
    arrays = random_arrays(*((3, length, heads, HEAD_DIM) for heads in (HEADS, 1, 1)))
    request = Request("float32", length, HEAD_DIM, BlockSparse(block, random=2), packed=True).here()

    def loss(name, arrays):
        inputs = Inputs(*arrays, jnp.asarray(segment_ids), arrays={"random_blocks": jnp.asarray(lists)})
        mixed, _ = BACKENDS[name].run(inputs, request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    assert_equal_results(actual, expected, segment_ids)


@pytest.mark.parametrize("name", ["blocks", "xla"])
def test_extra_global_tokens_match_the_reference(name):
    """Rows have a short last block, padding within a block and over several, and nothing but extra tokens."""
    length = 64
    segment_ids = (np.arange(length) < np.array([[64], [30], [7]])).astype(np.int32)
    arrays = random_arrays(*((3, length, heads, HEAD_DIM) for heads in (HEADS, 1, 1)))
    request = Request("float32", length, HEAD_DIM, ExtraTokens(7, 10)).here()

    def loss(name, arrays):
        mixed, _ = BACKENDS[name].run(Inputs(*arrays, jnp.asarray(segment_ids)), request)
        return jnp.sum(jnp.where(segment_ids[:, :, None, None] > 0, jnp.sin(mixed), 0)), mixed

    gradient = jax.jit(jax.grad(loss, 1, has_aux=True), static_argnums=0)
    actual, expected = (gradient(which, arrays) for which in (name, "reference"))
    assert_equal_results(actual, expected, segment_ids)


@pytest.mark.parametrize(("segment_ids", "packed", "dtype"), [(PADDED, False, "bfloat16"), (PACKED, True, "float32")])
@pytest.mark.parametrize(("name", "pattern"), backends_for(FULL, Window(3, 3)))
def test_rows_of_padding_give_no_nan(name, pattern, segment_ids, packed, dtype):
    arrays = inputs(dtype)
    # The weights are not those of the comparison with the reference, and its programs serve here.
    gradients, mixed = compiled_gradient(name, pattern, packed)(arrays, None, np.ones(arrays[0].shape, np.float32), segment_ids)
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in (mixed, *gradients))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "pattern"), backends_for(FULL, Window(9, 9)))
def test_packed_examples_do_not_see_each_other(name, pattern, dtype):
    arrays = inputs(dtype)
    # another first example, whose values would dwarf those of the second
    changed = [np.where(PACKED[:, :, None, None] == 1, array * array.dtype.type(1e4), array) for array in arrays]
    forward = compiled(name, True, pattern)
    before, after = (np.float32(forward(which, PACKED)) for which in (arrays, changed))
    other = PACKED != 1
    assert np.array_equal(before[other], after[other])
    assert not np.array_equal(before[~other], after[~other])


def test_weights_are_probabilities_within_the_segment():
    _, weights = compiled("reference", True, FULL, return_weights=True)(inputs("bfloat16"), PACKED)
    assert weights.shape == (BATCH, HEADS, LENGTH, LENGTH) and weights.dtype == jnp.float32
    weights = np.asarray(weights)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.all(weights[0, :, :9, 9:] == 0) and np.all(weights[0, :, 9:, :9] == 0)


@pytest.mark.parametrize("side", [0, 3, 22, 23, 1000])
def test_a_window_has_the_places_of_both_sides(side):
    """Attention is dense among tokens of a segment at most `side` places apart; a window over the whole row is no window."""
    pattern = Window(side, side)
    query, key, value = (np.float64(array) for array in inputs("float32"))
    forward = compiled("reference", True, pattern, return_weights=True)
    mixed, returned_weights = jax.device_get(forward(inputs("float32"), PACKED))
    assert pattern.within(LENGTH) == (pattern if side < LENGTH - 1 else FULL)
    for row, place in ((0, 0), (0, 8), (0, 9), (0, 23), (1, 5), (1, 10)):
        near = range(max(0, place - side), min(LENGTH, place + side + 1))
        visible = [other for other in near if PACKED[row, other] == PACKED[row, place]]
        scores = np.einsum("hd,khd->hk", query[row, place], key[row, visible]) / np.sqrt(HEAD_DIM)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(mixed[row, place], np.einsum("hk,khd->hd", weights, value[row, visible]), atol=1e-5)
        np.testing.assert_allclose(returned_weights[row, :, place, visible], weights.T, atol=1e-6)
        assert np.all(np.delete(returned_weights[row, :, place], visible, axis=1) == 0)


KEYS, OFFSET = 31, 5


def cross_attention_inputs(key_heads):
    """Return queries of the test's rows, and keys and values of longer rows, and the segments 1, 2 and 0 of these."""
    shapes = [(BATCH, LENGTH, 4, HEAD_DIM), *[(BATCH, KEYS, key_heads, HEAD_DIM)] * 2]
    return random_arrays(*shapes, seed=6), np.array([[1] * 14 + [2] * 17, [0] * 3 + [1] * 12 + [2] * 16, [0] * KEYS], np.int32)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in HERE if name in ("reference", "xla")])
def test_keys_of_another_sequence_or_of_a_cache(name, causal, key_heads):
    """Outputs are sums over the keys that a query sees: of its segment and, if causal, not after its place OFFSET + i."""
    arrays, key_segment_ids = cross_attention_inputs(key_heads)
    pattern = CAUSAL if causal else FULL
    request = Request("float32", LENGTH, HEAD_DIM, pattern, packed=True, key_length=KEYS, scale=0.7).here()
    run_backend = jax.jit(functools.partial(BACKENDS[name].run, request=request))
    mixed, _ = run_backend(Inputs(*arrays, jnp.asarray(PACKED), jnp.asarray(key_segment_ids), jnp.int32(OFFSET)))
    assert np.isfinite(mixed).all()  # also where a query sees nothing
    mixed = np.asarray(mixed)
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
    changed = [np.where(np.arange(LENGTH)[:, None, None] < 8, array, -3 * array) for array in arrays]
    forward = compiled(name, packed, pattern)
    before, after = (np.asarray(forward(which, segment_ids)) for which in (arrays, changed))
    assert np.array_equal(before[:, :8], after[:, :8]) and not np.array_equal(before[:2, 9], after[:2, 9])


def test_reference_drops_probabilities():
    """Values are the rows of a unit matrix, so that the outputs are the weights themselves."""
    rate, length, head_dim = 0.25, 64, 64
    query, key = random_arrays(*[(8, length, 4, head_dim)] * 2)
    value = np.broadcast_to(np.eye(length, dtype=np.float32)[:, None], query.shape)
    request = Request("float32", length, head_dim, dropout_rate=rate, return_weights=True).here()
    arrays = Inputs(query, key, value, np.ones((8, length), np.int32), dropout_key=jax.random.key(1))
    # [batch, queries, heads, keys] -> [batch, heads, queries, keys]
    mixed, probabilities = jax.jit(functools.partial(BACKENDS["reference"].run, request=request))(arrays)
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
        ({"length": 4352, "pattern": ExtraTokens(256, 84)}, "blocks", "fastest"),
        ({"length": 1024, "pattern": Window(64, 64), "packed": True}, "blocks", "not cudnn, which takes 1/1.2 of"),
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

"""Kernels that read whole rows once: layers with them, interpreted, against the same layers without."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.kernels import hidden_layer, layer_norm, rows, split_heads
from bertfam.layers.attention.dot_product import Row, SelfAttention
from bertfam.layers.blocks import PostNormBlock, PreNormBlock
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.norm import LayerNorm, RMSNorm

SHAPE = (2, 6, 192)  # a width of three chunks, and 12 rows


def draw(seed, shape=SHAPE, dtype=jnp.bfloat16):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def random_params(init):
    """Return random parameters of the shapes that `init` gives, with norm scales around 1."""

    def values(path, leaf):
        scale = 0.1 if leaf.ndim == 1 else leaf.shape[0] ** -0.5
        return (draw(leaf.size, leaf.shape, np.float64) * scale + (path[-1].key == "scale")).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(values, nn.unbox(jax.eval_shape(init)))


@pytest.fixture
def check(monkeypatch):
    """Return a function that compares a module with kernels, which are interpreted here, and the same module without."""
    names, call = [], rows.call

    def counted(kernel, name, *args, **options):
        names.append(name)
        return call(kernel, name, *args, **options)

    def compare(make, params, inputs, *kernels):
        """Compare `make("bfloat16")` with and without kernels, by their distance to `make("float32")`."""

        @jax.jit
        def compute(params, inputs):
            wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), inputs)
            exact = value_and_gradients(make("float32"), params, wide)
            plain = value_and_gradients(make("bfloat16"), params, inputs)
            assert not names
            with monkeypatch.context() as on_a_gpu:
                on_a_gpu.setattr(rows, "run_here", lambda dtype: dtype == jnp.bfloat16)
                on_a_gpu.setattr(rows, "call", counted)
                return value_and_gradients(make("bfloat16"), params, inputs), plain, exact

        found, plain, exact = jax.tree.map(np.float32, compute(params, inputs))
        assert {*names} == {*kernels, *(f"{name}_gradient" for name in kernels)}
        for actual, other, expected in zip(*map(jax.tree.leaves, (found, plain, exact)), strict=True):
            allowed = 2 * np.abs(other - expected).max() + 1e-3 * np.abs(expected).max()
            np.testing.assert_allclose(actual, expected, rtol=0, atol=allowed)

    return compare


def value_and_gradients(apply, params, inputs):
    """Return outputs and gradients, for drawn gradients of the outputs."""
    outputs, pull_back = jax.vjp(apply, params, inputs)
    return outputs, pull_back(jax.tree.map(lambda output: draw(7, output.shape, output.dtype), outputs))


@pytest.mark.parametrize(
    ("norm", "branches", "added"),
    [
        (LayerNorm(), False, True),
        (LayerNorm(use_bias=False), True, True),
        (LayerNorm(), True, False),
        (RMSNorm(), False, False),
        (RMSNorm(), True, True),
    ],
)
def test_norms(norm, branches, added, check):
    def make(dtype):
        method = "branch" if branches else None
        return lambda params, inputs: norm.clone(dtype=jnp.dtype(dtype)).apply(params, *inputs, method=method)

    params = random_params(lambda: norm.init(jax.random.key(0), draw(0)))
    check(make, params, (draw(0), draw(1)) if added else (draw(0),), "layer_norm")


def test_programs_with_unequal_shares_of_the_rows(check, monkeypatch):
    """Seven groups of rows are shared by four programs."""
    monkeypatch.setattr(rows, "_MOST_PROGRAMS", 4)
    norm, inputs = LayerNorm(), draw(0, (2, 7, 64))
    params = random_params(lambda: norm.init(jax.random.key(0), inputs))
    check(lambda dtype: norm.clone(dtype=jnp.dtype(dtype)).apply, params, inputs, "layer_norm")
    assert rows.programs(7) == 4 and rows.programs(8) == 4 and rows.programs(9) == 3 and rows.programs(8, 3) == 1


@pytest.mark.parametrize(("activation", "gated"), [("gelu", True), ("gelu_tanh", True), ("relu", False), ("silu", True)])
def test_hidden_layers(activation, gated, check):
    layer = FeedForward(192, activation, gated=gated, use_bias=activation != "silu")
    inputs = draw(0, (2, 8, 16))
    params = random_params(lambda: layer.init(jax.random.key(0), inputs))
    check(lambda dtype: layer.clone(dtype=jnp.dtype(dtype)).apply, params, inputs, "hidden_layer")


@pytest.mark.parametrize(("key_heads", "theta"), [(6, None), (2, 10_000.0), (1, None)])
def test_queries_keys_and_values(key_heads, theta, check):
    layer = SelfAttention(6, 32, use_bias=key_heads != 2, num_kv_heads=key_heads, rotary_theta=theta)
    row = Row(jnp.ones((2, 6), jnp.int32), jnp.array([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5]]))
    params = random_params(lambda: layer.init(jax.random.key(0), draw(0), row, packed=True, train=False))

    def make(dtype):
        own = layer.clone(execution=Execution(dtype=dtype, attention="reference"))
        return lambda params, inputs: own.apply(params, inputs, row, packed=True, train=False).output

    check(make, params, draw(0), "split_heads")


@pytest.mark.parametrize("block", [PostNormBlock, PreNormBlock])
def test_layers(block, check):
    def layer(dtype):
        execution = Execution(dtype=dtype, attention="reference")
        return block(
            attention=lambda name: SelfAttention(3, 64, execution=execution, rotary_theta=1e4, name=name),
            feed_forward=lambda name: FeedForward(192, "gelu", jnp.dtype(dtype), name=name),
            norm=lambda name: LayerNorm(dtype=jnp.dtype(dtype), name=name),
        )

    def make(dtype):
        return lambda params, inputs: layer(dtype).apply(params, inputs, row=row, packed=False, train=False)[0]

    row, inputs = Row(jnp.ones((2, 6), jnp.int32)), draw(0)
    params = random_params(lambda: layer("float32").init(jax.random.key(0), inputs, row=row, packed=False, train=False))
    check(make, params, inputs, "layer_norm", "hidden_layer", "split_heads")


def test_shapes_that_the_kernels_do_not_take():
    assert layer_norm.fits((2, 6, 768)) and layer_norm.fits((2, 6, 64))
    assert not layer_norm.fits((1, 1, 768)) and not layer_norm.fits((2, 6, 100)) and not layer_norm.fits((2, 6, 64 * 9))
    assert hidden_layer.fits((2, 6, 3072)) and hidden_layer.fits((2, 6, 2, 1152)) and not hidden_layer.fits((2, 6, 100))
    assert split_heads.fits((2, 6, 3, 12, 64), "heads") and not split_heads.fits((2, 6, 3, 12, 80), "heads")


@pytest.mark.parametrize(
    ("count", "columns", "most", "expected"),
    [
        (24, 12, 16, ((4, 4), (6, 3))),
        (24, 12, 2, ((1, 2), (24, 6))),
        (3, 5, 16, ((1, 1), (3, 5))),
        (8, 64, 0, ((1, 1), (8, 64))),
    ],
)
def test_tiles_cover_an_array_and_have_sizes_of_powers_of_two(count, columns, most, expected):
    assert rows.tiling(count, columns, most_columns=most, most=most) == expected


@pytest.mark.parametrize(
    ("target", "dtype", "jax_from", "expected"),
    [
        (("gpu", 9.0), jnp.bfloat16, (0, 1), True),
        (("gpu", 8.0), jnp.float16, (0, 1), True),
        (("gpu", 7.5), jnp.bfloat16, (0, 1), False),
        (("gpu", 9.0), jnp.float32, (0, 1), False),
        (("gpu", 9.0), jnp.bfloat16, (99,), False),
        (("tpu", None), jnp.bfloat16, (0, 1), False),
    ],
)
def test_devices_and_dtypes(target, dtype, jax_from, expected, monkeypatch):
    monkeypatch.setattr(rows, "target", lambda: target)
    monkeypatch.setattr(rows, "_JAX_FROM", jax_from)
    assert rows.run_here(dtype) is expected


def test_a_kernel_of_many_layers_is_one_function():
    """Otherwise every layer would be traced and lowered, which takes longer than reading a compiled program."""

    def kernel(inputs, outputs, *, factor):
        outputs[...] = factor * inputs[...]

    array = jnp.ones((2, 8))
    calls = [rows.call(partial(kernel, factor=factor), "scale", (1,), array, warps=1) for factor in (2, 2, 3)]
    assert calls[0] is calls[1] is not calls[2]
    np.testing.assert_array_equal(calls[2](array), 3 * array)

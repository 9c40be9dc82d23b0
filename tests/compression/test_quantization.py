"""Quantised kernels: products by hand in NumPy's integers, bounds of their error, gradients in training, and ranges of inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util

from bertfam.compression.calibration import Calibration
from bertfam.compression.quantization import Quantization, axes_of
from bertfam.errors import UserError
from bertfam.layers.dense import Dense
from bertfam.layers.execution import Execution
from bertfam.layers.stack import divided
from bertfam.models.albert import AlbertConfig
from bertfam.models.encoder import init_encoder

pytest.importorskip("qwix", reason="quantised models need qwix: pip install 'bertfam[quantize]'")

HALF = 0.5001  # of an integer
PATH = ("encoder", "layers", "dense", "kernel")
# Two kernels with the same numbers: of a projection to heads, and of one from heads.
KERNELS = {
    "to heads": (("embed", "heads", "head_dim"), (96, 2, 5), 1),
    "from heads": (("heads", "head_dim", "embed"), (2, 48, 10), 2),
}


def one_layer(quantization, kernel, axes, ranges=None):
    """Return the parameters of a `Dense` from those of a stack of one layer."""
    tree = traverse_util.unflatten_dict({PATH: jnp.asarray(kernel)[None]})
    quantized = quantization.quantized(tree, {PATH: ("layers", *axes)}, ranges)
    return jax.tree.map(lambda leaf: leaf[0], quantized["encoder"]["layers"]["dense"])


def numbers(kind):
    """Return axes, kernel, inputs, and both as matrices."""
    axes, shape, contracted = KERNELS[kind]
    generator = np.random.default_rng(0)
    kernel = generator.standard_normal(shape, np.float32)
    inputs = generator.standard_normal((3, 7, *shape[:contracted]), np.float32)
    inputs[0, 0] = 0  # a token without any activation
    inputs[0, 1] *= 100
    dense = Dense(shape[contracted:], axes, use_bias=False)
    return axes, kernel, inputs, kernel.reshape(96, 10), inputs.reshape(21, 96), dense


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("activations", ["dynamic", "static", "none"])
def test_products_are_those_of_integers(kind, activations):
    axes, kernel, inputs, weights, rows, dense = numbers(kind)
    params = one_layer(Quantization(activations), kernel, axes, {PATH: np.float32([2.5])})
    outputs = np.asarray(dense.apply({"params": params}, inputs)).reshape(21, 10)

    weight_scale = np.abs(weights).max(axis=0) / np.float32(127.5)
    np.testing.assert_allclose(np.ravel(params["kernel_scale"]), weight_scale, rtol=1e-6)
    integers = np.asarray(params["kernel"]).reshape(96, 10).astype(np.int64)
    assert params["kernel"].dtype == jnp.int8
    assert np.abs(integers - weights / weight_scale).max() < HALF
    if activations == "none":
        np.testing.assert_allclose(outputs, rows @ (integers * weight_scale).astype(np.float32), atol=2e-3)
        return
    largest = np.full((21, 1), 2.5, np.float32) if activations == "static" else np.abs(rows).max(axis=1, keepdims=True)
    scale = np.maximum(largest / np.float32(127.5), np.finfo(np.float32).tiny)
    tokens = np.clip(np.rint(rows / scale), -127, 127).astype(np.int64)
    np.testing.assert_allclose(outputs, (tokens @ integers) * scale * weight_scale, rtol=1e-6, atol=1e-9)
    if activations == "static":
        assert (tokens == 127).any()  # beyond the range
        return
    # Each factor is off by half its scale at most.
    bound = np.abs(rows) @ np.broadcast_to(weight_scale / 2, weights.shape) + scale / 2 @ np.ones((1, 96)) @ np.abs(weights)
    bound += 96 * scale * weight_scale / 4
    error = np.abs(outputs - rows.astype(np.float64) @ weights)
    assert (error <= bound + 1e-3).all() and error.max() > 1e-3


@pytest.mark.parametrize("kind", KERNELS)
def test_int4_kernels_have_scales_of_groups_of_inputs(kind):
    axes, kernel, inputs, weights, rows, dense = numbers(kind)
    params = one_layer(Quantization("none", bits=4), kernel, axes)
    assert params["kernel"].dtype == jnp.int4 and set(params) == {"kernel", "kernel_scale"}
    groups = weights.reshape(2, 48, 10)
    scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(7.5)
    integers = np.asarray(params["kernel"]).astype(np.float32).reshape(2, 48, 10)
    assert np.abs(integers - groups / scale).max() < HALF
    expected = (integers * scale).reshape(96, 10)
    outputs = np.asarray(dense.apply({"params": params}, inputs)).reshape(21, 10)
    np.testing.assert_allclose(outputs, rows @ expected, atol=2e-3)


@pytest.mark.parametrize("kind", KERNELS)
def test_training_rounds_forward_and_not_backward(kind):
    axes, kernel, inputs, weights, rows, dense = numbers(kind)
    gradient = np.random.default_rng(1).standard_normal((21, 10)).astype(np.float32)

    def loss(kernel, inputs):
        params = Quantization().in_training({"encoder": {"layers": {"dense": {"kernel": kernel[None]}}}})
        own = jax.tree.map(lambda leaf: leaf[0], params["encoder"]["layers"]["dense"])
        outputs = dense.apply({"params": own}, inputs).reshape(21, 10)
        return jnp.sum(outputs * gradient), outputs

    (_, outputs), (of_kernel, of_inputs) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(kernel, inputs)
    quantized = dense.apply({"params": one_layer(Quantization(), kernel, axes)}, inputs)
    # The greatest weight of an output is 127.5 or -127.5, which is rounded to either side.
    weight_scale, greatest = np.abs(weights).max(axis=0) / 127.5, np.abs(weights).argmax(axis=0)
    scale = np.abs(rows).max(axis=1, keepdims=True) / 127.5
    step = (np.abs(rows[:, greatest]) + scale) * weight_scale
    assert (np.abs(outputs - np.asarray(quantized).reshape(21, 10)) < step + 2e-3).all()
    rounded = np.clip(np.rint(rows / np.maximum(scale, 1e-30)), -127, 127) * scale
    np.testing.assert_allclose(np.reshape(of_kernel, (96, 10)), rounded.T @ gradient, atol=2e-3)
    rounded = np.clip(np.rint(weights / weight_scale), -127, 127) * weight_scale
    others = np.setdiff1d(np.arange(96), greatest)
    np.testing.assert_allclose(np.reshape(of_inputs, (21, 96))[:, others], (gradient @ rounded.T)[:, others], atol=1e-3)


@pytest.fixture(scope="module")
def bert():
    """Return the config of a small BERT, random parameters of its encoder, their axes, and a batch."""
    objective = tiny.objective()
    boxed = {"encoder": jax.eval_shape(lambda: objective.init(jax.random.key(0), tiny.SHAPE)[0])["encoder"]}
    return objective.model, random_params(boxed), axes_of(boxed), tiny.batch(4)


def random_params(boxed):
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape, np.float32), nn.meta.unbox(boxed))


def hidden_states(config, params, batch, layers="scan", dtype="float32"):
    names = {"segment_ids": "encoder_segment_ids", "token_type_ids": "encoder_token_type_ids"}
    inputs = {name: batch[feature] for name, feature in names.items()}
    encoder = config.encoder(Execution(layers=layers, dtype=dtype))
    _, collected = encoder.apply(
        {"params": params["encoder"]},
        batch["encoder_input_tokens"],
        **inputs,
        train=False,
        collect=frozenset({"hidden_states"}),
    )
    return np.asarray(collected["hidden_states"], np.float32)


def test_loops_over_layers_agree_and_tables_are_floats_when_read(bert):
    config, params, axes, batch = bert
    quantization = Quantization("none", keep=("*/output/kernel",))
    stored = quantization.quantized(params, axes)
    table = stored["encoder"]["embeddings"]["word"]
    assert table["table"].dtype == jnp.int8 and table["table_scale"].shape == (128, 1)
    assert stored["encoder"]["layers"]["feed_forward"]["output"].keys() == {"kernel", "bias"}
    read = quantization.with_float_tables(stored)
    exact = params["encoder"]["embeddings"]["word"]["table"]
    np.testing.assert_allclose(read["encoder"]["embeddings"]["word"]["table"], exact, atol=np.abs(exact).max() / 254)
    # With kernels that are not rounded further, the products are those of dequantised kernels in floats.
    flat = traverse_util.flatten_dict(read)
    for path in quantization.kernels(params):
        flat[path] = flat[path] * flat.pop((*path[:-1], "kernel_scale"))
    expected = hidden_states(config, traverse_util.unflatten_dict(flat), batch)
    np.testing.assert_allclose(hidden_states(config, read, batch), expected, atol=2e-5)

    dynamic = Quantization()
    read = dynamic.with_float_tables(dynamic.quantized(params, axes))
    scanned = hidden_states(config, read, batch)
    assert 1e-3 < np.abs(scanned - expected).max()
    np.testing.assert_allclose(hidden_states(config, divided(read), batch), scanned, atol=2e-5)
    # Training computes the same products in floats.
    tables = {"encoder": params["encoder"] | {"embeddings": read["encoder"]["embeddings"]}}
    trained = hidden_states(config, dynamic.in_training(tables), batch)
    assert np.abs(trained - scanned).mean() < 0.02
    stacked, apart = (dynamic.in_training(own)["encoder"]["layers"] for own in (tables, divided(tables)))
    clips = [layers["attention"]["query"]["input_clip"].shape for layers in (stacked, apart["0"])]
    assert clips == [(2,), ()]
    assert dynamic.in_training(read) == read  # nothing is left to round


@pytest.mark.parametrize("layers", ["scan", "unroll"])
def test_ranges_are_the_greatest_inputs_of_tokens(bert, layers):
    config, params, _, batch = bert
    names = ("vocab_size", "num_layers", "hidden_size", "num_heads", "feed_forward_size", "max_length")
    albert = AlbertConfig(**{name: getattr(config, name) for name in names}, embedding_size=8)
    is_token = jnp.asarray(batch["encoder_segment_ids"] > 0)
    for model in (config, albert)[: 1 + (layers == "scan")]:
        if model is albert:
            params = {"encoder": random_params(jax.eval_shape(lambda: init_encoder(albert, jax.random.key(0))))}
        kernels = Quantization().kernels(params)
        calibration = Calibration(params, kernels)
        with calibration.observe(is_token):
            states = hidden_states(model, calibration.params, batch, layers)
        ranges = calibration.ranges()
        path = next(path for path in kernels if "query" in path)
        expected = np.abs(states[:-1] * is_token[..., None]).max(axis=(1, 2, 3))
        expected = expected if model is config else [expected.max()]  # all layers of ALBERT share a kernel
        np.testing.assert_allclose(ranges[path], expected, rtol=1e-5)
        assert all((largest > 0).all() for largest in ranges.values()) and len(ranges) == 6


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"activations": "int8"}, ("Quantization.activations", "'int8'", "dynamic")),
        ({"bits": 3}, ("Quantization.bits", "3", "8 or 4")),
        ({"bits": 4}, ("Quantization.bits", "4", "none")),
    ],
)
def test_settings_that_do_not_go_together(values, named):
    with pytest.raises(UserError) as caught:
        Quantization(**values)
    assert all(word in str(caught.value) for word in named)

"""Run by test_attention_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import gc
import importlib.util
import json
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertfam.kernels import rows
from bertfam.kernels.attention.choice import BACKENDS, choose
from bertfam.kernels.attention.interface import Inputs, Request
from bertfam.kernels.attention.patterns import CAUSAL, FULL, BlockSparse, ExtraTokens, GlobalTokens, Window
from bertfam.layers.attention.dot_product import Row, SelfAttention
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.norm import LayerNorm
from bertfam.planning.slices import parse
from bertfam.sharding.mesh import MeshShape

LENGTH, HEADS, HEAD_DIM = 512, 2, 8
# rows of several segments, with padding at the end, without any, and nothing but padding
SEGMENTS = np.array([[1] * 150 + [2] * 250 + [0] * 112, [1] * 40 + [2] * 300 + [3] * 172, [0] * 512, [1] * 512], np.int32)
# backend, pattern, devices along a row
CASES = [
    ("xla", FULL, 4),
    ("blocks", Window(20, 9), 8),
    ("blocks", Window(24, 0, dilation=3), 2),
    ("blocks", ExtraTokens(32, 20), 4),
    ("block_sparse", BlockSparse(32, random=1), 4),
    ("splash", Window(20, 9), 4),
    ("splash", Window(300, 300), 4),
]
SLICES = {"v5e-8": ({"sequence": 2, "tensor": 2}, Window(64, 64)), "v6e-4": ({"sequence": 4}, CAUSAL)}


def arrays():
    generator = np.random.default_rng(0)
    return generator.standard_normal((4, len(SEGMENTS), LENGTH, HEADS, HEAD_DIM), np.float32)


def loss(backend, request, *arrays):
    """Return a weighted sum of the outputs at tokens; the last of the arrays are the weights."""
    keys = None if backend.gathers_keys(request) else "length"
    query, key, value, weights = (
        nn.with_logical_constraint(array, ("batch", length, "heads", None))
        for array, length in zip(arrays, ("length", keys, keys, "length"), strict=True)
    )
    blocks = LENGTH // getattr(request.pattern, "block", LENGTH)
    random_blocks = np.random.default_rng(0).integers(0, blocks, (HEADS, max(blocks - 2, 0), 1), np.int32)
    flags = jnp.zeros(SEGMENTS.shape, bool).at[:, 300].set(True)
    lists = {"random_blocks": jnp.asarray(random_blocks), "global_tokens": flags}
    mixed, _ = backend.run(Inputs(query, key, value, jnp.asarray(SEGMENTS), arrays=lists), request)
    return jnp.sum(jnp.where(SEGMENTS[:, :, None, None] > 0, mixed * weights, 0))


def compiled(name, pattern, shape):
    """Return the value and gradient of the loss on a mesh, compiled, and their results."""
    mesh = shape.build(jax.devices()[: shape.sequence * shape.tensor])
    with jax.set_mesh(mesh), nn.logical_axis_rules(shape.rules.items()):
        # The platform stays "cpu", so a kernel for TPUs is interpreted.
        request = Request("float32", LENGTH, HEAD_DIM, pattern, packed=True).here()
        given = [jax.device_put(array, NamedSharding(mesh, P(None, "sequence"))) for array in arrays()]
        gradient = jax.value_and_grad(lambda *given: loss(BACKENDS[name], request, *given), argnums=(0, 1, 2))
        program = jax.jit(gradient).lower(*given).compile()
        return program, program(*given)


def layer_gradients(shape):
    """Return the loss of a layer in float32, and its gradients; kernels of `bertfam.kernels.rows` are interpreted."""
    execution = Execution(dtype="float32", attention="reference")
    layer = PostNormBlock(
        attention=lambda name: SelfAttention(4, 32, execution=execution, rotary_theta=1e4, name=name),
        feed_forward=lambda name: FeedForward(256, "gelu", gated=True, name=name),
        norm=lambda name: LayerNorm(name=name),
    )
    inputs, row = jax.random.normal(jax.random.key(1), (4, 16, 128)), Row(jnp.ones((4, 16), jnp.int32))
    shapes = jax.eval_shape(lambda key: layer.init(key, inputs, row=row, packed=False, train=False), jax.random.key(0))
    generator = np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.1 * generator.standard_normal(leaf.shape) + (path[-1].key == "scale")), nn.unbox(shapes)
    )

    def total(params, inputs):
        inputs = nn.with_logical_constraint(inputs, ("batch", "length", None))
        outputs = layer.apply(params, inputs, row=row, packed=False, train=False)[0]
        return jnp.mean((outputs - inputs) ** 2)

    mesh = shape.build(jax.devices()[: shape.data * shape.sequence * shape.tensor])
    with jax.set_mesh(mesh), nn.logical_axis_rules(shape.rules.items()):
        value, gradients = jax.jit(jax.value_and_grad(total))(params, inputs)
    del gradients["params"]["attention"]["key"]["bias"]  # 0 but for rounding
    return value, gradients


def largest_difference(one, other):
    """Return the largest difference relative to the largest value of each array."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(np.asarray(a) - np.asarray(b))) / np.max(np.abs(np.asarray(b)))) for a, b in pairs)


def lowered_for_hopper(pattern):
    """Lower forward and backward of the kernels for GPUs, which are not run here, and count calls and messages of a device."""
    shape = MeshShape(data=2, sequence=2, tensor=2)
    with jax.set_mesh(shape.build(jax.devices())), nn.logical_axis_rules(shape.rules.items()):
        request = Request("bfloat16", LENGTH, 64, pattern.within(LENGTH), packed=True, platform="gpu", split=True)
        given = (jax.ShapeDtypeStruct((len(SEGMENTS), LENGTH, HEADS, 64), jnp.bfloat16) for _ in range(4))
        gradient = jax.jit(jax.grad(lambda *given: loss(BACKENDS["hopper"], request, *given), argnums=(0, 1, 2)))
        text = gradient.trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return {name: text.count(name) for name in ("mosaic_gpu", "collective_permute")}


def compile_for(slice_name, sizes, pattern):
    """Compile forward and backward of the chosen backend for a TPU slice; return its name and its program's text."""
    shape = MeshShape(**sizes)
    mesh = shape.build(parse(slice_name).devices())
    with jax.set_mesh(mesh), nn.logical_axis_rules(shape.rules.items()):
        request = Request("bfloat16", LENGTH, 64, pattern, packed=True).here()
        backend, _ = choose(request)
        sharding = NamedSharding(mesh, P(("replica", "data", "fsdp"), "sequence", "tensor"))
        row = jax.ShapeDtypeStruct((8, LENGTH, 4, 64), jnp.bfloat16, sharding=sharding)
        segments = jax.ShapeDtypeStruct((8, LENGTH), jnp.int32, sharding=NamedSharding(mesh, P(("replica", "data", "fsdp"))))

        def total(query, key, value, segments):
            return jnp.sum(backend.run(Inputs(query, key, value, segments), request)[0].astype(jnp.float32) ** 2)

        program = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(row, row, row, segments).compile()
    return backend.name, program.as_text()


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 1000)  # as in conftest.py
    whole = layer_gradients(MeshShape(data=1))
    rows.run_here = lambda dtype: True
    sharded = layer_gradients(MeshShape(data=2, sequence=2, tensor=2))
    results = {"differences": {}, "gathers": {}, "tpu": {}, "row kernels": largest_difference(sharded, whole)}
    references = {pattern: compiled("reference", pattern, MeshShape(data=1))[1] for _, pattern, _ in CASES}
    for name, pattern, sequence in CASES:
        expected = references[pattern]
        program, actual = compiled(name, pattern, MeshShape(data=1, sequence=sequence, tensor=1 if sequence == 8 else 2))
        case = f"{name}, {pattern.describe()}"
        results["differences"][case] = largest_difference(actual, expected)
        results["gathers"][case] = len(re.findall(r"= \S+ all-gather", program.as_text()))
    if importlib.util.find_spec("libtpu"):
        for slice_name, (sizes, pattern) in SLICES.items():
            name, text = compile_for(slice_name, sizes, pattern)
            results["tpu"][slice_name] = {"name": name, "calls": text.count('custom_call_target="tpu_custom_call"')}
            results["tpu"][slice_name]["gathers"] = len(re.findall(r"all-gather(-start)?\(", text))
    if jax.__version_info__ >= (0, 11, 2):
        patterns = {
            "all": FULL,
            "window": Window(20, 9),
            "blocks": BlockSparse(random=1),
            "global": GlobalTokens(Window(20, 9), 2),
        }
        results["hopper"] = {name: lowered_for_hopper(pattern) for name, pattern in patterns.items()}
    print(json.dumps(results))

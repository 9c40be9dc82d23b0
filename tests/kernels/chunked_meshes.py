"""Run by test_chunked_cross_entropy.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from bertfam.kernels import rows  # noqa: E402
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.sharding.named_shardings import partition_spec  # noqa: E402
from bertfam.sharding.rules import Rules  # noqa: E402

BATCH, LENGTH, EMBED, ROWS = 8, 10, 8, 32
SETTINGS = VocabularyLoss(30, z_loss=0.01, label_smoothing=0.1, chunk=3)
AXES = [("batch", None, None), ("vocab", "embed"), ("vocab",), ("batch", None), ("batch", None)]


def arguments():
    generator = np.random.default_rng(0)
    shapes = ((BATCH, LENGTH, EMBED), (ROWS, EMBED), (ROWS,))
    floats = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    targets = generator.integers(0, 30, (BATCH, LENGTH)).astype(np.int32)
    return *floats, targets, generator.integers(0, 2, (BATCH, LENGTH)).astype(np.float32)


def loss(*args):
    sums = chunked_cross_entropy(*args, SETTINGS)
    return sums.loss, sums


def kernel_sums(text, height):
    """Find where the program sums the kernel's gradient, of `height` rows, over devices: in the loop, or outside."""
    places, computation = set(), ""
    loops = set(re.findall(r"body=%?([\w.-]+)", text))
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line):
            computation = header[1]
        shapes = re.search(r"= (.*) (?:all-reduce|reduce-scatter)\(", line)
        if shapes and re.search(rf"f32\[[\d,]*\b{height},{EMBED}\]", shapes[1]):
            places.add("in the loop" if computation in loops else "outside")
    return sorted(places)


def main():
    args = arguments()
    results, sums = [], []
    for shape, with_kernel in (((1, 1, 1), False), ((4, 2, 1), False), ((2, 2, 2), False), ((2, 2, 1), True)):
        rows.run_here = lambda dtype, allowed=with_kernel: allowed
        mesh = MeshShape(*shape).build(jax.devices()[: int(np.prod(shape))])
        with jax.set_mesh(mesh), nn.logical_axis_rules(Rules().items()):
            shardings = [NamedSharding(mesh, partition_spec(axes)) for axes in AXES]
            placed = [jax.device_put(*pair) for pair in zip(args, shardings, strict=True)]
            compiled = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True)).lower(*placed).compile()
            results.append(jax.tree.leaves(jax.device_get(compiled(*placed))))
            if mesh.size > 1 and not with_kernel:
                sums.append(kernel_sums(compiled.as_text(), ROWS // shape[2]))
    differences = [
        float(np.max(np.abs(one - other) / (1 + np.abs(one))))
        for on_mesh in results[1:]
        for one, other in zip(results[0], on_mesh, strict=True)
    ]
    print(json.dumps({"differences": differences, "kernel_sums": sums}))


if __name__ == "__main__":
    main()

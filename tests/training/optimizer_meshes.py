"""Run by test_optimizer_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from flax import linen as nn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import test_optimizers  # noqa: E402
import toy_parameters as toy  # noqa: E402

from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.sharding.named_shardings import state_shardings  # noqa: E402


def trained(config, shape):
    """Return the parameters after three updates, and the mesh axes that the optimizer's state is split over."""
    mesh = MeshShape(*shape).build(jax.devices()[: int(np.prod(shape))])
    boxed = toy.boxed(toy.random_values(0))
    optimizer = config.build(6, boxed)
    boxes = jax.eval_shape(optimizer.init, boxed)
    placed = state_shardings(boxed, mesh), state_shardings(boxes, mesh)

    def update(params, state, gradient, step):
        updates, state = optimizer.update(gradient, state, params, step=step)
        return optax.apply_updates(params, updates), state

    update = jax.jit(update, out_shardings=placed)
    params = jax.device_put(nn.meta.unbox(boxed), placed[0])
    state = jax.jit(lambda: nn.meta.unbox(optimizer.init(boxed)), out_shardings=placed[1])()
    for step in range(3):
        params, state = update(params, state, toy.tree(toy.random_values(step + 1)), step)
    splits = {jax.tree_util.keystr(path): list(leaf.sharding.spec) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
    return toy.flat(jax.device_get(params)), splits


if __name__ == "__main__":
    results = {}
    for case in ("AdamW", "Lamb", "Adafactor factored", "Muon"):
        config, _ = test_optimizers.CASES[case]
        (alone, _), (on_eight, splits) = trained(config, (1, 1, 1)), trained(config, (2, 2, 2))
        difference = max(float(np.abs(alone[name] - on_eight[name]).max()) for name in alone)
        results[case] = {"difference": difference, "splits": splits}
    print(json.dumps(results))

"""Run by test_distillation_meshes.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
import tiny  # noqa: E402
from test_distillation import ALL, random_like  # noqa: E402

from bertfam.data.text_data import TextData  # noqa: E402
from bertfam.data.text_rows import FullSentences  # noqa: E402
from bertfam.partitioning.mesh import MeshShape  # noqa: E402
from bertfam.training.feeding import global_batch  # noqa: E402
from bertfam.training.metrics import means  # noqa: E402
from bertfam.training.run import Run  # noqa: E402
from bertfam.training.stages import Stage  # noqa: E402
from bertfam.training.trainer import Trainer  # noqa: E402

LENGTH, BATCH = 16, 8
RUN = Run(objective=ALL, data=TextData(rows=FullSentences()), stages=(Stage(3, LENGTH, BATCH),))


class Source:
    def rows(self, step, start, stop):
        return {name: value[start:stop] for name, value in tiny.batch(BATCH, RUN.shape(0), seed=step).items()}


def losses(shape):
    """Of three updates, each term's; and what the teacher is split over."""
    trainer = Trainer(RUN, MeshShape(*shape).build(jax.devices()[: int(np.prod(shape))]))
    step, _ = trainer.compile_step(0)
    aux = jax.tree.map(np.asarray, random_like(trainer.abstract_state.aux, 4))
    state = trainer.with_aux(trainer.new_state(), aux)
    program = trainer.stages[0]
    found = []
    for index in range(3):
        batch = global_batch(Source(), index, BATCH, program.features, program.shardings)
        state, metrics = step(state, batch)
        found.append({name: value for name, value in means([metrics]).items() if name.endswith("loss")})
    same = jax.tree.map(lambda after, before: bool(np.array_equal(after, before)), jax.device_get(state.aux), aux)
    axes = {axis for leaf in jax.tree.leaves(state.aux) for axis in leaf.sharding.spec if axis}
    return found, all(jax.tree.leaves(same)), sorted(map(str, axes))


if __name__ == "__main__":
    print(json.dumps({name: losses(shape) for name, shape in {"one": (1, 1, 1), "eight": (2, 2, 2)}.items()}))

"""State sizes on eight simulated devices; test_estimate.py runs it in a separate process and reads its JSON output."""

import dataclasses
import gc
import json

import jax

from bertfam.planning.estimate import estimate
from bertfam.planning.programs import TRAINING, jobs
from bertfam.sharding.mesh import MeshShape
from bertfam.training.run_plan import local_bytes
from bertfam.training.trainer import Trainer

import planned_bert  # isort: skip

MESHES = {
    "fsdp": MeshShape(data=1, fsdp=-1),
    "tensor": MeshShape(fsdp=2, tensor=2),
    "sequence": MeshShape(replica=2, sequence=2),
    "zero1": MeshShape(data=4, fsdp=2, zero1=True),
}


def measure():
    result = {}
    for name, mesh in MESHES.items():
        run = dataclasses.replace(planned_bert.run(), mesh=mesh, average_decay=0.9)
        estimated, state = estimate(run, 8), Trainer(run, mesh.build()).abstract_state
        result[name] = {
            "estimated": [estimated.parameters, estimated.optimizer],
            "split": [sum(map(local_bytes, jax.tree.leaves(tree))) for tree in (state.params, (state.opt_state, state.average))],
        }
    (job,) = jobs(run, mesh.build(), TRAINING)
    memory = job.compile().memory
    return result | {"compiled": [memory.parameters, memory.optimizer, memory.other, memory.total, estimated.total]}


gc.set_threshold(100_000, 50, 1000)  # as in conftest.py
print(json.dumps(measure()))

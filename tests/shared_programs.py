"""Trainers that are shared by the runs of one process: tracing and compiling are most of the time of a tiny run."""

import copy
import dataclasses
from collections import OrderedDict

from bertfam import session
from bertfam.training.schedules import LinearDecay
from bertfam.training.trainer import Trainer

_KEPT = 12
_trainers: OrderedDict = OrderedDict()
_functions: OrderedDict = OrderedDict()


def trainer(run, mesh, phase_timer=None):
    """Return a Trainer as its class does, with the programs of earlier ones whose runs have the same."""
    shapes = tuple(run.shape(index) for index in range(len(run.stages)))
    optimization = (run.optimizer, run.stages, run.microbatches, run.non_finite, run.average_decay, run.keep_best)
    key = (run.objective, *optimization, run.seed, run.mesh, mesh, shapes)
    made = _trainers.pop(key, None) or _with_shared_functions(Trainer(run, mesh))
    _trainers[key] = made
    while len(_trainers) > _KEPT:
        _trainers.popitem(last=False)
    twin = copy.copy(made)
    twin.run = run
    if phase_timer is not None:
        twin.phase_timer = phase_timer
    return twin


def _with_shared_functions(made):
    """Replace the jitted functions of a Trainer by those of earlier ones that differ in nothing that these depend on."""
    run = made.run
    model = (run.objective, run.mesh, made.mesh)
    update = (run.optimizer, run.total_steps, run.seed, run.microbatch_count)
    initial = (dataclasses.replace(run.optimizer, schedule=LinearDecay()), run.shape(0), run.average_decay is None)
    keys = {
        "_eval_step": model,
        "_predictions": model,
        "_new_state": (*model, *initial),
        "_step": (*model, *update, run.non_finite, run.average_decay),
        "_inspection": (*model, *update),
    }
    for name, key in keys.items():
        function = _functions.pop((name, key), getattr(made, name))
        _functions[name, key] = function
        setattr(made, name, function)
    while len(_functions) > _KEPT * len(keys):
        _functions.popitem(last=False)
    return made


def share(patch):
    """Have commands share trainers, until `patch` is undone."""
    patch.setattr(session, "Trainer", trainer)

"""Trainers that are shared by the runs of one process: tracing and compiling are most of the time of a tiny run."""

import copy
from collections import OrderedDict

from bertfam import session
from bertfam.training.trainer import Trainer

_KEPT = 12
_trainers: OrderedDict = OrderedDict()


def trainer(run, mesh, phase_timer=None):
    """Return a Trainer as its class does, with the programs of an earlier one whose run has the same."""
    shapes = tuple(run.shape(index) for index in range(len(run.stages)))
    optimization = (run.optimizer, run.stages, run.microbatches, run.non_finite, run.average_decay, run.keep_best)
    key = (run.objective, *optimization, run.seed, run.mesh, mesh, shapes)
    made = _trainers.pop(key, None) or Trainer(run, mesh)
    _trainers[key] = made
    while len(_trainers) > _KEPT:
        _trainers.popitem(last=False)
    twin = copy.copy(made)
    twin.run = run
    if phase_timer is not None:
        twin.phase_timer = phase_timer
    return twin


def share(patch):
    """Have commands share trainers, until `patch` is undone."""
    patch.setattr(session, "Trainer", trainer)

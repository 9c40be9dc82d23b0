"""Trainers that are shared by the runs of one process: tracing and compiling are most of the time of a tiny run."""

import copy
import dataclasses
import functools
from collections import OrderedDict

import jax
import numpy as np

from bertfam import session
from bertfam.commands import held_out_scores, replay_run
from bertfam.training.schedules import LinearDecay
from bertfam.training.step import seed_words
from bertfam.training.trainer import Trainer

_KEPT = 12
_trainers: OrderedDict = OrderedDict()
_functions: OrderedDict = OrderedDict()


def trainer(run, mesh, phase_timer=None):
    """Return a Trainer as its class does, with the programs of earlier ones whose runs have the same."""
    shapes = tuple(run.shape(index) for index in range(len(run.stages)))
    optimization = (run.optimizer, run.stages, run.microbatches, run.non_finite, run.average_decay, run.keep_best)
    key = (run.objective, *optimization, run.mesh, mesh, shapes)
    made = _trainers.pop(key, None) or _with_shared_functions(Trainer(run, mesh))
    _trainers[key] = made
    while len(_trainers) > _KEPT:
        _trainers.popitem(last=False)
    twin = copy.copy(made)
    twin.run, twin.stages, twin._seed = run, [*made.stages], seed_words(run.key_seed)
    twin._by_phase = {phase: _seeded(programs, twin._seed) for phase, programs in made._by_phase.items()}
    if phase_timer is not None:
        twin.phase_timer = phase_timer
    return twin


def _with_shared_functions(made):
    """Replace the jitted functions of a Trainer by those of earlier ones that differ in nothing that these depend on."""
    run = made.run
    initial = (dataclasses.replace(run.optimizer, schedule=LinearDecay()), run.shape(0), run.average_decay is None)
    objectives = tuple(run.objective_of(index) for index in range(len(run.stages)))
    made._new_state = _shared(
        "new_state", (run.objective, objectives, run.mesh, made.mesh, run.frozen, *initial), made._new_state
    )
    for phase, programs in made._by_phase.items():
        evaluated, model = (phase.objective, phase.parts, run.mesh, made.mesh), (phase, run.mesh, made.mesh)
        schedules = tuple((stage.steps, stage.schedule) for stage in run.stages if any(stage.schedule for stage in run.stages))
        update = (run.optimizer, run.total_steps, schedules, run.microbatch_count)
        keys = {
            "eval_step": evaluated,
            "predictions": evaluated,
            "step": (*model, *update, run.non_finite, run.average_decay),
            "inspection": (*model, *update),
        }
        own = {name: getattr(programs, name) for name in keys} | {"step": _Step(programs.step)}
        shared = {name: _shared(name, key, own[name]) for name, key in keys.items()}
        made._by_phase[phase] = dataclasses.replace(programs, **shared)
    while len(_functions) > _KEPT * 5:
        _functions.popitem(last=False)
    return made


def _seeded(programs, seed):
    """Return the programs of a run with another seed, which only digests hold; they are compiled for each anew."""
    if np.array_equal(programs.digester._seed, seed):
        return programs
    digester = copy.copy(programs.digester)
    digester._seed, digester._compiled = seed, {}
    return dataclasses.replace(programs, digester=digester)


class _Step:
    """Jitted step that is compiled once for arguments of the same shapes."""

    def __init__(self, jitted):
        self._jitted, self._lowered = jitted, {}

    def lower(self, *arguments):
        leaves, structure = jax.tree.flatten(arguments)
        key = (structure, *((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves))
        if key not in self._lowered:
            self._lowered[key] = _Lowered(self._jitted.lower(*arguments))
        return self._lowered[key]


class _Lowered:
    """Lowered step that is compiled once."""

    def __init__(self, lowered):
        self.compile, self.as_text = functools.cache(lowered.compile), lowered.as_text


def _shared(name, key, own):
    """Return the function that is kept under a key, or keep this one."""
    function = _functions.pop((name, key), own)
    _functions[name, key] = function
    return function


def share(patch):
    """Have commands share trainers, until `patch` is undone."""
    for module in (session, held_out_scores, replay_run):
        patch.setattr(module, "Trainer", trainer)

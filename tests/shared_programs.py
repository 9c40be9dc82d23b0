"""Programs and fresh states that several runs of one process share, where tests train the same model several times."""

import functools
from contextlib import contextmanager

import jax
import pytest

from bertfam.training import trainer
from bertfam.training.trainer import Trainer


def description(of, stage):
    """Return everything that the step of a stage and the fresh state depend on."""
    run, batch = of.run, of.abstract_batch(stage)
    shapes = sorted((name, leaf.shape, str(leaf.dtype)) for name, leaf in batch.items())
    parts = (run.objective, run.optimizer, run.total_steps, run.seed, run.microbatches, run.non_finite, run.average_decay)
    return repr((*parts, run.mesh, of.mesh.devices.tolist(), shapes))


@contextmanager
def shared_programs():
    """Compile the step and the evaluation once for all equal runs, and make their fresh state once."""
    compile_step, new_state, steps, states = Trainer.compile_step, Trainer.new_state, {}, {}

    def compile_once(self, stage):
        key = description(self, stage)
        if key not in steps:
            steps[key] = compile_step(self, stage)
        return steps[key]

    def make_once(self):
        key = description(self, 0)
        if key not in states:
            states[key] = jax.device_get(new_state(self))
        return jax.device_put(states[key], self.shardings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "compile_step", compile_once)
        patch.setattr(Trainer, "new_state", make_once)
        patch.setattr(trainer, "make_eval_step", functools.cache(trainer.make_eval_step))
        yield

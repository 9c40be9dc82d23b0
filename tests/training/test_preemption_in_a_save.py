"""SIGTERM at any moment of a slow save: what the run leaves is whole, and is of its last step."""

import dataclasses
import os
import random
import signal
import threading
import time
from contextlib import closing

import jax
import pytest
from test_trainer import RUN, Written
from toy_objective import LENGTH, Rows

from bertfam.multihost.preemption import Stop, stop_on_signals
from bertfam.training import loop
from bertfam.training.checkpoints import Checkpoints, manifest, newest, selection
from bertfam.training.hooks.standard import SaveHook
from bertfam.training.logs.metrics import NoMetrics
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.stages import Stage
from bertfam.training.trainer import Trainer


@pytest.fixture(scope="module")
def trainer():
    made = Trainer(dataclasses.replace(RUN, stages=(Stage(12, LENGTH, 4),)), RUN.mesh.build(jax.devices()[:1]))
    compiled = made.compile_step(0)
    made.compile_step = lambda stage: compiled
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_signal_while_a_checkpoint_is_written(trainer, seed, tmp_path, monkeypatch, capsys):
    write, pace = manifest.write, random.Random(seed)

    def slow(folder):
        time.sleep(0.02)
        write(folder)
        time.sleep(0.02)

    monkeypatch.setattr(manifest, "write", slow)
    stop = Stop()
    log = ProgressLog(Written(), trainer.phase_timer, 0, 12, 4, trainer.run.flops_after)
    killer = threading.Timer(pace.uniform(0, 0.3), os.kill, (os.getpid(), signal.SIGTERM))
    with stop_on_signals(stop):
        with closing(Checkpoints(tmp_path)) as checkpoints:
            killer.start()
            state = loop.train(trainer, trainer.new_state(), Rows(), log, [SaveHook(3, 12, checkpoints, NoMetrics())], stop)
            checkpoints.save(state)
        # Here the command would be over.
        last = newest(tmp_path)
        left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        killer.cancel()
        killer.join()
    assert last == int(state.step) and (last == 12 or stop.asked == "SIGTERM")
    directory = tmp_path / "checkpoints"
    assert left == sorted(str(step) for step in selection.steps(directory))
    assert all(manifest.fault(directory / name, contents=True) is None for name in left)
    assert {str(step) for step in range(3, last + 1, 3)} | {str(last)} == set(left)
    capsys.readouterr()

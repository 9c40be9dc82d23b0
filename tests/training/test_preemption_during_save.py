"""SIGTERM at any moment of a slow save leaves complete checkpoints, the newest of them of the run's last step."""

import dataclasses
import os
import signal
import threading
import time
from contextlib import closing

import jax
import pytest
from test_trainer import RUN, RecordedLines
from toy_objective import LENGTH, Rows

from bertfam.multihost.preemption import Stop, stop_on_signals
from bertfam.training import loop
from bertfam.training.checkpoints import Checkpoints, manifest, newest, selection
from bertfam.training.hooks.base import Hook
from bertfam.training.hooks.standard import SaveHook
from bertfam.training.logs.metrics import NoMetrics
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.stages import Stage
from bertfam.training.trainer import Trainer


@pytest.fixture(scope="module")
def trainer():
    short_trainer = Trainer(dataclasses.replace(RUN, stages=(Stage(12, LENGTH, 4),)), RUN.mesh.build(jax.devices()[:1]))
    compiled = short_trainer.compile_step(0)
    short_trainer.compile_step = lambda stage, length: compiled
    return short_trainer


class FirstStep(Hook):
    """Hook that starts a timer after the first step: before it a signal ends the run at once."""

    phase = "timer"

    def __init__(self, timer):
        self.timer = timer

    def due(self, step):
        return step == 1

    def after(self, step, state):
        self.timer.start()
        return state


@pytest.mark.parametrize("seconds", [round(0.015 + 0.054 * moment, 3) for moment in range(6)])
def test_sigterm_during_a_save_leaves_complete_checkpoints(trainer, seconds, tmp_path, monkeypatch, capsys):
    write = manifest.write

    def slow(folder):
        time.sleep(0.02)
        write(folder)
        time.sleep(0.02)

    monkeypatch.setattr(manifest, "write", slow)
    stop = Stop()
    log = ProgressLog(RecordedLines(), trainer.phase_timer, 0, 12, 4, trainer.run.flops_after)
    killer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    with stop_on_signals(stop):
        with closing(Checkpoints(tmp_path)) as checkpoints:
            hooks = [FirstStep(killer), SaveHook(3, 12, checkpoints, NoMetrics())]
            state = loop.train(trainer, trainer.new_state(), Rows(), log, hooks, stop)
            checkpoints.save(state)
        # The command would end here.
        last = newest(tmp_path)
        remaining = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
        killer.cancel()
        killer.join()
    assert last == int(state.step) and (last == 12 or stop.asked == "SIGTERM")
    directory = tmp_path / "checkpoints"
    assert remaining == sorted(str(step) for step in selection.steps(directory))
    assert all(manifest.fault(directory / name, contents=True) is None for name in remaining)
    assert {str(step) for step in range(3, last + 1, 3)} | {str(last)} == set(remaining)
    capsys.readouterr()

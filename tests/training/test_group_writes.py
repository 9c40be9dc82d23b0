"""Saving one checkpoint from several processes, which are threads with their own sockets: none waits for one that fails."""

import errno
import threading
import time

import jax.numpy as jnp
import pytest
from process_threads import run_on_all
from time_limits import FAR_SECONDS

from bertfam.errors import UserError
from bertfam.multihost.processes import ProcessExited
from bertfam.training.checkpoints import Checkpoints

NEVER = threading.Event()


def raise_disk_full():
    raise OSError(errno.ENOSPC, "No space left on device")


def raise_bug():
    raise ZeroDivisionError("a fault")


class Orbax:
    """Substitute for Orbax, which knows a single process here: `begin` and `finish` are the work of its two calls."""

    def __init__(self, begin=lambda: None, finish=lambda: None):
        self.begin, self.finish = begin, finish

    def save(self, path, args):
        self.begin()

    def wait_until_finished(self):
        self.finish()

    def close(self):
        self.finish()


def save_on_all(folder, orbax):
    """Return the error of each process, or None, after `save`, some steps and `close`; orbax[i] belongs to process i."""

    def run(processes):
        checkpoints = Checkpoints(folder, processes=processes)
        checkpoints._orbax = orbax[processes.index]
        try:
            try:
                checkpoints.save_params(3, {"w": jnp.zeros(2)})
                end = time.monotonic() + FAR_SECONDS
                while not checkpoints.failed() and any(substitute.finish is not orbax[0].finish for substitute in orbax):
                    assert time.monotonic() < end
                    time.sleep(0.01)
                checkpoints.wait()
            finally:
                checkpoints.close()
        except (Exception, SystemExit) as error:
            return error
        return None

    return run_on_all(len(orbax), run)


def test_all_processes_finish_together(tmp_path):
    ends = []

    def slow():
        time.sleep(0.3)
        ends.append(time.monotonic())

    assert save_on_all(tmp_path, [Orbax(finish=slow)] * 3) == [None] * 3
    assert len(ends) == 6  # `close` finishes each process once more


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("call", ["begin", "finish"])
def test_full_disk_of_one_process_ends_all_with_one_message(tmp_path, failing, call):
    """Otherwise the other processes would wait in Orbax forever."""
    orbax = [Orbax(**{call: raise_disk_full}) if index == failing else Orbax(finish=NEVER.wait) for index in range(3)]
    first, *others = save_on_all(tmp_path, orbax)
    assert isinstance(first, UserError) and str(first) == (
        f"the checkpoint of step 3 could not be written to {tmp_path}/checkpoints (No space left on device); once that is "
        "fixed, the same command starts from the beginning"
    )
    assert [(type(error), error.code) for error in others] == [(SystemExit, 2)] * 2


def test_bug_keeps_its_traceback_on_its_process(tmp_path):
    first, second = save_on_all(tmp_path, [Orbax(finish=NEVER.wait), Orbax(finish=raise_bug)])
    assert first.code == "bertfam: error: process 1 failed to save (ZeroDivisionError: a fault); see its log"
    assert isinstance(second, ZeroDivisionError)
    first, second = save_on_all(tmp_path, [Orbax(finish=raise_bug), Orbax(finish=NEVER.wait)])
    assert isinstance(first, ZeroDivisionError) and second.code == 1


def test_process_lost_during_a_save_is_not_waited_for(tmp_path):
    """Orbax alone would wait for it for half an hour."""

    def run(processes):
        if processes.index == 1:  # as when a process ends
            for link in (*processes._links, *processes._exit_status._links):
                link.close()
            return None
        checkpoints = Checkpoints(tmp_path, processes=processes)
        checkpoints._orbax = Orbax(finish=lambda: NEVER.wait(FAR_SECONDS))
        checkpoints.save_params(3, {"w": jnp.zeros(2)})
        start = time.monotonic()
        with pytest.raises(ProcessExited):
            checkpoints.close()
        return time.monotonic() - start

    assert run_on_all(2, run)[0] < FAR_SECONDS / 2

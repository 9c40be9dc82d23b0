"""Several processes save one checkpoint: when one cannot, none waits for it; here they are threads, each with its own sockets."""

import errno
import threading
import time

import jax.numpy as jnp
import pytest
from process_threads import on_each

from bertfam.errors import UserError
from bertfam.multihost.processes import ProcessExited
from bertfam.training.checkpoints import Checkpoints

NEVER = threading.Event()


def full():
    raise OSError(errno.ENOSPC, "No space left on device")


def faulty():
    raise ZeroDivisionError("a fault")


class Orbax:
    """In place of Orbax, which knows a single process here: `begin` and `finish` are what its two calls do."""

    def __init__(self, begin=lambda: None, finish=lambda: None):
        self.begin, self.finish = begin, finish

    def save(self, path, args):
        self.begin()

    def wait_until_finished(self):
        self.finish()

    def close(self):
        self.finish()


def saved(folder, orbax):
    """How `save`, some steps and `close` end on each process; orbax[i] is that of process i."""

    def run(processes):
        checkpoints = Checkpoints(folder, processes=processes)
        checkpoints._orbax = orbax[processes.index]
        try:
            try:
                checkpoints.save_params(3, {"w": jnp.zeros(2)})
                end = time.monotonic() + 5
                while not checkpoints.failed() and any(one.finish is not orbax[0].finish for one in orbax):
                    assert time.monotonic() < end
                    time.sleep(0.01)
                checkpoints.wait()
            finally:
                checkpoints.close()
        except (Exception, SystemExit) as error:
            return error
        return None

    return on_each(len(orbax), run)


def test_all_are_through_or_none_is(tmp_path):
    ends = []

    def slow():
        time.sleep(0.3)
        ends.append(time.monotonic())

    assert saved(tmp_path, [Orbax(finish=slow)] * 3) == [None] * 3
    assert len(ends) == 6  # each once more by close


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("when", ["begin", "finish"])
def test_a_disk_that_is_full_on_one_ends_all_with_a_line_of_the_first(tmp_path, who, when):
    """The others would wait in Orbax for ever."""
    orbax = [Orbax(**{when: full}) if index == who else Orbax(finish=NEVER.wait) for index in range(3)]
    first, *others = saved(tmp_path, orbax)
    assert isinstance(first, UserError) and str(first) == (
        f"the checkpoint of step 3 could not be written to {tmp_path}/checkpoints (No space left on device); once that is "
        "fixed, the same command starts from the beginning"
    )
    assert [(type(error), error.code) for error in others] == [(SystemExit, 2)] * 2


def test_a_fault_keeps_its_traceback_where_it_happened(tmp_path):
    first, second = saved(tmp_path, [Orbax(finish=NEVER.wait), Orbax(finish=faulty)])
    assert first.code == "bertfam: error: process 1 failed to save (ZeroDivisionError: a fault); see its log"
    assert isinstance(second, ZeroDivisionError)
    first, second = saved(tmp_path, [Orbax(finish=faulty), Orbax(finish=NEVER.wait)])
    assert isinstance(first, ZeroDivisionError) and second.code == 1


def test_one_that_is_gone_in_the_midst_of_a_save_is_not_waited_for(tmp_path):
    """By Orbax the others would be, for half an hour."""

    def run(processes):
        if processes.index == 1:  # as at the end of a process
            for link in (*processes._links, *processes._exit_status._links):
                link.close()
            return None
        checkpoints = Checkpoints(tmp_path, processes=processes)
        checkpoints._orbax = Orbax(finish=lambda: NEVER.wait(60))
        checkpoints.save_params(3, {"w": jnp.zeros(2)})
        began = time.monotonic()
        with pytest.raises(ProcessExited):
            checkpoints.close()
        return time.monotonic() - began

    assert on_each(2, run)[0] < 30

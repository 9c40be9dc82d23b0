"""A process in which nothing goes on tells where it stands, and ends."""

import subprocess
import sys
import time

from bertfam.training.logs.phase_timer import PhaseTimer
from bertfam.training.watchdog import EXIT_CODE, watch

STUCK = """
import time
from bertfam.training.logs.phase_timer import PhaseTimer
from bertfam.training.watchdog import watch
phase_timer = PhaseTimer()
with watch(phase_timer, 0.3, process=1):
    phase_timer.begin("compiling", long=True)
    time.sleep(0.6)
    phase_timer.begin("training")
    def the_function_that_hangs():
        time.sleep(60)
    the_function_that_hangs()
"""

# A process that has waited two hours for the token cache which another builds.
PATIENT = """
import time
from bertfam.training.logs.phase_timer import PhaseTimer, Phase
from bertfam.training.watchdog import watch
phase_timer = PhaseTimer()
phase_timer.now = Phase("starting", time.monotonic() - 7200, True)
with watch(phase_timer, 0.3):
    time.sleep(0.5)
"""


def test_stacks_are_told_and_the_exit_code_is_its_own():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_CODE == 76
    assert "in the_function_that_hangs" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 0.3) and exits; the stack of "
        "each thread is above"
    )


def test_what_was_done_before_it_watches_does_not_count():
    done = subprocess.run([sys.executable, "-c", PATIENT], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


def test_while_something_goes_on_it_sleeps():
    phase_timer = PhaseTimer()
    with watch(phase_timer, 0.5):
        for _ in range(10):
            phase_timer.begin("training")
            time.sleep(0.1)
    time.sleep(0.6)  # it watches no longer
    with watch(phase_timer, 0):
        time.sleep(0.2)

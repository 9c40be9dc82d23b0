"""The watchdog of a stuck process prints the stacks of all threads and exits."""

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

# A process that has waited two hours for the token cache, which another process builds.
WAITING_LONG = """
import time
from bertfam.training.logs.phase_timer import PhaseTimer, Phase
from bertfam.training.watchdog import watch
phase_timer = PhaseTimer()
phase_timer.now = Phase("starting", time.monotonic() - 7200, True)
with watch(phase_timer, 0.3):
    time.sleep(0.5)
"""


def test_stuck_process_prints_stacks_and_exits_with_its_own_code():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_CODE == 76
    assert "in the_function_that_hangs" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "bertfam: error: process 1 was stuck in the phase 'training' (Run.watchdog_seconds = 0.3) and exits; the stack of "
        "each thread is above"
    )


def test_time_before_the_watch_does_not_count():
    done = subprocess.run([sys.executable, "-c", WAITING_LONG], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")


def test_watchdog_stays_silent_while_phases_change():
    phase_timer = PhaseTimer()
    with watch(phase_timer, 0.5):
        for _ in range(10):
            phase_timer.begin("training")
            time.sleep(0.1)
    time.sleep(0.6)  # the watch has ended
    with watch(phase_timer, 0):
        time.sleep(0.2)

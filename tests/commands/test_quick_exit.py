"""A process that ends quickly runs all callbacks, writes what it printed, and has its exit status."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from bertfam.commands.quick_exit import QuickExit

class Destroyed:
    def __del__(self):
        print("destroyed", flush=True)

quick_exit = QuickExit()
atexit.register(print, "called", end="")
kept = [Destroyed()]
"""


@pytest.mark.parametrize(
    ("end", "status", "printed"),
    [
        ("quick_exit.status = 7; sys.exit(7)", 7, "called"),
        ("quick_exit.status = 0", 0, "called"),
        ("1 / 0", 1, "calleddestroyed\n"),
    ],
)
def test_what_is_left_out_is_the_destruction_of_objects(end, status, printed):
    done = subprocess.run([sys.executable, "-c", PROGRAM + end], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, printed) and ("ZeroDivisionError" in done.stderr) == (status == 1)
    assert not done.stderr or status == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is of Linux")
def test_a_full_disk_is_left_to_python():
    end = "sys.stdout = open('/dev/full', 'w'); quick_exit.status = 0"
    done = subprocess.run([sys.executable, "-c", PROGRAM + end], capture_output=True, text=True)
    assert done.returncode == 120 and "No space left" in done.stderr

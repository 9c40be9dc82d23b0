"""Signals that end a command: their exceptions are neither lost in callbacks nor raised within imports."""

import os
import signal
import sys
import time

import pytest
from time_limits import FAR_SECONDS

from bertfam import cli
from bertfam.multihost.preemption import EXIT_CODE, exit_on_sigterm


@pytest.fixture(autouse=True)
def handler():
    """Handle SIGINT as Python does by default: a process in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def wait():
    deadline = time.monotonic() + FAR_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.01)


def test_signal_within_a_callback_that_drops_exceptions_is_not_lost(capsys):
    class Callback:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0)

    with exit_on_sigterm(), pytest.raises(SystemExit) as ended:
        Callback()
        wait()
    assert ended.value.code == EXIT_CODE
    assert capsys.readouterr().err == "bertfam: SIGTERM: exited before training started\n"


def test_interrupt_during_an_import_takes_effect_after_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "interrupted_module.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def run(words):
        import interrupted_module  # noqa: F401

        wait()

    monkeypatch.setattr(cli, "_run", run)
    before = signal.getsignal(signal.SIGINT)
    assert cli.main([]) == 130
    assert capsys.readouterr().err == "bertfam: interrupted\n"
    assert sys.modules.pop("interrupted_module").done
    assert signal.getsignal(signal.SIGINT) is before

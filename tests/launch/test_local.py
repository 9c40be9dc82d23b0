"""Local launcher with small programs as its processes."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import FAR_SECONDS

SCRIPT = Path(__file__).parents[2] / "launch" / "local.py"
PROGRAM = """\
import os, sys, time
flags = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
index, count = int(flags["process_index"]), int(flags["num_processes"])
"""


def command(program, *flags, processes=3):
    python = [sys.executable, "-I", "-S", "-c", PROGRAM + program]
    return [sys.executable, "-S", SCRIPT, f"--processes={processes}", *flags, "--", *python]


def run(*args, **options):
    return subprocess.run(command(*args, **options), capture_output=True, text=True, timeout=FAR_SECONDS)


def test_every_process_gets_its_index_and_the_common_address():
    process = run("print(sys.argv[1:], os.environ.get('XLA_FLAGS'), os.environ.get('JAX_PLATFORMS'))", "--devices_per_process=4")
    assert process.returncode == 0 and process.stderr == ""
    lines = sorted(process.stdout.splitlines())
    assert len(lines) == 3 and lines[0].startswith("['--coordinator=localhost:")
    address = lines[0].split("'")[1]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    for index, line in enumerate(lines):
        prefix = f"[{index}] " if index else ""
        assert line == f"{prefix}{[address, '--num_processes=3', f'--process_index={index}']} {flags.strip()} cpu"


def test_user_errors_of_several_processes_are_printed_once():
    program = "print('bertfam: error: no', file=sys.stderr); print('a fault', file=sys.stderr); raise SystemExit(2)"
    process = run(program, f"--grace={FAR_SECONDS}")
    assert process.returncode == 2
    errors = process.stderr.splitlines()
    assert sum(line.endswith("bertfam: error: no") for line in errors) == 1
    assert sorted(line for line in errors if "fault" in line) == ["[1] a fault", "[2] a fault", "a fault"]


def test_failed_process_ends_the_others_and_sets_the_exit_status(tmp_path):
    process = run(
        "import signal\n"
        f"while index == 1 and not os.path.exists({str(tmp_path / 'deaf')!r}): time.sleep(0.01)\n"
        "if index == 1: raise SystemExit(7)\n"
        "if index == 2:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\n"
        f"    os.mkdir({str(tmp_path / 'deaf')!r})\n"
        f"time.sleep({2 * FAR_SECONDS})",
        "--grace=0.3",
    )
    assert process.returncode == 7 and process.stdout == "[2] deaf\n"


def test_no_process_is_started_after_a_signal(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    local = importlib.import_module("local")
    group, start = local.Group(), subprocess.Popen

    def start_with_a_signal(*words, **options):
        if group.processes:
            group.stop(signal.SIGTERM)
        return start(*words, **options)

    monkeypatch.setattr(local.subprocess, "Popen", start_with_a_signal)
    options, words = local.parse(["--processes=9", "--", sys.executable, "-c", f"import time; time.sleep({FAR_SECONDS})"])
    assert local.once(options, words, group) == 128 + signal.SIGTERM
    assert len(group.processes) == 2


def test_process_killed_by_a_signal_counts_as_failed():
    assert run("if index == 2: os.kill(os.getpid(), 9)", processes=3).returncode == 128 + 9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_forwarded(number):
    program = (
        "import os, signal\n"  # print may be interrupted within print, which it refuses
        "def end(number, _): os.write(1, f'got {number}\\n'.encode()); raise SystemExit(75)\n"
        "signal.signal(signal.SIGINT, end); signal.signal(signal.SIGTERM, end)\n"
        f"print('ready', flush=True); time.sleep({FAR_SECONDS})"
    )
    words = command(program, "--restarts=3", f"--grace={FAR_SECONDS}", processes=2)  # no restart after a signal to the launcher
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[1] ready\n", "ready\n"]
        launcher.send_signal(number)
        assert sorted(launcher.stdout) == [f"[1] got {number:d}\n", f"got {number:d}\n"]
    assert launcher.returncode == 75


# Fails the first TIMES times in the way of FAIL, once all processes have started, and then succeeds.
FAIL_FIRST = """
import pathlib
times = pathlib.Path(f"times{index}"); before = len(times.read_text()) if times.exists() else 0
times.write_text("x" * (before + 1))
others = [pathlib.Path(f"times{other}") for other in range(count)]
while not all(other.exists() and len(other.read_text()) > before for other in others): time.sleep(0.01)
if before < TIMES: FAIL
"""


@pytest.mark.parametrize(
    ("failure", "reason", "status"),
    [
        ("raise SystemExit(75)", "was preempted after saving its state", 75),
        ("raise SystemExit(76)", "was stuck", 76),
        ("raise SystemExit(74)", "could not read or write its storage", 74),
        ("raise SystemExit(77)", "lost one of its processes", 77),
        ("index or os.kill(os.getpid(), 9); time.sleep(1800)", "was killed by signal 9", 137),
    ],
)
def test_all_processes_are_restarted(tmp_path, failure, reason, status):
    program = FAIL_FIRST.replace("FAIL", failure)
    words = ["--restarts=2", "--grace=0.2"]
    process = subprocess.run(
        command(program.replace("TIMES", "2"), *words, processes=2), capture_output=True, text=True, cwd=tmp_path
    )
    assert process.returncode == 0
    restarts = [f"bertfam: the run {reason}; restarting it (restarts left: {left})" for left in (1, 0)]
    assert process.stderr.splitlines() == restarts
    assert [(tmp_path / f"times{index}").read_text() for index in range(2)] == ["xxx", "xxx"]
    process = subprocess.run(
        command(program.replace("TIMES", "9"), "--restarts=1", processes=1), capture_output=True, cwd=tmp_path
    )
    assert process.returncode == status and (tmp_path / "times0").read_text() == "x" * 5


@pytest.mark.parametrize("status", [0, 1, 2])
def test_permanent_failures_are_not_restarted(status):
    process = run(f"print('started', index); raise SystemExit({status})", "--restarts=3", processes=1)
    assert (process.returncode, process.stdout, process.stderr) == (status, "started 0\n", "")


def test_bad_flags_of_the_local_launcher_are_reported():
    for words, message in (
        (["--processes=2"], "no command: write it after --"),
        (["--processes=2", "--grace=-1", "--", "true"], "argument --grace: '-1' is not a number of seconds, 0 or more"),
        (["--processes=0", "--", "true"], "argument --processes: '0' is not an integer, 1 or more"),
        (["--", "true"], "the following arguments are required: --processes"),
    ):
        process = subprocess.run([sys.executable, "-S", SCRIPT, *words], capture_output=True, text=True)
        assert process.returncode == 2 and process.stderr == f"launch/local.py: error: {message} (see launch/local.py --help)\n"


def test_missing_command_is_reported():
    process = subprocess.run([sys.executable, "-S", SCRIPT, "--processes=2", "--", "nocommand"], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (2, "bertfam: error: command not found: nocommand\n")

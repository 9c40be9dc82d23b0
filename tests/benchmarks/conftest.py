"""Fixture of the benchmarks: their commands run in the process of the test, which has imported JAX already."""

import os
import runpy
import subprocess
import sys
import warnings
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
import shared_programs
from initial_state import skip_initialisation


class InlinePool:
    """Executor that runs each job at once in the calling thread, since only the main thread can handle signals."""

    def __init__(self, workers):
        self.workers = workers

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def modules_in_process(monkeypatch):
    """Have `subprocess.run` run `python -m MODULE` in this process; return a function that runs a module with words."""
    from benchmarks import training_runs

    run_process = subprocess.run

    def run(command, stdout=None, stderr=None, check=False, capture_output=False, **options):
        if capture_output:
            stdout = stderr = subprocess.PIPE
        if command[:2] != [sys.executable, "-m"]:
            return run_process(command, stdout=stdout, stderr=stderr, check=check, **options)
        out = StringIO() if stdout == subprocess.PIPE else stdout or sys.stdout
        err = StringIO() if stderr == subprocess.PIPE else stderr or sys.stderr
        status = 0
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(), monkeypatch.context() as patch:
            warnings.simplefilter("ignore", RuntimeWarning)  # of runpy, about modules that the test has imported
            patch.setattr(sys, "argv", [*map(str, command[2:])])
            try:
                runpy.run_module(command[2], run_name="__main__")
            except SystemExit as stopped:
                status = stopped.code or 0
        texts = (stream.getvalue() if isinstance(stream, StringIO) else None for stream in (out, err))
        done = subprocess.CompletedProcess(command, status, *texts)
        if check:
            done.check_returncode()
        return done

    def run_module(module, *words):
        done = run([sys.executable, "-m", module, *words], subprocess.PIPE, subprocess.PIPE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(training_runs, "ThreadPoolExecutor", InlinePool)
    # Without settings of glibc a command that trains would start this process anew.
    monkeypatch.setenv("GLIBC_TUNABLES", os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"))
    shared_programs.share(monkeypatch)
    skip_initialisation(monkeypatch)  # a third of the time to compile a run of few updates
    return run_module

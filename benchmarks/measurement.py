"""Shared tools of the benchmarks: jobs in fresh processes on given cores, peak memory, medians, machine details, tables."""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
_SAMPLE_SECONDS = 0.05
# One thread per process for all entrants: only processes run in parallel.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Freed memory stays with the process; otherwise glibc returns it and requests it again with every batch.
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=33554432",
}


@dataclass(frozen=True)
class Entrant:
    """Row of a table: a program and its work.

    Attributes:
      program: name of the program.
      work: description of the work; only entrants with the same work are compared.
      job: "module:function".
      arguments: arguments of the function, which JSON can hold; a folder `output` is deleted before each run.
      cores: number of cores that it may use.
      peer: True for another project, with which bertfam is compared.
    """

    program: str
    work: str
    job: str
    arguments: Mapping[str, Any]
    cores: int = 1
    peer: bool = False


@dataclass
class Measured:
    """Figures of all runs of an entrant."""

    entrant: Entrant
    runs: list[dict[str, float]] = field(default_factory=list)
    peak_memory: int = 0

    def figure(self, name: str) -> float:
        """Return the median of a figure."""
        return statistics.median(run[name] for run in self.runs)

    def spread(self, name: str) -> float:
        """Return (maximum - minimum) / median of a figure."""
        values = [run[name] for run in self.runs]
        return (max(values) - min(values)) / statistics.median(values)

    def as_json(self) -> dict[str, Any]:
        """Return program, work, memory, medians and all runs."""
        return {
            "program": self.entrant.program,
            "work": self.entrant.work,
            "peer": self.entrant.peer,
            "cores": self.entrant.cores,
            "peak_memory_bytes": self.peak_memory,
            "median": {name: self.figure(name) for name in self.runs[0]},
            "runs": self.runs,
        }


def measure(entrants: Sequence[Entrant], repeats: int, folder: Path) -> list[Measured]:
    """Run all entrants in turn, 1 + `repeats` times; the first round warms up and measures memory, the others are timed."""
    results = [Measured(entrant) for entrant in entrants]
    for turn in range(1 + repeats):
        for result in results:
            name = f"{result.entrant.program}, {result.entrant.work}"
            print(f"{'warm-up' if not turn else f'run {turn} of {repeats}'}: {name}", file=sys.stderr, flush=True)
            figures, peak = run_job(result.entrant, folder, watch_memory=not turn)
            if turn:
                result.runs.append(figures)
            else:
                result.peak_memory = peak
    return results


def run_job(entrant: Entrant, folder: Path, *, watch_memory: bool = False) -> tuple[dict[str, float], int]:
    """Run a job in a process of its own.

    Args:
      entrant: entrant with the job.
      folder: folder of the log.
      watch_memory: whether to measure memory.

    Returns:
      The figures, and the peak memory in bytes of the process and its children (0 if it is not measured).

    Raises:
      RuntimeError: if the job fails; the message has the end of its stderr.
    """
    cores = ",".join(map(str, _cores()[: entrant.cores]))
    command = [sys.executable, "-m", "benchmarks.job", entrant.job, json.dumps(dict(entrant.arguments)), cores]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | _ENVIRONMENT | {"PYTHONPATH": path, "HF_HOME": str(folder / "huggingface")}
    if "output" in entrant.arguments:
        shutil.rmtree(entrant.arguments["output"], ignore_errors=True)
    log = folder / "stderr.txt"
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        watch = _Watch(process.pid) if watch_memory else None
        output, _ = process.communicate()
    peak = watch.stop() if watch else 0
    if process.returncode:
        raise RuntimeError(f"{entrant.program}, {entrant.work}: exit {process.returncode}\n{log.read_text()[-4000:]}")
    return json.loads(output.splitlines()[-1]), peak


class _Watch:
    """Sampler of the memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        self._root, self._peak, self._stopped = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                continue
            self._peak = max(self._peak, sum(map(_memory, processes)))

    def stop(self) -> int:
        """Stop sampling and return the peak in bytes."""
        self._stopped.set()
        self._thread.join()
        return self._peak


def _memory(process: psutil.Process) -> int:
    """Return the resident bytes; on Linux, memory shared by n processes counts 1/n in each."""
    try:
        return process.memory_full_info().pss if psutil.LINUX else process.memory_info().rss
    except psutil.Error:
        return 0


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def machine() -> dict[str, Any]:
    """Describe the machine."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "processor": model,
        "usable_cores": len(_cores()),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format an aligned Markdown table: the first two columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head))]
    left = 2
    rule = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    rows = [head, rule, *lines]
    pads = [str.ljust if column < left else str.rjust for column in range(len(head))]
    return "\n".join(
        "| " + " | ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)) + " |" for row in rows
    )

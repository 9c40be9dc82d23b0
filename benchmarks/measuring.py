"""What all benchmarks share: work in fresh processes on given cores, peak memory, medians, the machine, tables."""

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
# One thread a process on every side: parallel work is a matter of processes here.
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
    # Memory that is freed stays with the process: else glibc gives it back and asks for it again with every batch.
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=268435456:glibc.malloc.mmap_threshold=33554432",
}


@dataclass(frozen=True)
class Entrant:
    """One line of a table: a program and its work.

    Attributes:
      program: who does the work.
      work: what is done; figures compare among entrants of equal work.
      job: "module:function".
      arguments: of the function, as JSON; a folder `output` is deleted before each run.
      cores: how many it may use.
      peer: whether others are compared with it.
    """

    program: str
    work: str
    job: str
    arguments: Mapping[str, Any]
    cores: int = 1
    peer: bool = False


@dataclass
class Measured:
    """What an entrant's runs gave: the median of each figure."""

    entrant: Entrant
    runs: list[dict[str, float]] = field(default_factory=list)
    peak_memory: int = 0

    def figure(self, name: str) -> float:
        """The median of a figure."""
        return statistics.median(run[name] for run in self.runs)

    def spread(self, name: str) -> float:
        """(most - least) / median of a figure."""
        values = [run[name] for run in self.runs]
        return (max(values) - min(values)) / statistics.median(values)

    def as_json(self) -> dict[str, Any]:
        """Program, work, memory, medians and all runs."""
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
    """Runs all entrants in turn, 1 + `repeats` times: the first round warms up and watches memory, the others count."""
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
    """Runs a job in a process of its own: its figures, and the most memory of it and its children in bytes (0: not watched).

    Raises:
      RuntimeError: it fails; with the end of what it wrote to stderr.
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
    """Samples the memory of a process and its children until it is stopped."""

    def __init__(self, pid: int) -> None:
        self._root, self._peak, self._over = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            try:
                processes = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                continue
            self._peak = max(self._peak, sum(map(_memory, processes)))

    def stop(self) -> int:
        """The most bytes seen."""
        self._over.set()
        self._thread.join()
        return self._peak


def _memory(process: psutil.Process) -> int:
    """Resident bytes; those that are shared among n processes count 1/n in each, where the system tells (Linux)."""
    try:
        return process.memory_full_info().pss if psutil.LINUX else process.memory_info().rss
    except psutil.Error:
        return 0


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
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
    """The versions of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned: text to the left, figures to the right."""
    widths = [max(len(row[column]) for row in [head, *lines]) for column in range(len(head))]
    left = 2
    rule = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    rows = [head, rule, *lines]
    pads = [str.ljust if column < left else str.rjust for column in range(len(head))]
    return "\n".join(
        "| " + " | ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)) + " |" for row in rows
    )

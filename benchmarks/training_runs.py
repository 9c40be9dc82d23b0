"""Small training runs by the command line, several at a time where there are several GPUs, and what their logs say."""

import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measuring import ROOT


def run_all(jobs: Mapping[str, Sequence[Sequence[str]]], folder: Path, gpus: int | Sequence[str]) -> None:
    """Runs each job's commands one after another, and as many jobs side by side as there are GPUs, each on its own.

    Args:
      jobs: by name, arguments of `python -m` each; their output goes to FOLDER/NAME.log.
      folder: of the logs.
      gpus: how many, or the CUDA device of each job at a time, which jobs share where it is named several times; 0 or none: one
        job at a time, on what JAX finds.

    Raises:
      RuntimeError: a command failed; with the ends of such logs. The other jobs are done first.
    """
    places: list[str | None] = [*map(str, range(gpus))] if isinstance(gpus, int) else [*gpus]
    places = places or [None]
    free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for place in places:
        free.put(place)
    failures: list[str] = []

    def run(name: str) -> None:
        gpu = free.get()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path} | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu})
        if (sharing := places.count(gpu)) > 1:
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / sharing:.2f}"
        log, began = folder / f"{name}.log", time.monotonic()
        try:
            for arguments in jobs[name]:
                with open(log, "a") as output:
                    done = subprocess.run([sys.executable, "-m", *arguments], stdout=output, stderr=output, env=environment)
                if done.returncode:
                    failures.append(f"{name}: exit {done.returncode}\n{log.read_text()[-4000:]}")
                    break
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(places)) as pool:
        for future in [pool.submit(run, name) for name in jobs]:
            future.result()
    if failures:
        raise RuntimeError("\n".join(failures))


def metrics(model_dir: Path, split: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of a split ("train", "eval" or "time"), by step."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def tokens_per_second(model_dir: Path) -> float:
    """The median over the lines of training but the first, which compiles."""
    rates = sorted(line["tokens_per_second"] for line in metrics(model_dir, "train")[1:] or metrics(model_dir, "train"))
    return float(rates[len(rates) // 2])


def seconds(model_dir: Path) -> float:
    """How long `pretrain` took, starting and compiling included: all calls that the run took."""
    times = metrics(model_dir, "time")
    return float(sum(value for line in times for name, value in line.items() if name not in ("step", "split")))

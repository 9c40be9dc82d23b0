"""Small training runs through the command line, one or several at a time on each GPU, and figures from their logs."""

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.measurement import ROOT
from bertfam.arguments import ScriptParser, output_folder

_SCORES = "score.json"


def command_parsers(
    description: str | None, commands: Mapping[str, Callable[[argparse.Namespace], None]]
) -> tuple[ScriptParser, dict[str, ScriptParser]]:
    """Return the parser of a benchmark that trains runs, and those of its commands, which set `command` and have --output."""
    parser = ScriptParser(description=description)
    subparsers = parser.add_subparsers(required=True, metavar=f"{{{','.join(commands)}}}")
    parsers: dict[str, ScriptParser] = {}
    for name, command in commands.items():
        sub = parsers[name] = subparsers.add_parser(name, help=(command.__doc__ or "").splitlines()[0])
        sub.set_defaults(command=command)
        sub.add_argument("--output", type=output_folder, required=True, metavar="DIR", help="folder with one subfolder per run")
    return parser, parsers


def run_all(jobs: Mapping[str, Sequence[Sequence[str]]], folder: Path, gpus: int | Sequence[str]) -> None:
    """Run the commands of each job one after another, and the jobs in parallel, one at a time on each GPU.

    Args:
      jobs: commands of each job by its name, as arguments of `python -m`; their output goes to FOLDER/NAME.log.
      folder: folder of the logs.
      gpus: number of GPUs, or CUDA devices; a device that is named n times runs n jobs at a time. With 0 or an empty list, one
        job runs at a time, on JAX's default device.

    Raises:
      RuntimeError: if a command fails, once the other jobs are done; the message has the ends of the logs.
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
        log, start = folder / f"{name}.log", time.monotonic()
        try:
            for arguments in jobs[name]:
                with open(log, "a") as output:
                    done = subprocess.run([sys.executable, "-m", *arguments], stdout=output, stderr=output, env=environment)
                if done.returncode:
                    failures.append(f"{name}: exit {done.returncode}\n{log.read_text()[-4000:]}")
                    break
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(places)) as pool:
        for future in [pool.submit(run, name) for name in jobs]:
            future.result()
    if failures:
        raise RuntimeError("\n".join(failures))


def write_scores(model_dir: Path, scores: Mapping[str, Any]) -> None:
    """Write the scores of a finished run to its score.json."""
    (model_dir / _SCORES).write_text(json.dumps(scores, indent=1) + "\n")


def read_scores(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the score.json of each named run of a folder that has one, in the order of the names."""
    for name in names:
        file = folder / name / _SCORES
        if file.is_file():
            yield name, json.loads(file.read_text())


def metrics(model_dir: Path, split: str) -> list[dict[str, Any]]:
    """Read the lines of a split ("train", "eval" or "time") from metrics.jsonl, by step."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def tokens_per_second(model_dir: Path) -> float:
    """Return the median over all lines of training except the first, which includes compiling."""
    rates = sorted(line["tokens_per_second"] for line in metrics(model_dir, "train")[1:] or metrics(model_dir, "train"))
    return float(rates[len(rates) // 2])


def seconds(model_dir: Path) -> float:
    """Return the seconds of all `pretrain` commands of a run, starting and compiling included."""
    times = metrics(model_dir, "time")
    return float(sum(value for line in times for name, value in line.items() if name not in ("step", "split")))

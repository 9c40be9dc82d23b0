"""Real training steps on synthetic rows: cases by gin files and bindings, and their time, memory and FLOPs on one device."""

import dataclasses
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import synthetic
from benchmarks.attention_backends import segments
from benchmarks.measurement import ROOT, versions
from bertfam.config import load
from bertfam.planning.choices import choose, with_choices
from bertfam.planning.gpu_time import predict
from bertfam.sharding.chips import memory_bytes, peak_flops
from bertfam.training.logs.row_flops import flops_of_examples
from bertfam.training.run import Run
from bertfam.training.run_plan import describe_attention, execution_settings
from bertfam.training.trainer import Trainer

OURS = "bertfam"
_ROUNDS = 5
_MODEL = "MODEL."


@dataclass(frozen=True)
class Case:
    """A training step.

    Attributes:
      name: name of the case.
      files: shipped gin files of the run, whose first stage is measured.
      bindings: further gin bindings.
      vocabulary: number of tokens of the vocabulary.
      drops_out: True if the dropout is that of the run; otherwise there is none.
    """

    name: str
    files: tuple[str, ...]
    bindings: tuple[str, ...] = ()
    vocabulary: int = 30_522
    drops_out: bool = False

    def run(self, more: Sequence[str] = ()) -> Run:
        """Build the sized run with more bindings; MODEL in them is the class of the model's config: MODEL.num_layers=2."""
        own = [*more]
        if any(binding.startswith(_MODEL) for binding in more):
            name = type(load([*self.files], [*self.bindings]).build("Run").objective.model).__name__
            own = [f"{name}.{binding.removeprefix(_MODEL)}" if binding.startswith(_MODEL) else binding for binding in more]
        run: Run = load([*self.files], [*self.bindings, *own]).build("Run").sized(self.vocabulary)
        return run if self.drops_out else _without_dropout(run)


def _without_dropout(run: Run) -> Run:
    model = run.objective.model
    rates = {field.name: 0.0 for field in dataclasses.fields(model) if field.name.endswith("dropout_rate")}
    objective: Any = run.objective
    return dataclasses.replace(run, objective=dataclasses.replace(objective, model=dataclasses.replace(model, **rates)))


def host_rows(run: Run) -> dict[str, np.ndarray]:
    """Make a batch of a run's first stage: full rows of random tokens; packed rows have segments of 300 tokens on average."""
    shape = run.shape(0)
    rows = synthetic.rows(run.objective.features(shape), shape.rows, run.objective.model.require_vocab_size)
    if "encoder_positions" in rows:
        ids = segments(np.random.default_rng(0), *rows["encoder_segment_ids"].shape)
        starts = np.concatenate([np.ones_like(ids[:, :1]), np.diff(ids)], axis=1) > 0
        places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
        positions = places - np.maximum.accumulate(np.where(starts, places, 0), axis=1)
        rows |= {"encoder_segment_ids": ids, "encoder_positions": positions.astype(np.int32)}
    return rows


def flops_of(run: Run, rows: Mapping[str, np.ndarray]) -> int:
    """Return the matrix-product FLOPs of a step; tokens of packed rows attend within their segments."""
    shape = run.shape(0)
    if "encoder_positions" not in rows:
        return shape.rows * run.objective.flops(shape)
    sizes = np.concatenate([np.bincount(row)[1:] for row in rows["encoder_segment_ids"]])
    examples = np.stack([sizes, np.zeros_like(sizes)], axis=1)
    return round(shape.rows * flops_of_examples(run.objective, shape, examples, shape.rows))


class Timing(NamedTuple):
    """Time of an update.

    Attributes:
      seconds: median over the rounds.
      spread: (maximum - minimum) / median.
      cpu_seconds: CPU time of this process, the median too.
    """

    seconds: float
    spread: float
    cpu_seconds: float


def time_updates(update: Callable[[int], None], steps: int) -> Timing:
    """Time rounds of `steps` updates each, after two that warm up.

    Args:
      update: runs a number of updates and returns when the device has finished them.
      steps: number of updates of a round.
    """
    update(2)
    seconds, cpu_seconds = [], []
    for _ in range(_ROUNDS):
        start, cpu_start = time.perf_counter(), time.process_time()
        update(steps)
        seconds.append((time.perf_counter() - start) / steps)
        cpu_seconds.append((time.process_time() - cpu_start) / steps)
    median = float(np.median(seconds))
    return Timing(median, (max(seconds) - min(seconds)) / median, float(np.median(cpu_seconds)))


def figures(run: Run, rows: Mapping[str, np.ndarray], timing: Timing, peak: float | None) -> dict[str, Any]:
    """Return the sizes and rates of a step; `peak` is the device's peak in FLOP/s."""
    shape, flops = run.shape(0), flops_of(run, rows)
    tokens = sum(values.size for name, values in rows.items() if name.endswith("_input_tokens"))
    return {
        "rows": shape.rows,
        "length": shape.length,
        "targets": shape.targets,
        "seconds": timing.seconds,
        "spread": timing.spread,
        "cpu_seconds": timing.cpu_seconds,
        "tokens_per_second": tokens / timing.seconds,
        "sequences_per_second": shape.rows / timing.seconds,
        "flops": flops,
        "peak_flops": peak,
        "mfu": None if peak is None else flops / timing.seconds / peak,
    }


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read recorded figures, of which the last one of each case and side counts; a line that was cut short is skipped."""
    records = {}
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        records[record["case"], record["side"]] = record
    return [*records.values()]


def origin() -> dict[str, Any]:
    """Return the versions, the date and the commit of a measurement."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        commit = ""
    packages = ("jax", "jaxlib", "torch", "transformers")
    return {
        "versions": versions(packages),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or None,
    }


def measure(case: Case, steps: int, more: Sequence[str] = (), *, wait: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Compile and time the training step of a case on the first device.

    Args:
      case: the case.
      steps: number of updates of a round.
      more: further bindings (see `Case.run`).
      wait: called between compiling and timing.

    Returns:
      The figures, which JSON can hold.
    """
    device = jax.devices()[0]
    run = case.run(more)
    choices = choose(run, [device], memory_bytes(device))
    run = with_choices(run, choices)
    trainer = Trainer(run, run.mesh.build([device]))
    start = time.perf_counter()
    step, _ = trainer.compile_step(0)
    compiling = {"case": case.name, "side": OURS, "compile_seconds": time.perf_counter() - start}
    wait()
    rows, state, metrics, numbers = host_rows(run), trainer.new_state(), {}, itertools.count()
    batch = jax.device_put(rows, trainer.stages[0].shardings)

    def update(count: int) -> None:
        nonlocal state, metrics
        for _ in range(count):
            state, metrics = step(state, batch, next(numbers))
        jax.block_until_ready((state, metrics))

    timing = time_updates(update, steps)
    loss, predicted = metrics["loss"], predict(run, 0, device)
    return (
        compiling
        | figures(run, rows, timing, peak_flops(device))
        | {
            "predicted_seconds": predicted and predicted.seconds,
            "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
            "loss": float(loss.total / loss.weight),
            "attention": describe_attention(run.objective, run.shape(0)),
            "execution": execution_settings(run),
            "chosen": {name: f"{choice.value} ({choice.reason})" for name, choice in choices.items()},
            "device": device.device_kind,
        }
        | origin()
    )

"""Stall of a checkpoint save: how long it keeps the training loop from the next update, and how long it is written after that.

    python -m benchmarks.saving --gin_file runs/bert_base.gin
    python -m benchmarks.saving --gin_file runs/bert_base.gin --gin_file models/bert_large.gin --rounds 5

The state is that of the run on the first device, and is saved as the loop saves it. Updates around it only rewrite the state.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from benchmarks.measurement import machine, table, versions
from bertfam.arguments import ScriptParser, output_file, output_folder
from bertfam.config import load
from bertfam.planning.choices import choose, with_choices
from bertfam.sharding.chips import memory_bytes
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer


def first_state(gin_files: Sequence[str], bindings: Sequence[str]) -> TrainState:
    """Make the first state of a run on the first device, with the family's published vocabulary size."""
    run: Any = load([*gin_files], [*bindings]).build("Run")
    model = run.objective.model
    run, device = run.sized(model.vocab_size or model.published_vocab_size), jax.devices()[0]
    run = with_choices(run, choose(run, [device], memory_bytes(device)))
    return Trainer(run, run.mesh.build([device])).new_state()


@jax.jit(donate_argnums=0)
def _update(state: TrainState) -> TrainState:
    """Rewrite every value of a state, its step included, in place: an update that takes no other time."""
    changed: TrainState = jax.tree.map(lambda leaf: leaf + 1, state)
    return changed


def _updated(state: TrainState) -> tuple[TrainState, float]:
    start = time.monotonic()
    return jax.block_until_ready(_update(state)), time.monotonic() - start


def measure(state: TrainState, checkpoints: Checkpoints) -> tuple[TrainState, dict[str, float]]:
    """Save a state between two updates; return the next state, and the seconds of each part.

    "stall" is the time that `save` takes, "longer update" what the update after it takes more than the one before: it cannot
    rewrite arrays that are still read. "writing" is the time from then on until the files are complete.
    """
    state, before = _updated(state)
    start, cpu_start = time.monotonic(), time.process_time()
    checkpoints.save(state)
    stall, cpu = time.monotonic() - start, time.process_time() - cpu_start
    state, after = _updated(state)
    start = time.monotonic()
    checkpoints.wait()
    parts = {"stall": stall, "stall, CPU": cpu, "longer update": after - before, "writing": time.monotonic() - start}
    return state, parts


def table_of(rounds: Sequence[Mapping[str, float]], size_bytes: int) -> str:
    """Format the rounds as a Markdown table."""
    lines = []
    for name in rounds[0]:
        seconds = [turn[name] for turn in rounds]
        median = statistics.median(seconds)
        lines.append([name, f"{size_bytes / 2**30:.2f}", f"{median:.2f}", f"{min(seconds):.2f}", f"{max(seconds):.2f}"])
    return table(["part of a save", "GiB", "median s", "fastest s", "slowest s"], lines)


def main() -> int:
    """Measure the rounds and print the table; return the exit status."""
    parser = ScriptParser(prog="python -m benchmarks.saving", description=__doc__)
    parser.add_argument("--gin_file", action="append", required=True, metavar="FILE", help="gin file of the run; repeatable")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further binding; repeatable")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="saves, after one that is not counted (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=output_folder, metavar="DIR", help="folder on the disk to measure (default: a temporary one)"
    )
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures of all rounds to this file")
    args = parser.parse_args()
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    state = first_state(args.gin_file, args.gin)
    size_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.opt_state, state.average)))
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "device": jax.devices()[0].device_kind,
        "versions": versions(("jax", "orbax-checkpoint", "tensorstore")),
        "bytes": size_bytes,
    }
    print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items()), flush=True)
    with tempfile.TemporaryDirectory(dir=args.output) as folder:
        checkpoints = Checkpoints(Path(folder), keep=Keep(newest=1))
        rounds = []
        for _ in range(args.rounds + 1):
            state, parts = measure(state, checkpoints)
            rounds.append(parts)
        report["rounds"] = rounds[1:]
        checkpoints.close()
    print(f"\n{table_of(report['rounds'], size_bytes)}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Speed of one model on each device alone and on all devices of this machine by different meshes.

    python -m benchmarks.scaling --run bert_base --rows 256 --length 128
    python -m benchmarks.scaling --run bigbird_base --rows 2 --length 16384 --same_rows --mesh sequence

Every device has the same number of rows, or with --same_rows, all devices together have the rows of one (strong scaling).
Rounds of all meshes alternate, and the table has the median of their rates, so that a device that slows down affects all of them.
A mesh is at best as fast as its slowest device, with which it is compared. "All at once" runs a separate model on each device at
the same time, without communication: its loss is due to the machine (power, host), any further loss is due to the mesh. Memory is
that of the compiled step on a device. The loss is that of the first update.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from benchmarks.measurement import table
from benchmarks.training_step import host_rows
from bertfam.arguments import ScriptParser
from bertfam.config import load
from bertfam.sharding.mesh import MeshShape
from bertfam.training.run import Run
from bertfam.training.trainer import Trainer

_VOCABULARY = 30_522
MESHES = {
    "data": MeshShape(),
    "zero1": MeshShape(zero1=True),
    "fsdp": MeshShape(data=1, fsdp=-1),
    "tensor": MeshShape(data=1, tensor=-1),
    "sequence": MeshShape(data=1, sequence=-1),
}


class Course:
    """Model with its state and compiled step on a mesh."""

    def __init__(self, run: Run, mesh: MeshShape, devices: list[jax.Device]) -> None:
        start = time.monotonic()
        self.trainer = Trainer(dataclasses.replace(run, mesh=mesh), mesh.build(devices))
        stage = self.trainer.stages[0]
        self.tokens = stage.batch_size * run.stages[0].length
        self.state = self.trainer.new_state()
        self.batch = jax.device_put(host_rows(run), stage.shardings)
        compiled = self.trainer.lower_step(0).compile()
        self.step = self.trainer.seeded(compiled)
        memory: Any = compiled.memory_analysis()
        self.bytes = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        self.loss: float | None = None
        print(f"compiled {mesh} on {len(devices)} in {time.monotonic() - start:.0f} s", file=sys.stderr)

    def update(self) -> None:
        """Run an update, and keep the loss of the first one."""
        self.state, metrics = self.step(self.state, self.batch, 0)
        if self.loss is None:
            self.loss = float(metrics["loss"].total / metrics["loss"].weight)


class Entry:
    """Models that run at the same time, and their rates."""

    def __init__(self, *courses: Course) -> None:
        self.courses = courses
        self.devices = sum(course.trainer.mesh.size for course in courses)
        self.rates: list[float] = []

    def round(self, steps: int) -> None:
        """Time `steps` updates and record the tokens per second and device."""
        start = time.monotonic()
        for _ in range(steps):
            for course in self.courses:
                course.update()
        jax.block_until_ready([course.state for course in self.courses])
        tokens = steps * sum(course.tokens for course in self.courses)
        self.rates.append(tokens / (time.monotonic() - start) / self.devices)


_HEAD = ["mesh", "devices", "k tokens/s a device", "of the slowest device's", "spread", "ms a step", "GiB a device", "first loss"]


def table_of(entries: Mapping[str, Entry]) -> str:
    """Format the median rates of entries, whose names end with "alone" for single devices, as a Markdown table."""
    rates = {name: statistics.median(entry.rates) for name, entry in entries.items()}
    slowest = min(rate for name, rate in rates.items() if name.endswith(" alone"))
    lines = []
    for name, entry in entries.items():
        course, spread = entry.courses[0], np.ptp(entry.rates) / rates[name]
        milliseconds = 1e3 * course.tokens / rates[name] / course.trainer.mesh.size
        shares = [f"{rates[name] / 1e3:,.0f}", f"{rates[name] / slowest:.1%}", f"{spread:.1%}"]
        lines.append(
            [name, str(entry.devices), *shares, f"{milliseconds:,.1f}", f"{course.bytes / 2**30:.1f}", f"{course.loss:.6f}"]
        )
    return table(_HEAD, lines)


def main() -> int:
    """Measure each mesh and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--run", default="bert_base", help="file of gin_configs/runs (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=256, help="rows per device (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--same_rows", action="store_true", help="--rows is the number of rows of all devices together")
    parser.add_argument("--steps", type=int, default=50, help="updates of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after a warm-up round (default: %(default)s)")
    parser.add_argument("--mesh", choices=MESHES, action="append", help="only this mesh; repeatable (default: all)")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further gin binding; repeatable")
    args = parser.parse_args()
    devices = jax.devices()

    def run(rows: int) -> Run:
        bindings = [
            "Run.stages = (@Stage(),)",
            f"Stage.length = {args.length}",
            f"BATCH_SIZE = {rows}",
            "Run.mesh = @MeshShape()",
        ]
        # What "auto" is on a GPU with enough memory.
        bindings += ["Execution.dtype = 'bfloat16'", "Execution.layers = 'unroll'", "Execution.dropout_bits = 'hash'"]
        bindings += ["Execution.remat = 'none'", "Run.microbatches = 1", *args.gin]
        return load([f"runs/{args.run}.gin"], bindings).build("Run").sized(_VOCABULARY)

    own = MESHES if args.mesh is None else {name: MESHES[name] for name in args.mesh}
    together = args.rows * (1 if args.same_rows else len(devices))
    with ThreadPoolExecutor() as pool:  # programs compile side by side
        alone_on = [pool.submit(Course, run(args.rows), MeshShape(), [device]) for device in devices]
        on_all = {name: pool.submit(Course, run(together), mesh, devices) for name, mesh in own.items()}
        alone = [future.result() for future in alone_on]
    entries = {f"device {device.id} alone": Entry(course) for device, course in zip(devices, alone, strict=True)}
    if len(devices) > 1:
        entries["all at once"] = Entry(*alone)
    entries |= {name: Entry(future.result()) for name, future in on_all.items()}
    for turn in range(args.rounds + 1):
        for entry in entries.values():
            entry.round(args.steps)
            if not turn:
                entry.rates.clear()
    print(f"{args.run}, {args.rows} rows of {args.length} tokens {'in all' if args.same_rows else 'a device'}, ", end="")
    print(f"{devices[0].device_kind}, jax {jax.__version__}\n\n{table_of(entries)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

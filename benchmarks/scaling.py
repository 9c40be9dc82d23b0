"""Updates of one model on each device alone, and on all of this machine by different meshes, with as many rows for each device.

    python -m benchmarks.scaling --run bert_base --rows 256 --length 128

Rounds of all meshes take turns, and the median of their rates counts, so that a device that slows down slows all of them. A mesh
is as fast as its slowest device at best, with which it is compared.
"""

import argparse
import dataclasses
import statistics
import sys
import time

import jax
import numpy as np

from benchmarks import synthetic
from benchmarks.measuring import table
from bertfam.config import load
from bertfam.partitioning.mesh import MeshShape
from bertfam.training.run import Run
from bertfam.training.trainer import Trainer

_VOCABULARY = 30_522
OVERLAP: dict[str, str | bool] = {"xla_gpu_enable_latency_hiding_scheduler": True}
MESHES = {
    "data": MeshShape(),
    "data, overlapped": MeshShape(),
    "zero1": MeshShape(zero1=True),
    "fsdp": MeshShape(data=1, fsdp=-1),
    "tensor": MeshShape(data=1, tensor=-1),
    "sequence": MeshShape(data=1, sequence=-1),
}


class Course:
    """A model's updates on a mesh."""

    def __init__(
        self, run: Run, mesh: MeshShape, devices: list[jax.Device], options: dict[str, str | bool] | None = None
    ) -> None:
        self.trainer = Trainer(dataclasses.replace(run, mesh=mesh), mesh.build(devices))
        stage = self.trainer.stages[0]
        self.tokens = stage.batch_size * run.stages[0].length
        self.state = self.trainer.new_state()
        rows = synthetic.rows(stage.features, stage.batch_size, _VOCABULARY)
        self.batch = jax.device_put(rows, stage.shardings)
        self.step = self.trainer.lower_step(0).compile(options)
        self.rates: list[float] = []

    def round(self, steps: int) -> None:
        """Times so many updates."""
        began = time.monotonic()
        for _ in range(steps):
            self.state, _ = self.step(self.state, self.batch)
        jax.block_until_ready(self.state)
        self.rates.append(self.tokens * steps / (time.monotonic() - began))


def main() -> int:
    """Measures each mesh and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="bert_base", help="file of gin_configs/runs (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=256, help="for each device (default: %(default)s)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="updates of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not (default: %(default)s)")
    parser.add_argument("--mesh", choices=MESHES, action="append", help="only this one; repeatable (default: all)")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="one more binding; repeatable")
    args = parser.parse_args()
    devices = jax.devices()

    def run(rows: int) -> Run:
        bindings = [
            "Run.stages = (@Stage(),)",
            f"Stage.length = {args.length}",
            f"BATCH_SIZE = {rows}",
            "Run.mesh = @MeshShape()",
        ]
        bindings += ["Execution.dtype = 'bfloat16'", "Execution.layers = 'unroll'", *args.gin]
        return load([f"runs/{args.run}.gin"], bindings).build("Run").sized(_VOCABULARY)

    alone = {f"device {device.id}": Course(run(args.rows), MeshShape(), [device]) for device in devices}
    courses = dict(alone)
    for name in args.mesh or MESHES:
        courses[name] = Course(run(args.rows * len(devices)), MESHES[name], devices, OVERLAP if "overlapped" in name else None)
    for turn in range(args.rounds + 1):
        for course in courses.values():
            course.round(args.steps)
            if not turn:
                course.rates.clear()
    slowest = min(statistics.median(course.rates) for course in alone.values())
    lines = []
    for name, course in courses.items():
        rate = statistics.median(course.rates) / course.trainer.mesh.size
        spread = np.ptp(course.rates) / statistics.median(course.rates)
        lines.append([name, str(course.trainer.mesh.size), f"{rate / 1e3:,.0f}", f"{rate / slowest:.1%}", f"{spread:.1%}"])
    print(f"{args.run}, {args.rows} rows of {args.length} tokens a device, {devices[0].device_kind}, jax {jax.__version__}\n")
    print(table(["mesh", "devices", "k tokens/s a device", "of the slowest device's", "spread"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

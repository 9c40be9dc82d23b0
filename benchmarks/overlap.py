"""Schedule of a training step's collectives on a TPU slice: which run beside matrix products, and beside how many FLOPs.

    python -m benchmarks.overlap --gin_file=runs/bert_base.gin --slice=v5e-8
    python -m benchmarks.overlap --gin_file=runs/bert_base.gin --gin_file=meshes/fsdp.gin --slice=v5e-8

The step of the run's first stage is compiled ahead of time, and nothing is run. Its instructions run in the order of the compiled
program, so what stands between the start and the end of an asynchronous collective can run beside it.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import table
from bertfam.arguments import ScriptParser
from bertfam.planning import slices

if TYPE_CHECKING:
    from bertfam.planning.hlo.collectives import Collective
    from bertfam.planning.programs import Program

_SHAPES = 60  # characters of a shape in the table


def compiled_step(gin_files: Sequence[str], bindings: Sequence[str], slice: slices.Slice) -> "Program":
    """Compile the training step of a run's first stage for a slice, with the family's published vocabulary size."""
    from bertfam.config import load
    from bertfam.planning.choices import choose, with_choices
    from bertfam.planning.programs import TRAINING, jobs
    from bertfam.sharding.chips import memory_bytes

    devices = slice.devices()
    run: Any = load([*gin_files], ["Run.stages = (@Stage(),)", *bindings]).build("Run")
    model = run.objective.model
    run = run.sized(model.vocab_size or model.published_vocab_size)
    run = with_choices(run, choose(run, devices, memory_bytes(devices[0])))
    return jobs(run, run.mesh.build(devices), TRAINING)[0].compile()


def table_of(found: Iterable["Collective"]) -> str:
    """Format collectives as a Markdown table, equal ones in one line, the most bytes of a step first."""
    from bertfam.planning.hlo.allocations import module

    counts = Counter((one, module(one.op_name)) for one in found)
    lines = [
        [
            f"{one.kind} {'+'.join(one.axes)}",
            where,
            one.shape if len(one.shape) <= _SHAPES else f"{one.shape[:_SHAPES]}...",
            "?" if one.times is None else str(count * one.times),
            f"{one.bytes / 1e6:,.2f}",
            "no" if one.beside is None else "yes",
            "" if one.beside is None else f"{one.beside / 1e9:,.2f}",
        ]
        for (one, where), count in sorted(counts.items(), key=lambda item: -item[0][0].total * item[1])
    ]
    head = ["collective", "where", "shape", "times a step", "MB each", "asynchronous", "GFLOP beside each"]
    return table(head, lines)


def main() -> int:
    """Compile the step and print the table; return the exit status."""
    parser = ScriptParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--gin_file", action="append", required=True, metavar="FILE", help="gin file of the run; repeatable")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further binding; repeatable")
    parser.add_argument("--slice", required=True, metavar="NAME", help="slice, such as v5e-8")
    args = parser.parse_args()
    slice = slices.parse(args.slice)
    slices.prepare([slice])
    from bertfam.planning.hlo.collectives import collectives

    program = compiled_step(args.gin_file, args.gin, slice)
    mesh = program.job.trainer.mesh
    if program.compiled is None:
        parser.error(f"{program.job.name} does not fit {args.slice}: {program.too_large}")
    print(f"{args.slice}: {program.job.name}, {program.job.flops / mesh.size / 1e9:,.0f} GFLOP a device\n")
    print(table_of(collectives(program.text, mesh)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Training steps on packed rows of synthetic tokens, and on unpacked ones: time and peak memory.

    python -m benchmarks.packed_rows --json packed_rows.json

Packed rows have segments of 300 tokens on average and no padding; unpacked rows are one segment. Layers are unrolled, in
bfloat16, without dropout. Each case is a process of its own, since a device reports only its peak memory.
"""

import json
import sys
from functools import partial
from typing import Any

from benchmarks.measurement import table
from benchmarks.processes import Job, print_result, run_all
from benchmarks.training_step import Case, measure
from bertfam.arguments import ScriptParser, output_file

_SETTINGS = (
    "Run.stages = (@Stage(),)",
    "Run.mesh = @MeshShape()",
    "Execution.dtype = 'bfloat16'",
    "Execution.layers = 'unroll'",
)


def _bert(name: str, rows: str) -> Case:
    sizes = ("BATCH_SIZE = 64", "Stage.length = 512", f"TextData.rows = {rows}")
    return Case(name, ("runs/bert_base.gin", "objectives/mlm.gin"), (*_SETTINGS, *sizes))


def _modernbert(name: str, rows: int, length: int) -> Case:
    sizes = (f"BATCH_SIZE = {rows}", f"Stage.length = {length}")
    return Case(name, ("runs/modernbert_base.gin",), (*_SETTINGS, *sizes), vocabulary=50_368)


CASES = {
    case.name: case
    for case in (
        _bert("BERT-base, 64 x 512, unpacked", "@FullSentences()"),
        _bert("BERT-base, 64 x 512, packed", "@Packed()"),
        _modernbert("ModernBERT-base, 32 x 1,024, packed", 32, 1024),
        _modernbert("ModernBERT-base, 4 x 8,192, packed", 4, 8192),
    )
}


def _measured(name: str, steps: int, more: list[str]) -> dict[str, Any]:
    figures = measure(CASES[name], steps, more)
    return figures | {"milliseconds": 1e3 * figures["seconds"]}


def main() -> int:
    """Measure each case and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="updates between two readings of the clock (default: %(default)s)")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further binding of every case")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--case", choices=CASES, help="measure this case in this process and print JSON")
    args = parser.parse_args()
    if args.case:
        return print_result(partial(_measured, args.case, args.steps, args.gin))
    flags = [f"--steps={args.steps}", *(f"--gin={binding}" for binding in args.gin)]
    jobs = [Job(name, ["benchmarks.packed_rows", *flags, f"--case={name}"]) for name in CASES]
    figures = []
    for _, result, _ in run_all(jobs, ahead=0):
        figures.append(result)
        if args.json:
            args.json.write_text(json.dumps(figures, indent=1) + "\n")
    if not figures:
        return 1
    lines = []
    for one in figures:
        peak = f"{one['peak_bytes'] / 2**30:.1f}" if one["peak_bytes"] else "-"
        lines.append([one["case"], f"{one['milliseconds']:.1f}", f"{one['tokens_per_second'] / 1e3:,.0f}", peak])
    print(f"one {figures[0]['device']}, jax {figures[0]['versions']['jax']}\n")
    print(table(["model, rows", "ms a step", "k tokens/s", "peak GiB"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

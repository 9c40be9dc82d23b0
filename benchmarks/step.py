"""Training steps of bertfam and of Hugging Face with torch.compile, on one card and the same rows: time, MFU and memory.

    python -m benchmarks.step --json step.jsonl --plot step.svg
    python -m benchmarks.step --table --json step.jsonl

Each case and side is a process of its own. Several of them compile side by side, then each is timed alone. FLOPs of both sides
are counted alike: matrix products of forward and backward, the vocabulary head on the predicted positions, and of attention the
pairs of tokens that the model's pattern has.
"""

import argparse
import fnmatch
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import sides
from benchmarks.measurement import table
from benchmarks.processes import Job, print_result
from benchmarks.sides import PEER, measure_all
from benchmarks.step_cases import CASES
from benchmarks.training_step import OURS, read_records
from bertfam.arguments import ScriptParser, output_file


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Return a job for each case and side that the flags name, the sides of a case one after the other."""
    with_peers = not args.no_peers and sides.has_peer(args.peer_device)
    return [
        sides.job(name, ["benchmarks.step", "--one", name, side], side, args)
        for name in args.case
        for side, is_measured in ((OURS, not args.peers_only), (PEER, with_peers))
        if is_measured
    ]


def _names(patterns: Sequence[str] | None, parser: ScriptParser) -> list[str]:
    for pattern in patterns or ():
        if not fnmatch.filter(CASES, pattern):
            parser.error(f"--case={pattern}: no case has this name; --list lists them")
    return [name for name in CASES if patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


_HEAD = [
    "case",
    "side",
    "ms a step",
    "spread",
    "k tokens/s",
    "rows/s",
    "MFU",
    "peak GiB",
    "compile s",
    "loss",
    "x peer",
    "attention",
]


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Format figures as a Markdown table, with the card, the versions and the settings that "auto" stands for."""
    seconds = {(one["case"], one["side"] == OURS): one["seconds"] for one in records}
    lines = []
    for one in sorted(records, key=lambda one: [*CASES].index(one["case"]) if one["case"] in CASES else len(CASES)):
        peer = seconds.get((one["case"], False)) if one["side"] == OURS else None
        lines.append(
            [
                *(one["case"], one["side"], f"{1e3 * one['seconds']:.1f}", f"{one['spread']:.1%}"),
                *(f"{one['tokens_per_second'] / 1e3:,.0f}", f"{one['sequences_per_second']:,.0f}"),
                "-" if one["mfu"] is None else f"{one['mfu']:.1%}",
                "-" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}",
                *(f"{one['compile_seconds']:.0f}", f"{one['loss']:.3f}"),
                "" if peer is None else f"{peer / one['seconds']:.2f}",
                one["attention"].partition(":")[0],
            ]
        )
    return "\n".join([*dict.fromkeys(map(_origin, records)), "", table(_HEAD, lines), "", *_settings(records)])


def _origin(one: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    peak = "unknown" if one["peak_flops"] is None else f"{one['peak_flops'] / 1e12:,.0f} TFLOP/s"
    return f"one {one['device']} (peak {peak}), {packages}, commit {one['commit']}, {one['date'][:10]}"


def _settings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for one in records:
        values = ", ".join(f"{name} {one['chosen'].get(name, value)}" for name, value in one["execution"].items())
        lines.append(f"- {one['case']}, {one['side']}: {values}; attention {one['attention']}")
    return lines


def plot(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the tokens per second of each case and side into a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [*dict.fromkeys(one["case"] for one in records)]
    both = [*dict.fromkeys(one["side"] for one in records)]
    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(names)))
    for index, side in enumerate(both):
        own = [one for one in records if one["side"] == side]
        places = [names.index(one["case"]) + (index - (len(both) - 1) / 2) * 0.4 for one in own]
        axes.barh(places, [one["tokens_per_second"] / 1e3 for one in own], height=0.38, label=side)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"k tokens/s, {records[0]['device']}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def _parser() -> ScriptParser:
    parser = ScriptParser(description=__doc__)
    parser.add_argument(
        "--case", action="append", metavar="NAME", help='only this case, or cases: "long-*"; repeatable (default: all)'
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--no_peers", action="store_true", help="measure bertfam alone")
    parser.add_argument("--peers_only", action="store_true", help="measure the peers alone")
    sides.add_flags(parser)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="append all figures to this file, a line of JSON each")
    parser.add_argument("--table", action="store_true", help="measure nothing: print the table of the figures in --json")
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="file for a figure of tokens per second (.svg, .png)")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SIDE"), help=argparse.SUPPRESS)
    return parser


def _checked(parser: ScriptParser) -> argparse.Namespace:
    args = parser.parse_args()
    if args.no_peers and args.peers_only:
        parser.error("--no_peers and --peers_only leave nothing to measure: give one of them")
    sides.check_flags(parser, args)
    if args.table and not (args.json and args.json.is_file()):
        parser.error("--table requires --json=FILE with recorded figures")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot requires matplotlib: pip install matplotlib")
    args.case = _names(args.case, parser)
    return args


def main() -> int:
    """Measure each case and print the table; return the exit status."""
    args = _checked(_parser())
    if args.one:
        return print_result(partial(sides.measure, CASES[args.one[0]], args.one[1], args))
    if args.list:
        for name in args.case:
            print(name, *CASES[name].files, *CASES[name].bindings, sep="  ")
        return 0
    if args.table:
        records = [one for one in read_records(args.json) if one["case"] in args.case]
    else:
        records = [*sides.recorded(measure_all(jobs_of(args), args), args.json)]
    if not records:
        return 1
    print(table_of(records))
    if args.plot:
        plot(records, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

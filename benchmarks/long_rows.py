"""Time and memory of training steps by the length of rows: dense attention, BigBird, Longformer and ModernBERT, equally large.

    python -m benchmarks.long_rows --json long_rows.json --plot long_rows.svg

Every step has the same number of tokens, in whole rows without padding, in bfloat16 with unrolled layers and without dropout.
Each model and length is a process of its own, since a device reports only its peak memory.
The last lines have the exponent of the time of one row from 2,048 tokens on: 1 if it is proportional to the length.
"""

import argparse
import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import sides
from benchmarks.measurement import table
from benchmarks.processes import Job, print_result
from benchmarks.sides import PEER, measure_all
from benchmarks.training_step import OURS, Case
from bertfam.arguments import ScriptParser, output_file

_SETTINGS = (
    "Run.stages = (@Stage(),)",
    "Run.mesh = @MeshShape()",
    "Run.microbatches = 1",
    "Execution.dtype = 'bfloat16'",
    "Execution.layers = 'unroll'",
)
# name -> model file, its config
MODELS = {
    "dense": ("roberta_base", "RobertaConfig"),
    "BigBird": ("bigbird_base", "BigBirdConfig"),
    "Longformer": ("longformer_base", "LongformerConfig"),
    "ModernBERT": ("modernbert_base", "ModernBertConfig"),
}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
TOKENS = 32_768


def case(name: str, length: int, tokens: int) -> Case:
    """Return the step of a model on rows of a length, with `tokens` tokens in all."""
    file, config = MODELS[name]
    rows = max(tokens // length, 1)
    sizes = (f"{config}.max_length = {max(LENGTHS)}", f"Stage.length = {length}", f"BATCH_SIZE = {rows}")
    files = (f"models/{file}.gin", "objectives/mlm.gin", "runs/defaults.gin")
    return Case(f"long-{name.lower()}-{length}", files, (*_SETTINGS, *sizes), vocabulary=32_000)


def exponent(results: list[dict[str, Any]], name: str) -> float | None:
    """Return the exponent of the seconds of one row as a power of its length, from 2,048 tokens on; None for one length."""
    points = [(one["length"], one["seconds"] / one["rows"]) for one in results if one["model"] == name and one["length"] >= 2048]
    if len(points) < 2:
        return None
    lengths, seconds = np.log(np.array(points)).T
    return float(np.polyfit(lengths, seconds, 1)[0])


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw time and memory by length into a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name in dict.fromkeys(one["model"] for one in results):
        own = [one for one in results if one["model"] == name]
        lengths = [one["length"] for one in own]
        left.plot(lengths, [1e3 * one["seconds"] / one["rows"] for one in own], marker="o", label=name)
        right.plot(lengths, [(one["peak_bytes"] or 0) / 2**30 for one in own], marker="o", label=name)
    for axes, label in ((left, "ms per row"), (right, "peak GiB of a step")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("tokens of a row")
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
    left.legend()
    figure.tight_layout()
    figure.savefig(path)


def _parser() -> ScriptParser:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of an update (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this model; repeatable (default: all)")
    parser.add_argument("--length", type=int, action="append", help="only this length; repeatable (default: 1,024 to 16,384)")
    parser.add_argument("--peers", action="store_true", help="measure the models of Hugging Face too")
    sides.add_flags(parser)
    parser.add_argument("--json", type=output_file, help="file for all figures")
    parser.add_argument("--plot", type=output_file, help="file for a figure of time and memory by length (.svg, .png)")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "LENGTH", "SIDE"), help=argparse.SUPPRESS)
    return parser


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    name, length, side = args.one
    label = name if side == OURS else f"{name}, Hugging Face"
    return {"model": label} | sides.measure(case(name, int(length), args.tokens), side, args)


def _jobs(args: argparse.Namespace) -> list[Job]:
    measured = [OURS, PEER] if args.peers and sides.has_peer(args.peer_device) else [OURS]
    return [
        sides.job(
            f"{name}, {length}", ["benchmarks.long_rows", f"--tokens={args.tokens}", "--one", name, str(length), side], side, args
        )
        for side in measured
        for name in args.model or MODELS
        for length in args.length or LENGTHS
    ]


def main() -> int:
    """Measure each model at each length and print the table; return the exit status."""
    parser = _parser()
    args = parser.parse_args()
    sides.check_flags(parser, args)
    if args.one:
        return print_result(partial(_measure, args))
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot requires matplotlib: pip install matplotlib")
    results = [*measure_all(_jobs(args), args)]
    if not results:
        return 1
    lines = []
    for one in results:
        memory = "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}"
        rate = one["rows"] * one["length"] / one["seconds"] / 1e3
        figures = [f"{1e3 * one['seconds'] / one['rows']:.2f}", f"{rate:,.0f}", memory]
        lines.append([one["model"], f"{one['length']:,}", *figures, one["attention"].partition(":")[0]])
    print(f"one {results[0]['device']}, jax {results[0]['versions']['jax']}, {args.tokens:,} tokens an update\n")
    print(table(["model", "tokens of a row", "ms a row", "k tokens/s", "peak GiB", "attention"], lines))
    for name in dict.fromkeys(one["model"] for one in results):
        if (power := exponent(results, name)) is not None:
            print(f"{name}: time of a row grows with its length to the power of {power:.2f}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)
    if args.plot:
        plot(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

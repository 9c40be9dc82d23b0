"""Time and memory of training steps by the length of rows, from the figures that `benchmarks.step` recorded.

    python -m benchmarks.step --case 'long-*' --json step.jsonl
    python -m benchmarks.long_rows --json step.jsonl --plot long_rows.svg

The steps are those of dense attention, BigBird, Longformer and ModernBERT in base size, with 32,768 tokens each in full, unpacked
rows. The last lines have the exponent of the time of one row from 2,048 tokens on: 1 if it is proportional to the length.
"""

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import table
from benchmarks.training_step import OURS, read_records
from bertfam.arguments import ScriptParser, output_file

_CASES = "long-"


def long_records(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of long rows in order of model, side and length, with the model's name as "model"."""
    chosen = []
    for one in records:
        if one["case"].startswith(_CASES):
            name = one["case"].removeprefix(_CASES).rpartition("-")[0]
            chosen.append({"model": name if one["side"] == OURS else f"{name}, {one['side']}"} | one)
    return sorted(chosen, key=lambda one: (one["side"] != OURS, one["model"], one["length"]))


def exponent(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the exponent of the seconds of one row as a power of its length, from 2,048 tokens on; None for one length."""
    points = [(one["length"], one["seconds"] / one["rows"]) for one in records if one["model"] == name and one["length"] >= 2048]
    if len(points) < 2:
        return None
    lengths, seconds = np.log(np.array(points)).T
    return float(np.polyfit(lengths, seconds, 1)[0])


def plot(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw time and memory by length into a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    colours: dict[str, str] = {}
    for name in dict.fromkeys(one["model"] for one in records):
        own = [one for one in records if one["model"] == name]
        places = [one["length"] for one in own]
        # A model and its peer have one colour.
        style = {"color": colours.setdefault(name.partition(",")[0], f"C{len(colours)}"), "marker": "o"}
        style["linestyle"] = "-" if own[0]["side"] == OURS else ":"
        left.plot(places, [1e3 * one["seconds"] / one["rows"] for one in own], label=name, **style)
        right.plot(places, [(one["peak_bytes"] or 0) / 2**30 for one in own], **style)
    lengths = sorted({one["length"] for one in records})
    left.set_yscale("log")
    right.set_ylim(bottom=0)
    for axes, label in ((left, "ms per row"), (right, "peak GiB of a step")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_xlabel("tokens of a row")
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
    left.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def table_of(records: Sequence[dict[str, Any]]) -> str:
    """Format figures of long rows as a Markdown table, with the device, the versions and the exponents."""
    dense = {one["length"]: one["seconds"] for one in records if one["model"] == "dense"}
    lines = []
    for one in records:
        memory = "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}"
        rate = one["tokens_per_second"] / 1e3
        times = f"{dense[one['length']] / one['seconds']:.2f}" if one["length"] in dense else ""
        figures = [f"{1e3 * one['seconds'] / one['rows']:.2f}", f"{rate:,.0f}", memory, times]
        lines.append([one["model"], f"{one['length']:,}", *figures, one["attention"].partition(":")[0]])
    packages = ", ".join(f"{name} {version}" for name, version in records[0]["versions"].items())
    head = ["model", "tokens of a row", "ms a row", "k tokens/s", "peak GiB", "x dense", "attention"]
    powers = [
        f"{name}: time of a row grows with its length to the power of {power:.2f}"
        for name in dict.fromkeys(one["model"] for one in records)
        if (power := exponent(records, name)) is not None
    ]
    return "\n".join([f"one {records[0]['device']}, {packages}", "", table(head, lines), "", *powers])


def main() -> int:
    """Print the table of recorded figures and draw them; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="figures of benchmarks.step")
    parser.add_argument("--plot", type=output_file, metavar="FILE", help="file for a figure of time and memory (.svg, .png)")
    args = parser.parse_args()
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot requires matplotlib: pip install matplotlib")
    records = long_records(read_records(args.json)) if args.json.is_file() else []
    if not records:
        parser.error(f"--json={args.json} has no figures of long rows; measure them: python -m benchmarks.step --case 'long-*'")
    print(table_of(records))
    if args.plot:
        plot(records, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

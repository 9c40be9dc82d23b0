"""Time and memory of training steps by the length of rows: dense attention, BigBird, Longformer and ModernBERT, equally large.

    python -m benchmarks.long_rows --json long_rows.json --plot long_rows.svg

Every step has the same number of tokens, in whole rows without padding, in bfloat16 with unrolled layers and without dropout.
Each model and length is a process of its own, since a device reports only its peak memory.
The last lines have the exponent of the time of one row from 2,048 tokens on: 1 if it is proportional to the length.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import synthetic
from benchmarks.measurement import seconds_of_update, table
from bertfam.arguments import ScriptParser, output_file
from bertfam.config import load
from bertfam.training.run import Run
from bertfam.training.run_plan import describe_attention
from bertfam.training.trainer import Trainer

_VOCABULARY = 32_000
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
_RATES = ("dropout_rate", "attention_dropout_rate", "attention_output_dropout_rate", "feed_forward_dropout_rate")
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def _run(name: str, length: int, rows: int, more: list[str]) -> Run:
    file, config = MODELS[name]
    files = [f"models/{file}.gin", "objectives/mlm.gin", "runs/defaults.gin"]
    probe = load(files).build("Run").objective.model
    rates = [f"{config}.{rate} = 0.0" for rate in _RATES if getattr(probe, rate, None)]
    sizes = [f"{config}.max_length = {max(LENGTHS)}", f"Stage.length = {length}", f"BATCH_SIZE = {rows}"]
    own = [binding.replace("MODEL.", f"{config}.", 1) for binding in more]
    return load(files, [*_SETTINGS, *sizes, *rates, *own]).build("Run").sized(_VOCABULARY)


def measure(name: str, length: int, tokens: int, steps: int, more: list[str]) -> dict[str, Any]:
    """Compile and time updates of one model; return seconds of an update, the peak memory and the attention backends."""
    rows = max(tokens // length, 1)
    run = _run(name, length, rows, more)
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    stage = trainer.stages[0]
    state = trainer.new_state()
    batch = jax.device_put(synthetic.rows(stage.features, stage.batch_size, _VOCABULARY), stage.shardings)
    seconds = seconds_of_update(trainer.lower_step(0).compile(), state, batch, steps)
    device = jax.devices()[0]
    return {
        "model": name,
        "length": length,
        "rows": rows,
        "seconds": seconds,
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "flops": rows * run.objective.flops(run.shape(0)),
        "attention": describe_attention(run.objective, run.shape(0)),
        "device": device.device_kind,
        "jax": jax.__version__,
    }


def _measured(name: str, length: int, args: argparse.Namespace) -> dict[str, Any] | None:
    """Measure in a process of its own; None, with a line on stderr, if that fails, for example for lack of memory."""
    flags = [f"--tokens={args.tokens}", f"--steps={args.steps}", *(f"--gin={binding}" for binding in args.gin)]
    command = [sys.executable, "-m", "benchmarks.long_rows", "--one", name, str(length), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}, {length}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


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


def main() -> int:
    """Measure each model at each length and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of an update (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="updates of a round, of three (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this model; repeatable (default: all)")
    parser.add_argument("--length", type=int, action="append", help="only this length; repeatable (default: 1,024 to 16,384)")
    parser.add_argument(
        "--gin",
        action="append",
        default=[],
        metavar="BINDING",
        help="further gin binding, of a model as MODEL.num_layers=2; repeatable",
    )
    parser.add_argument("--json", type=output_file, help="file for all figures")
    parser.add_argument("--plot", type=output_file, help="file for a figure of time and memory by length (.svg, .png)")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.tokens, args.steps, args.gin)))
        return 0
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot requires matplotlib: pip install matplotlib")
    pairs = [(name, length) for name in args.model or MODELS for length in args.length or LENGTHS]
    results = [one for pair in pairs if (one := _measured(*pair, args)) is not None]
    if not results:
        return 1
    lines = []
    for one in results:
        memory = "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}"
        rate = one["rows"] * one["length"] / one["seconds"] / 1e3
        figures = [f"{1e3 * one['seconds'] / one['rows']:.2f}", f"{rate:,.0f}", memory]
        lines.append([one["model"], f"{one['length']:,}", *figures, one["attention"].partition(":")[0]])
    print(f"one {results[0]['device']}, jax {results[0]['jax']}, {args.tokens:,} tokens an update\n")
    print(table(["model", "tokens of a row", "ms a row", "k tokens/s", "peak GiB", "attention"], lines))
    for name in args.model or MODELS:
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

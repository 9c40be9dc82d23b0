"""Speedrun: recipes of a small encoder, from BERT's of 2018 on, each one change, by time and tokens to a held-out masked loss.

    python -m benchmarks.speedrun train --cache CACHE --output RUNS
    python -m benchmarks.speedrun table --output RUNS

CACHE is a token cache with a held-out split. Each recipe is `bertfam pretrain` with the lines of all recipes before it and its
own. It ends at the first measurement whose loss is at most --target, on the same held-out rows and 15 % noise for all
(`benchmarks.target_loss`). A recipe that ends without it is a row too. Seconds are those of updates: without start, compiling,
measurements and saving.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import machine, table
from benchmarks.training_runs import command_parsers, metrics, run_all
from bertfam.arguments import ScriptParser, output_file

_WARMUP = 0.1  # of a recipe's updates
_RUN = """\
{files}
include "runs/defaults.gin"

Run.eval_every = 0
Run.log_every = {every}
Run.hooks = (@TargetLoss(),)
TargetLoss.model = %MODEL
TargetLoss.cache_dir = "{cache}"
TargetLoss.target = {target}
TargetLoss.every = {every}
TargetLoss.length = {length}
Stage.length = {length}
TRAIN_STEPS = {updates}
CHECKPOINT_EVERY = {updates}
BATCH_SIZE = {rows}
LinearDecay.warmup_steps = {warmup}
{lines}
"""
_SIZES = """\
{config}.num_layers = {num_layers}
{config}.hidden_size = {hidden_size}
{config}.num_heads = {num_heads}
{config}.feed_forward_size = {feed_forward_size}
{config}.max_length = {length}"""


@dataclass(frozen=True)
class Recipe:
    """Row of the table: one change to the recipe before.

    Attributes:
      change: the change, for the table.
      files: shipped gin files, in place of those of the same folder before.
      lines: further lines of gin.
      batch: rows of a batch, as a share of --batch_size; None: as before.
      tokens: tokens of a whole run, with its schedule, as a share of --tokens; None: as before.
    """

    change: str
    files: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    batch: float | None = None
    tokens: float | None = None


RECIPES = {
    "bert": Recipe(
        "BERT's: post-norm, learned positions, Adam without bias correction, sentence pairs, ten fixed masks a row, dropout 0.1",
        ("objectives/mlm_nsp.gin",),
        (
            "MODEL = @BertConfig()",
            "BertConfig.dropout_rate = 0.1",
            "BertConfig.attention_dropout_rate = 0.1",
            "TextData.dupe_factor = 10",
            "Run.optimizer = @BertAdam()",
            "LinearDecay.peak = 1e-3",
        ),
        batch=1.0,
        tokens=1.0,
    ),
    "no_dropout": Recipe(
        "no dropout", lines=("BertConfig.dropout_rate = 0.0", "BertConfig.attention_dropout_rate = 0.0"), tokens=1.0
    ),
    "masked_lm": Recipe("the masked LM alone, on rows of whole sentences", ("objectives/mlm.gin",)),
    "new_masks": Recipe("new masks in every epoch", lines=("TextData.dupe_factor = None",)),
    "adamw": Recipe(
        "AdamW with bias correction, b2 0.98, twice the rate",
        lines=("Run.optimizer = @AdamW()", "AdamW.b2 = 0.98", "LinearDecay.peak = 2e-3"),
    ),
    "modernbert": Recipe(
        "ModernBERT's network: pre-norm, rotary positions, gated layers, no biases",
        lines=("MODEL = @ModernBertConfig()",),
        tokens=0.5,
    ),
    "packed": Recipe("documents packed into rows", lines=("TextData.rows = @Packed()", "Packed.rows = @WholeDocuments()")),
    "small_batch": Recipe("a quarter of the rows in a batch", batch=0.25),
    "muon": Recipe("Muon, at 3e-3", lines=("Run.optimizer = @Muon()", "LinearDecay.peak = 3e-3"), tokens=0.25),
    "rate": Recipe("Muon at 8e-3, half of it for embeddings and head", lines=("LinearDecay.peak = 8e-3", "Muon.adam_rate = 0.5")),
    "initial_values": Recipe("initial values of 0.05, not 0.02", lines=("ModernBertConfig.initializer_range = 0.05",)),
    "more_masks": Recipe("30 % of the tokens masked in training", lines=("BertMasking.rate = 0.3",)),
}


def run_file(name: str, args: argparse.Namespace) -> str:
    """Return the gin file of a recipe: the lines of all recipes up to it."""
    names = [*RECIPES]
    so_far = [RECIPES[one] for one in names[: names.index(name) + 1]]
    files = {Path(file).parent: file for recipe in so_far for file in recipe.files}
    own = {line.partition(" =")[0]: line for recipe in so_far for line in recipe.lines}
    batch, tokens = ([getattr(one, part) for one in so_far if getattr(one, part)][-1] for part in ("batch", "tokens"))
    rows = max(1, round(batch * args.batch_size))
    updates = max(1, round(tokens * args.tokens / (rows * args.length)))
    sizes = {"hidden_size": args.hidden_size, "num_layers": args.num_layers, "length": args.length}
    sizes["num_heads"] = max(1, args.hidden_size // 64)
    # The hidden layer of a gated network has half the size, for as many FLOPs and parameters.
    lines = [
        _SIZES.format(config=config, feed_forward_size=factor * args.hidden_size, **sizes)
        for config, factor in (("BertConfig", 4), ("ModernBertConfig", 2))
    ]
    return _RUN.format(
        files="\n".join(f'include "{file}"' for file in files.values()),
        lines="\n".join([*lines, *own.values()]),
        cache=Path(args.cache).resolve(),
        target=args.target,
        every=min(args.every, updates),
        length=args.length,
        updates=updates,
        rows=rows,
        warmup=max(1, round(_WARMUP * updates)),
    )


def train(args: argparse.Namespace) -> None:
    """Train the selected recipes, and append a line of JSON for each."""
    args.output.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for name in args.recipes:
        file, model = args.output / f"{name}.gin", args.output / name
        file.write_text(run_file(name, args))
        pretrain = ["bertfam", "pretrain", "--module_import=benchmarks.target_loss", f"--gin_file={file}"]
        record = ["benchmarks.speedrun", "record", f"--output={args.output}", f"--recipes={name}", f"--target={args.target}"]
        jobs[name] = [
            [*pretrain, f"--cache_dir={args.cache}", f"--model_dir={model}", *args.flags],
            [*record, *([f"--json={args.json}"] if args.json else [])],
        ]
    run_all(jobs, args.output, args.gpus)


def record(args: argparse.Namespace) -> None:
    """Append a line of JSON for each of the selected recipes, from its log."""
    import jax

    from benchmarks.training_step import origin

    for name in args.recipes:
        folder = args.output / name
        last, (time,) = metrics(folder, "target")[-1], metrics(folder, "time")[-1:]
        line = {
            "recipe": name,
            "change": RECIPES[name].change,
            "target": args.target,
            "reached": last["mlm_loss"] <= args.target,
            "loss": last["mlm_loss"],
            "accuracy": last["mlm_accuracy"],
            "updates": last["step"],
            "tokens": metrics(folder, "train")[-1]["tokens_seen"],
            "seconds": time["training"] + time.get("waiting_for_data", 0.0),
            "cpu_seconds": last["cpu_seconds"],
            "device": jax.devices()[0].device_kind,
            "machine": machine(),
        }
        with open(args.json or args.output / _RESULTS, "a") as results:
            results.write(json.dumps(line | origin()) + "\n")


_RESULTS = "speedrun.jsonl"
_HEAD = ["recipe", "change", "updates", "M tokens", "s", "CPU s", "loss", "accuracy", "times fewer tokens", "times faster"]


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Format the records as a Markdown table, in the order of the recipes; the last two columns are relative to the first row.

    On CPUs, which other programs may use too, "times faster" is of CPU seconds. Ratios to a first row that
    missed the target are bounds.
    """
    known = {one["recipe"]: one for one in records}
    rows = [known[name] for name in RECIPES if name in known]
    clock = "cpu_seconds" if rows[0]["device"] == "cpu" else "seconds"
    bound = "" if rows[0]["reached"] else ">"
    lines = []
    for row in rows:
        ratios = [f"{bound}{rows[0][part] / row[part]:.1f}" if row["reached"] else "-" for part in ("tokens", clock)]
        lines.append(
            [
                *(row["recipe"], row["change"], f"{row['updates']:,}", f"{row['tokens'] / 1e6:.2f}"),
                *(f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}"),
                *(f"{row['loss']:.3f}" + ("" if row["reached"] else " (not reached)"), f"{row['accuracy']:.3f}", *ratios),
            ]
        )
    first = rows[0]
    packages = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    origin = f"{first['device']}, {packages}, commit {first['commit']}, {first['date'][:10]}; target {first['target']:g}"
    return f"{origin}\n\n{table(_HEAD, lines)}"


def show(args: argparse.Namespace) -> None:
    """Print the table of the recorded recipes."""
    file = args.json or args.output / _RESULTS
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    print(table_of(lines) if lines else f"{file} has no results yet")


def _add_training_flags(parser: ScriptParser) -> None:
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR", help="token cache")
    for name, default, what in (
        ("num_layers", 2, "layers"),
        ("hidden_size", 128, "units, a multiple of 64"),
        ("length", 64, "tokens of a row"),
        ("batch_size", 64, "rows of BERT's batches, of which later recipes take shares"),
        ("every", 25, "updates between two measurements"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--tokens",
        type=float,
        default=3.7e6,
        metavar="N",
        help="tokens of BERT's whole run, of which later recipes take shares (default: %(default)g)",
    )
    parser.add_argument(
        "--gpus", type=int, default=0, help="number of GPUs, each with one run at a time (default: one run after another)"
    )
    parser.add_argument("flags", nargs="*", help="further flags of bertfam pretrain, after --")


def main() -> int:
    """Run one of the three commands; return the exit status."""
    parser, commands = command_parsers(__doc__, {"train": train, "record": record, "table": show})
    for command, sub in commands.items():
        sub.add_argument(
            "--json", type=output_file, metavar="FILE", help=f"lines of JSON, one for each recipe (default: DIR/{_RESULTS})"
        )
        if command == "table":
            continue
        sub.add_argument("--recipes", type=lambda names: names.split(","), default=[*RECIPES], metavar="NAME,NAME")
        sub.add_argument("--target", type=float, default=6.2, help="held-out masked loss to reach (default: %(default)s)")
        if command == "train":
            _add_training_flags(sub)
    args = parser.parse_args()
    unknown = sorted(set(getattr(args, "recipes", ())) - RECIPES.keys())
    if unknown:
        parser.error(f"--recipes: {', '.join(unknown)} is not one of {', '.join(RECIPES)}")
    args.command(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())

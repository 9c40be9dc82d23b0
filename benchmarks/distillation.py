"""Small version of DistilBERT's ablation: a teacher, students with and without each loss term, and masked language models.

python -m benchmarks.distillation --cache books --output distilled --teacher_steps 8000 --student_steps 2000 --devices 0,0,0

Every run is a `bertfam` command of its own that resumes where it was stopped, so the same command line continues interrupted
work. A device that is named n times trains n students at a time. All runs have the same rows, masks (single tokens at 15 %, so
that losses compare with those of other tables) and held-out text; the students have the same steps, rates and dropout.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measurement import table
from benchmarks.training_runs import metrics, run_all, seconds, tokens_per_second
from bertfam.arguments import ScriptParser, output_folder
from bertfam.plurals import plural

_RUN = """\
include "objectives/{objective}.gin"
include "runs/defaults.gin"

TRAIN_STEPS = {steps}
EVAL_EVERY = {eval_every}
CHECKPOINT_EVERY = {eval_every}
BATCH_SIZE = {batch_size}
MODEL = @BertConfig()
BertConfig.num_layers = {layers}
BertConfig.hidden_size = {hidden_size}
BertConfig.num_heads = {heads}
BertConfig.feed_forward_size = {feed_forward_size}
BertConfig.max_length = {length}
BertConfig.type_vocab_size = 2
Stage.length = {length}
Run.log_every = {log_every}
Run.eval_batches = {eval_batches}
Run.keep_checkpoints = 1
TextData.rows = @FullSentences()
BertMasking.choice = @SingleTokens()
BertMasking.rounding = "nearest"
AdamW.clip_norm = 5.0
LinearDecay.peak = {peak}
LinearDecay.warmup_steps = {warmup}
Execution.dtype = {dtype!r}
Execution.layers = "unroll"
"""


class Kind(NamedTuple):
    """Row of the table.

    Attributes:
      title: title in the table.
      distilled: whether the run has a teacher.
      flags: further flags of the command.
    """

    title: str
    distilled: bool = False
    flags: tuple[str, ...] = ()


TEACHER = "teacher"
STUDENTS = {
    "mlm": Kind("masked language model alone"),
    "triple": Kind("triple loss, warm start", True),
    "no_soft": Kind("without L_ce", True, ("--gin.Distillation.soft=0.0",)),
    "no_cosine": Kind("without L_cos", True, ("--gin.Distillation.cosine=0.0",)),
    "no_mlm": Kind("without L_mlm", True, ("--gin.Distillation.mlm=0.0",)),
    "random": Kind("triple loss, random start", True, ("--layers=random",)),
    "mlm_warm": Kind("masked language model alone, warm start", True, ("--gin.Distillation.alpha=0.0",)),
}
_DEFAULT = tuple(name for name in STUDENTS if name != "mlm_warm")
_COLUMNS = {
    "mlm_loss": "held-out MLM loss",
    "mlm_accuracy": "accuracy",
    "teacher_agreement": "agreement with teacher",
    "soft_loss": "L_ce",
    "cosine_loss": "L_cos",
}


def main() -> int:
    """Train the unfinished runs and print the table; return the exit status."""
    args = _arguments()
    output = args.output
    output.mkdir(parents=True, exist_ok=True)
    # Runs share compiled programs.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str((output / "compilations").absolute()))
    start = time.monotonic()
    devices = args.devices.split(",") if args.devices else []
    for names, places in (((TEACHER,), devices[:1]), (args.runs, devices)):
        run_all({name: [_command(name, args, output)] for name in names}, output, places)
    result = _table(args, output, time.monotonic() - start)
    (output / "table.md").write_text(result)
    print(f"\n{result}", end="", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = ScriptParser(prog="python -m benchmarks.distillation", description=__doc__.splitlines()[0])
    parser.add_argument("--cache", required=True, metavar="DIR", help="token cache, built by `bertfam cache`")
    parser.add_argument("--output", type=output_folder, required=True, metavar="DIR", help="folder of runs, logs and table.md")
    for name, default, what in (
        ("teacher_steps", 8000, "updates of the teacher"),
        ("student_steps", 2000, "updates of each student"),
        ("teacher_layers", 6, "layers of the teacher"),
        ("student_layers", 3, "layers of the students"),
        ("hidden_size", 512, "hidden size of all models"),
        ("batch_size", 512, "rows of an update"),
        ("length", 128, "tokens of a row"),
        ("eval_batches", 8, "batches of an evaluation, the same held-out rows for all runs"),
        ("evaluations", 4, "number of evaluations of each run"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    parser.add_argument("--teacher_peak", type=float, default=1e-3, metavar="RATE", help="learning rate (1e-3)")
    parser.add_argument("--student_peak", type=float, default=1e-3, metavar="RATE", help="learning rate (1e-3)")
    parser.add_argument("--dtype", default="bfloat16", metavar="NAME", help="dtype of the activations (bfloat16)")
    parser.add_argument(
        "--devices",
        metavar="N,N,...",
        help="CUDA devices, one student at a time on each; 0,0: two at a time on the first",
    )
    parser.add_argument(
        "--runs",
        type=lambda words: tuple(words.split(",")),
        default=_DEFAULT,
        metavar="NAME,NAME,...",
        help=f"students to train, of {', '.join(STUDENTS)} ({', '.join(_DEFAULT)})",
    )
    args = parser.parse_args()
    unknown = [name for name in args.runs if name not in STUDENTS]
    if unknown:
        parser.error(f"--runs: {unknown[0]} is not one of {', '.join(STUDENTS)}")
    return args


def _command(name: str, args: argparse.Namespace, output: Path) -> list[str]:
    """Write the gin file of a run and return the words of its `bertfam` command."""
    kind = STUDENTS.get(name, Kind("the teacher"))
    steps, layers, peak = (
        getattr(args, f"{'teacher' if name == TEACHER else 'student'}_{what}") for what in ("steps", "layers", "peak")
    )
    values = {
        "objective": "distillation" if kind.distilled else "mlm",
        "steps": steps,
        "layers": layers,
        "eval_every": max(1, steps // args.evaluations),
        "log_every": max(1, steps // 20),
        "heads": max(1, args.hidden_size // 64),
        "feed_forward_size": 4 * args.hidden_size,
        "peak": peak,
        "warmup": max(1, steps // 20),
    }
    values |= {option: getattr(args, option) for option in ("hidden_size", "batch_size", "length", "eval_batches", "dtype")}
    gin_file = output / f"{name}.gin"
    gin_file.write_text(_RUN.format(**values))
    command = ["bertfam", "distill" if kind.distilled else "pretrain", f"--gin_file={gin_file}"]
    command += [f"--cache_dir={args.cache}", f"--model_dir={output / name}", *kind.flags]
    return command + [f"--teacher={output / TEACHER}"] * kind.distilled


def _table(args: argparse.Namespace, output: Path, seconds_in_all: float) -> str:
    """Format the results as a Markdown table, with the difference from the loss of the masked language model alone."""
    names = (TEACHER, *args.runs)
    scores: dict[str, dict[str, Any]] = {name: metrics(output / name, "eval")[-1] for name in names}
    plain = scores.get("mlm", {}).get("mlm_loss")
    rows = []
    for name, score in scores.items():
        title = STUDENTS[name].title if name in STUDENTS else f"teacher, {plural(args.teacher_layers, 'layer')}"
        cells = [f"{score[column]:.4f}" if column in score else "" for column in _COLUMNS]
        difference = "" if plain is None or name in (TEACHER, "mlm") else f"{score['mlm_loss'] - plain:+.4f}"
        speed = f"{tokens_per_second(output / name) / 1e6:.2f}", f"{seconds(output / name):.0f}"
        rows.append([title, f"{score['step']:,}", *cells, difference, *speed])
    header = ["run", "updates", *_COLUMNS.values(), "difference from MLM alone", "M tokens/s", "s"]
    caption = (
        f"{args.student_layers}-layer students of a {args.teacher_layers}-layer teacher, hidden size {args.hidden_size}, "
        f"{args.batch_size} rows of {args.length} tokens per update; {seconds_in_all:.0f} s of training in this call\n"
    )
    return f"{caption}\n{table(header, rows)}\n"


if __name__ == "__main__":
    sys.exit(main())

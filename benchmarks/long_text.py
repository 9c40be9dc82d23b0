"""Does long text pay: held-out masked loss of one model with 4,096 tokens of context, and with its rows cut to less.

    python -m benchmarks.long_text train --cache CACHE --output RUNS
    python -m benchmarks.long_text table --output RUNS

CACHE is a token cache of long documents with a held-out split, such as that of benchmarks.encoders. A small ModernBERT trains on
rows of 512 tokens ("short"), then on the same number of tokens in rows of 4,096 as its published second phase does ("long"), and
for comparison in rows of 512 ("short, continued"). All keep the moments of the optimizer.

Every model is scored on the same held-out rows of 4,096 tokens with the same masks. In rows that are cut to n tokens, a token
sees only those of its own n tokens, whose positions begin at 0; the masked tokens that are predicted are the same.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import table
from benchmarks.training_runs import command_parsers, read_scores, run_all, seconds, tokens_per_second, write_scores

_LONG = 4096
_TOKENS = 131_072  # of an update
_RUN = """\
include "objectives/modernbert.gin"
include "runs/defaults.gin"

MODEL = @ModernBertConfig()
ModernBertConfig.num_layers = 6
ModernBertConfig.hidden_size = 384
ModernBertConfig.num_heads = 6
ModernBertConfig.feed_forward_size = 576
ModernBertConfig.max_length = 4096
ModernBertConfig.global_theta = {theta}
TRAIN_STEPS = {steps}
EVAL_EVERY = {steps}
CHECKPOINT_EVERY = {steps}
BATCH_SIZE = {rows}
Stage.length = {length}
Run.log_every = {log_every}
Run.eval_batches = 4
AdamW.schedule = @WarmupStableDecay()
WarmupStableDecay.peak = {peak}
WarmupStableDecay.warmup_steps = {warmup}
WarmupStableDecay.decay_steps = {decay}
Execution.dtype = "bfloat16"
Execution.layers = "unroll"
"""


@dataclass(frozen=True)
class Phase:
    """A training run.

    Attributes:
      length: tokens of a row.
      share: its updates as a share of those of the first phase.
      peak: the rate.
      theta: base of the rotary positions of global layers.
      start: the run whose parameters and moments it begins with; None: from scratch.
    """

    length: int
    share: float = 1.0
    peak: float = 1e-3
    theta: float = 10_000.0
    start: str | None = None


PHASES = {
    "short": Phase(512),
    "long": Phase(_LONG, 0.5, 5e-4, 160_000.0, "short"),
    "short-continued": Phase(512, 0.5, 5e-4, start="short"),
}


def contexts(length: int) -> list[int]:
    """Return the contexts that rows of a length are scored with."""
    return [context for context in (128, 512, 1024, 2048) if context < length] + [length]


def run_file(phase: Phase, steps: int) -> str:
    """Return the gin file of a run, where the first phase has `steps` updates."""
    own = max(1, round(phase.share * steps))
    warmup, decay = (0, own // 2) if phase.start else (steps // 10, 0)
    rows, log_every = _TOKENS // phase.length, max(1, own // 20)
    sizes = {"rows": rows, "length": phase.length, "theta": phase.theta, "peak": phase.peak}
    return _RUN.format(steps=own, warmup=warmup, decay=decay, log_every=log_every, **sizes)


def train(args: argparse.Namespace) -> None:
    """Train and score the selected phases, one after another."""
    args.output.mkdir(parents=True, exist_ok=True)
    commands = []
    for name in args.runs:
        phase = PHASES[name]
        file = args.output / f"{name}.gin"
        file.write_text(run_file(phase, args.steps))
        flags = [f"--gin_file={file}", f"--cache_dir={args.cache}", f"--model_dir={args.output / name}", *args.flags]
        if phase.start:
            flags += [f"--init_from={args.output / phase.start}", "--init_optimizer"]
        commands.append(["bertfam", "pretrain", *flags])
        score = ["benchmarks.long_text", "score", f"--cache={args.cache}", f"--output={args.output}", f"--runs={name}"]
        commands.append([*score, f"--length={args.length}", f"--tokens={args.tokens}"])
    run_all({"long_text": commands}, args.output, 0)


@dataclass(frozen=True)
class Cut:
    """Rows in which a token sees only those of its own part of the row.

    Attributes:
      source: whole rows.
      context: tokens of a part of an example.
    """

    source: Any
    context: int

    def row_length(self, step: int) -> int | None:
        """Return the length of the rows of the step's batch, which are cut in place."""
        length: int | None = self.source.row_length(step)
        return length

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return rows start .. stop-1 of the step's batch, cut."""
        found = self.source.rows(step, start, stop)
        segments, positions = found["encoder_segment_ids"], found["encoder_positions"]
        parts = positions // self.context
        # numbered by example and part, in the order of the row, so that parts are consecutive
        cut = segments * (parts.max(initial=0) + 1) + parts
        return found | {
            "encoder_segment_ids": np.where(segments > 0, cut, 0).astype(np.int32),
            "encoder_positions": np.where(segments > 0, positions % self.context, 0).astype(np.int32),
        }


def score(args: argparse.Namespace) -> None:
    """Write NAME/score.json: the masked loss and accuracy of held-out rows by context."""
    import jax

    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.sharding.mesh import MeshShape
    from bertfam.training.model_dir import open_model
    from bertfam.training.stages import Stage
    from bertfam.training.trainer import Trainer

    cache, mesh = TokenCache(args.cache), MeshShape().build(jax.local_devices()[:1])
    for name in args.runs:
        opened = open_model(args.output / name)
        rows = max(1, args.tokens // args.length)
        run = replace(opened.run, stages=(Stage(1, args.length, rows),))
        trainer = Trainer(run, mesh)
        held_out = run.data.held_out(cache, opened.vocabulary.token_ids, args.length, rows)
        assert held_out is not None
        found: dict[str, Any] = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(opened.params))}
        for context in contexts(args.length):
            source: Any = Cut(held_out.source, context)
            scores = trainer.scores(opened.params, replace(held_out, source=source, corpora={}), 0)
            assert scores is not None
            found[str(context)] = {key: scores.values[f"mlm_{key}"] for key in ("loss", "accuracy")} | scores.targets
        write_scores(args.output / name, found)


def show(args: argparse.Namespace) -> None:
    """Print the table of the finished runs."""
    lines = []
    for name, found in read_scores(args.output, args.runs):
        figures = [
            f"{found[str(context)]['loss']:.3f} ({found[str(context)]['accuracy']:.3f})" for context in contexts(args.length)
        ]
        speed = tokens_per_second(args.output / name) / 1e6
        lines.append([name, f"{PHASES[name].length:,}", *figures, f"{speed:.2f}", f"{seconds(args.output / name):.0f}"])
    columns = [f"{context:,}" for context in contexts(args.length)]
    print("held-out masked loss (accuracy) by tokens of context\n")
    print(table(["run", "rows of", *columns, "M tokens/s", "s"], lines))


def main() -> int:
    """Run one of the three commands; return the exit status."""
    parser, commands = command_parsers(__doc__, {"train": train, "score": score, "table": show})
    for command, sub in commands.items():
        sub.add_argument("--length", type=int, default=_LONG, help="tokens of a held-out row (default: %(default)s)")
        sub.add_argument("--runs", type=lambda names: names.split(","), default=list(PHASES), metavar="NAME,NAME")
        if command != "table":
            sub.add_argument("--cache", type=Path, required=True, metavar="DIR", help="token cache of long documents")
            sub.add_argument("--tokens", type=int, default=_TOKENS, help="tokens of a held-out batch (default: %(default)s)")
        if command == "train":
            sub.add_argument("--steps", type=int, default=2400, help="updates of the first phase (default: %(default)s)")
            sub.add_argument("flags", nargs="*", help="further flags of bertfam pretrain, after --")
    args = parser.parse_args()
    args.command(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())

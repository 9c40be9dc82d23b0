"""Comparison of all encoders at one small size, trained on the same tokens of one vocabulary.

    python -m benchmarks.encoders train --cache CACHE --output RUNS --steps 6000 --gpus 4
    python -m benchmarks.encoders table --output RUNS

CACHE is a token cache with a held-out split, of marked text (`MarkedText`) for ERNIE. Each run is `bertfam pretrain` with its
family's objective file, 4 layers (DistilBERT 2, taught by BERT) of 256 units, rows of 128 tokens, the same optimizer for all.

Objectives mask different tokens, so their own losses cannot be compared. Every model that predicts tokens is therefore also
scored with the same noise, single tokens at 15 % of held-out rows of whole sentences, which `score` writes as "yardstick".
XLNet predicts them by its query stream, which sees all other tokens.
"""

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measurement import table
from benchmarks.training_runs import command_parsers, metrics, read_scores, run_all, seconds, tokens_per_second, write_scores

_LENGTH, _ROWS, _HIDDEN_SIZE, _HEAD_SIZE = 128, 256, 256, 64
_RUN = """\
include "objectives/{objective}.gin"
include "runs/defaults.gin"

MODEL = @{config}()
{config}.num_layers = {num_layers}
{config}.hidden_size = {hidden_size}
{config}.num_heads = {num_heads}
{config}.feed_forward_size = {feed_forward_size}
{config}.max_length = 128
{lines}
TRAIN_STEPS = {steps}
EVAL_EVERY = {steps}
CHECKPOINT_EVERY = {steps}
BATCH_SIZE = {rows}
Stage.length = 128
Run.log_every = {log_every}
Run.eval_batches = {batches}
LinearDecay.peak = {learning_rate}
LinearDecay.warmup_steps = {warmup}
Execution.dtype = "bfloat16"
Execution.layers = "unroll"
"""


@dataclass(frozen=True)
class Encoder:
    """Row of the table: an encoder and its objective.

    Attributes:
      objective: file in gin_configs/objectives.
      config: configurable of the model.
      lines: further lines of gin.
      feed_forward_size: size of the feed-forward layers of 256 units; that of gated layers at the published ratio.
      num_layers: number of layers.
      teacher: row of the teacher, which is trained first; None if there is no teacher.
      heads: accuracies of heads, each with the metric of its baseline.
    """

    objective: str
    config: str = "BertConfig"
    lines: tuple[str, ...] = ()
    feed_forward_size: int = 1024
    num_layers: int = 4
    teacher: str | None = None
    heads: tuple[tuple[str, str], ...] = ()


ENCODERS = {
    "BERT": Encoder("mlm_nsp", heads=(("nsp_accuracy", "nsp_majority_accuracy"),)),
    # RoBERTa counts positions from the padding id, which is 0 in this vocabulary.
    "RoBERTa": Encoder("roberta", "RobertaConfig", ("RobertaConfig.position_offset = 1",)),
    "SpanBERT": Encoder("mlm_sbo", heads=(("sbo_accuracy", "sbo_most_frequent_accuracy"),)),
    "StructBERT": Encoder(
        "mlm_structure",
        heads=(
            ("structure_accuracy", "structure_majority_accuracy"),
            ("shuffled_accuracy", "shuffled_unmoved_accuracy"),
        ),
    ),
    "ELECTRA": Encoder(
        "electra", "ElectraConfig", ("ElectraConfig.embedding_size = 128",), heads=(("rtd_accuracy", "rtd_majority_accuracy"),)
    ),
    "ALBERT": Encoder(
        "mlm_sop", "AlbertConfig", ("AlbertConfig.embedding_size = 128",), heads=(("sop_accuracy", "sop_majority_accuracy"),)
    ),
    "ERNIE": Encoder("ernie", "ErnieConfig", heads=(("nsp_accuracy", "nsp_majority_accuracy"),)),
    "DistilBERT": Encoder("distillation", "DistilBertConfig", num_layers=2, teacher="BERT"),
    "XLNet": Encoder("permutation_lm", "XLNetConfig", ("PermutationLm.memory_length = 96",)),
    "ModernBERT": Encoder("modernbert", "ModernBertConfig", ("ModernBertConfig.window = 32",), feed_forward_size=384),
}


def run_file(
    encoder: Encoder, steps: int, batches: int | None, hidden_size: int = _HIDDEN_SIZE, learning_rate: float = 1e-3
) -> str:
    """Return the gin file of a run."""
    times = {"steps": steps, "warmup": max(1, steps // 10), "log_every": max(1, steps // 20), "batches": batches}
    own = {name: getattr(encoder, name) for name in ("objective", "config", "num_layers")}
    sizes = {"hidden_size": hidden_size, "num_heads": hidden_size // _HEAD_SIZE}
    sizes["feed_forward_size"] = encoder.feed_forward_size * hidden_size // _HIDDEN_SIZE
    return _RUN.format(lines="\n".join(encoder.lines), rows=_ROWS, learning_rate=learning_rate, **own, **sizes, **times)


def train(args: argparse.Namespace) -> None:
    """Train and score the selected encoders."""
    args.output.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for name in args.encoders:
        file, model, teacher = args.output / f"{name}.gin", args.output / name, ENCODERS[name].teacher
        file.write_text(run_file(ENCODERS[name], args.steps, args.batches, args.hidden_size, args.learning_rate))
        command = ["distill", f"--teacher={args.output / teacher}"] if teacher else ["pretrain"]
        jobs[name] = [
            ["bertfam", *command, f"--gin_file={file}", f"--cache_dir={args.cache}", f"--model_dir={model}", *args.flags],
            ["benchmarks.encoders", "score", f"--cache={args.cache}", f"--output={args.output}", f"--encoders={name}"]
            + ([f"--batches={args.batches}"] if args.batches else []),
        ]
    # Students are trained after their teachers, even if other runs fail.
    failures = []
    for has_teacher in (False, True):
        try:
            run_all(
                {name: job for name, job in jobs.items() if bool(ENCODERS[name].teacher) == has_teacher}, args.output, args.gpus
            )
        except RuntimeError as error:
            failures.append(str(error))
    if failures:
        raise RuntimeError("\n".join(failures))


def score(args: argparse.Namespace) -> None:
    """Write NAME/score.json: scores on held-out rows, baselines and the yardstick."""
    import jax

    from benchmarks.same_noise import SameNoise
    from bertfam.data.rows.running_text import FullSentences
    from bertfam.data.text_data import TextData
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.evaluation.baselines import baselines, unigram_counts
    from bertfam.sharding.mesh import MeshShape
    from bertfam.training.model_dir import open_model
    from bertfam.training.stages import Stage
    from bertfam.training.trainer import Trainer

    cache, mesh = TokenCache(args.cache), MeshShape().build(jax.local_devices()[:1])
    for name in args.encoders:
        opened = open_model(args.output / name)
        counts = unigram_counts((cache.documents("train", text) for text in cache.corpora), opened.vocabulary.size)
        sizes = (cache, opened.vocabulary.token_ids, _LENGTH, _ROWS)
        own = opened.run.data.held_out(*sizes, at_most=args.batches)
        assert own is not None
        found: dict[str, Any] = metrics(args.output / name, "eval")[-1]
        found |= baselines(own.source, own.steps, own.batch_size, counts)
        found["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(opened.params))

        objective = opened.run.objective
        trees = objective.split(opened.params)
        network = next(network for network, tree in trees.items() if "mlm_head" in tree)
        params = {part: trees[network][part] for part in ("encoder", "mlm_head")}
        data, stages = TextData(rows=FullSentences()), (Stage(1, _LENGTH, _ROWS),)
        run = replace(opened.run, objective=SameNoise(objective.networks[network], objective.execution), data=data, stages=stages)
        rows = data.held_out(*sizes, at_most=args.batches)
        assert rows is not None
        scores = Trainer(run, mesh).scores(params, rows, 0)
        assert scores is not None
        found |= {f"yardstick_{name}": value for name, value in scores.values.items()}
        found["yardstick_network"] = network
        write_scores(args.output / name, found)


def show(args: argparse.Namespace) -> None:
    """Print the table of the finished runs."""
    lines = []
    for name, found in read_scores(args.output, args.encoders):
        heads = "; ".join(
            f"{metric.removesuffix('_accuracy')} {found[metric]:.3f} ({found[baseline]:.3f})"
            for metric, baseline in ENCODERS[name].heads
        )
        for measure in ("precision", "recall"):
            if f"rtd_{measure}" in found:
                heads += f", {measure} {found[f'rtd_{measure}']:.3f}"
        own = "mlm" if "mlm_loss" in found else "plm"  # XLNet's
        network = "" if found["yardstick_network"] in ("encoder", "student") else f" ({found['yardstick_network']})"
        lines.append(
            [
                name,
                heads,
                f"{found['parameters'] / 1e6:.2f}",
                f"{found['yardstick_mlm_loss']:.3f}{network}",
                f"{found['yardstick_mlm_accuracy']:.3f}",
                f"{found[f'{own}_loss']:.3f} ({found['unigram_loss']:.3f})",
                f"{found[f'{own}_accuracy']:.3f} ({found['most_frequent_accuracy']:.3f})",
                f"{tokens_per_second(args.output / name) / 1e6:.2f}",
                f"{seconds(args.output / name):.0f}",
            ]
        )
    head = ["encoder", "heads: accuracy (baseline)", "M parameters", "masked loss, same noise", "accuracy"]
    print(table([*head, "own masked loss (unigram)", "own accuracy (most frequent)", "M tokens/s", "s"], lines))


def main() -> int:
    """Run one of the three commands; return the exit status."""
    parser, commands = command_parsers(__doc__, {"train": train, "score": score, "table": show})
    for command, sub in commands.items():
        sub.add_argument("--encoders", type=lambda names: names.split(","), default=list(ENCODERS), metavar="NAME,NAME")
        if command != "table":
            sub.add_argument("--cache", type=Path, required=True, metavar="DIR", help="token cache")
            sub.add_argument(
                "--batches", type=int, metavar="N", help="number of held-out batches of 256 rows to score (default: all)"
            )
        if command == "train":
            sub.add_argument("--steps", type=int, default=6000, help="updates of each run (default: %(default)s)")
            sub.add_argument(
                "--hidden_size", type=int, default=_HIDDEN_SIZE, help="units, a multiple of 64 (default: %(default)s)"
            )
            sub.add_argument("--learning_rate", type=float, default=1e-3, help="peak rate (default: %(default)s)")
            sub.add_argument(
                "--gpus", type=int, default=0, help="number of GPUs, each with one run at a time (default: one run after another)"
            )
            sub.add_argument("flags", nargs="*", help="further flags of bertfam pretrain, after --")
    args = parser.parse_args()
    unknown = sorted(set(args.encoders) - ENCODERS.keys())
    if unknown:
        parser.error(f"--encoders: {', '.join(unknown)} is not one of {', '.join(ENCODERS)}")
    args.command(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())

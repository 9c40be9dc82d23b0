"""Comparison of decoders and encoder-decoders at one small size, trained on the same text.

    python -m benchmarks.language_models train --caches CACHES --output RUNS --runs models --flops 5e16 --blimp BLiMP.zip
    python -m benchmarks.language_models train --caches CACHES --output RUNS --runs t5 --flops 4e15
    python -m benchmarks.language_models train --caches CACHES --output RUNS --runs bart --flops 4e15
    python -m benchmarks.language_models table --output RUNS

CACHES holds token caches of one text with a held-out split: `gpt2` and `bart` with byte-level vocabularies (layouts gpt2 and
roberta), `t5` with a unigram one (layout t5). Each run is `bertfam pretrain` in bfloat16 with AdamW, for as many updates as have
--flops of matrix products. Then `bertfam evaluate` scores it on the held-out text and, with --blimp, on minimal pairs, and
`bertfam generate` continues two prompts.
"""

import argparse
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import table
from benchmarks.training_runs import command_parsers, metrics, read_scores, run_all, seconds, tokens_per_second, write_scores

PROMPTS = ("It was a dark night, and", "The king said to his daughter")
_RUN = """\
include "models/{model}.gin"
include "objectives/{objective}.gin"
include "runs/defaults.gin"

{lines}
TRAIN_STEPS = {steps}
EVAL_EVERY = {steps}
CHECKPOINT_EVERY = {steps}
BATCH_SIZE = {rows}
Stage.length = {length}
Run.log_every = {log_every}
Run.eval_batches = {batches}
LinearDecay.peak = {peak}
LinearDecay.warmup_steps = {warmup}
Execution.dtype = "bfloat16"
Execution.layers = "unroll"
"""
_GPT2 = (
    "AdamW.b2 = 0.98",
    # Without dropout, the model memorises the short text within a dozen epochs.
    "Gpt2Config.dropout_rate = 0.3",
    "Gpt2Config.embedding_dropout_rate = 0.3",
)
# Some tensors of T5 have values a hundred times as large as others, and AdamW would update all by equal amounts.
_T5 = ("Run.optimizer = @Adafactor()", "Adafactor.schedule = @LinearDecay()")
_SMALL_BART = (
    "AdamW.b2 = 0.98",
    *(
        f"BartConfig.{size}"
        for size in ("num_layers = 6", "hidden_size = 512", "num_heads = 8", "feed_forward_size = 2048", "max_length = 512")
    ),
)


@dataclass(frozen=True)
class Comparison:
    """Row of the table: a family and an objective.

    Attributes:
      group: group of rows that are run together.
      objective: file in gin_configs/objectives.
      model: file in gin_configs/models.
      cache: name of the token cache.
      rows: rows of a batch.
      length: tokens of a row.
      peak: peak learning rate.
      lines: further lines of gin.
    """

    group: str
    objective: str
    model: str
    cache: str
    rows: int = 128
    length: int = 256
    peak: float = 1e-2
    lines: tuple[str, ...] = _T5


_T5_OBJECTIVES = ("prefix_lm", "bert_style", "deshuffling", "mass_style", "replace_spans", "drop_tokens", "random_spans")
_BART_NOISES = (
    "bart_token_masking",
    "bart_token_deletion",
    "bart_text_infilling",
    "bart_sentence_permutation",
    "bart_document_rotation",
    "bart",  # infilling and permutation together
)
COMPARISONS = {
    "GPT-2": Comparison("models", "causal_lm", "gpt2_small", "gpt2", 64, 512, 1e-3, _GPT2),
    "T5": Comparison("models", "t5_random_spans", "t5_1_1_small", "t5"),
    **{f"t5_{name}": Comparison("t5", f"t5_{name}", "t5_1_1_small", "t5") for name in _T5_OBJECTIVES},
    **{name: Comparison("bart", name, "bart_base", "bart", peak=5e-4, lines=_SMALL_BART) for name in _BART_NOISES},
}


def run_file(comparison: Comparison, steps: int, batches: int | None) -> str:
    """Return the gin file of a run."""
    times = {"steps": steps, "warmup": max(1, steps // 10), "log_every": max(1, steps // 20), "batches": batches}
    own = {name: getattr(comparison, name) for name in ("objective", "model", "rows", "length", "peak")}
    return _RUN.format(lines="\n".join(comparison.lines), **own, **times)


def steps_of(file: Path, flops: float, vocabulary_size: int) -> int:
    """Return the number of updates with so many FLOPs of matrix products, for a gin file with one update."""
    from bertfam.config import load

    run = load([str(file)]).build("Run").sized(vocabulary_size)
    return max(1, round(flops / run.flops_after(0)))


def train(args: argparse.Namespace) -> None:
    """Train and score the selected runs."""
    from bertfam.data import vocabularies

    args.output.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for name in args.runs:
        comparison, file, model = COMPARISONS[name], args.output / f"{name}.gin", args.output / name
        cache = args.caches / comparison.cache
        size = vocabularies.load(cache / "vocab").size
        file.write_text(run_file(comparison, 1, args.batches))
        file.write_text(run_file(comparison, args.steps or steps_of(file, args.flops, size), args.batches))
        score = ["benchmarks.language_models", "score", f"--output={args.output}", f"--runs={name}"]
        jobs[name] = [
            ["bertfam", "pretrain", f"--gin_file={file}", f"--cache_dir={cache}", f"--model_dir={model}", *args.flags],
            score + ([f"--batches={args.batches}"] if args.batches else []) + ([f"--blimp={args.blimp}"] if args.blimp else []),
        ]
    run_all(jobs, args.output, args.gpus)


def _run_json(*words: str) -> Any:
    """Run a command of bertfam with --json and return its parsed output."""
    done = subprocess.run([sys.executable, "-m", "bertfam", *words, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def _byte_perplexity(held_out: Any, vocabulary: Any, loss: float) -> float:
    """Compute exp(nats / bytes) of held-out targets; nats include those of sentinels and end tokens, bytes only text."""
    targets = size = 0
    for step in range(held_out.steps):
        rows = held_out.source.rows(step, 0, held_out.batch_size)
        for row, weights in zip(rows["decoder_target_tokens"], rows["decoder_loss_weights"], strict=True):
            targets += int(weights.sum())
            size += len(vocabulary.decode(row[weights > 0], skip_special=True).encode())
    return math.exp(loss * targets / size)


def score(args: argparse.Namespace) -> None:
    """Write NAME/score.json: scores on held-out rows and minimal pairs, baselines, and two generated texts."""
    import jax

    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.evaluation.baselines import baselines, training_counts
    from bertfam.evaluation.perplexity import perplexities
    from bertfam.training.model_dir import open_model

    jax.config.update("jax_platforms", "cpu")  # the commands use the GPU
    for name in args.runs:
        model, opened = f"--model_dir={args.output / name}", open_model(args.output / name)
        data, stage, vocabulary = opened.run.data, opened.run.stages[-1], opened.vocabulary
        cache = TokenCache(data.cache_directory(args.output / name))
        sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
        held_out = data.held_out(*sizes, at_most=args.batches)
        assert held_out is not None
        found: dict[str, Any] = metrics(args.output / name, "eval")[-1]
        found |= baselines(held_out.source, held_out.steps, held_out.batch_size, training_counts(data, *sizes))
        found |= perplexities(found, data, cache, "validation")
        found["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(opened.params))
        if opened.run.objective.network == "encoder_decoder":
            found["byte_perplexity"] = _byte_perplexity(held_out, vocabulary, found["lm_loss"])
        if args.blimp:
            found["blimp"] = _run_json("evaluate", model, f"--blimp={args.blimp}", f"--limit={args.limit}")
        if COMPARISONS[name].group == "models":
            prompts = PROMPTS if name == "GPT-2" else [f"{prompt} <extra_id_0>." for prompt in PROMPTS]
            found["texts"] = [
                texts["texts"][0]["text"]
                for texts in _run_json("generate", model, *prompts, "--strategy=sample", "--seed=1", "--max_new_tokens=60")
            ]
        write_scores(args.output / name, found)


def show(args: argparse.Namespace) -> None:
    """Print the table of the finished runs."""
    lines = []
    for name, found in read_scores(args.output, args.runs):
        lines.append(
            [
                name,
                f"{found['parameters'] / 1e6:.1f}",
                f"{found['step']:,}",
                f"{found['lm_loss']:.3f} ({found['unigram_loss']:.3f})",
                f"{found['lm_accuracy']:.3f} ({found['most_frequent_accuracy']:.3f})",
                f"{found['byte_perplexity']:.3f}" if "byte_perplexity" in found else "",
                f"{found['blimp']['accuracy']:.3f} (0.500)" if "blimp" in found else "",
                f"{tokens_per_second(args.output / name) / 1e6:.2f}",
                f"{seconds(args.output / name):.0f}",
            ]
        )
    head = ["run", "M parameters", "updates", "loss of a target (unigram)", "accuracy (most frequent)", "perplexity per byte"]
    print(table([*head, "minimal pairs (chance)", "M tokens/s", "s"], lines))


def _names(text: str) -> list[str]:
    """Parse --runs: names of runs or of groups, separated by commas."""
    groups = {comparison.group for comparison in COMPARISONS.values()}
    names: list[str] = []
    for name in text.split(","):
        names += [known for known in COMPARISONS if COMPARISONS[known].group == name] if name in groups else [name]
    return names


def main() -> int:
    """Run one of the three commands; return the exit status."""
    parser, commands = command_parsers(__doc__, {"train": train, "score": score, "table": show})
    for command, sub in commands.items():
        sub.add_argument(
            "--runs", type=_names, default=list(COMPARISONS), metavar="NAME,...", help="names of runs or groups (default: all)"
        )
        if command != "table":
            sub.add_argument("--batches", type=int, metavar="N", help="number of held-out batches to score (default: all)")
            sub.add_argument("--blimp", type=Path, metavar="ZIP", help="minimal pairs to score (default: none)")
            sub.add_argument(
                "--limit", type=int, default=200, metavar="N", help="pairs of each phenomenon (default: %(default)s)"
            )
        if command == "train":
            sub.add_argument("--caches", type=Path, required=True, metavar="DIR", help="folder of the token caches")
            sub.add_argument(
                "--flops", type=float, default=4e15, help="FLOPs of matrix products in each run (default: %(default)s)"
            )
            sub.add_argument("--steps", type=int, metavar="N", help="updates of each run, instead of --flops")
            sub.add_argument(
                "--gpus",
                type=lambda names: names.split(","),
                default=(),
                metavar="N,N",
                help="GPUs, one run at a time on each; a GPU named twice is shared (default: one run at a time)",
            )
            sub.add_argument("flags", nargs="*", help="further flags of bertfam pretrain, after --")
    args = parser.parse_args()
    unknown = sorted(set(args.runs) - COMPARISONS.keys())
    if unknown:
        parser.error(f"--runs: {', '.join(unknown)} is not one of {', '.join(COMPARISONS)}")
    args.command(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Comparison of LEGAL-BERT's three ways to a BERT for a domain (Chalkidis et al. 2020) on the same held-out documents.

python -m benchmarks.domain_adaptation --general 'books/*.txt.gz' --domain legal.txt.gz --input_format paragraphs --output out

as is           a general model without further training
continued       the general model, trained further on the domain's text with its own vocabulary (the paper's FP)
new vocabulary  the general model, trained further with a vocabulary of the domain. The rows of new tokens start with the mean of
                the rows of their old pieces or, to measure the benefit of the means, at random
from scratch    a new model with the vocabulary of the domain (the paper's SC)

All but the first train on the same number of updates and rows of the domain. A tenth of its documents is held out, from the
vocabulary too, and `bertfam evaluate` scores all ways on all of it.

Losses per token cannot be compared across vocabularies, since these split a text into different numbers of tokens. Losses per
character can:

    loss per character = (mean masked loss, nats per token) * (tokens of the held-out text) / (its characters)

Since masked tokens are chosen at random, their mean loss estimates the mean over all tokens. The result therefore estimates the
nats per character that the model needs for the whole held-out text, where each token is predicted with 15 % of its context
hidden. Tokens are counted without control tokens, characters without the spaces between sentences. Text that a vocabulary cannot
spell is one [UNK], which costs less than its characters would; the table has the share of such tokens.

Each command runs in a process of its own, and its output is kept in --output. The same command line again skips finished training
and builds, whatever their flags, and repeats the evaluation.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measurement import ROOT, machine, table, versions
from bertfam.arguments import ScriptParser, output_folder
from bertfam.data import vocabularies
from bertfam.data.corpora.formats import INPUT_FORMATS, InputFormat
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError

_HELD_OUT = 0.1


@dataclass(frozen=True)
class Way:
    """Row of the table: a way to a model for the domain.

    Attributes:
      name: name in the table.
      folder: folder of the run.
      vocabulary: "general" or "domain".
      flags: further flags of pretraining; None for the general model.
    """

    name: str
    folder: str
    vocabulary: str
    flags: tuple[str, ...] | None = ()


def ways(general: Path) -> list[Way]:
    """Return the rows of the table, in order."""
    init_from = f"--init_from={general}"
    return [
        Way("general model", "general", "general", None),
        Way("continued, general vocabulary", "continued", "general", (init_from,)),
        Way("continued, new vocabulary, new rows from means of old pieces", "new-vocabulary", "domain", (init_from,)),
        Way("continued, new vocabulary, new rows random", "random-rows", "domain", (init_from, "--init_new_rows=random")),
        Way("from scratch, new vocabulary", "scratch", "domain"),
    ]


class Commands:
    """Runner of `bertfam` commands in processes of their own, which keeps the output of each in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str, *words: str, unless: Path | None = None) -> str:
        """Run a command and return its output.

        Args:
          name: name of the output file.
          *words: words of the command.
          unless: if this path exists, the command is finished, and its earlier output is returned.

        Raises:
          UserError: if the command fails.
        """
        output = self._folder / f"{name}.txt"
        if unless is None or not unless.exists() or not output.exists():
            print(f"{name}: bertfam {shlex.join(words)}", file=sys.stderr, flush=True)
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            start = time.monotonic()
            with open(self._folder / f"{name}.stderr.txt", "w") as errors:
                done = subprocess.run(
                    [sys.executable, "-m", "bertfam", *words],
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=os.environ | {"PYTHONPATH": path},
                )
            if done.returncode:
                last = (self._folder / f"{name}.stderr.txt").read_text().strip().splitlines()[-1:]
                raise UserError(f"bertfam {words[0]} ({name}) failed with exit status {done.returncode}: {''.join(last)}")
            output.write_text(done.stdout)
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        return output.read_text()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate and print the table; return the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        report = _run(args)
    except UserError as error:
        parser.error(str(error))
    report = {"command": shlex.join(["python", "-m", "benchmarks.domain_adaptation", *given]), **report}
    (args.output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items() if name != "ways"))
    print(f"\n{_table(report['ways'])}")
    return 0


def _parser() -> ScriptParser:
    parser = ScriptParser(prog="python -m benchmarks.domain_adaptation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--general", action="append", required=True, metavar="GLOB", help="general text; repeatable")
    parser.add_argument("--domain", action="append", required=True, metavar="GLOB", help="text of the domain; repeatable")
    parser.add_argument("--input_format", choices=tuple(INPUT_FORMATS), default="sentences", help="format of the files")
    parser.add_argument("--output", type=output_folder, required=True, metavar="DIR", help="folder of all results")
    parser.add_argument("--model", default="models/bert_tiny.gin", metavar="FILE", help="gin file of the model (%(default)s)")
    parser.add_argument("--vocab_size", type=int, default=4096, metavar="N", help="pieces of each vocabulary (%(default)s)")
    parser.add_argument("--general_steps", type=int, default=1500, metavar="N", help="updates of the general model (%(default)s)")
    parser.add_argument("--steps", type=int, default=400, metavar="N", help="updates of each way on the domain (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=64, metavar="ROWS", help="rows of a batch (%(default)s)")
    parser.add_argument("--length", type=int, default=64, metavar="TOKENS", help="tokens of a row (%(default)s)")
    parser.add_argument("--peak", type=float, default=1e-3, metavar="RATE", help="peak learning rate of all runs (%(default)s)")
    parser.add_argument("--gin", action="append", default=[], metavar="NAME=VALUE", help="gin binding for all runs; repeatable")
    return parser


def _run(args: argparse.Namespace) -> dict[str, Any]:
    output = args.output
    output.mkdir(parents=True, exist_ok=True)
    commands = Commands(output)

    # -- The text of the domain in two files, which share no document
    domain = TextFiles(tuple(args.domain), input_format=args.input_format, validation_fraction=_HELD_OUT)
    files = {split: output / f"domain-{split}.txt" for split in ("train", "validation")}
    for split, file in files.items():
        file.write_text("\n\n".join("\n".join(lines) for lines in domain.texts(split)) + "\n", encoding="utf-8")
    if not files["validation"].read_text(encoding="utf-8").strip():
        raise UserError("--domain has too few documents to hold out a tenth of them; give more")
    written: InputFormat = "sentences" if args.input_format == "sentences" else "paragraphs"
    held_out = TextFiles((str(files["validation"]),), input_format=written, validation_fraction=0.0)
    characters = sum(len(sentence) for document in held_out.documents("train") for sentence in document)

    # -- Vocabularies and token caches
    texts = {
        "general": [*(f"--input={glob}" for glob in args.general), f"--input_format={args.input_format}"],
        "domain": [f"--input={files['train']}", f"--input_format={written}"],
    }
    held = f"--validation_input={files['validation']}"
    vocab, cache = (lambda name: output / f"vocab-{name}"), (lambda name: output / f"cache-{name}")
    for name, text in texts.items():
        flags = (*text, f"--size={args.vocab_size}", f"--output={vocab(name)}")
        commands.run(f"vocab-{name}", "vocab", *flags, unless=vocab(name))
    caches = {"general": ("general", texts["general"])}
    caches |= {f"domain-by-{name}": (name, [*texts["domain"], held]) for name in texts}
    for name, (vocabulary, text) in caches.items():
        flags = (*text, f"--vocab={vocab(vocabulary)}", f"--output={cache(name)}")
        commands.run(f"cache-{name}", "cache", *flags, unless=cache(name))

    # -- Training and scores
    bindings = {"Stage.length": args.length, "BATCH_SIZE": args.batch_size, "LinearDecay.peak": args.peak, "EVAL_EVERY": 0}
    bindings |= dict(binding.split("=", 1) for binding in args.gin)
    rows = [f"--gin.{name}={value}" for name, value in bindings.items()]
    files_of_run = [f"--gin_file={name}" for name in (args.model, "objectives/mlm.gin", "runs/defaults.gin")]

    def pretrain(name: str, cached: str, steps: int, *flags: str) -> str:
        length = [f"--gin.TRAIN_STEPS={steps}", f"--gin.LinearDecay.warmup_steps={max(steps // 10, 1)}"]
        run = (*files_of_run, *rows, *length, f"--cache_dir={cache(cached)}", f"--model_dir={output / name}", *flags)
        return commands.run(f"pretrain-{name}", "pretrain", *run, unless=output / name / "checkpoints" / str(steps))

    pretrain("general", "general", args.general_steps)
    results = []
    for way in ways(output / "general"):
        cached = f"domain-by-{way.vocabulary}"
        log = "" if way.flags is None else pretrain(way.folder, cached, args.steps, *way.flags)
        flags = (f"--model_dir={output / way.folder}", f"--cache_dir={cache(cached)}", "--json")
        scores = json.loads(commands.run(f"evaluate-{way.folder}", "evaluate", *flags).splitlines()[-1])
        opened = TokenCache(cache(cached))
        unknown = vocabularies.load(opened.vocabulary_directory).token_ids.unk
        tokens = opened.counts("validation")["tokens"]
        unknown_tokens = sum(int((opened.documents("validation", name).tokens[:] == unknown).sum()) for name in opened.corpora)
        warm_start = next((line for line in log.splitlines() if line.startswith("starts from ")), "")
        results.append(
            {
                "way": way.name,
                "steps": 0 if way.flags is None else args.steps,
                "masked_loss": scores["mlm_loss"],
                "masked_accuracy": scores["mlm_accuracy"],
                "held_out_tokens": tokens,
                "unknown": unknown_tokens / tokens,
                "characters_per_token": characters / tokens,
                "loss_per_character": scores["mlm_loss"] * tokens / characters,
                "rows": warm_start.partition("; ")[2],
            }
        )
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"python": platform.python_version()},
        "device": _device(),
        "versions": versions(("jax", "jaxlib")),
        "held_out": {
            "documents": TokenCache(cache("domain-by-domain")).counts("validation")["documents"],
            "characters": characters,
        },
        "ways": results,
    }


def _device() -> str:
    import jax

    return jax.devices()[0].device_kind


def _table(results: Sequence[dict[str, Any]]) -> str:
    head = [
        "way",
        "updates on the domain",
        "characters a token",
        "unknown",
        "masked loss",
        "masked accuracy",
        "loss per character, nats",
    ]
    lines = [
        [
            result["way"],
            f"{result['steps']:,}",
            f"{result['characters_per_token']:.2f}",
            f"{result['unknown']:.2%}",
            f"{result['masked_loss']:.3f}",
            f"{result['masked_accuracy']:.3f}",
            f"{result['loss_per_character']:.4f}",
        ]
        for result in results
    ]
    return table(head, lines)


if __name__ == "__main__":
    sys.exit(main())

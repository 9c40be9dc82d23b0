"""`bertfam analyze probes`: classifiers of words and spans by the hidden states of each layer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.analyze_heads import add_network, write_report
from bertfam.commands.checkpoint_names import checkpoint_name
from bertfam.commands.finetune import parse_seeds
from bertfam.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bertfam.analysis.probes.targets import TargetSentence
    from bertfam.analysis.subject import Subject

SUMMARY = "train probes on the hidden states of each layer: parts of speech, entities, relations, with control tasks"
EXAMPLE = """\
  bertfam analyze probes --model_dir=minilm --tags=en_ewt-train.conllu --tags_held_out=en_ewt-dev.conllu --random_init
  bertfam analyze probes --model_dir=minilm --probe=edge --relations=en_ewt-train.conllu --entities=wnut17train.conll
  bertfam analyze probes --model_dir=runs/quickstart/model@all --tags=en_ewt-train.conllu --output=probes.html
Layer 0 are the embeddings. Files may be compressed. Where no file of held-out sentences is given, a tenth of the sentences is
held out. docs/probing.md explains the tables."""

TASKS = {
    "tags": "words with a tag each, such as parts of speech: CoNLL-U, or lines of words and tags",
    "relations": "CoNLL-U file, for the relation of each word to its syntactic head",
    "entities": "words with tags such as B-PER, for the kind of each entity",
    "edges": "JSON lines of Tenney et al. (2019): text, and targets with span1, span2 and label",
}
_MOST_HIDDEN, _LAST_SEED = 1 << 16, (1 << 32) - 1
_MOST_RATE = 1e30  # a mix learns ten times as fast, and float32 ends at 3e38


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model_dir",
        type=checkpoint_name,
        required=True,
        metavar="DIR[@STEP,...]",
        help="folder of a run, or a Hugging Face folder; of a run the newest checkpoint, or those of the steps, or all",
    )
    add_network(parser)
    group = parser.add_argument_group("tasks, one or more of the four")
    for task, description in TASKS.items():
        group.add_argument(f"--{task}", type=flags.path, metavar="FILE", help=description)
        group.add_argument(f"--{task}_held_out", type=flags.path, metavar="FILE", help=f"the same, to score {task} on")
    group.add_argument("--text", metavar="COLUMN", help="column or field of the words, for --tags and --entities")
    group.add_argument("--label", metavar="COLUMN", help="column or field of their tags (CoNLL-U: 4, universal parts of speech)")
    group.add_argument(
        "--limit", type=int, default=2000, metavar="N", help="first sentences of each file that are used (default: 2000)"
    )
    group = parser.add_argument_group("probes")
    group.add_argument(
        "--probe",
        default="linear",
        metavar="NAME",
        help="linear; mlp, with a hidden layer; or edge, with projections and self-attentive pooling too (default: linear)",
    )
    group.add_argument("--hidden", type=int, default=256, metavar="N", help="hidden units of mlp and edge (default: 256)")
    group.add_argument("--seeds", type=parse_seeds, default=[0, 1, 2], metavar="N,N,...", help="seeds (default: 0,1,2)")
    group.add_argument("--epochs", type=int, default=10, metavar="N", help="passes over the targets (default: 10)")
    group.add_argument("--learning_rate", type=float, default=5e-3, metavar="RATE", help="rate of Adam (default: 0.005)")
    group.add_argument("--batch_size", type=int, default=256, metavar="N", help="targets of an update (default: 256)")
    group = parser.add_argument_group("output")
    group.add_argument("--random_init", action="store_true", help="probe new parameters of the same network too")
    group.add_argument("--output", type=flags.path, metavar="FILE", help="HTML page to write, with plots")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Probe and print; return the exit status."""
    from bertfam.interop.folders import check_is_model

    _check(args)
    check_is_model(args.model_dir.folder)
    from bertfam.analysis.probes.networks import PROBES
    from bertfam.analysis.probes.page import page
    from bertfam.analysis.probes.probing import Probing
    from bertfam.analysis.probes.report import notes, tables
    from bertfam.analysis.probes.training import ProbeSettings
    from bertfam.suggest import did_you_mean

    flags.prepare_model(args)
    if args.probe not in PROBES:
        raise UserError(f"--probe={args.probe} is none of {', '.join(PROBES)}{did_you_mean(args.probe, PROBES)}")
    settings = ProbeSettings(args.probe, args.hidden, args.epochs, args.batch_size, args.learning_rate, tuple(args.seeds))
    sentences = _read(args)
    steps = list(dict.fromkeys(args.model_dir.resolve()))
    first = _open(args, steps[0])
    probing = Probing.create(first, sentences, settings)
    if not args.json:
        print(*probing.plan(len(steps) + args.random_init), "", sep="\n", flush=True)
    report = {"model": args.model_dir.folder} | probing.report(_parameters(args, first, steps))
    write_report(args, report, page, tables, notes)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go together, before anything is read."""
    import math

    given = [task for task in TASKS if getattr(args, task)]
    for task in TASKS:
        if task not in given and getattr(args, f"{task}_held_out"):
            raise UserError(f"--{task}_held_out goes with --{task}=FILE, the sentences to train on")
    if not given:
        raise UserError(f"nothing to probe: give {', '.join(f'--{task}=FILE' for task in TASKS)}, or several of them")
    for flag in ("text", "label"):
        if getattr(args, flag) is not None and not (args.tags or args.entities):
            raise UserError(f"--{flag} is a column of --tags and --entities: give one of them, or leave it out")
    for flag in ("limit", "length", "hidden", "epochs", "batch_size"):
        if (number := getattr(args, flag)) is not None and number < 1:
            raise UserError(f"--{flag}={number} is less than 1")
    if args.hidden > _MOST_HIDDEN:
        raise UserError(f"--hidden={args.hidden} is more than {_MOST_HIDDEN}; lower it")
    if max(args.seeds) > _LAST_SEED:
        raise UserError(f"--seeds has {max(args.seeds)}, and seeds are at most {_LAST_SEED}")
    if not 0 < args.learning_rate < math.inf:
        raise UserError(f"--learning_rate={args.learning_rate:g} must be a finite number above 0")
    if args.learning_rate > _MOST_RATE:
        raise UserError(f"--learning_rate={args.learning_rate:g} is more than {_MOST_RATE:g}; lower it")
    if args.output:
        flags.check_output_file(args, "output")


def _read(args: argparse.Namespace) -> dict[str, tuple[list[TargetSentence], list[TargetSentence]]]:
    """Read the sentences of each task, to train on and held out, before the model is."""
    from bertfam.analysis.probes.targets import Columns, read_targets, split_targets

    columns = Columns(args.text, args.label)
    found = {}
    for task in TASKS:
        if path := getattr(args, task):
            sentences = read_targets(task, path, columns, args.limit)
            held_out = getattr(args, f"{task}_held_out")
            found[task] = (
                (sentences, read_targets(task, held_out, columns, args.limit)) if held_out else split_targets(task, sentences)
            )
    return found


def _open(args: argparse.Namespace, step: int | None) -> Subject:
    from bertfam.analysis.subject import open_subject

    return open_subject(args.model_dir.folder, step=step, network=args.network, length=args.length)


def _parameters(args: argparse.Namespace, first: Subject, steps: list[int | None]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that are probed, by their names; each checkpoint is read when its turn comes."""
    from bertfam.analysis.head_report import RANDOM, TRAINED

    for place, step in enumerate(steps):
        subject = _open(args, step) if place else first
        yield (f"step {step}" if len(steps) > 1 else TRAINED), subject.model.params
    if args.random_init:
        yield RANDOM, first.random_params()

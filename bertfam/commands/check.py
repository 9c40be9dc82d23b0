"""`bertfam check`: validation of a run before anything is compiled."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError, warn
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from pathlib import Path

    from bertfam.data.checks.duplicates import Duplicates
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.data.vocabularies import Vocabulary
    from bertfam.training.run import Run

SUMMARY = "validate a configuration without compiling"
EXAMPLE = """\
  test -d vocab || bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam check --gin_file=runs/quickstart.gin --vocab=vocab --show

Mistakes are refused with status 2, with --model_dir also what would keep a run from going on there; what only looks wrong
is a warning on stderr, with status 0: all that pretrain would warn of, text with many unknown tokens for its vocabulary
(over 1 %), few documents (under 50), and rows that are mostly padding (over a third). A token cache that is built
(--cache_dir, or MODEL_DIR/cache) is looked at as a whole; of text in files a sample is read, 1 million characters of 16
files at most. --duplicates reads all of it, or the cache: held-out documents that are training text too are found if they
are the same (but for case and spaces), or if half of their passages (64 letters; 16 tokens) are in one training document."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser, required=False)
    parser.add_argument("--show", action="store_true", help="print the merged configuration with the origin of every value")
    parser.add_argument(
        "--duplicates",
        action="store_true",
        help="look for held-out documents that are in the training text too; reads all of the text (about 15 MB/s), in 100 MB "
        "of memory and 24 bytes for each held-out document",
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Check; return the exit status."""
    import dataclasses
    import json

    from bertfam.training.model_dir import check_folder, check_resumes

    model_dir = to_path(args.model_dir) if args.model_dir else None
    if model_dir:
        check_folder(model_dir)
        began_with = model_dir / "config.gin"
        args.gin_file = args.gin_file or [str(began_with)] * began_with.is_file()
    if not args.gin_file:
        raise UserError("no configuration: give --gin_file=FILE (runs/quickstart.gin, say)")
    config = flags.load_config(args)
    if args.show and not args.json:
        print(config.show())
    run = config.build("Run")

    # -- Vocabulary
    from bertfam.data import vocabularies
    from bertfam.data.checks.vocabulary_check import check_padding_id, check_vocabulary_fits
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.storage.files import is_used
    from bertfam.training.data import check_buildable, check_named, check_text, schedule_warnings

    directory = run.data.cache_directory(model_dir) if model_dir or run.data.cache_dir else None
    cache = TokenCache(directory) if directory and is_used(directory) else None
    if not cache:
        check_buildable(run.data)
    folder = cache.vocabulary_directory if cache else to_path(str(run.data.vocabulary))
    vocabulary = vocabularies.load(folder)
    for stage in run.stages:
        check_vocabulary_fits(run.data, vocabulary.token_ids, folder, stage.length)
    check_padding_id(run.objective.networks.values(), vocabulary.token_ids, folder)

    # -- What the folder has learned so far
    from bertfam.data.token_cache.builder import fingerprint
    from bertfam.training.checkpoints import has_training_state, selection

    step = selection.choose(model_dir) if model_dir else None
    named = flags.named_text(args, run.data)
    if model_dir and step is not None:
        check_resumes(model_dir, run.sized(vocabulary.size), (named.vocabulary or folder, folder), step)
        if has_training_state(model_dir, step) and (cache or not run.data.reads_seqio):
            text = cache.fingerprint if cache else fingerprint(run.data.corpora, vocabulary)
            check_text(text, str(cache.directory) if cache else "what is given", model_dir)

    if cache:
        check_named(cache.directory, named)

    # -- Model, mesh and batches
    import jax

    from bertfam.training.hardware import check_jaxlib
    from bertfam.training.summary import make_plan, plan_text
    from bertfam.training.teachers import read_teachers
    from bertfam.training.trainer import Trainer
    from bertfam.training.warm_start.parameters import objective_warm_start

    check_jaxlib(jax.default_backend(), jax.lib.__version__)
    trainer = Trainer(run.sized(vocabulary.size), run.mesh.build())
    aux = read_teachers(trainer.run, vocabulary)
    if step is None:
        objective_warm_start(trainer.run, aux, vocabulary)
    counts = {"train": cache.counts("train")} if cache else {}
    plan = make_plan(trainer.run, trainer.mesh, trainer.abstract_state, trainer.tensors, counts)

    # -- Text, without building the cache
    lines = _of_cache(run, cache, vocabulary) if cache else _of_text(run, vocabulary, folder) + schedule_warnings(run)
    duplicates = _duplicates(run, cache, vocabulary) if args.duplicates else None
    if duplicates:
        lines += _duplicates_warning(duplicates)
    warn(lines)
    if args.json:
        result = {
            "plan": plan,
            "warnings": list(dict.fromkeys(lines)),
            "duplicates": duplicates and dataclasses.asdict(duplicates),
        }
        print(json.dumps(result | ({"config": config.show()} if args.show else {}), ensure_ascii=False))
        return 0
    print(plan_text(plan))
    if duplicates:
        print(f"duplicates   {_duplicates_text(duplicates)}")
    print("ok")
    return 0


def _of_cache(run: Run, cache: TokenCache, vocabulary: Vocabulary) -> list[str]:
    """What is amiss with a built cache: all that pretrain says, and more."""
    from bertfam.data.checks.diagnosis import row_warnings, text_warnings
    from bertfam.data.rows.mixture import parts_of
    from bertfam.training.data import warnings

    lines, sources, evaluations = [], [], []
    texts = [cache.documents("train", name) for name in cache.corpora]
    for text in texts:
        lines += text_warnings(text, vocabulary.token_ids, cache.vocabulary_directory, is_whole=True)
    for index, stage in enumerate(run.stages):
        sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
        sources.append(run.data.training(*sizes, run.seed, index))
        evaluations.append(run.data.held_out(*sizes, at_most=run.eval_batches))
        for text, part in zip(texts, parts_of(sources[-1].sequence), strict=True):
            lines += row_warnings(run.data.rows_of(text), part.examples, text.name, stage.length, packs=run.data.corruption.packs)
    return warnings(run, sources, evaluations) + lines


def _of_text(run: Run, vocabulary: Vocabulary, folder: Path) -> list[str]:
    """What is amiss with a sample of the text; text that is in no file is only asked whether it is there."""
    from bertfam.data.checks.diagnosis import row_warnings, text_warnings
    from bertfam.data.checks.sampling import can_be_sampled, held_out_documents, sample
    from bertfam.data.token_cache.builder import check_not_empty, check_size
    from bertfam.training.data import evaluation_warnings

    lines: list[str] = []
    corpora = run.data.corpora
    has_held_out = False
    for name, corpus in corpora.items():
        if not can_be_sampled(corpus):
            corpus.fingerprint()
            has_held_out = True
            continue
        title = f" {name}" if len(corpora) > 1 else ""
        least = run.data.least_documents(corpus.pairs)
        found = sample(corpus, "train", vocabulary, f"the{title} training text")
        if found.is_whole:
            if not len(found.documents):
                check_not_empty(corpus, "train")
            check_size(f"corpus{title}", len(found.documents), least)
        lines += text_warnings(found.documents, vocabulary.token_ids, folder, is_whole=found.is_whole)
        for stage in run.stages if len(found.documents) >= least else ():
            examples = run.data.examples(found.documents, stage.length, run.seed, vocabulary.token_ids)
            lines += examples.warnings + row_warnings(
                run.data.rows_of(found.documents), examples, found.documents.name, stage.length, packs=run.data.corruption.packs
            )
        held_out = held_out_documents(corpus, least)
        if held_out == 0:
            check_not_empty(corpus, "validation")
        has_held_out |= held_out is None or held_out >= least
    return lines + evaluation_warnings(run, has_held_out)


def _duplicates(run: Run, cache: TokenCache | None, vocabulary: Vocabulary) -> Duplicates:
    from bertfam.data.checks.duplicates import find_duplicates, texts_of_cache, texts_of_corpora

    if cache:
        return find_duplicates(
            lambda: texts_of_cache(cache, vocabulary, "validation"), texts_of_cache(cache, vocabulary, "train")
        )
    return find_duplicates(lambda: texts_of_corpora(run.data.corpora, "validation"), texts_of_corpora(run.data.corpora, "train"))


def _duplicates_text(found: Duplicates) -> str:
    if not found.held_out:
        return "no held-out document to compare"
    return (
        f"{found.exact:,} exact and {found.near:,} near of {found.held_out:,} held-out documents; {found.passages:.1%} of the "
        "held-out passages are training text"
    )


def _duplicates_warning(found: Duplicates) -> list[str]:
    from bertfam.data.preview.visible import visible

    if found.example is None:
        return []
    held_out, training, begins = (found.example[name] for name in ("held_out", "training", "begins"))
    return [
        f"{found.exact + found.near:,} of {found.held_out:,} held-out documents ({found.share:.1%}) are in the training text "
        f"too, {found.near:,} of them nearly: their loss says little of other text; {held_out} has one that begins "
        f'"{visible(begins)}" and is in {training}'
    ]

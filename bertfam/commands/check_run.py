"""Body of `bertfam check`: opens a run as `bertfam pretrain` does, and inspects its text."""

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam import session
from bertfam.commands import flags
from bertfam.data.checks.diagnosis import row_warnings, text_warnings
from bertfam.data.checks.duplicates import Duplicates, Text, find_duplicates, texts_of_cache, texts_of_corpora
from bertfam.data.checks.sampling import can_be_sampled, held_out_documents, sample
from bertfam.data.rows.blocks import sampled
from bertfam.data.token_cache.build_process import check_named
from bertfam.data.token_cache.builder import check_not_empty, check_size
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import warn
from bertfam.finetuning.class_counts import class_counts
from bertfam.pages.visible import visible
from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import with_own_vocabularies
from bertfam.training.run import Run
from bertfam.training.run_checks import check_text, evaluation_warnings, run_warnings, schedule_warnings
from bertfam.training.run_plan import make_plan, plan_text
from bertfam.training.warm_start.parameters import objective_warm_start


@dataclass(frozen=True)
class Report:
    """Results of a check.

    Attributes:
      plan: the plan of the run.
      warnings: a line each.
      duplicates: held-out documents that are training text too; None if they were not looked for.
    """

    plan: dict[str, Any]
    warnings: list[str]
    duplicates: Duplicates | None


def run(args: argparse.Namespace) -> int:
    """Check; return the exit status."""
    resolved, checkpoint = _open_configuration(args)
    configuration, vocabulary = resolved.configuration, resolved.vocabulary
    model = session.open_model(vocabulary.run, vocabulary.vocabulary)
    if checkpoint.step is None:
        objective_warm_start(model.trainer.run, model.aux, vocabulary.vocabulary)
    report = _inspect(vocabulary, model, resolved.reasons, look_for_duplicates=args.duplicates)
    warn(report.warnings)
    if args.json:
        _print_json(report, configuration if args.show else None)
        return 0
    print(plan_text(report.plan))
    if report.duplicates:
        print(f"duplicates   {_duplicates_text(report.duplicates)}")
    print("ok")
    return 0


def _open_configuration(args: argparse.Namespace) -> tuple[session.Resolved[session.Configuration], session.Checkpoint]:
    """Load the configuration and resolve it; --show prints it, even if something else is refused before it is resolved."""
    model_dir = to_path(args.model_dir) if args.model_dir else None
    config = flags.load_config(args, session.find_gin_files(args.gin_file, model_dir))
    config = session.with_implied_vocabulary(config, model_dir)
    try:
        config = with_own_vocabularies(config, model_dir) if model_dir else config
        run = config.build("Run")
        configuration = session.Configuration(model_dir, config, run, flags.named_text(args, run.data))
        vocabulary = session.open_vocabulary(configuration)
        checkpoint = _check_model_dir(configuration, vocabulary)
        resolved = session.resolve(configuration, vocabulary, checkpoint, session.device_memory())
        config = resolved.configuration.config
    finally:
        if args.show and not args.json:
            print(config.show())
    return resolved, checkpoint


def _check_model_dir(configuration: session.Configuration, vocabulary: session.OpenVocabulary) -> session.Checkpoint:
    """Return the newest checkpoint; raises UserError if the run cannot start from it, or with another text than it has."""
    model_dir, data, cache = configuration.model_dir, vocabulary.run.data, vocabulary.cache
    checkpoint = session.describe_checkpoint(model_dir, selection.choose(model_dir) if model_dir else None)
    session.check_checkpoint(configuration, vocabulary, checkpoint)
    if model_dir and checkpoint.resumes:
        if cache:
            check_text(cache.fingerprint, str(cache.directory), model_dir)
        elif not data.reads_seqio:
            session.check_given_text(configuration, vocabulary)
    if cache:
        check_named(cache.directory, configuration.named)
    return checkpoint


def _inspect(
    vocabulary: session.OpenVocabulary, model: session.Model, reasons: Mapping[str, str], *, look_for_duplicates: bool
) -> Report:
    """Make the plan, and inspect the text without building the token cache."""
    trainer, run, cache, pieces = model.trainer, vocabulary.run, vocabulary.cache, vocabulary.vocabulary
    counts = {"train": cache.counts("train")} if cache else {}
    data = session.open_data(run, cache, pieces) if cache else None
    if data:
        trainer.count_flops(data.training)
    classes = class_counts(run, cache) if cache else {}
    parts = (trainer.mesh, trainer.abstract_state, trainer.tensors)
    row_counts = [source.row_counts for source in data.training] if data else ()
    plan = make_plan(run, *parts, counts, trainer.flops_per_step, reasons, classes, row_counts)
    if cache and data:
        lines = _cache_warnings(run, cache, pieces, data)
    else:
        lines = _sample_warnings(run, pieces, vocabulary.folder) + schedule_warnings(run)
    duplicates = _find_duplicates(run, cache, pieces) if look_for_duplicates else None
    if duplicates:
        lines += _duplicates_warning(duplicates)
    return Report(plan, lines, duplicates)


def _print_json(report: Report, shown: session.Configuration | None) -> None:
    result = {
        "plan": report.plan,
        "warnings": list(dict.fromkeys(report.warnings)),
        "duplicates": report.duplicates and dataclasses.asdict(report.duplicates),
    }
    print(json.dumps(result | ({"config": shown.config.show()} if shown else {}), ensure_ascii=False))


def _cache_warnings(run: Run, cache: TokenCache, vocabulary: Vocabulary, data: session.RunData) -> list[str]:
    """Return warnings about a token cache: all that pretrain prints, and more."""
    texts = [cache.stored_documents("train", name, vocabulary.size) for name in cache.corpora]
    lines = []
    for text in texts:
        lines += text_warnings(text, vocabulary.token_ids, cache.vocabulary_directory, is_whole=True)
    filled = (index for index, batches in enumerate(data.training) if not batches.row_counts)
    for index in filled:
        stage, own, batches = run.stages[index], run.data_of(index), data.training[index]
        for text, part in zip(texts, batches.sequence.by_corpus(), strict=True):
            examples = sampled(part.examples)
            lines += row_warnings(own.rows_of(text), examples, text.name, stage.length, packs=own.corruption.packs)
    return run_warnings(run, data.training, data.held_out) + lines


def _sample_warnings(run: Run, vocabulary: Vocabulary, folder: Path) -> list[str]:
    """Return warnings about a sample of the text. Text that is in no file is not read; it only has to exist."""
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
        text = sample(corpus, "train", vocabulary, f"the{title} training text")
        if text.is_whole:
            if not len(text.documents):
                check_not_empty(corpus, "train")
            check_size(f"corpus{title}", len(text.documents), least)
        lines += text_warnings(text.documents, vocabulary.token_ids, folder, is_whole=text.is_whole)
        for index, stage in enumerate(run.stages) if len(text.documents) >= least else ():
            own = run.data_of(index)
            examples = own.examples(text.documents, stage.length, run.seed, vocabulary.token_ids)
            lines += examples.warnings
            if not own.has_similar_lengths:
                rows, packs = own.rows_of(text.documents), own.corruption.packs
                lines += row_warnings(rows, examples, text.documents.name, stage.length, packs=packs)
        held_out = held_out_documents(corpus, least)
        if held_out == 0:
            check_not_empty(corpus, "validation")
        has_held_out |= held_out is None or held_out >= least
    return lines + evaluation_warnings(run, has_held_out)


def _find_duplicates(run: Run, cache: TokenCache | None, vocabulary: Vocabulary) -> Duplicates:
    def texts(split: str) -> Iterator[Text]:
        return texts_of_cache(cache, vocabulary, split) if cache else texts_of_corpora(run.data.corpora, split)

    return find_duplicates(lambda: texts("validation"), texts("train"))


def _duplicates_text(duplicates: Duplicates) -> str:
    if not duplicates.held_out:
        return "no held-out document to compare"
    return (
        f"{duplicates.exact:,} exact and {duplicates.near:,} near of {plural(duplicates.held_out, 'held-out document')}; "
        f"{duplicates.passages:.1%} of the held-out passages are training text"
    )


def _duplicates_warning(duplicates: Duplicates) -> list[str]:
    if duplicates.example is None:
        return []
    held_out, training, begins = (duplicates.example[name] for name in ("held_out", "training", "begins"))
    return [
        f"{duplicates.exact + duplicates.near:,} of {duplicates.held_out:,} held-out documents ({duplicates.share:.1%}) are in "
        f"the training text too, {duplicates.near:,} of them nearly: their loss says little about other text; {held_out} has one "
        f'that begins "{visible(begins)}" and is in {training}'
    ]

"""`bertfam preview`: display of corrupted training rows, decoded."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError, is_terminal
from bertfam.plurals import plural
from bertfam.storage.paths import to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bertfam.config import Config
    from bertfam.data.text_data import TextData
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.training.run import Run
    from bertfam.training.stages import Stage

SUMMARY = "show corrupted training rows, decoded"
EXAMPLE = """\
  test -d vocab || bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam preview --task=python_docs --vocab=vocab --length=64 --examples=3
  bertfam preview --task=python_docs --vocab=vocab --gin.TextData.rows=@Packed() --html=rows.html
  bertfam preview --model_dir=runs/quickstart/model --step=100

The rows are those that pretrain trains on, in the same order with the same noise. {word>[MASK]} is masked, {word>other} replaced
by a random token, {word} kept but predicted. A row may hold several examples, which do not see each other; A and B are its token
types. After the rows come statistics over many more of them. Without a run file rows are sentence pairs with BERT's noise, and
--gin.TextData.rows and --gin.TextData.corruption choose others:
  --gin.TextData.rows=@FullSentences()    or @DocSentences(), @Chunks(), @WholeDocuments(), @DocumentWindows(), ...
  --gin.TextData.rows=@TwoSegments()      ELECTRA's
  --gin.BertMasking.rate=0.3
Rows for decoders are shown as inputs and targets; the vocabulary must have the control tokens that they use:
  --gin_file=models/gpt2_small.gin --gin_file=objectives/causal_lm.gin
  --gin.TextData.rows=@Chunks() --gin.TextData.corruption=@SpanCorruption()    T5's
  --gin.TextData.rows=@DocSentences() --gin.TextData.corruption=@Denoising()   BART's
Without a token cache, all of the text is tokenised for this call only; to keep the tokens use `bertfam cache` and --cache_dir."""
_LENGTH = 128
_STATISTICS = 500
_MOST = 1_000_000  # rows, or tokens of a row
_MOST_STEPS = 2**31 - 1  # of a run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser, required=False)
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="rows to show (default: 5)")
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="show the batch that update N + 1 trains on (default: 0)"
    )
    parser.add_argument("--length", type=int, metavar="N", help=f"tokens per row (default: the run's, else {_LENGTH})")
    parser.add_argument(
        "--stat_rows",
        type=int,
        default=_STATISTICS,
        metavar="N",
        help=f"rows to count statistics over, at most one epoch (default: {_STATISTICS})",
    )
    parser.add_argument(
        "--html",
        type=flags.path,
        metavar="FILE",
        help="write rows and statistics to FILE, a self-contained page, instead of the terminal",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the page in the FILE of --html if it exists")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="colours; auto: on a terminal without NO_COLOR"
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Show rows and their statistics; return the exit status."""
    import tempfile
    from dataclasses import replace

    from bertfam.errors import warn
    from bertfam.training.run_checks import evaluation_warnings
    from bertfam.training.stages import Stage, locate

    for flag in ("examples", "length", "stat_rows"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} is less than 1")
        if getattr(args, flag) is not None and getattr(args, flag) > _MOST:
            raise UserError(f"--{flag}={getattr(args, flag)} is more than {_MOST:,}")
    if args.step < 0:
        raise UserError(f"--step={args.step} is negative")
    if args.step >= _MOST_STEPS:
        raise UserError(f"--step={args.step} is more than a run can have (2^31)")
    if args.overwrite and not args.html:
        raise UserError("--overwrite says what --html may replace: give --html=FILE with it")
    if args.html:
        flags.check_page(args, "html")
    config = _load_config(args)
    run = config.build("Run") if config.binds("Run.stages") else None  # objectives alone make no run
    data = run.data if run else config.build("TextData")
    if run and args.step >= run.total_steps:
        raise UserError(f"--step={args.step} is beyond the run's {plural(run.total_steps, 'step')}")
    stages = run.stages if run else (Stage(_MOST_STEPS, _LENGTH, min(args.examples, _MOST_STEPS)),)
    index, within = locate(stages, args.step)
    if args.length:
        stages = (*stages[:index], replace(stages[index], length=args.length))
    own = stages[index].data(data)
    own.check_length(stages[index].length)
    if run and args.length:
        _check_model_reads(run, index, args.length)

    with tempfile.TemporaryDirectory() as scratch:
        cache = _open_cache(args, config, own, stages[index].length, Path(scratch))
        if run and not args.model_dir:
            warn(evaluation_warnings(run, cache.counts("validation")["documents"] > 0))
        _show(args, data, cache, stages, index, within, run.seed if run else 0)
    return 0


def _check_model_reads(run: Run, stage: int, length: int) -> None:
    """Raise UserError if the run's model cannot read rows of the length of --length."""
    try:
        run.objective_of(stage).features(run.shape(stage, length))
    except UserError as error:
        raise UserError(f"--length={length}: {error}") from error


def _load_config(args: argparse.Namespace) -> Config:
    """Load the configuration of the flags, with that of MODEL_DIR if there is one."""
    if not args.model_dir:
        return flags.load_config(args)
    from bertfam.session import find_gin_files, with_implied_vocabulary
    from bertfam.training.model_dir import read_run, with_own_vocabularies

    flags.import_modules(args)
    read_run(args.model_dir)
    model_dir = to_path(args.model_dir)
    config = with_own_vocabularies(flags.load_config(args, find_gin_files(args.gin_file, model_dir)), model_dir)
    return with_implied_vocabulary(config, model_dir)


def _open_cache(args: argparse.Namespace, config: Config, data: TextData, length: int, scratch: Path) -> TokenCache:
    """Open the token cache of the run or of --cache_dir; without one, build it in `scratch`."""
    from bertfam.data import vocabularies
    from bertfam.data.checks.vocabulary_check import check_vocabulary_fits
    from bertfam.data.token_cache.build_process import open_token_cache, vocabulary_folder
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.storage.files import is_used

    directory = data.cache_directory(args.model_dir or scratch)
    is_kept = is_used(directory) or bool(data.cache_dir)
    folder = vocabulary_folder(data, directory)
    check_vocabulary_fits(data, vocabularies.load(folder).token_ids, folder, length)
    if args.model_dir and is_used(to_path(args.model_dir) / "vocab"):
        from bertfam.training.run_checks import check_vocabulary

        check_vocabulary(folder, to_path(args.model_dir))
    if is_kept:
        return open_token_cache(config, data, directory, flags.named_text(args, data))
    open_token_cache(config, data, scratch / "cache", flags.named_text(args, data))
    return TokenCache(scratch / "cache", called="the text")


def _show(
    args: argparse.Namespace,
    data: TextData,
    cache: TokenCache,
    stages: Sequence[Stage],
    index: int,
    step: int,
    seed: int,
) -> None:
    """Print rows and statistics from step `step` of stage `index` on, or write the page."""
    import json

    from bertfam.data import vocabularies
    from bertfam.data.preview.batch_records import batch_records
    from bertfam.data.preview.decoder_rows import DecoderStatistics
    from bertfam.data.preview.statistics import Statistics, measure
    from bertfam.errors import warn
    from bertfam.training.stages import stage_batches

    vocabulary = vocabularies.load(cache.vocabulary_directory)
    source, length = stage_batches(data, stages, index, cache, vocabulary.token_ids, seed), stages[index].length
    data = stages[index].data(data)
    sequence, first = source.sequence, source.place(step)
    warn(sequence.warnings)
    classes = getattr(data.corpus, "classes", ())  # of labelled files
    shown, is_written = batch_records(source, step, args.examples, vocabulary, cache, classes)
    if args.json:
        print(json.dumps(shown, ensure_ascii=False))
        if not args.html:
            return
    counter = (DecoderStatistics if is_written else Statistics)(length)
    found = measure(counter, sequence, first, args.stat_rows, vocabulary.token_ids, cache.corpora)
    if args.html:
        from bertfam.data.preview.page import page
        from bertfam.storage.files import write_text

        about = {
            "rows": f"{type(data.rows).__name__}, {length} tokens",
            "noise": type(data.corruption).__name__,
            "vocabulary": f"{vocabulary.size:,} pieces",
            "update": f"{args.step + 1:,}",
            "seed": f"{seed}",
        }
        about |= {"notes": "; ".join(data.corruption.notes)} if data.corruption.notes else {}
        write_text(Path(args.html), page(found, shown, "Training rows", about))
        if not args.json:
            print(f"page: {args.html}")
        return

    from bertfam.data.preview import terminal
    from bertfam.data.preview.terminal import Paint, row_lines, statistics_lines

    has_colors = is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    paint = Paint(args.color == "always" or (args.color == "auto" and has_colors))
    for number, record in enumerate(shown):
        print(*row_lines(record, number, paint), sep="\n")
    if not data.corruption.labels:
        print(terminal.legend(shown))
    if "shuffled" in found.kinds:
        print(terminal.SHUFFLED_LEGEND)
    print(*statistics_lines(found), *(f"note: {note}" for note in data.corruption.notes), sep="\n")

"""`bertfam preview`: corrupted training rows, decoded."""

import argparse
from pathlib import Path

from bertfam.commands import flags

SUMMARY = "show corrupted training rows, decoded"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam preview --task=python_docs --vocab=vocab --length=64 --examples=3
  bertfam preview --model_dir=runs/quickstart/model --step=100"""
_LENGTH = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser, required=False)
    parser.add_argument("--examples", type=int, default=5, metavar="N", help="rows to show (default: 5)")
    parser.add_argument(
        "--step", type=int, default=0, metavar="N", help="show the batch that update N + 1 trains on (default: 0)"
    )
    parser.add_argument("--length", type=int, metavar="N", help=f"tokens a row (default: the run's, else {_LENGTH})")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Shows rows; returns the exit status."""
    import json
    import tempfile

    from bertfam.data import vocabularies
    from bertfam.data.preview import records, shares, text
    from bertfam.errors import UserError
    from bertfam.training.data import token_cache, warn
    from bertfam.training.model_dir import read_run
    from bertfam.training.stages import locate

    # -- What to show
    for flag in ("examples", "length"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise UserError(f"--{flag}={getattr(args, flag)} is less than 1")
    if args.step < 0:
        raise UserError(f"--step={args.step} is negative")
    if args.model_dir:
        read_run(args.model_dir)
        args.gin_file = args.gin_file or [str(Path(args.model_dir) / "config.gin")]
    config = flags.load_config(args)
    run = config.build("Run") if args.gin_file else None
    data = run.data if run else config.build("TextData")
    if run and args.step >= run.total_steps:
        raise UserError(f"--step={args.step} is beyond the run's {run.total_steps} steps")
    index, within = locate(run.stages, args.step) if run else (0, args.step)
    length = args.length or (run.stages[index].length if run else _LENGTH)
    batch_size = run.stages[index].batch_size if run else args.examples

    # -- Its rows; without a folder for the cache it is built for this once
    with tempfile.TemporaryDirectory() as scratch:
        directory = data.cache_directory(args.model_dir or scratch)
        cache = token_cache(config, data, directory, flags.named_text(args, data))
        vocabulary = vocabularies.load(cache.vocabulary_directory)
        source = data.training(cache, vocabulary.token_ids, length, batch_size, run.seed if run else 0, index)
        warn(source.sequence.warnings)
        rows: list[dict] = []
        while len(rows) < args.examples:
            rows += records(source.rows(within, 0, min(batch_size, args.examples - len(rows))), vocabulary)
            within += 1

    if args.json:
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    for number, record in enumerate(rows):
        print(f"row {number}: B is {record['next_sentence']}, {len(record['predictions'])} predicted of {len(record['pieces'])}")
        print(f"  {text(record)}")
    print("{word>[MASK]} masked, {word>other} replaced, {word} kept but predicted")
    print("  ".join(f"{name} {value:.1%}" for name, value in shares(rows).items()))
    return 0

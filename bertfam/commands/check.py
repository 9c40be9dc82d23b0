"""`bertfam check`: everything that can be found wrong with a run before compiling it."""

import argparse

from bertfam.commands import flags

SUMMARY = "validate a configuration without compiling"
EXAMPLE = "  bertfam check --gin_file=runs/quickstart.gin --vocab=vocab --show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    parser.add_argument("--show", action="store_true", help="print the merged configuration with the origin of every value")


def main(args: argparse.Namespace) -> int:
    """Checks; returns the exit status."""
    from pathlib import Path

    from bertfam.errors import UserError

    if not args.gin_file:
        raise UserError("no configuration: give --gin_file=FILE (runs/quickstart.gin, say)")
    config = flags.load_config(args)
    if args.show:
        print(config.show())
    run = config.build("Run")

    # -- Text and vocabulary, without building the cache
    from bertfam.data import vocabularies
    from bertfam.data.cache import TokenCache
    from bertfam.training.data import check_buildable, check_named

    built = Path(run.data.cache_dir) if run.data.cache_dir and Path(run.data.cache_dir).exists() else None
    if built:
        check_named(built, flags.named_text(args, run.data))
        vocabulary = vocabularies.load(TokenCache(built).vocabulary_directory)
    else:
        check_buildable(run.data)
        vocabulary = vocabularies.load(run.data.vocabulary)
        for corpus in run.data.corpora.values():
            corpus.fingerprint()

    # -- Model, mesh and batches
    from bertfam.training.plan import make_plan, plan_text
    from bertfam.training.trainer import Trainer

    trainer = Trainer(run.sized(vocabulary.size), run.mesh.build())
    counts = {"train": TokenCache(built).counts("train")} if built else {}
    print(plan_text(make_plan(trainer.run, trainer.mesh, trainer.abstract_state, counts)))
    print("ok")
    return 0

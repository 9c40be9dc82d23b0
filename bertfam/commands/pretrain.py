"""`bertfam pretrain`: text or a token cache to a trained model."""

import argparse
from pathlib import Path

from bertfam.commands import flags

SUMMARY = "train a model"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam pretrain --gin_file=runs/quickstart.gin --vocab=vocab --model_dir=model
The same command again goes on from the newest checkpoint."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's flags."""
    flags.add_config(parser)
    flags.add_text(parser)
    flags.add_cache_dir(parser)
    flags.add_model_dir(parser)


def main(args: argparse.Namespace) -> int:
    """Trains; returns the exit status."""
    from bertfam.config import load
    from bertfam.errors import UserError

    # -- Configuration: the flags', and what the folder began with
    model_dir = Path(args.model_dir)
    began_with = model_dir / "config.gin"
    if not args.gin_file and not began_with.is_file():
        raise UserError("no configuration: give --gin_file=FILE (runs/quickstart.gin, say)")
    args.gin_file = args.gin_file or [str(began_with)]
    config = flags.load_config(args)
    run = config.build("Run")
    if began_with.is_file():
        from bertfam.training.run import check_resumable

        check_resumable(load([str(began_with)]).build("Run"), run)

    # -- Data: the token cache, built in a child process if it is missing; the vocabulary of its ids
    from bertfam.data.vocabularies import WordPiece
    from bertfam.training.data import check_vocabulary, token_cache, warn

    check_vocabulary(run.data, model_dir)
    cache = token_cache(config, run.data, run.data.cache_directory(model_dir), flags.named_text(args, run.data))
    vocabulary = WordPiece.load(cache.vocabulary_directory)
    run = run.sized(vocabulary.size)

    # -- Model and mesh: all that can be refused is refused here, before compiling and before anything is written
    from bertfam.training.plan import make_plan, plan_text
    from bertfam.training.stages import StagedBatches, locate
    from bertfam.training.trainer import Trainer

    trainer = Trainer(run, run.mesh.build())
    sources, evaluations = [], []
    for index, stage in enumerate(run.stages):
        sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
        sources.append(run.data.training(*sizes, run.seed, index))
        evaluations.append(run.data.held_out(*sizes, at_most=run.eval_batches))
    warn(sources, evaluations, run.eval_every)

    # -- Plan
    import json

    from bertfam.data.cache import SPLITS
    from bertfam.training.model_dir import write_atomically

    counts = {split: cache.counts(split) for split in SPLITS}
    plan = make_plan(run, trainer.mesh, trainer.abstract_state, run.objective.attention(run.shape(0)), counts)
    print(plan_text(plan), flush=True)
    model_dir.mkdir(parents=True, exist_ok=True)
    write_atomically(began_with, config.text())
    write_atomically(model_dir / "plan.json", json.dumps(plan, indent=1) + "\n")
    if not (model_dir / "vocab").exists():
        vocabulary.save(model_dir / "vocab")

    # -- State: the newest checkpoint's, or a fresh one
    from bertfam.training.checkpoints import Checkpoints

    checkpoints = Checkpoints(model_dir, keep=run.keep_checkpoints)
    step = checkpoints.latest
    if step is not None and step >= run.total_steps:
        print(f"finished already: {model_dir} stands at step {step:,} of {run.total_steps:,}", flush=True)
        checkpoints.close()
        return 0
    state = trainer.new_state() if step is None else trainer.restored(checkpoints, step)
    if step is not None:
        print(f"resumed from step {step:,}", flush=True)

    # -- Training
    from bertfam.training.hooks import EvaluateHook, SaveHook
    from bertfam.training.metrics import MetricsWriter
    from bertfam.training.progress import ProgressLog

    def scores(step, state):
        stage, _ = locate(run.stages, step - 1)
        return trainer.scores(state.params, evaluations[stage], stage)

    writer = MetricsWriter(model_dir, step or 0)
    hooks = [SaveHook(run.checkpoint_every, run.total_steps, checkpoints)]
    if run.eval_every and all(evaluations):
        hooks.insert(0, EvaluateHook(run.eval_every, run.total_steps, scores, writer))
    log = ProgressLog(writer, step or 0, run.total_steps, run.log_every)
    trainer.train(state, StagedBatches(run.stages, sources), log, hooks)

    # -- End: the last checkpoint is whole before the command says so
    checkpoints.close()
    writer.close()
    print(f"finished: {model_dir}", flush=True)
    return 0

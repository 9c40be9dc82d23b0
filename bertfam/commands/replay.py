"""`bertfam replay`: recomputation of an update on permuted devices, to find a device that computes wrongly."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags

if TYPE_CHECKING:
    import jax

    from bertfam.multihost.processes import Processes
    from bertfam.training.run import Run

SUMMARY = "recompute an update of a run and compare: whether a device computes wrongly"
EXAMPLE = """\
  bertfam replay --model_dir=model --step=1200
  bertfam replay --model_dir=model --step=1200 --checkpoint=500 --times=4 --json
The updates from a checkpoint on are computed again, --times times, each time with every device in the place of another.
Devices that hold the same must hold the same bits, and so must all that the run recorded (Run.digest_every) where it is the same
program on the same kind of devices; other losses are compared within a thousandth. Exit code 0: all agree; 1: something
differs, and the line names the devices, if it can be told."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument("--step", type=int, required=True, metavar="N", help="recompute up to the update that leads to this step")
    parser.add_argument(
        "--checkpoint", type=int, metavar="C", help="the checkpoint to start from (default: the newest whole one before N)"
    )
    parser.add_argument(
        "--times",
        type=int,
        default=2,
        metavar="K",
        help="on how many arrangements of the devices (default: 2); with more than there are devices they come again",
    )
    flags.add_json(parser)
    flags.add_processes(parser)


def main(args: argparse.Namespace) -> int:
    """Recompute, compare and print; return the exit status."""
    from bertfam.multihost.membership import join

    with join(args.coordinator, args.num_processes, args.process_index, args.initialization_timeout) as processes:
        return _replay(args, processes)


def _replay(args: argparse.Namespace, processes: Processes) -> int:
    import json

    from bertfam.data import vocabularies
    from bertfam.errors import TrainingError, UserError
    from bertfam.storage.paths import to_path
    from bertfam.training.model_dir import read_run

    # -- The run, and the checkpoint to start from
    model_dir = to_path(args.model_dir)
    with processes.on_all("the run"):
        if args.times < 1:
            raise UserError(f"--times={args.times} is less than 1")
        run = read_run(model_dir)
        vocabulary = vocabularies.load(model_dir / "vocab")
        run = run.sized(vocabulary.size)
        if not 1 <= args.step <= run.total_steps:
            raise UserError(f"--step={args.step} is no update of this run, which has 1 to {run.total_steps}")
    start = processes.on_first("the checkpoint", lambda: _start(model_dir, args.step, args.checkpoint))

    # -- What the run has written down of these updates
    from bertfam.training.checkpoints import retention
    from bertfam.training.integrity.digest import DIGEST

    def of_interest(split: str) -> dict[int, dict[str, Any]]:
        return {step: line for step, line in retention.lines(model_dir, split).items() if step <= args.step}

    with processes.on_all("metrics.jsonl"):
        logged = of_interest("train")
        recorded = {step: line for step, line in of_interest(DIGEST).items() if step > start}
        _check_rates(run, {step: line for step, line in logged.items() if step > start}, args.step)

    # -- Its text, and the devices
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.training.data import check_text
    from bertfam.training.hardware import keep_compilations
    from bertfam.training.stages import StagedBatches
    from bertfam.training.teachers import read_teachers

    with processes.on_all("the token cache"):
        cache = TokenCache(run.data.cache_directory(model_dir))
        check_text(cache.fingerprint, str(cache.directory), model_dir)
        sizes = [(cache, vocabulary.token_ids, stage.length, stage.batch_size) for stage in run.stages]
        source = StagedBatches(run.stages, [run.data.training(*each, run.seed, index) for index, each in enumerate(sizes)])
        aux = read_teachers(run, vocabulary)
        mesh = _mesh(run)
    keep_compilations(model_dir)  # where the run's own programs are

    # -- The updates, on each arrangement
    from contextlib import closing

    from bertfam.training.checkpoints import Checkpoints
    from bertfam.training.integrity.mismatches import compare
    from bertfam.training.integrity.replay import replay, rotated, single_group_run
    from bertfam.training.trainer import Trainer

    def say(told: str) -> None:
        if processes.first and not args.json:
            print(told, flush=True)

    say(f"replays updates {start + 1:,} to {args.step:,} from the checkpoint of step {start:,}")
    found = []
    with closing(Checkpoints(model_dir, read_only=True)) as checkpoints:
        for number in range(args.times):
            arrangement = rotated(mesh, number)
            say(f"arrangement {number + 1}: {', '.join(map(str, arrangement.devices.flat))}")
            trainer = Trainer(run, arrangement)
            group = single_group_run(run, arrangement) if number == 0 else None
            state = trainer.with_aux(trainer.restored(checkpoints, start), aux)
            alone = Trainer(group, arrangement) if group else None
            found.append(replay(trainer, state, source, args.step, recorded, alone, _Progress(start, args.step, say)))

    # -- What they say
    verdict = compare(found, recorded, logged)
    last = found[0].digests[args.step]
    if processes.first and args.json:
        report = {"step": args.step, "checkpoint": start, "arrangements": [each.devices for each in found], **last.line()}
        print(json.dumps(report | vars(verdict)))
    say("\n".join([f"loss {last.loss!r}, {len(last.leaves()):,} digests", *verdict.notes]))
    if verdict.faults:
        first, *others = verdict.faults  # what follows may come of the first
        raise TrainingError(first + (f" (and {len(others)} more: --json tells all)" if others and not args.json else ""))
    say(f"update {args.step:,} of {model_dir}: all agree")
    return 0


def _start(model_dir: Any, step: int, checkpoint: int | None) -> int:
    """The checkpoint to start from; raises UserError where there is none, or it is damaged."""
    from bertfam.errors import UserError
    from bertfam.training.checkpoints import has_training_state, selection

    directory = selection.existing(model_dir)
    if checkpoint is not None and checkpoint >= step:
        raise UserError(f"--checkpoint={checkpoint} is not before --step={step}: give an earlier one")
    if checkpoint is None:
        checkpoint = selection.choose(model_dir, before=step)
    if checkpoint is None:
        there = ", ".join(map(str, selection.steps(directory))) or "none"
        raise UserError(f"{directory} has no checkpoint before --step={step}; it has {there}")
    selection.find(model_dir, checkpoint, ())
    if not has_training_state(model_dir, checkpoint):
        raise UserError(f"{directory / str(checkpoint)} holds an imported model, no training state: give a run")
    return checkpoint


def _check_rates(run: Run, logged: Mapping[int, Mapping[str, Any]], step: int) -> None:
    """Refuse updates that were made by another schedule, before the run was lengthened."""
    import math

    from bertfam.errors import UserError

    schedule = run.optimizer.schedule.build(run.total_steps)
    for at, line in logged.items():
        now, then = float(schedule(at - 1)), line.get("learning_rate")
        if then is not None and not math.isclose(now, then, rel_tol=1e-5, abs_tol=1e-12):
            raise UserError(
                f"the update that led to step {at} had a learning rate of {then:.6g} and would have {now:.6g} now: the run was "
                f"lengthened since; give a later --step than {step}"
            )


def _mesh(run: Run) -> jax.sharding.Mesh:
    """The run's, or as many devices as there are here where that does not fit them."""
    from bertfam.errors import UserError, warn
    from bertfam.sharding.mesh import MeshShape

    try:
        return run.mesh.build()
    except UserError as error:
        warn([f"{error}; replayed on all that are here, with whole parameters on each"])
        return MeshShape().build()


class _Progress:
    """Says how far it is, every few seconds."""

    def __init__(self, start: int, last: int, say: Any) -> None:
        import time

        self._start, self._last, self._say, self._clock = start, last, say, time.monotonic
        self._begin = self._said = self._clock()

    def __call__(self, step: int) -> None:
        from bertfam.training.summary import duration

        now = self._clock()
        if now - self._said >= 5 and step < self._last:
            left = (now - self._begin) / (step - self._start) * (self._last - step)
            self._say(f"update {step:,} of {self._last:,}, {duration(left)} left")
            self._said = now

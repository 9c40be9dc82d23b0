"""Body of `bertfam replay`: opens a run as it was recorded, computes its updates again and compares them."""

import argparse
import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bertfam import session
from bertfam.commands import flags
from bertfam.errors import TrainingError, UserError, warn
from bertfam.multihost.processes import Processes
from bertfam.multihost.same_code import check_modules
from bertfam.plurals import plural
from bertfam.sharding.mesh import MeshShape
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import Checkpoints, has_training_state, retention, selection
from bertfam.training.integrity.digest import DIGEST
from bertfam.training.integrity.mismatches import Mismatches, compare
from bertfam.training.integrity.replay import Replayed, replay, rotated, single_group_run
from bertfam.training.jax_setup import enable_compilation_cache
from bertfam.training.run import Run
from bertfam.training.run_checks import check_text
from bertfam.training.run_plan import duration
from bertfam.training.stages import StagedBatches
from bertfam.training.teachers import read_aux
from bertfam.training.trainer import Trainer

_PROGRESS_SECONDS = 5

Report = Callable[[str], None]


@dataclass(frozen=True)
class Record:
    """Recorded metrics of the updates to replay, by the step that they lead to.

    Attributes:
      logged: training metrics.
      digests: digests of the updates after the checkpoint.
    """

    logged: dict[int, dict[str, Any]]
    digests: dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """Run to replay.

    Attributes:
      model_dir: its folder.
      run: its configuration.
      start: the step of the checkpoint to start from.
      last: the step that the last update leads to.
      source: its batches.
      aux: what its objective reads and does not train.
      mesh: the devices in their first arrangement.
    """

    model_dir: Path
    run: Run
    start: int
    last: int
    source: StagedBatches
    aux: dict[str, Any]
    mesh: jax.sharding.Mesh


def run(args: argparse.Namespace, processes: Processes) -> int:
    """Recompute, compare and print; return the exit status."""

    def report(line: str) -> None:
        if processes.first and not args.json:
            print(line, flush=True)

    job, record = _open(args, processes)
    enable_compilation_cache()
    report(f"replaying updates {job.start + 1:,} to {job.last:,} from the checkpoint of step {job.start:,}")
    with closing(Checkpoints(job.model_dir, read_only=True)) as checkpoints:
        replayed = [_replay(job, number, checkpoints, record, report) for number in range(args.times)]
    comparison = compare(replayed, record.digests, record.logged)
    if processes.first and args.json:
        _print_json(job, replayed, comparison)
    last = replayed[0].digests[job.last]
    report("\n".join([f"loss {last.loss!r}, {plural(len(last.leaves()), 'digest')}", *comparison.notes]))
    if comparison.faults:
        first, *others = comparison.faults  # The others may follow from the first.
        raise TrainingError(first + (f" (and {len(others)} more: --json lists all)" if others and not args.json else ""))
    report(f"update {job.last:,} of {job.model_dir}: all agree")
    return 0


def _open(args: argparse.Namespace, processes: Processes) -> tuple[Job, Record]:
    """Open the run, its checkpoint, what it recorded, and its text."""
    model_dir = to_path(args.model_dir)
    with processes.on_all("the run"):
        if args.times < 1:
            raise UserError(f"--times={args.times} is less than 1")
        flags.import_modules(args)
        saved = session.open_saved_run(model_dir)
        run, vocabulary = saved.run, saved.vocabulary
        if not 1 <= args.step <= run.total_steps:
            raise UserError(f"--step={args.step} is not an update of this run, which has updates 1 to {run.total_steps}")
    check_modules(processes, args.module_import)
    start = processes.on_first("the checkpoint", lambda: _choose_checkpoint(model_dir, args.step, args.checkpoint, run))
    with processes.on_all("metrics.jsonl"):
        record = _read_record(model_dir, start, args.step)
        _check_rates(run, model_dir, start, args.step)
    with processes.on_all("the token cache"):
        cache = session.open_saved_cache(run, model_dir)
        check_text(cache.fingerprint, str(cache.directory), model_dir)
        batches = session.training_batches(run, cache, vocabulary)
        aux = read_aux(run, vocabulary)
        mesh = _build_mesh(run)
    return Job(model_dir, run, start, args.step, StagedBatches(run.stages, batches), aux, mesh), record


def _choose_checkpoint(model_dir: Path, step: int, checkpoint: int | None, run: Run) -> int:
    """Return the checkpoint to start from; raises UserError if there is none, or it is damaged."""
    directory = selection.existing(model_dir)
    if checkpoint is not None and checkpoint >= step:
        raise UserError(f"--checkpoint={checkpoint} is not before --step={step}: give an earlier one")
    if checkpoint is None:
        checkpoint = selection.choose(model_dir, before=step)
    if checkpoint is None:
        steps = selection.steps(directory)
        fix = f"it has {', '.join(map(str, steps))}" if steps else "it has none"
        if steps and steps[0] < run.total_steps:
            fix += f": give a --step greater than {steps[0]}"
        elif steps:
            fix += ", after the last update: a run with a larger Run.keep_checkpoints can be replayed"
        raise UserError(f"{directory} has no checkpoint before --step={step}; {fix}")
    selection.find(model_dir, checkpoint, ())
    if not has_training_state(model_dir, checkpoint):
        raise UserError(f"{directory / str(checkpoint)} holds an imported model, no training state: give a run")
    return checkpoint


def _read_record(model_dir: Path, start: int, last: int) -> Record:
    """Read the lines of metrics.jsonl for the steps up to `last`."""
    logged, digests = (
        {step: line for step, line in retention.lines(model_dir, split).items() if step <= last} for split in ("train", DIGEST)
    )
    return Record(logged, {step: line for step, line in digests.items() if step > start})


def _check_rates(run: Run, model_dir: Path, start: int, last: int) -> None:
    """Raise UserError if updates after `start` were made with another schedule, before the run was lengthened."""
    schedule = run.schedule
    rates = {step: line.get("learning_rate") for step, line in retention.lines(model_dir, "train").items() if step > start}
    changed = [step for step, rate in rates.items() if rate is not None and not _is_rate(rate, float(schedule(step - 1)))]
    if changed and min(changed) <= last:
        step, later = min(changed), [step for step in selection.steps(selection.existing(model_dir)) if step >= max(changed)]
        is_later = bool(later) and later[0] < run.total_steps
        fix = f"give a --step greater than {later[0]}" if is_later else "it has no checkpoint from before a later update"
        raise UserError(
            f"the update that led to step {step} had a learning rate of {rates[step]:.6g} and would have "
            f"{float(schedule(step - 1)):.6g} now: the run was extended since; {fix}"
        )


def _is_rate(then: float, now: float) -> bool:
    return math.isclose(now, then, rel_tol=1e-5, abs_tol=1e-12)


def _build_mesh(run: Run) -> jax.sharding.Mesh:
    """Build the run's mesh, or one with data parallelism alone if that does not fit the devices."""
    try:
        return run.mesh.build()
    except UserError as error:
        warn([f"{error}; replaying on all devices, with replicated parameters"])
        return MeshShape().build()


def _replay(job: Job, number: int, checkpoints: Checkpoints, record: Record, report: Report) -> Replayed:
    """Replay the updates on one arrangement of the devices."""
    arrangement = rotated(job.mesh, number)
    report(f"arrangement {number + 1}: {', '.join(map(str, arrangement.devices.flat))}")
    trainer = Trainer(job.run, arrangement)
    group = single_group_run(job.run, arrangement) if number == 0 else None
    state = trainer.with_aux(trainer.restored(checkpoints, job.start), job.aux)
    alone = Trainer(group, arrangement) if group else None
    return replay(trainer, state, job.source, job.last, record.digests, alone, _Progress(job.start, job.last, report))


def _print_json(job: Job, replayed: list[Replayed], comparison: Mismatches) -> None:
    line = replayed[0].digests[job.last].line()
    result = {"step": job.last, "checkpoint": job.start, "arrangements": [one.devices for one in replayed], **line}
    print(json.dumps(result | vars(comparison)))


class _Progress:
    """Progress report, every few seconds."""

    def __init__(self, start: int, last: int, report: Report) -> None:
        self._start, self._last, self._report = start, last, report
        self._began = self._reported = time.monotonic()

    def __call__(self, step: int) -> None:
        now = time.monotonic()
        if now - self._reported >= _PROGRESS_SECONDS and step < self._last:
            left = (now - self._began) / (step - self._start) * (self._last - step)
            self._report(f"update {step:,} of {self._last:,}, {duration(left)} left")
            self._reported = now

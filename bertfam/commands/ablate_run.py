"""Body of `bertfam ablate`: plans a study, trains and scores its runs, and writes the report."""

import argparse
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertfam.commands import flags
from bertfam.commands.table import call
from bertfam.config import Config, Override, load
from bertfam.config.paths import shipped
from bertfam.data.token_cache.build_process import open_token_cache
from bertfam.errors import TrainingError, TransientError, UserError, report
from bertfam.plurals import plural
from bertfam.storage.faults import cannot_write
from bertfam.storage.files import check_writable, write_text
from bertfam.storage.paths import to_path
from bertfam.studies.arms import open_arms
from bertfam.studies.children import STOPPED, run_children, shares
from bertfam.studies.page import page
from bertfam.studies.report import make_report
from bertfam.studies.runs import DIVERGED, RunFolder, read_runs, write_runs
from bertfam.studies.study import Study
from bertfam.studies.study_plan import StudyPlan
from bertfam.studies.tables import markdown, summary_lines
from bertfam.subprocesses import command
from bertfam.training.run_plan import duration

_STUDY, _RUNS = "study.gin", "runs.json"
_FAILED = 1


def run(args: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Run a study; return the exit status.

    Args:
      args: the flags.
      environment: environment of the processes that train.
    """
    root = Path(args.output)
    if not os.path.isfile(shipped(args.study)):
        raise UserError(f"there is no study {args.study}, here or among those shipped with bertfam (bertfam configs studies)")
    config = load([args.study], args.gin_bindings, args.module_import)
    study: Study = config.build("Study")
    arms = open_arms(study, config, lambda files, lines: _load_arm(args, files, lines), root / "caches")
    plan = StudyPlan(study, arms, root, args.flops_per_second)
    print(f"study {args.study}: {study.question or 'no question'}", *plan.lines(), sep="\n", flush=True)
    if args.dry_run:
        return 0
    runs = Runs(args, plan, environment)
    runs.check()
    check_writable(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(root, error, "name another --output") from error
    for arm in arms:
        open_token_cache(arm.config, arm.run.data, to_path(str(arm.run.data.cache_dir)), flags.named_text(args, arm.run.data))
    write_text(root / _STUDY, config.text())
    if args.prepare:
        return runs.prepare_array()
    status = runs.run()
    if status:
        return status
    result = make_report(plan, args.study)
    write_text(root / "report.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    write_text(root / "report.md", markdown(result))
    write_text(root / "report.html", page(result))
    print(*summary_lines(result), f"wrote {root / 'report.html'}, report.md and report.json", sep="\n")
    return _FAILED if result["missing"] else 0


def _load_arm(args: argparse.Namespace, files: Sequence[str], lines: Sequence[Override]) -> Config:
    """Load the configuration of an arm over the text that the flags name."""
    own = argparse.Namespace(**vars(args) | {"gin_file": list(files), "gin_bindings": [], "model_dir": None})
    return flags.load_config(own, bindings=lines)


def run_one(args: argparse.Namespace) -> int:
    """Train and score one of the runs that `bertfam ablate` has written; return the exit status."""
    root = Path(args.output)
    runs = read_runs(root / _RUNS)
    if not 0 <= args.run < len(runs):
        raise UserError(f"--run={args.run}: {root / _RUNS} has {plural(len(runs), 'run')}, from 0 to {len(runs) - 1}")
    path = str(root / _STUDY)
    study: Study = load([path], module_imports=args.module_import, saved=[path]).build("Study")
    return RunFolder(root, runs[args.run]).execute(study.scores, args.module_import, call)


class Runs:
    """Runs of a study, phase by phase."""

    def __init__(self, args: argparse.Namespace, plan: StudyPlan, environment: Mapping[str, str]) -> None:
        self._args, self._plan, self._environment = args, plan, environment
        self._started, self._flops, self._ended, self._total = time.monotonic(), 0, 0, 0

    def check(self) -> None:
        """Raise UserError if the folder has runs of another study, or there are fewer devices than runs at once."""
        if self._args.parallel:
            shares(self._args.parallel, self._environment)
        for run in self._plan.phase():
            self._plan.folder(run).check()

    def run(self) -> int:
        """Run every phase; return 0, or the exit status of a study that was stopped or cannot go on."""
        while True:
            folders = self._write_phase()
            kinds = {folder.run.kind for folder in folders}
            if status := self._run_phase(folders):
                return status
            if kinds <= {"seed"}:
                return 0
            if missing := [folder for folder in folders if folder.training is None]:
                raise UserError(f"{missing[0].log}: {missing[0].run.title} has failed, without which the study cannot go on")

    def prepare_array(self) -> int:
        """Write the runs of the first phase that is not finished, and print how to start them as an array job."""
        count = len(self._write_phase())
        words = ["bertfam", "ablate", f"--output={self._args.output}", *self._modules]
        if not count:
            print("no run is left to start: leave --prepare out for the report")
            return 0
        where = Path(self._args.output) / _RUNS
        print(f"wrote {plural(count, 'run')} to {where}; start them as an array job, and give this command again once it ends:")
        for launcher in (
            "slurm.py study --gpus_per_node=1",
            "gke.py create study --slice=SLICE --image=IMAGE --claim=NAME:/PATH",
        ):
            print(f"  launch/{launcher} --array={count} -- {shlex.join(words)}")
        return 0

    @property
    def _modules(self) -> list[str]:
        return [f"--module_import={module}" for module in self._args.module_import]

    def _write_phase(self) -> list[RunFolder]:
        """Write the runs of the first phase that is not finished, and return those of them that are not."""
        every = [self._plan.folder(run) for run in self._plan.phase()]
        folders = [folder for folder in every if not folder.is_finished(self._plan.study.scores)]
        for folder in folders:
            folder.check()
            folder.prepare()
        write_runs(self._plan.root / _RUNS, [folder.run for folder in folders])
        self._total = len(folders)
        return folders

    def _run_phase(self, folders: Sequence[RunFolder]) -> int:
        """Train and score the runs; return 0, or the exit status of those that were stopped."""
        self._started, self._flops, self._ended = time.monotonic(), sum(folder.run.flops for folder in folders), 0
        if self._args.parallel:
            words = ["ablate", f"--output={self._args.output}", *self._modules]
            return run_children(
                folders,
                lambda place: command("bertfam", *words, f"--run={place}"),
                self._args.parallel,
                self._environment,
                self._done,
            )
        for folder in folders:
            began = time.monotonic()
            try:
                status = folder.execute(self._plan.study.scores, self._args.module_import, call)
            except (UserError, TrainingError, TransientError) as error:
                status = report(error)
            self._done(folder, status, time.monotonic() - began)
            if status == STOPPED:
                return status
        return 0

    def _done(self, folder: RunFolder, status: int, seconds: float) -> None:
        """Print the line of a run that has ended."""
        self._ended += 1
        result = folder.training
        if status:
            words = f"exited with {status}; see {folder.log}"
        elif result is None or result.settings["status"] == DIVERGED:
            words = f"diverged: {result.settings['message'] if result else ''}"
        elif folder.run.kind == "seed":
            found = [folder.score(score) for score in self._plan.study.scores]
            words = "  ".join(f"{name} {value:.4f}" for one in found if one for name, value in list(one.scores.items())[:3])
        else:
            words = "  ".join(
                f"{name} {value:.4g}" for name, value in result.scores.items() if name in ("loss", "seconds_of_updates")
            )
        spent = time.monotonic() - self._started
        left = f"; about {duration(spent / self._ended * (self._total - self._ended))} left" if self._ended < self._total else ""
        print(f"[{self._ended:,} of {self._total:,}] {folder.run.title}: {words}  ({duration(seconds)}){left}", flush=True)

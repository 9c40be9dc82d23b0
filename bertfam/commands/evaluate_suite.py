"""`bertfam evaluate --suite`: models side by side on the tasks of a benchmark, with a report."""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from bertfam.commands import finetune, flags
from bertfam.config import Override
from bertfam.errors import UserError, warn
from bertfam.evaluation.suites.minimal_pair_suite import MinimalPairSuite
from bertfam.evaluation.suites.page import page
from bertfam.evaluation.suites.report import make_report, markdown, undefined_scores
from bertfam.evaluation.suites.results import Result, TaskFolder
from bertfam.evaluation.suites.suite import Model, Suite, SuiteRuns, SuiteTask
from bertfam.evaluation.suites.tables import rows
from bertfam.finetuning.benchmarks import registry
from bertfam.finetuning.benchmarks.scoring import score_task
from bertfam.finetuning.benchmarks.task import BenchmarkTask
from bertfam.finetuning.predictor import open_predictor
from bertfam.finetuning.survey import survey
from bertfam.interop.folders import check_is_model, is_huggingface
from bertfam.plurals import listed, plural
from bertfam.storage.files import NamedFile, check_writable, write_text
from bertfam.storage.json_values import json_value
from bertfam.storage.paths import identity, to_path
from bertfam.suggest import did_you_mean
from bertfam.training.checkpoints import selection
from bertfam.training.jax_setup import shared_programs
from bertfam.training.logs.metrics_file import check_extendable

PAIRS = "blimp"
TRAINING = ("epochs", "learning_rate", "batch_size", "length")  # flags that are those of `bertfam finetune`


def main(args: argparse.Namespace) -> int:
    """Measure the models and write the report; return the exit status."""
    flags.prepare_model(args)
    folder = Path(args.output)
    if args.suite == PAIRS:
        suite: Suite = MinimalPairSuite(args.data_dir, args.limit, partial(_chosen, args))
    else:
        suite = FineTuningSuite(args)
    models = _models(args)
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    runs = SuiteRuns(suite, models, args.seeds or [0], folder)
    print("\n".join(runs.plan()), flush=True)
    print(f"the report is written to {folder}, and the result and log of each run to {folder / 'runs'}", flush=True)
    warn(note for task in suite.tasks for note in task.notes)
    with shared_programs():
        status = runs.run(partial(print, end="", flush=True), partial(_write, runs, folder))
    if status:
        return status
    _write(runs, folder)
    print("\n".join(_aligned(rows(make_report(runs)))))
    warn(note for task in suite.tasks for note in undefined_scores(runs, task))
    print(f"wrote {folder / 'report.html'}, report.md and report.json")
    return 0


def _models(args: argparse.Namespace) -> list[Model]:
    """Return the models of --model_dir, each with a label of its own, and that of --random_init."""
    models, given = list[Model](), dict[str, str]()
    for folder in args.model_dir:
        check_is_model(folder)
        if (path := identity(folder)) in given:
            spelling = "" if given[path] == folder else f", as {given[path]} too"
            raise UserError(f"--model_dir={folder} is given twice{spelling}; leave one out")
        given[path] = folder
        name = os.path.basename(os.path.normpath(folder))
        # Runs are often all named "model".
        label = name if sum(os.path.basename(os.path.normpath(one)) == name for one in args.model_dir) == 1 else folder
        step = None if is_huggingface(folder) else selection.find(folder, None, ("params",))
        models.append(Model(label, str(to_path(folder).absolute()), step))
    if args.random_init:
        models.append(Model("random initialisation", models[0].folder, models[0].step, is_random=True))
    return models


class FineTuningSuite(Suite):
    """Tasks on which each model is fine-tuned; a run is that of `bertfam finetune --task_name`."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Find the files of the tasks and read them.

        Raises:
          UserError: There is no such suite or task, files are missing (all are named), or one has a mistake.
        """
        self._args, self.name = args, args.suite
        if args.suite not in registry.suites():
            raise UserError(f"--suite={args.suite} is not one of {', '.join([*registry.suites(), PAIRS])}")
        tasks = {task.name.partition("/")[2]: task for task in registry.of_suite(args.suite)}
        chosen = [tasks[name] for name in _chosen(args, list(tasks))]
        missing = [f"{task.name} ({lacking})" for task in chosen if (lacking := task.missing(args.data_dir))]
        if missing:
            raise UserError(f"--data_dir={args.data_dir} lacks files of {', '.join(missing)}; choose others with --tasks")
        self._tasks = {task.name: task for task in chosen}
        self.settings = {name: getattr(args, name) for name in TRAINING} | {"gin": list(args.gin_bindings)}
        self.tasks = [self._task(task) for task in chosen]

    def _task(self, task: BenchmarkTask) -> SuiteTask:
        files = task.locate(self._args.data_dir)
        contents = survey(files.corpus)
        held_out = sum(1 for _ in contents.corpus.texts("validation"))
        words = f"{plural(contents.texts, 'text')} to train on, {held_out:,} held out"
        source = {"files": contents.corpus.fingerprint(), "further": sorted(files.further)}
        return SuiteTask(task.name, task.metrics, contents.texts, words, files.warnings, source)

    @override
    def measure(self, task: SuiteTask, model: Model, seed: int, folder: TaskFolder) -> Result | int:
        model_dir = folder.path / f"seed_{seed}"
        log_path = folder.path / f"seed_{seed}.log"
        check_extendable(log_path)
        try:
            with io.TextIOWrapper(io.BufferedWriter(NamedFile(log_path, "a")), encoding="utf-8") as log:
                with redirect_stdout(log), redirect_stderr(log):
                    status = finetune.main(self._run(task, model, seed, model_dir, folder.path / "cache"))
            if status:
                return status
            scored = score_task(open_predictor(model_dir), self._tasks[task.name].locate(self._args.data_dir))
        except UserError as error:
            raise UserError(f"{task.name} by {model.label}: {error}") from error
        result = Result(scored.scores, tuple(scored.outcomes.tolist()), _settings(model_dir))
        if not self._args.keep_models:
            shutil.rmtree(model_dir)
        return result

    def _run(self, task: SuiteTask, model: Model, seed: int, model_dir: Path, cache_dir: Path) -> argparse.Namespace:
        """Return the flags of `bertfam finetune` for a run."""
        parser = argparse.ArgumentParser()
        finetune.add_arguments(parser)
        args = parser.parse_args(
            [
                f"--init_from={model.folder}",
                f"--task_name={task.name}",
                f"--data_dir={self._args.data_dir}",
                f"--model_dir={model_dir}",
                "--num_processes=1",
                *(["--init_parts=none"] if model.is_random else []),
                *(f"--{name}={value}" for name in TRAINING if (value := getattr(self._args, name)) is not None),
            ]
        )
        args.module_import, args.cache_dir = self._args.module_import, str(cache_dir)
        args.gin_bindings = [*self._args.gin_bindings, Override(f"SEED = {seed}", f"--seeds={seed}")]
        return args


def _settings(model_dir: Path) -> dict[str, Any]:
    """Return the settings of a run by name."""
    from bertfam.training.model_dir import read_run

    run = read_run(model_dir)
    stage, schedule = run.stages[-1], run.optimizer.schedule
    found = {"updates": run.total_steps, "batch size": stage.batch_size, "length": stage.length}
    peak = getattr(schedule, "peak", None)
    return found | ({} if peak is None else {"learning rate": peak}) | {"optimizer": type(run.optimizer).__name__}


def _chosen(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the tasks of a suite that --tasks, names or patterns with commas between, names; without it all.

    Raises:
      UserError: A name or pattern is that of no task.
    """
    if args.tasks is None:
        return list(names)
    patterns = [pattern.strip().removeprefix(f"{args.suite}/") for pattern in args.tasks.split(",")]
    matches = [fnmatch.filter(names, pattern) for pattern in patterns]
    if none := [pattern for pattern, found in zip(patterns, matches, strict=True) if not found]:
        known = f"its tasks are {listed(names, 20)}"
        hint = did_you_mean(none[0], names, known) if len(none) == 1 else f"; {known}"
        raise UserError(f"--tasks={args.tasks}: {args.suite} has no task {' and no '.join(none)}{hint}")
    return [name for name in names if any(name in found for found in matches)]


def _write(runs: SuiteRuns, folder: Path) -> None:
    """Write the report of all runs so far."""
    report = make_report(runs)
    write_text(folder / "report.json", json.dumps(json_value(report), indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "report.md", markdown(report))
    write_text(folder / "report.html", page(report))


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]

"""Evaluation suites: tasks on which models are measured side by side, with several seeds."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.evaluation.suites.results import Result, TaskFolder
from bertfam.evaluation.suites.tables import number
from bertfam.plurals import plural
from bertfam.training.run_plan import duration


@dataclass(frozen=True)
class Model:
    """Model to measure.

    Attributes:
      label: Its name in the report.
      folder: MODEL_DIR or Hugging Face folder.
      step: Step of its checkpoint; None for a Hugging Face folder.
      is_random: True for new parameters in its network.
    """

    label: str
    folder: str
    step: int | None
    is_random: bool = False

    @property
    def description(self) -> str:
        """Its folder and step, in words."""
        start = "new parameters in the network of " if self.is_random else ""
        return f"{start}{self.folder}" + ("" if self.step is None else f", step {self.step:,}")


@dataclass(frozen=True)
class SuiteTask:
    """Task of a suite.

    Attributes:
      name: Its name.
      metrics: Names of its scores, the most important first.
      work: Amount of work of a run, in a unit that all tasks of the suite share.
      description: Its texts, in words.
      notes: Remarks for the report.
      source: Everything that determines its texts, as JSON.
    """

    name: str
    metrics: Sequence[str]
    work: int
    description: str
    notes: Sequence[str]
    source: Mapping[str, Any]


class Suite(ABC):
    """Base class of suites.

    Attributes:
      name: Its name.
      tasks: Its tasks.
      settings: Settings of all runs, as JSON.
    """

    name: str
    tasks: Sequence[SuiteTask]
    settings: Mapping[str, Any]

    @abstractmethod
    def measure(self, task: SuiteTask, model: Model, seed: int, folder: TaskFolder) -> Result | int:
        """Measure a model on a task; return the scores, or the exit status of a run that was stopped.

        Args:
          task: A task of the suite.
          model: The model.
          seed: The seed of training.
          folder: The folder of the model's results on the task, for files that a run keeps until it is finished.
        """


@dataclass
class SuiteRuns:
    """All runs of a suite: each task by each model with each seed. Results of earlier commands are kept.

    Attributes:
      suite: The suite.
      models: The models.
      seeds: The seeds.
      root: The folder of the results.
      results: The results so far by task, label of the model and seed.
    """

    suite: Suite
    models: Sequence[Model]
    seeds: Sequence[int]
    root: Path

    def __post_init__(self) -> None:
        self.results: dict[tuple[str, str, int], Result] = {}
        for task, model, seed in self._all():
            if result := self._folder(task, model).read(seed):
                self._add(task, model, seed, result)

    def plan(self) -> list[str]:
        """Return the lines of the plan."""
        counts = [plural(len(self.suite.tasks), "task"), plural(len(self.models), "model"), plural(len(self.seeds), "seed")]
        total = len(list(self._all()))
        finished = f", of which {len(self.results):,} finished" if self.results else ""
        width = max(len(name) for name in [task.name for task in self.suite.tasks] + [model.label for model in self.models])
        return [
            f"suite {self.suite.name}: {' x '.join(counts)} = {plural(total, 'run')}{finished}",
            *(f"  {task.name:{width}}  {task.description}" for task in self.suite.tasks),
            *(f"  {model.label:{width}}  {model.description}" for model in self.models),
        ]

    def run(self, show: Callable[[str], None], save: Callable[[], None]) -> int:
        """Measure what is not measured yet; return 0, or the status of a run that was stopped.

        Args:
          show: Called with the begin and the end of each line about a run.
          save: Called after each run, for the report of the results so far.
        """
        remaining = [one for one in self._all() if (one[0].name, one[1].label, one[2]) not in self.results]
        total, left = len(list(self._all())), sum(task.work for task, _, _ in remaining)
        started, work = time.monotonic(), 0
        for task, model, seed in remaining:
            folder, begin = self._folder(task, model), time.monotonic()
            show(f"[{len(self.results) + 1:,} of {total:,}] {task.name}, {model.label}, seed {seed}: ")
            folder.begin()
            result = self.suite.measure(task, model, seed, folder)
            if isinstance(result, int):
                show("stopped; the same command resumes\n")
                return result
            folder.write(seed, result)
            if all(folder.read(one) for one in self.seeds):
                folder.tidy()
            self._add(task, model, seed, result)
            save()
            work, left, end = work + task.work, left - task.work, time.monotonic()
            scores = "  ".join(f"{name} {number(value)}" for name, value in result.scores.items())
            rest = f"; about {duration((end - started) / max(work, 1) * left)} left" if left else ""
            show(f"{scores}  ({duration(end - begin)}){rest}\n")
        return 0

    def of(self, task: str, model: str) -> dict[int, Result]:
        """Return the results so far of a task and the label of a model, by seed."""
        return {seed: result for (name, label, seed), result in self.results.items() if (name, label) == (task, model)}

    def _add(self, task: SuiteTask, model: Model, seed: int, result: Result) -> None:
        """Keep a result; raise UserError if the task's others are of other scores or texts, since all are compared."""
        for (name, label, other_seed), other in self.results.items():
            if name == task.name and (other.scores.keys(), len(other.outcomes)) != (result.scores.keys(), len(result.outcomes)):
                raise UserError(
                    f"{self._folder(task, model).path}: the result of seed {seed} has other scores or another number of texts "
                    f"than that of {label} with seed {other_seed}, so one of them was changed: delete both"
                )
        self.results[task.name, model.label, seed] = result

    def _all(self) -> Iterator[tuple[SuiteTask, Model, int]]:
        return ((task, model, seed) for model in self.models for task in self.suite.tasks for seed in self.seeds)

    def _folder(self, task: SuiteTask, model: Model) -> TaskFolder:
        of_model = {"model": model.folder, "step": model.step, "is_random": model.is_random}
        source = {**of_model, "task": dict(task.source), "settings": dict(self.suite.settings)}
        return TaskFolder(self.root / "runs" / file_name(model.label) / file_name(task.name), source)


def file_name(name: str) -> str:
    """Return a name of a folder for a label: its letters, digits, dots, dashes and underscores."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name).lstrip(".") or "_"

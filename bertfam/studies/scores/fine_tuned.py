"""Scores of a model that is fine-tuned on the tasks of a benchmark."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.evaluation.suites.results import Result
from bertfam.finetuning.benchmarks import registry
from bertfam.storage.untrusted import read_json
from bertfam.studies.scores.score import Score, Trained
from bertfam.training.run import Run


@dataclass(frozen=True)
class FineTuned(Score):
    """Scores on the tasks of a benchmark, as by `bertfam evaluate --suite`: "cola/mcc", ..., and their mean, "glue".

    Attributes:
      data_dir: folder of the benchmark's files.
      suite: name of the suite.
      tasks: names of the tasks; (): all.
      seeds: seeds of fine-tuning, of which scores are the mean.
      epochs: times that each text is used.
      learning_rate: highest learning rate.
    """

    data_dir: str
    suite: str = "glue"
    tasks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    epochs: float = 3.0
    learning_rate: float = 2e-5

    name: ClassVar[str] = "fine_tuned"

    def __post_init__(self) -> None:
        for name in ("epochs", "learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0")
        if not self.seeds:
            raise ValueError("seeds is empty; fine-tuning needs one")

    @override
    def check(self, arm: str, run: Run) -> None:
        tasks = {task.name.partition("/")[2]: task for task in registry.of_suite(self.suite)}
        for name in self.tasks or tasks:
            if name not in tasks:
                raise UserError(f"FineTuned.tasks: {self.suite} has no task {name!r}; it has {', '.join(tasks) or 'none'}")
            if lacking := tasks[name].missing(self.data_dir):
                raise UserError(f"FineTuned.data_dir={self.data_dir} lacks files of {self.suite}/{name} ({lacking})")

    @override
    def measure(self, trained: Trained) -> Result | int:
        output = trained.folder / "report"
        flags = {
            "suite": self.suite,
            "data_dir": self.data_dir,
            "model_dir": trained.model_dir,
            "output": output,
            "seeds": ",".join(map(str, self.seeds)),
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            **({"tasks": ",".join(self.tasks)} if self.tasks else {}),
        }
        if status := trained.command("evaluate", [f"--{name}={value}" for name, value in flags.items()]):
            return status
        return Result(_scores(output / "report.json", self.suite), (), {"seeds": list(self.seeds)})


def _scores(path: Path, suite: str) -> dict[str, float]:
    """Read the mean over tasks and the scores of each task from the report of one model."""
    report: dict[str, Any] = read_json(path)
    (mean,) = report["mean"].values()
    scores = {suite: mean}
    for name, task in report["tasks"].items():
        for metric, score in itertools.chain.from_iterable(own.items() for own in task["scores"].values()):
            scores[f"{name.partition('/')[2]}/{metric}"] = score["mean"]
    return scores

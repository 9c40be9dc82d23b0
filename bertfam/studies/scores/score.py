"""Interface of the scores that a study gives every trained model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bertfam.data.text_data import TextData
from bertfam.evaluation.suites.results import Result
from bertfam.training.checkpoints import retention
from bertfam.training.run import Run

# Runs a command of bertfam, by its name and flags, in this process; returns its exit status.
Command = Callable[[str, Sequence[str]], int]


@dataclass(frozen=True)
class Trained:
    """Trained model to score.

    Attributes:
      model_dir: its folder.
      run: its run.
      folder: a folder for files that the score keeps.
      command: function that runs a command of bertfam.
    """

    model_dir: Path
    run: Run
    folder: Path
    command: Command

    @property
    def data(self) -> TextData:
        """The text of the run."""
        return self.run.data


class Score(ABC):
    """Base class of scores, which are frozen dataclasses.

    Attributes:
      name: name of the score in the folders of a study.
      metrics: names of its values, the most important first; () if they are known only once a model is measured.
      compares_vocabularies: True if models with different vocabularies can be compared by it.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    compares_vocabularies: ClassVar[bool] = True

    def check(self, arm: str, run: Run) -> None:  # noqa: B027  (most scores refuse no model)
        """Raise UserError, before anything is trained, if the model of an arm cannot have the score.

        Args:
          arm: name of the arm.
          run: its sized run.
        """

    @abstractmethod
    def measure(self, trained: Trained) -> Result | int:
        """Measure a model; return its scores, or the exit status of a command that was stopped.

        The outcomes of the result are values of single texts whose mean is the first of `metrics`, for a paired bootstrap: the
        same texts in the same order for all models; () if there are none.

        Raises:
          UserError: if it cannot be measured.
        """


def is_lower_better(metric: str) -> bool:
    """Return True if a lower value of a metric is better."""
    return retention.is_loss(metric) or metric.endswith("bits_per_byte")

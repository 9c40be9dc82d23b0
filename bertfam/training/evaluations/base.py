"""Base class of the evaluations that a run makes on its own model between updates."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

# Texts, or pairs of texts -> float32[texts, embed], the mean over tokens of the encoder's last hidden states.
Features = Callable[[Sequence[Sequence[str]]], np.ndarray]


class Evaluation(ABC):
    """Evaluation on a task of one's own; a subclass is a frozen dataclass that gin binds to `Run.evaluations`.

    It must be deterministic, since a resumed run makes it again. All processes call both methods, and process 0 writes what
    `measure` returns.

    Attributes:
      name: Name before those of its metrics, NAME/METRIC.
      every: Updates between two evaluations; the last update is always followed by one.
    """

    name: str
    every: int

    @abstractmethod
    def read(self) -> Any:
        """Read what is evaluated, once, before anything is trained or written; raise UserError for mistakes."""

    @abstractmethod
    def measure(self, content: Any, features: Features) -> Mapping[str, float]:
        """Return the metrics of the present model by name.

        Args:
          content: The result of `read`.
          features: Computes features of texts; all processes must call it with the same texts.
        """

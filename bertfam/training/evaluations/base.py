"""Base class of the evaluations that a run makes on its own model between updates."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bertfam.data.vocabularies import Vocabulary


class Encoder(Protocol):
    """Encoder of the run.

    Attributes:
      vocabulary: The vocabulary, with control tokens around a text.
      length: Tokens at which texts are cut.
      batch_size: Rows that are computed at a time.
      shape: Layers + 1, and the embedding dimension.
    """

    vocabulary: Vocabulary
    length: int
    batch_size: int
    shape: tuple[int, int]


class Features(Protocol):
    """Features by the present model; all processes must ask for those of the same texts."""

    @property
    def encoder(self) -> Encoder:
        """Encoder that computes them."""

    def __call__(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the mean over tokens of the last hidden states of texts, or of pairs of texts: float32[texts, embed]."""

    def hidden_states(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the hidden states of the embeddings and of all layers: float32[rows, length, layers + 1, embed].

        Args:
          rows: `encoder_input_tokens`, `encoder_segment_ids` and `encoder_token_type_ids`, int32[rows, length] of at most
            `batch_size` rows, with padding up to `length`.
        """


class Evaluation(ABC):
    """Evaluation on a task of one's own; a subclass is a frozen dataclass that gin binds to `Run.evaluations`.

    It must be deterministic, since a resumed run makes it again. All processes call its methods, and process 0 writes what
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

    def prepare(self, content: Any, encoder: Encoder) -> Any:
        """Return the content for the vocabulary and the sizes of the encoder, once; raise UserError if they do not fit."""
        return content

    @abstractmethod
    def measure(self, content: Any, features: Features) -> Mapping[str, float]:
        """Return the metrics of the present model by name.

        Args:
          content: The result of `prepare`, by default that of `read`.
          features: Computes features of texts; all processes must call it with the same texts.
        """

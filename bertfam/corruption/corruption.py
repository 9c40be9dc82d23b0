"""Base classes of noise, and the form of the clean rows that a noise requires."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape, Start


class Corruption(ABC):
    """Base class of noise: a pure function of rows and keys."""

    @abstractmethod
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Return finished rows of clean ones [n, ...]; a pure function of its arguments.

        Args:
          rows: the clean rows.
          row_keys: uint64[n], one a row.
          tokens: the vocabulary's ids.
        """


@dataclass(frozen=True)
class RowForm:
    """Form of clean rows of running text.

    Attributes:
      framed: [CLS] and [SEP] stand around a row, where the vocabulary has them; else it is bare text.
      continued: rows have `next_tokens` int32[n, length] too, the token that follows each. The text is seen as one line, an
        end-of-text token before the first document and one behind each, and each token of the line but the first is the next
        token of exactly one place.
      sentences: rows have `sentence_begins` bool[n, length], where sentences begin.
    """

    framed: bool = True
    continued: bool = False
    sentences: bool = False


FRAMED = RowForm()


class TextCorruption(Corruption):
    """Base class of the noise of a run: it makes finished rows of clean ones; a subclass is a frozen dataclass.

    A row of `length` is made of a clean row of `raw_length(length)` tokens and has `target_length(length)` places for the
    decoder, 0 where there is none.

    Attributes:
      form: what the clean rows must be like.
      packs: True if clean rows may hold several examples.
      reads_text: True if it makes rows of running text; False if a run with it is for pairs of inputs and targets alone.
    """

    form: ClassVar[RowForm] = FRAMED
    packs: ClassVar[bool] = True
    reads_text: ClassVar[bool] = True

    @property
    def needs_units(self) -> bool:
        """True if it reads marks of phrases and entities."""
        return False

    @property
    def decoder_start(self) -> Start | None:
        """The token that the decoder reads first; None where rows have no encoder, or no decoder."""
        return None

    def check(self, length: int, tokens: TokenIds) -> None:
        """Raise UserError where the vocabulary lacks tokens that rows of `length` may need, or where rows are too short."""
        self.raw_length(length)

    def raw_length(self, length: int) -> int:
        """Return the tokens of the clean text that makes a row of `length`."""
        return length

    def input_length(self, length: int) -> int:
        """Return the places of the encoder in a row of `length`: all, unless the noise cannot fill them."""
        return length

    def target_length(self, length: int) -> int:
        """Return the places of the decoder in a row of `length`."""
        return 0

    def predictions(self, length: int) -> int:
        """Return the prediction slots of the encoder in a row of `length`."""
        return 0

    @abstractmethod
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features of finished rows, without the labels of sentence pairs."""

    def fit(self, counts: Callable[[], np.ndarray]) -> Corruption:
        """Return the noise for a text in which each token of the vocabulary occurs `counts()` int64[vocabulary] times."""
        return self

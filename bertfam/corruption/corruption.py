"""Base classes of noise, and the form of the clean rows that noise requires."""

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
        """Return finished rows, [n, ...] each; a pure function of its arguments.

        Args:
          rows: Clean rows, [n, ...] each.
          row_keys: uint64[n], one per row.
          tokens: Ids of the vocabulary.
        """


@dataclass(frozen=True)
class RowForm:
    """Form of clean rows of running text.

    Attributes:
      framed: True if a row is enclosed in [CLS] and [SEP], where the vocabulary has them; False for bare text.
      continued: True if rows also have `next_tokens` int32[n, length], the token that follows each. The text is treated as one
        sequence, with an end-of-text token before the first document and one after each document. Every token of the sequence
        but the first is the next token of exactly one position.
      sentences: True if rows also have `sentence_begins` bool[n, length], True where sentences begin.
    """

    framed: bool = True
    continued: bool = False
    sentences: bool = False


FRAMED = RowForm()


class TextCorruption(Corruption):
    """Base class of a run's noise, which turns clean rows into finished ones; a subclass is a frozen dataclass.

    A row of `length` is made from a clean row of `raw_length(length)` tokens and has `target_length(length)` decoder positions,
    0 without a decoder.

    Attributes:
      form: Form of the clean rows.
      packs: True if clean rows may hold several examples.
      reads_text: True if it corrupts running text; False if its runs train on pairs of inputs and targets only.
    """

    form: ClassVar[RowForm] = FRAMED
    packs: ClassVar[bool] = True
    reads_text: ClassVar[bool] = True

    @property
    def needs_units(self) -> bool:
        """True if it reads marks of phrases and entities."""
        return False

    @property
    def labels(self) -> int:
        """Number of labels that a row has, as each document of the text must have; 0 for text without labels."""
        return 0

    @property
    def labelled_unit(self) -> str:
        """Noun of a document with labels, which the plan of a run counts."""
        return "labelled text"

    @property
    def labels_words(self) -> bool:
        """True if the labels are those of each word, and not of each document."""
        return False

    @property
    def decoder_start(self) -> Start | None:
        """The token that the decoder reads first; None where rows have no encoder, or no decoder."""
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Properties of the published noise that may surprise, a line each."""
        return ()

    def check(self, length: int, tokens: TokenIds) -> None:
        """Raise UserError if the vocabulary lacks tokens that rows of `length` may require, or if rows are too short."""
        self.raw_length(length)

    def raw_length(self, length: int) -> int:
        """Return the number of clean tokens from which a row of `length` is made."""
        return length

    def input_length(self, length: int) -> int:
        """Return the number of encoder positions in a row of `length`: all, unless the noise cannot fill them."""
        return length

    def target_length(self, length: int) -> int:
        """Return the number of decoder positions in a row of `length`."""
        return 0

    def predictions(self, length: int) -> int:
        """Return the number of prediction slots in a row of `length`."""
        return 0

    @abstractmethod
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features of finished rows, without the labels of sentence pairs."""

    def fit(self, counts: Callable[[], np.ndarray]) -> Corruption:
        """Return the noise fitted to a text, given a function that counts each token of the vocabulary: int64[vocabulary]."""
        return self

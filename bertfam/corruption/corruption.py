"""What becomes of clean rows of text: noise and targets, and what each kind of it asks of the rows."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape, Start


class Corruption(Protocol):
    """Noise: a pure function of rows and keys."""

    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Rows with their noise and targets."""
        ...


@dataclass(frozen=True)
class RowForm:
    """What clean rows of running text are like.

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


class TextCorruption(ABC):
    """Makes finished rows of clean ones; a frozen dataclass.

    A row of `length` is made of a clean row of `raw_length(length)` tokens and has `target_length(length)` places for the
    decoder, 0 where there is none.

    Attributes:
      form: what the clean rows must be like.
      packs: whether clean rows may hold several examples.
    """

    form: ClassVar[RowForm] = FRAMED
    packs: ClassVar[bool] = True

    @property
    def needs_units(self) -> bool:
        """Whether it reads marks of phrases and entities."""
        return False

    @property
    def decoder_start(self) -> Start | None:
        """Which token the decoder reads first; None where rows have no encoder, or no decoder."""
        return None

    def check(self, length: int, tokens: TokenIds) -> None:
        """Refuses (UserError) a vocabulary that has not what rows of `length` tokens may need, and rows that are too short."""
        self.raw_length(length)

    def raw_length(self, length: int) -> int:
        """Tokens of the clean text that makes a row of `length`."""
        return length

    def input_length(self, length: int) -> int:
        """Places of the encoder in a row of `length`: as many, but of a noise that cannot fill them."""
        return length

    def target_length(self, length: int) -> int:
        """Places of the decoder."""
        return 0

    def predictions(self, length: int) -> int:
        """Prediction slots of the encoder."""
        return 0

    @abstractmethod
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """What finished rows have, labels of sentence pairs aside."""

    def fit(self, counts: Callable[[], np.ndarray]) -> Corruption:
        """The noise for a text, of which `counts()` int64[vocabulary] says how often each token is in it."""
        return self

    @abstractmethod
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Finished rows of clean ones [n, ...], a pure function of its arguments; `row_keys` uint64[n] are of each row."""

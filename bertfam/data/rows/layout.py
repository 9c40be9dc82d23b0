"""Base classes of row layouts, which divide documents into rows."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import numpy as np

from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Examples
from bertfam.data.token_cache.documents import Documents
from bertfam.features import Relation


class RowLayout(ABC):
    """Base class of layouts of running text; a subclass is a frozen dataclass that gin can configure.

    Attributes:
      is_running_text: True if rows are available in every `RowForm`.
      is_packed: True if a row holds several examples.
      is_labelled: True if a row holds the labels of a text, or of each of its words.
      labels_words: True if these are those of each word.
    """

    is_running_text: ClassVar[bool] = False
    is_packed: ClassVar[bool] = False
    is_labelled: ClassVar[bool] = False
    labels_words: ClassVar[bool] = False

    @property
    def least_documents(self) -> int:
        """Minimum number of documents."""
        return 1

    @property
    def relation(self) -> Relation | None:
        """Relation that the labels of sentence pairs describe; None if rows have no labels."""
        return None

    @property
    def separated(self) -> bool:
        """True if a separator stands between documents."""
        return True

    @property
    def content(self) -> "RowLayout":
        """Layout of the packed rows; the layout itself if it does not pack."""
        return self

    def most_examples(self, length: int) -> int:
        """Return the largest number of examples in a row of `length` tokens."""
        return 1

    def check_length(self, length: int) -> None:
        """Raise UserError if rows of `length` tokens are too short."""
        return

    @abstractmethod
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> Examples:
        """Plan the rows of `length` tokens.

        Args:
          documents: The text.
          length: Tokens of a row.
          seed: Seed of the plan.
          tokens: Ids of the vocabulary.
          form: Form of the rows, `FRAMED` unless `is_running_text`.
        """


class PackableExamples(Examples, Protocol):
    """Examples whose lengths do not depend on random draws."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row: int64[rows]."""
        ...

    def divided(self, share: float, key: int) -> "PackableExamples":
        """Return the examples with a share of them, drawn from the key, in pieces; the same object if they have no pieces."""
        ...


class PackableRows(RowLayout):
    """Base class of rows that `Packed` can pack."""

    @abstractmethod
    def packable_examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> PackableExamples:
        """Plan the rows as `examples` does, with lengths that do not depend on random draws."""


class SeveralExamples(ABC):
    """Base class of rows that may hold several examples."""

    @property
    @abstractmethod
    def example_sizes(self) -> np.ndarray | None:
        """Tokens of each example in the encoder and in the decoder, or in the only network: int64[examples, 2].

        None if each row holds one example.
        """

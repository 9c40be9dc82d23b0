"""Base classes of row layouts, which divide documents into rows."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from bertfam.corruption.corruption import FRAMED, RowForm, TextCorruption
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

    @property
    def texts(self) -> int:
        """Largest number of texts of a labelled document."""
        return 2

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


class PairLayout(ABC):
    """Base class of layouts of pairs of inputs and targets; a subclass is a frozen dataclass that gin can configure."""

    @property
    def packed(self) -> bool:
        """True if a row holds several pairs."""
        return False

    @property
    def cut_part(self) -> str:
        """Part of an input that is cut off where it is too long."""
        return "ends"

    @property
    def unpacked(self) -> "PairLayout":
        """The same layout with rows of one pair each."""
        return self

    @property
    def padding_fix(self) -> str:
        """Advice for rows with much padding."""
        return "give shorter rows (Stage.length)"

    def most_examples(self, length: int) -> int:
        """Return the largest number of pairs in a row of `length` tokens."""
        return 1

    @abstractmethod
    def check(self, noise: TextCorruption, name: str) -> None:
        """Raise UserError, with the name of the text, if the rows of a run with this noise are not those of the layout."""

    @abstractmethod
    def target_length(self, noise: TextCorruption, length: int) -> int:
        """Return the largest number of target tokens, control tokens included, in a row of `length`."""

    @abstractmethod
    def plan(self, documents: Documents, noise: TextCorruption, length: int, seed: int, tokens: TokenIds) -> "PairExamples":
        """Plan the rows of `length` tokens, which have the features that the noise makes.

        Args:
          documents: The pairs.
          noise: The noise of the run, which does not change pairs.
          length: Tokens of a row.
          seed: Seed of the plan.
          tokens: Ids of the vocabulary.
        """

    @abstractmethod
    def prompts(self, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the tokens of each row from which a model predicts the targets: int32[n] each.

        Args:
          rows: Rows of one pair each.
        """


class PairExamples(Examples, Protocol):
    """Rows of pairs."""

    @property
    def cut(self) -> int:
        """Number of pairs whose inputs are cut."""
        ...


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

"""Base classes of the families' configs: sizes, and checks that name the wrong value."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bertfam.errors import UserError
from bertfam.layers.embeddings import padded_rows
from bertfam.models.network import Words

_COUNTS = ("num_layers", "hidden_size", "num_heads", "feed_forward_size", "max_length")


class OffsetPositions:
    """Mixin of configs whose position table begins with `position_offset` rows that are never read."""

    position_offset: int
    max_length: int

    @property
    def position_rows(self) -> int:
        """Rows of the position table, of which the last `max_length` are read."""
        return self.position_offset + self.max_length

    @property
    def padding_id(self) -> int | None:
        """Padding id that `position_offset` belongs to; None without unread rows."""
        return self.position_offset - 1 if self.position_offset else None


@dataclass(frozen=True)
class TableSizes:
    """Rows of a model's word table, and checks that name the wrong value; see the families' configs.

    Attributes:
      objective_file: the gin file of an objective that trains such a model.
      published_vocab_size: tokens of the family's published models, for plans without a vocabulary; None: they differ.
      adopts: configs of the families from whose parameters such a model can start (see `bertfam.models.conversion`).
      copied_modules: modules that those families lack, and those of which they then start as copies.
      without_parameters: fields in which a model may differ from the one that it starts from, since no parameter depends on them.
    """

    objective_file: ClassVar[str]
    published_vocab_size: ClassVar[int | None] = None
    adopts: ClassVar[tuple[type, ...]] = ()
    copied_modules: ClassVar[Mapping[str, str]] = {}
    without_parameters: ClassVar[frozenset[str]] = frozenset()

    vocab_size: int | None = None
    table_rows: int | None = None

    def __post_init__(self) -> None:
        self._check_at_least(vocab_size=1)
        rows = self.vocab_size or 1
        if self.table_rows is not None and not rows <= self.table_rows < 2**31:
            known = " (vocab_size)" if self.vocab_size else ""
            raise self._error("table_rows", f"must be at least {rows}{known} and below 2^31")

    @property
    def padding_id(self) -> int | None:
        """Padding id that `position_offset` belongs to, where transformers counts positions from that id; None: it does not."""
        return None

    @property
    def require_vocab_size(self) -> int:
        """`vocab_size`, which must have been set."""
        if self.vocab_size is None:
            raise ValueError(f"{type(self).__name__}.vocab_size is None: set it to the size of the vocabulary first")
        return self.vocab_size

    @property
    def require_table_rows(self) -> int:
        """`table_rows`, or where it is None, `vocab_size`, which must have been set."""
        return self.table_rows or self.require_vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table in memory: those in files up to a multiple of 128."""
        return padded_rows(self.require_table_rows)

    @property
    def layer_fields(self) -> Mapping[str, tuple[Any, ...]]:
        """Values of the fields that have one for each layer, by name."""
        return {}

    def sized(self, vocabulary_size: int) -> Self:
        """Return the config with its `vocab_size` set; raise UserError where it asks for another size."""
        if self.vocab_size not in (None, vocabulary_size):
            raise UserError(
                f"{type(self).__name__}.vocab_size is {self.vocab_size} and the vocabulary has {vocabulary_size} tokens; "
                "leave vocab_size out, or give the vocabulary that it was meant for"
            )
        return replace(self, vocab_size=vocabulary_size)

    def fitted(self, vocabulary: Words) -> Self:
        """Return the config with its `vocab_size` set, and what else it has of a vocabulary."""
        return self.sized(vocabulary.size)

    def _check_at_least(self, **least: int) -> None:
        """Check whole numbers, or None, against lower bounds."""
        for name, smallest in least.items():
            if getattr(self, name) is not None and not smallest <= getattr(self, name) < 2**31:
                raise self._error(name, f"must be at least {smallest} and below 2^31")

    def _check_rates(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise self._error(name, "must be at least 0 and below 1")

    def _check_above_zero(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise self._error(name, "must be above 0")

    def _check_among(self, **allowed: Collection[Any]) -> None:
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise self._error(name, f"is not one of {', '.join(map(str, values))}")

    def _error(self, name: str, words: str) -> UserError:
        return UserError(f"{type(self).__name__}.{name} = {getattr(self, name)!r} {words}")


@dataclass(frozen=True)
class Sizes(TableSizes):
    """Sizes of a model; see the families' configs.

    Attributes:
      num_layers: number of layers.
      hidden_size: width of the hidden states.
      num_heads: number of attention heads; must divide `hidden_size` if `head_size` is None.
      head_size: width of one attention head; None: hidden_size / num_heads.
      feed_forward_size: width of the feed-forward network's hidden layer.
    """

    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    feed_forward_size: int = 3072
    max_length: int = 512
    head_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(**dict.fromkeys(_COUNTS, 1), head_size=1)
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise self._error("hidden_size", f"is not a multiple of num_heads = {self.num_heads}: change one of them")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def attention_size(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

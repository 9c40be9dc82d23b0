"""Match between the pieces of two vocabularies, for the initial rows of embedding tables."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertfam.data.vocabularies.vocabulary import Vocabulary

# Roles of control tokens, the most specific first: one piece may have several roles.
_ROLES = ("cls", "sep", "mask", "eos", "pad", "unk")


@dataclass(frozen=True)
class Origins:
    """Rows of an old vocabulary whose mean initialises the pieces of a new one; pieces without such rows are left out.

    Attributes:
      size: number of pieces of the new vocabulary.
      pieces: int32[n], ids of the pieces that have old rows.
      kept: bool[n], True for pieces that the old vocabulary has; these have exactly one row.
      rows: int32[sum of counts], rows of the old tables, piece by piece.
      counts: int64[n], number of rows of each piece.
    """

    size: int
    pieces: np.ndarray
    kept: np.ndarray
    rows: np.ndarray
    counts: np.ndarray

    @property
    def known(self) -> int:
        """Number of pieces that both vocabularies have."""
        return int(self.kept.sum())

    @property
    def of_known(self) -> "Origins":
        """Origins of only the pieces that both vocabularies have."""
        rows = self.rows[np.repeat(self.kept, self.counts)]
        return Origins(self.size, self.pieces[self.kept], self.kept[self.kept], rows, self.counts[self.kept])

    def means(self, table: np.ndarray, axis: int) -> np.ndarray:
        """Return the mean old rows of each piece, from a table with old pieces along `axis`; padding rows are ignored."""
        gathered = table.take(self.rows, axis)
        if len(self.rows) == len(self.pieces):
            return gathered
        counts = self.counts.reshape([-1 if place == axis else 1 for place in range(table.ndim)])
        sums = np.add.reduceat(gathered.astype(np.float64), np.cumsum(self.counts) - self.counts, axis)
        return (sums / counts).astype(table.dtype)

    def describe(self) -> str:
        """Describe how many pieces are initialised from which rows."""
        if self.known == self.size:
            return "all keep their rows"
        means, new = len(self.pieces) - self.known, self.size - len(self.pieces)
        return f"{self.known:,} keep their rows, {means:,} begin with the mean of their old pieces' rows, {new:,} are new"


def same(size: int) -> Origins:
    """Return the origins of an unchanged vocabulary, in which every piece keeps its row."""
    pieces = np.arange(size, dtype=np.int32)
    return Origins(size, pieces, np.ones(size, bool), pieces, np.ones(size, np.int64))


def match(new: Vocabulary, old: Vocabulary) -> Origins:
    """Match the pieces of a vocabulary to those of another one of its kind.

    A control token gets the row of the old token with the same role (for example [CLS] that of <s>), any other piece the row of
    the equal piece, and a piece that the old vocabulary lacks the mean of the rows of the pieces that spell it there.
    """
    own = new.pieces(range(new.size))
    rows = {piece: row for row, piece in enumerate(old.pieces(range(old.size)))}
    origins = {row: np.array([rows[piece]], np.int32) for row, piece in enumerate(own) if piece in rows}
    origins |= {ours: np.array([theirs], np.int32) for ours, theirs in _controls(new, old)}
    kept = set(origins)
    control = {*new.token_ids.special, *new.token_ids.sentinels}
    others = [row for row in range(new.size) if row not in kept and row not in control]
    spelt = zip(others, old.respell([own[row] for row in others]), strict=True)
    origins |= {row: ids for row, ids in spelt if len(ids)}
    pieces = sorted(origins)
    return Origins(
        size=new.size,
        pieces=np.array(pieces, np.int32),
        kept=np.array([piece in kept for piece in pieces], bool),
        rows=np.concatenate([np.zeros(0, np.int32), *(origins[piece] for piece in pieces)]),
        counts=np.array([len(origins[piece]) for piece in pieces], np.int64),
    )


def _controls(new: Vocabulary, old: Vocabulary) -> Iterator[tuple[int, int]]:
    """Yield pairs of new and old ids of control tokens with the same role, each new id once."""
    matched = set()
    for role in _ROLES:
        ours, theirs = getattr(new.token_ids, role), getattr(old.token_ids, role)
        if ours is not None and theirs is not None and ours not in matched:
            matched.add(ours)
            yield ours, theirs

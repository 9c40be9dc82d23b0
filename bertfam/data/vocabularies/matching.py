"""Which rows of another vocabulary's tables the rows of a vocabulary's pieces begin from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertfam.data.vocabularies.vocabulary import Vocabulary

# What a control token is for, the most telling first: one piece may have several roles.
_ROLES = ("cls", "sep", "mask", "eos", "pad", "unk")


@dataclass(frozen=True)
class Origins:
    """For pieces of a new vocabulary, the rows of the old one whose mean they begin with; other pieces are not here.

    Attributes:
      size: pieces of the new vocabulary.
      pieces: int32[n], those with a beginning.
      kept: bool[n], which of them the old vocabulary has; these begin with one row.
      rows: int32[sum of counts], rows of the old tables, those of the first piece first.
      counts: int64[n], how many rows each has.
    """

    size: int
    pieces: np.ndarray
    kept: np.ndarray
    rows: np.ndarray
    counts: np.ndarray

    @property
    def known(self) -> int:
        """How many pieces both vocabularies have."""
        return int(self.kept.sum())

    @property
    def of_known(self) -> "Origins":
        """Those of the pieces that both vocabularies have."""
        rows = self.rows[np.repeat(self.kept, self.counts)]
        return Origins(self.size, self.pieces[self.kept], self.kept[self.kept], rows, self.counts[self.kept])

    def means(self, table: np.ndarray, axis: int) -> np.ndarray:
        """The beginnings of the pieces, from a table whose `axis` counts the old ones; what pads it is not looked at."""
        gathered = table.take(self.rows, axis)
        if len(self.rows) == len(self.pieces):
            return gathered
        counts = self.counts.reshape([-1 if place == axis else 1 for place in range(table.ndim)])
        sums = np.add.reduceat(gathered.astype(np.float64), np.cumsum(self.counts) - self.counts, axis)
        return (sums / counts).astype(table.dtype)

    def told(self) -> str:
        """How many pieces begin how, in words."""
        means, new = len(self.pieces) - self.known, self.size - len(self.pieces)
        return f"{self.known:,} keep their rows, {means:,} begin with the mean of their old pieces' rows, {new:,} are new"


def same(size: int) -> Origins:
    """Those of a vocabulary of which every piece keeps its row."""
    pieces = np.arange(size, dtype=np.int32)
    return Origins(size, pieces, np.ones(size, bool), pieces, np.ones(size, np.int64))


def match(new: Vocabulary, old: Vocabulary) -> Origins:
    """Where the rows of a vocabulary come from, of another one of its kind.

    A control token has the row of the one with its role ([CLS] that of <s>, say), any other piece the row of its own name, and a
    piece that the old vocabulary lacks the mean of those that spell it there.
    """
    own = new.pieces(range(new.size))
    rows = {piece: row for row, piece in enumerate(old.pieces(range(old.size)))}
    found = {row: np.array([rows[piece]], np.int32) for row, piece in enumerate(own) if piece in rows}
    found |= {ours: np.array([theirs], np.int32) for ours, theirs in _controls(new, old)}
    kept = set(found)
    control = {*new.token_ids.special, *new.token_ids.sentinels}
    others = [row for row in range(new.size) if row not in kept and row not in control]
    spelt = zip(others, old.respell([own[row] for row in others]), strict=True)
    found |= {row: ids for row, ids in spelt if len(ids)}
    pieces = sorted(found)
    return Origins(
        size=new.size,
        pieces=np.array(pieces, np.int32),
        kept=np.array([piece in kept for piece in pieces], bool),
        rows=np.concatenate([np.zeros(0, np.int32), *(found[piece] for piece in pieces)]),
        counts=np.array([len(found[piece]) for piece in pieces], np.int64),
    )


def _controls(new: Vocabulary, old: Vocabulary) -> Iterator[tuple[int, int]]:
    """Ids of control tokens with the same role, ours and theirs, each of ours once."""
    done = set()
    for role in _ROLES:
        ours, theirs = getattr(new.token_ids, role), getattr(old.token_ids, role)
        if ours is not None and theirs is not None and ours not in done:
            done.add(ours)
            yield ours, theirs

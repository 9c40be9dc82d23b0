"""What rows and noise must know of a vocabulary."""

import functools
from dataclasses import dataclass, field

import numpy as np

from bertfam.errors import UserError


@dataclass(frozen=True, eq=False)
class TokenIds:
    """The ids of a vocabulary with a meaning of their own; None where the vocabulary has no such token.

    Attributes:
      size: real ids are 0 .. size - 1.
      pad: what fills a row up; its places are told by segment ids and weights, never by this id.
      unk: what stands for text that has no piece.
      cls, sep: what begins an example, and what ends a sentence or example.
      eos: what ends a document.
      mask: what hides a token.
      special: all control tokens and the unknown, ascending.
      sentinels: what marks a span of a target, the first span's first.
      starts_word: bool[size], whether a piece begins a word (wherever it stands).
    """

    size: int
    pad: int
    unk: int
    cls: int | None = None
    sep: int | None = None
    eos: int | None = None
    mask: int | None = None
    special: tuple[int, ...] = ()
    sentinels: tuple[int, ...] = ()
    starts_word: np.ndarray = field(default_factory=lambda: np.zeros(0, bool), repr=False)

    @functools.cached_property
    def pieces(self) -> np.ndarray:
        """The ids that are neither special nor sentinels, or all of them where none is left: int64[k]."""
        everything = np.arange(self.size)
        pieces = np.setdiff1d(everything, (*self.special, *self.sentinels))
        return pieces if pieces.size else everything

    @functools.cached_property
    def control(self) -> np.ndarray:
        """Which ids are control tokens or sentinels, so not text and not unknown text: bool[size]."""
        control = np.zeros(self.size, bool)
        control[[*self.special, *self.sentinels]] = True
        control[self.unk] = False
        return control

    def end_of_text(self, what: str) -> int:
        """What ends a document, or [SEP] where a vocabulary has no such token; raises UserError where it has neither."""
        return self.require("eos" if self.sep is None or self.eos is not None else "sep", what)

    def require(self, name: str, what: str) -> int:
        """The id of "cls", "sep", "eos" or "mask"; raises UserError where the vocabulary has none and `what` needs it."""
        found = getattr(self, name)
        if found is None:
            raise UserError(
                f"the vocabulary has no {name} token, which {what} needs: "
                "choose another vocabulary (bertfam vocab --layout=roberta has all)"
            )
        return found

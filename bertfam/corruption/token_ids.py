"""Ids of a vocabulary that rows and noise refer to."""

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bertfam.errors import UserError


class ControlToken(NamedTuple):
    """Id and token type of a control token of a frame."""

    id: int
    type: int


class TextFrame(NamedTuple):
    """Control tokens around one text A, or two texts A and B, as tokenizers of the family add them.

    Attributes:
      before: tokens before A.
      between: tokens between A and B.
      after_one: tokens after A if there is no B.
      after_two: tokens after B.
      second_type: token type of B; that of A is 0.
    """

    before: tuple[ControlToken, ...]
    between: tuple[ControlToken, ...]
    after_one: tuple[ControlToken, ...]
    after_two: tuple[ControlToken, ...]
    second_type: int


@dataclass(frozen=True, eq=False)
class TokenIds:
    """Ids of the special tokens of a vocabulary; None where the vocabulary has no such token.

    Attributes:
      size: Number of ids, which are 0 .. size - 1.
      pad: Padding. Code recognises padding by segment ids and weights, never by this id.
      unk: Unknown token, for text that has no piece.
      cls: First token of an example.
      sep: Last token of a sentence or example.
      eos: End-of-text token, after each document.
      mask: Mask token.
      special: All control tokens and the unknown token, ascending.
      sentinels: Sentinel tokens, in the order of the spans that they stand for.
      starts_word: bool[size], True for pieces that begin a word in any position.
      frame: Control tokens around one or two texts; None where the vocabulary has none.
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
    frame: TextFrame | None = None

    @functools.cached_property
    def pieces(self) -> np.ndarray:
        """Ids that are neither special nor sentinels, or all ids if there are none: int64[k]."""
        everything = np.arange(self.size)
        pieces = np.setdiff1d(everything, (*self.special, *self.sentinels))
        return pieces if pieces.size else everything

    @functools.cached_property
    def control(self) -> np.ndarray:
        """Mask of the control tokens and sentinels, which stand for no text, known or unknown: bool[size]."""
        control = np.zeros(self.size, bool)
        control[[*self.special, *self.sentinels]] = True
        control[self.unk] = False
        return control

    def end_of_text(self, what: str) -> int:
        """Return the end-of-text token, or [SEP] if there is none.

        Args:
          what: Name of the user of the token, for the message.

        Raises:
          UserError: The vocabulary has neither.
        """
        return self.require("eos" if self.sep is None or self.eos is not None else "sep", what)

    def require(self, name: str, what: str) -> int:
        """Return the id of a special token.

        Args:
          name: "cls", "sep", "eos" or "mask".
          what: Name of the user of the token, for the message.

        Raises:
          UserError: The vocabulary has no such token.
        """
        token = getattr(self, name)
        if token is None:
            raise UserError(
                f"the vocabulary has no {name} token, which {what} requires: "
                "choose another vocabulary (bertfam vocab --layout=roberta has all)"
            )
        return token

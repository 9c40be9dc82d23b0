"""Base class of vocabularies: pieces with ids."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from bertfam.call_arguments import check_list, check_texts, check_whole_number
from bertfam.corruption.token_ids import ControlToken, TextFrame, TokenIds
from bertfam.data.vocabularies.layouts import Layout
from bertfam.errors import UserError

# Ranges of CJK ideographs, each of which BERT treats as a word.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class Pieces:
    """Pieces in the order of their ids.

    Attributes:
      size: number of pieces; ids are 0 .. size - 1.
      layout: the control tokens, with the number of sentinels that the vocabulary has.
      token_ids: ids of the special pieces, and the mask of pieces that begin a word.
      has_unknown: True if there is text that only the unknown piece can represent.
    """

    has_unknown: ClassVar[bool] = True

    def __init__(
        self,
        pieces: Sequence[str],
        layout: Layout,
        starts_word: np.ndarray,
        *,
        sentinels: int,
        more_special: Collection[int] = (),
    ) -> None:
        """Create the pieces.

        Args:
          pieces: all pieces, including the layout's.
          layout: the control tokens.
          starts_word: bool[size], True for ordinary pieces that begin a word.
          sentinels: number of sentinels at the end of the pieces.
          more_special: ids of special pieces besides the layout's.

        Raises:
          UserError: a control piece is missing, or a piece occurs twice.
        """
        ids = {piece: id for id, piece in enumerate(pieces)}
        if len(ids) != len(pieces):
            twice = next(piece for id, piece in enumerate(pieces) if ids[piece] != id)
            raise UserError(f"the vocabulary holds {twice!r} twice: each piece must have one id")
        self.size = len(pieces)
        self.layout = replace(layout, sentinels=sentinels)
        self.token_ids = _token_ids(layout, ids, starts_word, sentinels, more_special)
        self._pieces = list(pieces)
        self._ids = ids

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id."""
        return [self._pieces[id] for id in self._checked(ids)]

    def occurs(self, id: int) -> bool:
        """Return whether rows of text hold an id besides their padding, see `Vocabulary.occurs`."""
        tokens = self.token_ids
        used = {tokens.cls, tokens.sep, tokens.eos, tokens.mask, tokens.unk if self.has_unknown else None}
        is_text = id < self.size and id not in (*tokens.special, *tokens.sentinels)
        return is_text or id in used or self.layout.padding_side != "right"

    def _checked(self, ids: Iterable[int]) -> list[int]:
        """Return the ids; raise UserError if they are no ids of the vocabulary."""
        numbers = [check_whole_number(id, "an id") for id in check_list(ids, "ids", "whole numbers")]
        if (wrong := next((id for id in numbers if not 0 <= id < self.size), None)) is not None:
            raise UserError(f"id {wrong} is outside the vocabulary of {self.size} pieces")
        return numbers


def checked_texts(texts: Any) -> list[str]:
    """Return the texts to encode as a list; raise UserError if they are no list of texts."""
    found = texts if isinstance(texts, list) else check_list(texts, "texts")
    # The set is a fast path for the millions of texts of a corpus.
    return found if {str}.issuperset(map(type, found)) else check_texts(found, "texts")


def is_ideograph(character: str) -> bool:
    """Return True if a character is a CJK ideograph (kana and Hangul are not)."""
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)


def _token_ids(
    layout: Layout, ids: Mapping[str, int], starts_word: np.ndarray, sentinels: int, more_special: Collection[int]
) -> TokenIds:
    missing = [piece for piece in layout.controls if piece not in ids]
    if missing:
        raise UserError(f"the vocabulary has no {' '.join(missing)}: it needs all of {' '.join(layout.controls)}")
    size = len(starts_word)
    special = {ids[piece] for piece in layout.controls} | set(more_special)
    starts_word = starts_word.copy()
    starts_word[[*special, *range(size - sentinels, size)]] = True
    roles = {name: getattr(layout, name) for name in ("cls", "sep", "eos", "mask")}
    return TokenIds(
        size=size,
        pad=ids[layout.pad],
        unk=ids[layout.unk],
        special=tuple(sorted(special)),
        sentinels=tuple(range(size - 1, size - 1 - sentinels, -1)),
        starts_word=starts_word,
        frame=_frame(layout, ids),
        **{name: None if piece is None else ids[piece] for name, piece in roles.items()},
    )


def _frame(layout: Layout, ids: Mapping[str, int]) -> TextFrame:
    """Return the frame that the layout's templates of one and of two texts describe."""
    texts, parts = ("$A", "$B"), list[tuple[ControlToken, ...]]()
    second_type = 0
    for template in (layout.single, layout.pair):
        part: list[ControlToken] = []
        for word in template.split():
            piece, _, kind = word.rpartition(":")
            if piece in texts:
                parts.append(tuple(part))
                part, second_type = [], int(kind)
            else:
                part.append(ControlToken(ids[piece], int(kind)))
        parts.append(tuple(part))
    before, after_one, _, between, after_two = parts
    return TextFrame(before, between, after_one, after_two, second_type)


def flat(encoded: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated ids int32[tokens] of texts, and the number of ids of each int64[texts]."""
    return np.concatenate([np.zeros(0, np.int32), *encoded]), np.array([len(ids) for ids in encoded], np.int64)

"""Selection of whole phrases and entities, as marked in the text: ERNIE (Sun et al. 2019, section 3.2), REALM."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.masked_lm.selection import Choice, Selection, to_slots, whole_words
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import words_from_starts

# Encoding of a token's marks: its place in a phrase in the low bits, and in an entity in the bits above.
KINDS = ("phrase", "entity")
UNIT_BITS = 2
BEGINS, CONTINUES = 1, 2  # 0: in none


@dataclass(frozen=True)
class Units(Choice):
    """Whole units in random order; one that would exceed the budget is skipped (see `WholeWords`).

    The kind of units is drawn for each row: single tokens, phrases or entities. Tokens outside phrases or entities are units of
    their own. The paper trains on the three kinds one after another; here a run has one mixture of them, and three runs with a
    warm start from the previous one (--init_from) reproduce its stages.

    Attributes:
      basic: Weight of rows whose units are single tokens.
      phrase: Weight of rows whose units are phrases.
      entity: Weight of rows whose units are entities.
    """

    needs_units: ClassVar[bool] = True

    basic: float = 1.0
    phrase: float = 1.0
    entity: float = 1.0

    def __post_init__(self) -> None:
        weights = (self.basic, self.phrase, self.entity)
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ValueError(f"basic, phrase and entity {weights} are no weights: they must be at least 0, and one above 0")

    def levels(self, words: np.ndarray) -> np.ndarray:
        """Map random words uint64[...] to the kind of a row's units: 0 single tokens, 1 phrases, 2 entities."""
        limits = np.cumsum((self.basic, self.phrase, self.entity))
        return np.searchsorted(limits[:-1] / limits[-1], keys.uniform(words), side="right")

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        units = rows.get("units", np.zeros(rows["maskable"].shape, np.uint8))
        level = self.levels(keys.bits(row_keys, streams.DECISION, 1))
        # [n, length]: the two bits for the kind of the row
        place = np.where(level > 0, units >> (UNIT_BITS * np.maximum(level - 1, 0)).astype(np.uint8), 0) & (BEGINS | CONTINUES)
        return whole_words(words_from_starts(place != CONTINUES, rows, tokens), rows["maskable"], wanted, slots, row_keys)


@dataclass(frozen=True)
class SalientSpan(Choice):
    """One marked entity of each row, drawn uniformly, with all of its tokens: REALM (Guu et al. 2020, section 3.4).

    An entity of more tokens than a row has slots is never drawn, and neither is one that the row cuts off before its beginning. A
    row without any has no predictions. The budget does not count.
    """

    needs_units: ClassVar[bool] = True

    @override
    def choose(
        self, rows: dict[str, np.ndarray], wanted: np.ndarray, slots: int, row_keys: np.ndarray, tokens: TokenIds
    ) -> Selection:
        maskable = rows["maskable"]
        units = rows.get("units", np.zeros(maskable.shape, np.uint8))
        place = (units >> np.uint8(UNIT_BITS * KINDS.index("entity"))) & (BEGINS | CONTINUES)
        begins = (place == BEGINS) & maskable
        # [n, length]: number of the entity that a token belongs to, from 1; 0: none
        is_inside = (place > 0) & maskable
        runs = np.cumsum(begins | ~is_inside, axis=1)
        first = np.maximum.accumulate(np.where(begins | ~is_inside, np.arange(place.shape[1]), 0), axis=1)
        number = np.where(is_inside & np.take_along_axis(begins, first, axis=1), runs, 0)
        row, position = np.nonzero(number)
        sizes = np.zeros((len(number), place.shape[1] + 1), np.int64)
        np.add.at(sizes, (row, number[row, position]), 1)
        is_open = (sizes > 0) & (sizes <= slots)
        count = is_open.sum(axis=1)
        drawn = keys.integers(keys.bits(row_keys, streams.SELECTION, 1)[:, 0], np.maximum(count, 1))
        entity = np.argmax(np.cumsum(is_open, axis=1) > drawn[:, None], axis=1)
        chosen = (number > 0) & (number == entity[:, None]) & (count > 0)[:, None]
        return to_slots(chosen, number, slots)

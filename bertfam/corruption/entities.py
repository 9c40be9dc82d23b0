"""Noise of ERNIE's entities: which tokens name a known entity, and whose vector stands there (Zhang et al. 2019, section 3.4)."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from bertfam import features
from bertfam.corruption import keys, streams
from bertfam.corruption.corruption import Corruption, TextCorruption
from bertfam.corruption.entity_folder import EntityFolder, read_entities
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.units import BEGINS, CONTINUES, KINDS, UNIT_BITS
from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape

_SHIFT = np.uint8(UNIT_BITS * KINDS.index("entity"))


class Mentions(NamedTuple):
    """Marked entities of rows, in reading order.

    Attributes:
      row: int64[mentions].
      begin: int64[mentions], the first token of each.
      end: int64[mentions], the token after its last.
    """

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def find_mentions(units: np.ndarray) -> Mentions:
    """Find the marked entities of rows, given `units` uint8[n, length] (see `bertfam.corruption.masked_lm.units`).

    A mention whose beginning is not in the row is left out. One whose end is not is found as far as it goes.
    """
    place = (units >> _SHIFT) & (BEGINS | CONTINUES)
    row, begin = np.nonzero(place == BEGINS)
    # [n, length + 1]: the first position at or after each that does not continue a mention
    n, length = place.shape
    stops = np.full((n, length + 1), length)
    stops[:, :length] = np.where(place != CONTINUES, np.arange(length), length)
    stops = np.minimum.accumulate(stops[:, ::-1], axis=1)[:, ::-1]
    return Mentions(row, begin, stops[row, begin + 1])


@dataclass(frozen=True)
class EntityMasking(TextCorruption):
    """Noise of tokens, and of the entities that are aligned with the first token of their names.

    Of the known entities of a row, a share `replaced` gives way to another entity of the folder, drawn uniformly; a share
    `hidden` to none; the others stay. All are to be predicted. A row has length / 8 slots for them, rounded down, at least one;
    further entities of a row are neither seen nor predicted. The paper draws the other entity as here; its code draws from those
    of the batch, and discards rows with fewer than five entities, which stay here.

    Attributes:
      masking: Noise of the tokens.
      entities: Folder of `bertfam entities`.
      replaced: Share of the entities in whose place another one stands.
      hidden: Share of the entities whose vector is left out.
    """

    masking: Corruption = BertMasking()
    entities: str | None = None
    replaced: float = 0.05
    hidden: float = 0.15

    def __post_init__(self) -> None:
        if not (self.replaced >= 0 and self.hidden >= 0 and self.replaced + self.hidden <= 1):
            raise ValueError(f"replaced {self.replaced} and hidden {self.hidden} must be >= 0 with a sum of at most 1")

    @property
    @override
    def needs_units(self) -> bool:
        return True

    @override
    def predictions(self, length: int) -> int:
        return self._text.predictions(length)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return self._text.features(shape) | features.entity_features(shape)

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        self._text.check(length, tokens)
        self._folder.check_size(tokens.size)

    @override
    def fit(self, counts: Callable[[], np.ndarray]) -> Corruption:
        return dataclasses.replace(self, masking=self._text.fit(counts))

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Mask tokens and entities of rows; a pure function of its arguments.

        Args:
          rows: as of the noise of the tokens, with `units` uint8[n, length].
          row_keys: uint64[n], one per row.
          tokens: Ids of the vocabulary.

        Returns:
          Finished rows of the noise of the tokens, with `encoder_entity_ids` int32[n, length], the entity that the model sees at
          each token, 0 for none, and with `entity_positions`, `entity_targets` int32[n, slots] and `entity_loss_weights`
          float32[n, slots].
        """
        n, length = rows["encoder_input_tokens"].shape
        row, begin, ids = self._known(rows)
        slots = features.entity_slots(length)
        # A mention's number within its row is its slot.
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        row, begin, ids, slot = (array[slot < slots] for array in (row, begin, ids, slot))
        action = keys.uniform(keys.bits(row_keys, streams.ENTITY_ACTION, slots))[row, slot]
        others = len(self._folder) - 1
        # One of the others: the drawn number skips the entity itself.
        drawn = keys.integers(keys.bits(row_keys, streams.ENTITY_REPLACEMENT, slots), max(others, 1))[row, slot] + 1
        drawn += drawn >= ids
        seen = np.where(action < self.replaced, drawn if others else ids, ids)
        seen = np.where((action >= self.replaced) & (action < self.replaced + self.hidden), 0, seen)
        arrays = {name: np.zeros((n, slots), np.int32) for name in ("entity_positions", "entity_targets")}
        arrays |= {"entity_loss_weights": np.zeros((n, slots), np.float32), "encoder_entity_ids": np.zeros((n, length), np.int32)}
        arrays["entity_positions"][row, slot] = begin
        arrays["entity_targets"][row, slot] = ids
        arrays["entity_loss_weights"][row, slot] = 1
        arrays["encoder_entity_ids"][row, begin] = seen
        return self.masking.corrupt(rows, row_keys, tokens) | arrays

    def _known(self, rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the row, the first token and the id of each mention of an entity of the folder: int64[mentions] each."""
        ids, segments = rows["encoder_input_tokens"], rows["encoder_segment_ids"]
        row, begin, end = find_mentions(rows.get("units", np.zeros(ids.shape, np.uint8)))
        # A name that a row or a sentence cuts off could be the beginning of a longer one: something must follow it.
        last = np.minimum(end, ids.shape[1] - 1)
        whole = (end < ids.shape[1]) & (segments[row, last] == segments[row, begin]) & rows["maskable"][row, last]
        row, begin, end = row[whole], begin[whole], end[whole]
        found = self._folder.find(ids, row, begin, end)
        return row[found > 0], begin[found > 0], found[found > 0]

    @property
    def _text(self) -> TextCorruption:
        assert isinstance(self.masking, TextCorruption), "the noise has been fitted: only `corrupt` may be called"
        return self.masking

    @property
    def _folder(self) -> EntityFolder:
        return read_entities(self.entities)

"""Noise in spans of a given mean length: T5 (Raffel et al. 2020, section 3.3.4, as in the published code)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.sampling import draw
from bertfam.corruption.t5.random_tokens import Counts, Noise


@dataclass(frozen=True)
class RandomSpans(Noise):
    """Nonempty spans separated by clear text: clear text, span, clear text, ..., span.

    A row of n tokens has N = round(density n) tokens of noise, at least 1 and at most n - 1, in round(N / mean_length) spans, at
    least 1. Every division of the noise and of the clear text into so many parts is equally likely. A row of one token has no
    noise. Every row ends with a span: a row of a single span, such as a short one, always has its end as noise.

    Attributes:
      density: Share of noise.
      mean_length: Mean length of a span in tokens.
      random_roll: True to rotate the noise of each row by a random number of tokens, so that every token is equally often noise
        (`random_roll` of the published code, which is False there too). A row may then have one span or one run of clear text
        more, for which its inputs and targets have a place.
    """

    is_exact: ClassVar[bool] = True

    density: float = 0.15
    mean_length: float = 3.0
    random_roll: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.density < 1:
            raise ValueError(f"density {self.density} is not in (0, 1)")
        if not 1 <= self.mean_length < float("inf"):
            raise ValueError(f"mean_length {self.mean_length} is not a finite number of at least 1")

    @property
    @override
    def has_short_rows(self) -> bool:
        return self.density == 0.5

    @property
    @override
    def begins_rows(self) -> bool:
        return self.random_roll

    @property
    @override
    def notes(self) -> tuple[str, ...]:
        if self.random_roll:
            return ()
        return (
            "every row ends with noise, as published, so that the only span of a short row is its end: "
            "RandomSpans.random_roll = True rotates the noise at random",
        )

    @override
    def counts(self, lengths: np.ndarray | int) -> Counts:
        lengths = np.asarray(lengths, np.int64)
        noise = np.clip(np.rint(lengths * self.density).astype(np.int64), 1, np.maximum(lengths - 1, 1))
        spans = np.maximum(np.rint(noise / self.mean_length).astype(np.int64), 1)
        spans = np.minimum(spans, lengths - noise)  # each span follows clear text, even if most of the row is noise
        # Rotated, a span or a run of clear text may be cut in two.
        noise, spans = np.where(lengths > 1, noise, 0), np.where(lengths > 1, spans + self.random_roll, 0)
        return Counts(noise, spans, np.maximum(spans, np.minimum(lengths, 1)), exact=True)

    @override
    def draw(self, lengths: np.ndarray, width: int, row_keys: np.ndarray) -> np.ndarray:
        noise, spans, _, _ = replace(self, random_roll=False).counts(lengths)
        most_noise = int(self.counts(width).noise)  # the longest row has the most noise and clear text
        noise_begins = _begins(noise, spans, keys.bits(row_keys, streams.NOISE_SEGMENTS, most_noise))
        clear_begins = _begins(lengths - noise, spans, keys.bits(row_keys, streams.CLEAR_SEGMENTS, width - most_noise))
        # Noise span s begins after the clear parts 0 .. s, which end where clear part s + 1 begins, and after the earlier noise.
        most = int(spans.max(initial=0))
        noise_at, clear_at = _places(noise_begins, noise, most), _places(clear_begins, lengths - noise, most)
        change = np.zeros((len(row_keys), width + 1), np.int8)
        row, span = np.nonzero(np.arange(most) < spans[:, None])
        begin = clear_at[row, span + 1] + noise_at[row, span]
        change[row, begin] = 1
        change[row, begin + noise_at[row, span + 1] - noise_at[row, span]] = -1
        result = np.cumsum(change[:, :width], axis=1, dtype=np.int8) > 0
        if self.random_roll:
            turn = keys.integers(keys.bits(row_keys, streams.ROLL, 1)[:, 0], np.maximum(lengths, 1))[:, None]
            place, length = np.arange(width), np.maximum(lengths, 1)[:, None]
            result = np.take_along_axis(result, (place - turn) % length, axis=1) & (place < lengths[:, None])
        return result


def _begins(items: np.ndarray, parts: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Divide items into nonempty parts; every division is equally likely.

    Args:
      items: int[n], items of each row.
      parts: int[n], parts of each row.
      words: uint64[n, most], random.

    Returns:
      bool[n, most], True at items that begin a part.
    """
    place = np.arange(words.shape[1])
    begins = draw((place > 0) & (place < items[:, None]), parts - 1, words)
    begins[:, :1] = (parts > 0)[:, None]
    return begins


def _places(begins: np.ndarray, items: np.ndarray, most: int) -> np.ndarray:
    """Return the index at which each part begins, followed by `items`: int64[n, most + 1]."""
    row, place = np.nonzero(begins)
    counts = np.count_nonzero(begins, axis=1)
    result = np.repeat(items[:, None], most + 1, axis=1)
    result[row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)] = place
    return result

"""Mixtures of corpora, each with its share of the rows."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.rows.batches import CorruptedRows, Rows, gather_rows
from bertfam.data.rows.order import permute
from bertfam.data.token_cache.cache import check_names
from bertfam.errors import UserError

_CYCLE = 10_000


@dataclass(frozen=True)
class Mixture:
    """Corpora that are mixed row by row, each with epochs of its own.

    Attributes:
      corpora: The corpora.
      names: Names of the corpora in the token cache and in messages.
      rates: Relative shares of the corpora in the rows; None: the number of rows to the power 1 / temperature.
      limit: Maximum number of rows of a corpus that count for its share, K of T5's examples-proportional mixing: without
        temperature the share of corpus m is min(e_m, K) over the sum of these (Raffel et al. 2020, section 3.5.2). None: all rows
        count.
      temperature: 1 mixes in proportion to size, and higher values raise the shares of small corpora. Papers give alpha =
        1 / temperature, where the share of language i is (n_i / N)^alpha over the sum of these: multilingual BERT (Devlin 2018)
        0.7, XLM (Conneau and Lample 2019, section 3.1) 0.5, XLM-R and mT5 0.3. T5 raises min(e_m, K) to this power.
        `bertfam vocab` weights words by the same rule, with sizes in characters and without a limit.

    Raises:
      UserError: A setting is invalid.
    """

    corpora: tuple[Corpus, ...]
    names: tuple[str, ...]
    rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.corpora:
            raise UserError("Mixture.corpora is empty: give at least one corpus")
        for name in ("names", "rates"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.corpora):
                raise UserError(f"Mixture.{name} has {len(given)} entries for {len(self.corpora)} corpora: give one for each")
        check_names(self.names)
        if len(set(self.names)) != len(self.names):
            raise UserError(f"Mixture.names {self.names}: two corpora have the same name")
        if self.rates is not None and not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"Mixture.rates {self.rates}: every rate must be a number above 0; to exclude a corpus, leave it out")
        if self.rates is not None and self.temperature != 1:
            raise UserError("Mixture.rates and Mixture.temperature both set the shares of the corpora: give only one of them")
        if self.limit is not None and self.rates is not None:
            raise UserError("Mixture.rates and Mixture.limit both set the shares of the corpora: give only one of them")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"Mixture.limit is {self.limit}: it must be at least 1, or None for no limit")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"Mixture.temperature is {self.temperature}: it must be a number above 0")

    def shares(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the share of each corpus in the rows, given its number of rows; the sum is 1."""
        counted = sizes if self.limit is None else [min(size, self.limit) for size in sizes]
        return shares(counted, self.rates, self.temperature)

    def factors(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the number of repetitions of each corpus that gives these shares, relative to the smallest.

        Args:
          sizes: Size of each corpus, in any unit.
        """
        repetitions = [share / size for share, size in zip(self.shares(sizes), sizes, strict=True)]
        return tuple(number / min(repetitions) for number in repetitions)


@dataclass(frozen=True)
class _CombinedRows(Rows):
    """Rows of several corpora.

    Attributes:
      parts: Rows of each corpus.
    """

    parts: tuple[CorruptedRows, ...]

    @override
    def by_corpus(self) -> tuple[CorruptedRows, ...]:
        return self.parts


@dataclass(frozen=True)
class MixedRows(_CombinedRows):
    """Parts interleaved in a fixed cycle, evenly spread, each in its own order.

    Place p belongs to the part at p mod cycle, and is its row (p div cycle) * (its rows in a cycle) + (its rows before p in the
    cycle). Every place is therefore computed in constant time, and every range of places has nearly the given shares.

    Attributes:
      parts: Rows of each corpus.
      shares: Share of each part, with the sum 1; exact to 1 / 10,000.
    """

    shares: tuple[float, ...]

    @property
    @override
    def epoch_rows(self) -> float:
        return min(len(part.examples) / share for part, share in zip(self.parts, self.shares, strict=True))

    @override
    def corpus_at(self, places: np.ndarray) -> np.ndarray:
        return self.index(places)[0]

    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the part at each place int64[n], and the row of that part: int64[n] each."""
        cycle, before, counts = self._cycle
        rounds, within = np.divmod(places, len(cycle))
        return cycle[within], rounds * counts[cycle[within]] + before[within]

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        return gather_rows(self.parts, *self.index(places))

    @functools.cached_property
    def _cycle(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Part at each place of the cycle, number of its rows before that place, and number of rows of each part per cycle."""
        counts = _apportion(np.array(self.shares))
        # The k-th of n rows of a part is due at (k + 1/2) / n of the cycle.
        part = np.repeat(np.arange(len(counts)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        order = np.lexsort((part, (number + 0.5) / counts[part]))
        return part[order], number[order], counts


@dataclass(frozen=True)
class ConcatenatedRows(_CombinedRows):
    """Finite parts one after another, or all shuffled together, followed by padding, for evaluation.

    Attributes:
      parts: Rows of each corpus, in `Contiguous` order.
      key: Key of the shuffled order; None keeps the parts in order.
    """

    key: int | None = None

    def __len__(self) -> int:
        return sum(len(part.examples) for part in self.parts)

    @override
    def corpus_at(self, places: np.ndarray) -> np.ndarray:
        return self._index(places)[0]

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        return gather_rows(self.parts, *self._index(places))

    def _index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the part at each place int64[n], and the place in that part: int64[n] each."""
        begins = np.cumsum([0, *(len(part.examples) for part in self.parts[:-1])])
        if self.key is not None:
            inside = places < len(self)
            row_keys = np.full(inside.sum(), self.key, np.uint64)
            places = places.copy()
            places[inside] = permute(places[inside], len(self), row_keys)
        part = np.searchsorted(begins, places, side="right") - 1
        return part, places - begins[part]


@dataclass(frozen=True)
class SelectedRows(Rows):
    """Some rows of a finite sequence, followed by padding.

    Attributes:
      sequence: The sequence.
      places: int64[n], places of the rows in the sequence.
    """

    sequence: ConcatenatedRows
    places: np.ndarray

    @override
    def by_corpus(self) -> tuple[CorruptedRows, ...]:
        return self.sequence.by_corpus()

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        inside = places < len(self.places)
        chosen = np.full_like(places, len(self.sequence))  # padding
        chosen[inside] = self.places[places[inside]]
        return self.sequence.at(chosen)


def _apportion(shares: np.ndarray) -> np.ndarray:
    """Apportion the 10,000 rows of a cycle by the largest remainder, at least one to each part: int64[parts]."""
    exact = shares * _CYCLE
    counts = np.floor(exact).astype(np.int64)
    left = _CYCLE - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return np.maximum(counts, 1)


def shares(sizes: Sequence[int], rates: Sequence[float] | None = None, temperature: float = 1.0) -> tuple[float, ...]:
    """Return `rates`, or sizes ** (1 / temperature) if they are None, normalised to the sum 1."""
    # Relative to the largest size, so that no power overflows.
    weights = np.array(rates, np.float64) if rates else (np.array(sizes, np.float64) / max(sizes)) ** (1 / temperature)
    return tuple((weights / weights.sum()).tolist())

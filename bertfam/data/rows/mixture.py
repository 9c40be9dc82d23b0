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
        _check_shares(self)

    def shares(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the share of each corpus in the rows, given its number of rows; the sum is 1."""
        return _limited_shares(self, sizes)

    def factors(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the number of repetitions of each corpus that gives these shares, relative to the smallest.

        Args:
          sizes: Size of each corpus, in any unit.
        """
        repetitions = [share / size for share, size in zip(self.shares(sizes), sizes, strict=True)]
        return tuple(number / min(repetitions) for number in repetitions)


@dataclass(frozen=True)
class Shares:
    """Shares of the corpora of a mixture in the rows of a stage.

    Attributes:
      names: Names of the corpora that the stage has rows of; None: all.
      rates: Relative shares of these corpora; None: the number of rows to the power 1 / temperature.
      limit: As in `Mixture`.
      temperature: As in `Mixture`.

    Raises:
      UserError: A setting is invalid.
    """

    names: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.names is not None and (not self.names or len(set(self.names)) != len(self.names)):
            raise UserError(f"Shares.names {self.names}: name at least one corpus, and each once")
        if self.names is not None and self.rates is not None and len(self.rates) != len(self.names):
            raise UserError(f"Shares.rates has {len(self.rates)} entries for {len(self.names)} names: give one for each")
        _check_shares(self)

    def of(self, corpora: Sequence[str], sizes: Sequence[int]) -> tuple[float, ...]:
        """Return the share of each corpus in the rows, given its number of rows; 0 for a corpus that is not named.

        Raises:
          UserError: A name is not that of a corpus, or the rates are not those of all corpora.
        """
        names = self.names or tuple(corpora)
        if unknown := [name for name in names if name not in corpora]:
            raise UserError(f"Shares.names has {unknown[0]}, which the text lacks: it has {', '.join(corpora)}")
        if self.rates is not None and len(self.rates) != len(names):
            raise UserError(f"Shares.rates has {len(self.rates)} entries for the corpora {', '.join(names)}: give one for each")
        own = _limited_shares(self, [sizes[list(corpora).index(name)] for name in names])
        by_name = dict(zip(names, own, strict=True))
        return tuple(by_name.get(name, 0.0) for name in corpora)


def _check_shares(settings: Mixture | Shares) -> None:
    """Raise UserError if settings that both classes have are invalid."""
    name, rates, limit, temperature = type(settings).__name__, settings.rates, settings.limit, settings.temperature
    if rates is not None and not all(0 < rate < math.inf for rate in rates):
        raise UserError(f"{name}.rates {rates}: every rate must be a number above 0; to exclude a corpus, leave it out")
    if rates is not None and temperature != 1:
        raise UserError(f"{name}.rates and {name}.temperature both set the shares of the corpora: give only one of them")
    if limit is not None and rates is not None:
        raise UserError(f"{name}.rates and {name}.limit both set the shares of the corpora: give only one of them")
    if limit is not None and limit < 1:
        raise UserError(f"{name}.limit is {limit}: it must be at least 1, or None for no limit")
    if not 0 < temperature < math.inf:
        raise UserError(f"{name}.temperature is {temperature}: it must be a number above 0")


def _limited_shares(settings: Mixture | Shares, sizes: Sequence[int]) -> tuple[float, ...]:
    counted = sizes if settings.limit is None else [min(size, settings.limit) for size in sizes]
    return shares(counted, settings.rates, settings.temperature)


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
      shares: Share of each part, with the sum 1; exact to 1 / 10,000. A part without a share has no rows.
      first: First row of each part, after those of an earlier stage; () stands for 0.
    """

    shares: tuple[float, ...]
    first: tuple[int, ...] = ()

    @property
    @override
    def epoch_rows(self) -> float:
        return min(len(part.examples) / share for part, share in zip(self.parts, self.shares, strict=True) if share)

    @override
    def corpus_at(self, places: np.ndarray) -> np.ndarray:
        return self.index(places)[0]

    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of the part at each place int64[n], and the row of that part: int64[n] each."""
        cycle, before, counts = self._cycle
        rounds, within = np.divmod(places, len(cycle))
        rows = rounds * counts[cycle[within]] + before[within]
        return cycle[within], rows + np.array(self.first)[cycle[within]] if self.first else rows

    def rows_before(self, place: int) -> tuple[int, ...]:
        """Return the number of rows of each part before a place, those of earlier stages included."""
        cycle, _, counts = self._cycle
        rounds, within = divmod(place, len(cycle))
        rows = rounds * counts + np.bincount(cycle[:within], minlength=len(counts)) + np.array(self.first or 0)
        return tuple(rows.tolist())

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
    return np.maximum(counts, shares > 0)


def shares(sizes: Sequence[int], rates: Sequence[float] | None = None, temperature: float = 1.0) -> tuple[float, ...]:
    """Return `rates`, or sizes ** (1 / temperature) if they are None, normalised to the sum 1."""
    # Relative to the largest size, so that no power overflows.
    weights = np.array(rates, np.float64) if rates else (np.array(sizes, np.float64) / max(sizes)) ** (1 / temperature)
    return tuple((weights / weights.sum()).tolist())

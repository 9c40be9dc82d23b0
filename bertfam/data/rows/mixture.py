"""Several corpora in one run, each with its share of the rows."""

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
    """Corpora that are mixed row by row; each goes round in epochs of its own.

    Attributes:
      corpora: the texts.
      names: what each is called, in the token cache and in messages.
      rates: the relative share of each in the rows; None: its number of rows to the power 1 / temperature.
      limit: at most so many rows of a corpus count for its share, K of T5's examples-proportional mixing: without temperature the
        share of corpus m is min(e_m, K) over the sum of these (Raffel et al. 2020, section 3.5.2); None: all rows count.
      temperature: 1 mixes in proportion to size, more lifts the small ones. Papers give alpha = 1 / temperature, as the share
        of language i is (n_i / N)^alpha over the sum of these: multilingual BERT (Devlin 2018) 0.7, XLM (Conneau and Lample
        2019, section 3.1) 0.5, XLM-R and mT5 0.3. T5 raises min(e_m, K) to this power. `bertfam vocab` weights words by the same
        rule, with sizes in characters and without a limit.

    Raises:
      UserError: a setting is wrong.
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
            raise UserError(f"Mixture.names {self.names}: two corpora have one name")
        if self.rates is not None and not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(
                f"Mixture.rates {self.rates}: every rate must be a number above 0; leave a corpus out to have none of it"
            )
        if self.rates is not None and self.temperature != 1:
            raise UserError("Mixture.rates and Mixture.temperature both say how much of each corpus: give one of them")
        if self.limit is not None and self.rates is not None:
            raise UserError("Mixture.rates and Mixture.limit both say how much of each corpus: give one of them")
        if self.limit is not None and self.limit < 1:
            raise UserError(f"Mixture.limit is {self.limit}: it must be at least 1, or None for no limit")
        if not 0 < self.temperature < math.inf:
            raise UserError(f"Mixture.temperature is {self.temperature}: it must be a number above 0")

    def shares(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """The share of each corpus in the rows, given how many rows each has, with the sum 1."""
        counted = sizes if self.limit is None else [min(size, self.limit) for size in sizes]
        return shares(counted, self.rates, self.temperature)

    def factors(self, sizes: Sequence[int]) -> tuple[float, ...]:
        """How often each corpus is to be taken for these shares, given its size in whatever unit; the least is 1."""
        often = [share / size for share, size in zip(self.shares(sizes), sizes, strict=True)]
        return tuple(number / min(often) for number in often)


@dataclass(frozen=True)
class _CombinedRows(Rows):
    parts: tuple[CorruptedRows, ...]

    @property
    @override
    def warnings(self) -> list[str]:
        return [line for part in self.parts for line in part.warnings]


@dataclass(frozen=True)
class MixedRows(_CombinedRows):
    """A `batches.Rows`: parts in a fixed cycle, evenly spread, each in its own order.

    Place p belongs to the part that stands at p mod cycle; of this part it is row (p div cycle) * its rows in a cycle + its rows
    before p in the cycle. So every place is served at once, and every window of places has nearly the shares asked for.

    Attributes:
      parts: one for each corpus.
      shares: of each, with the sum 1; met to 1 / 10,000.
    """

    shares: tuple[float, ...]

    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which part each of the places int64[n] belongs to, and which row of that part it is: int64[n] each."""
        cycle, before, counts = self._cycle
        rounds, within = np.divmod(places, len(cycle))
        return cycle[within], rounds * counts[cycle[within]] + before[within]

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        return gather_rows(self.parts, *self.index(places))

    @functools.cached_property
    def _cycle(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Part at each place of the cycle, how many of this part stand before it, and how many each part has in all."""
        counts = _apportion(np.array(self.shares))
        # The k-th of n rows of a part is due at (k + 1/2) / n of the cycle.
        part = np.repeat(np.arange(len(counts)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        order = np.lexsort((part, (number + 0.5) / counts[part]))
        return part[order], number[order], counts


@dataclass(frozen=True)
class ConcatenatedRows(_CombinedRows):
    """A `batches.Rows` of finite parts, one after another or shuffled all together, then padding: evaluation.

    Attributes:
      parts: whose orders are `Contiguous`.
      key: what shuffles them; None leaves them as they are.
    """

    key: int | None = None

    def __len__(self) -> int:
        return sum(len(part.examples) for part in self.parts)

    @override
    def at(self, places: np.ndarray) -> dict[str, np.ndarray]:
        begins = np.cumsum([0, *(len(part.examples) for part in self.parts[:-1])])
        if self.key is not None:
            inside = places < len(self)
            row_keys = np.full(inside.sum(), self.key, np.uint64)
            places = places.copy()
            places[inside] = permute(places[inside], len(self), row_keys)
        part = np.searchsorted(begins, places, side="right") - 1
        return gather_rows(self.parts, part, places - begins[part])


def _apportion(shares: np.ndarray) -> np.ndarray:
    """Rows of each part in a cycle: shares of 10,000 by the largest remainder, none of them 0: int64[parts]."""
    exact = shares * _CYCLE
    counts = np.floor(exact).astype(np.int64)
    left = _CYCLE - counts.sum()
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return np.maximum(counts, 1)


def shares(sizes: Sequence[int], rates: Sequence[float] | None = None, temperature: float = 1.0) -> tuple[float, ...]:
    """`rates`, or where they are None, sizes ** (1 / temperature), with the sum 1."""
    # Relative to the largest, so that no power overflows.
    weights = np.array(rates, np.float64) if rates else (np.array(sizes, np.float64) / max(sizes)) ** (1 / temperature)
    return tuple((weights / weights.sum()).tolist())


def parts_of(rows: Rows) -> tuple[CorruptedRows, ...]:
    """The rows of each corpus: those that are mixed or stand one after another, or the only ones."""
    if isinstance(rows, _CombinedRows):
        return rows.parts
    assert isinstance(rows, CorruptedRows)
    return (rows,)


def which_part(rows: Rows, places: np.ndarray) -> np.ndarray:
    """Which of its parts each place of mixed rows int64[n] belongs to; 0 where nothing is mixed: int64[n]."""
    return rows.index(places)[0] if isinstance(rows, MixedRows) else np.zeros_like(places)

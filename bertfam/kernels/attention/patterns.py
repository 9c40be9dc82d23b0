"""Attention patterns: the places of a row that a query may attend to, within its own segment.

A pattern is static: equal patterns compile to one program. Backends read its fields, or evaluate its mask for the places that
they hold, and the plan counts its pairs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override


class Pattern(ABC):
    """Base of the patterns, which are frozen dataclasses."""

    @abstractmethod
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        """Return whether the queries may attend to the keys, segments apart.

        Args:
          query_places: integers [..., queries, 1], places in the row; a NumPy or a JAX array.
          key_places: integers [..., 1, keys].
          arrays: the arrays of the rows that the pattern depends on, by name (see `bertfam.layers.attention.Row.arrays`).

        Returns:
          bool, broadcastable to [batch, heads, queries, keys]; True alone if every query may attend to every key.
        """

    @abstractmethod
    def pairs(self, length: int) -> int:
        """Return the number of pairs of a query and a key in a row of one segment, per head on average."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the keys of a query as a noun phrase for plans and messages: "all tokens"."""

    def within(self, length: int) -> "Pattern":
        """Return the simplest pattern that is equal in rows of this length."""
        return self


@dataclass(frozen=True)
class Window(Pattern):
    """A range of places around each query.

    Attributes:
      left, right: the number of places before and after the query that it may attend to; None: all of them.
      dilation: of these places, every n-th from the query (Beltagy et al. 2020, section 3.1).
    """

    left: int | None = None
    right: int | None = None
    dilation: int = 1

    @override
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        before = query_places - key_places
        conditions = []
        if self.left is not None:
            conditions.append(before <= self.left)
        if self.right is not None:
            conditions.append(before >= -self.right)
        if self.dilation > 1:
            conditions.append(before % self.dilation == 0)
        result: Any = True
        for condition in conditions:
            result = result & condition
        return result

    @override
    def pairs(self, length: int) -> int:
        left, right = (length - 1 if side is None else min(side, length - 1) for side in (self.left, self.right))
        # A distance d occurs length - |d| times.
        before = np.arange(left // self.dilation + 1, dtype=np.int64) * self.dilation
        after = np.arange(1, right // self.dilation + 1, dtype=np.int64) * self.dilation
        return int(np.sum(length - before) + np.sum(length - after))

    @override
    def describe(self) -> str:
        if self.left is None and self.right in (None, 0):
            tokens = "all tokens" if self.right is None else "previous tokens"
        elif self.left == self.right:
            tokens = f"{self.left} tokens on each side"
        elif self.right == 0:
            tokens = f"{self.left} previous tokens"
        else:
            tokens = f"{'all' if self.left is None else self.left} tokens before and {self.right} after"
        return tokens if self.dilation == 1 else f"one in {self.dilation} of {tokens}"

    @override
    def within(self, length: int) -> "Window":
        left, right = (None if side is not None and side >= length - 1 else side for side in (self.left, self.right))
        return replace(self, left=left, right=right)


FULL = Window()
CAUSAL = Window(right=0)

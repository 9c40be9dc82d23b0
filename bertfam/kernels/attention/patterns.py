"""Attention patterns: the places of a row that a query may attend to, within its own segment.

A pattern is static: equal patterns compile to one program. Backends read its fields, or evaluate its mask for the places that
they hold, and the plan counts its pairs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override


class Pattern(ABC):
    """Base of the patterns, which are frozen dataclasses.

    Attributes:
      packs: True if a row may hold several examples.
    """

    packs: ClassVar[bool] = True

    @abstractmethod
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        """Return whether the queries may attend to the keys, segments apart.

        Args:
          query_places: integers [..., queries, 1], places in the row; a NumPy or a JAX array.
          key_places: integers [..., 1, keys].
          arrays: the arrays of the rows that the pattern depends on, by name, as in `bertfam.layers.attention.dot_product.Row`.

        Returns:
          bool, broadcastable to [batch, heads, queries, keys]; True alone if every query may attend to every key.
        """

    def repeats(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        """Return how many times a query attends to a key, for a pattern that repeats keys; None if it repeats none.

        The arguments are those of `mask`; the result is int32 of its shape.
        """
        return None

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


@dataclass(frozen=True)
class BlockSparse(Pattern):
    """BigBird's pattern of blocks (Zaheer et al. 2020, section 2 and appendix D; ITC, "internal transformer construction").

    A block of queries attends to its own block of keys, to the blocks beside it, to the first and the last block, and to random
    ones. The first and the last block attend to all tokens. The random blocks of the queries' blocks 1, 2, ... are in the array
    "random_blocks", int32[heads, blocks - 2, random]; a block that is listed twice, or that the query attends to anyway, is
    attended to that many times more.

    Attributes:
      block: tokens in a block.
      random: random blocks for each block of queries.
      blocks: blocks in a row, of which the last may be shorter; None until `within` is called.
    """

    block: int = 64
    random: int = 3
    blocks: int | None = None

    @property
    def min_blocks(self) -> int:
        """Blocks of the shortest row with this pattern; in shorter rows every query attends to all tokens."""
        return 5 + 2 * self.random + 1

    @override
    def within(self, length: int) -> Pattern:
        blocks = -(-length // self.block)
        return FULL if length <= (self.min_blocks - 1) * self.block else replace(self, blocks=blocks)

    @override
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        return self._times(query_places, key_places, arrays) > 0

    @override
    def repeats(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        return self._times(query_places, key_places, arrays)

    def _times(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None) -> Any:
        """Return how many times a query attends to a key: int32[heads, ..., queries, keys]."""
        assert self.blocks is not None and arrays is not None
        queries, keys, last = query_places // self.block, key_places // self.block, self.blocks - 1
        always = (abs(queries - keys) <= 1) | (keys == 0) | (keys == last) | (queries == 0) | (queries == last)
        # [heads, blocks - 2, random, blocks] -> int32[heads, blocks, blocks], without random blocks for the first and the last
        listed = jax.nn.one_hot(arrays["random_blocks"], self.blocks, dtype=jnp.int32).sum(-2)
        listed = jnp.pad(listed, [(0, 0), (1, 1), (0, 0)])
        return always.astype(jnp.int32) + listed[:, queries, keys]

    @override
    def pairs(self, length: int) -> int:
        if length <= (self.min_blocks - 1) * self.block:
            return length * length
        blocks = -(-length // self.block)
        rest = length - (blocks - 1) * self.block  # tokens of the last block
        # first and last block of queries; the others with the last block, the others with whole blocks, of which two overlap
        middle = blocks - 2
        whole = (4 + self.random) * middle - 2
        return (self.block + rest) * length + middle * self.block * rest + whole * self.block * self.block

    @override
    def describe(self) -> str:
        return f"the first and the last {self.block} tokens, three blocks of {self.block} around them and {self.random} at random"


@dataclass(frozen=True)
class GlobalTokens(Pattern):
    """A window, and some tokens that every query attends to (Beltagy et al. 2020, section 3.1).

    They are True in the array "global_tokens", bool[batch, length]. What they attend to themselves is up to the layer, which has
    other projections for it.

    Attributes:
      window: the places around a query that it attends to.
      most: the largest number of such tokens in a row; further ones are ignored.
    """

    window: Window
    most: int

    @override
    def within(self, length: int) -> Pattern:
        window = self.window.within(length)
        return window if self.most == 0 or window == FULL else replace(self, window=window)

    @override
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        assert arrays is not None
        flags = arrays["global_tokens"]
        counted = flags & (jnp.cumsum(flags, axis=-1) <= self.most)
        return self.window.mask(query_places, key_places) | counted[:, None, key_places]

    @override
    def pairs(self, length: int) -> int:
        """Return the pairs of the window, and those with as many global tokens as there may be, all outside of it."""
        return min(self.window.pairs(length) + self.most * length, length * length)

    @override
    def describe(self) -> str:
        return f"{self.window.describe()} and up to {self.most} global tokens"


def first_global(flags: jax.Array, most: int) -> tuple[jax.Array, jax.Array]:
    """Return the places of the first global tokens of each row, and which of these are global.

    Args:
      flags: bool[batch, length], True at global tokens.
      most: the largest number of them that count.

    Returns:
      int32[batch, min(most, length)] and bool of the same shape. A row with fewer global tokens is filled up with other places.
    """
    found, places = jax.lax.top_k(flags.astype(jnp.int32), min(most, flags.shape[1]))
    return places, found > 0


@dataclass(frozen=True)
class ExtraTokens(Pattern):
    """BigBird's blocks with extra global tokens (Zaheer et al. 2020, section 2; ETC, "extended transformer construction").

    The first tokens of a row are global: they attend to all tokens, and all tokens attend to them. The others attend to their own
    block and to the blocks beside it. The global tokens belong to the whole row, so a row holds one example.

    Attributes:
      count: global tokens.
      block: tokens in a block, counted from the first token that is not global; the last block may be shorter.
    """

    packs: ClassVar[bool] = False

    count: int
    block: int

    @override
    def within(self, length: int) -> Pattern:
        return FULL if length - self.count <= 2 * self.block else self

    @override
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        distance = (query_places - self.count) // self.block - (key_places - self.count) // self.block
        return (query_places < self.count) | (key_places < self.count) | (abs(distance) <= 1)

    @override
    def pairs(self, length: int) -> int:
        others = max(length - self.count, 0)
        sizes = np.full(-(-others // self.block), self.block, np.int64)
        sizes[-1:] -= len(sizes) * self.block - others
        near = np.convolve(sizes, np.ones(3, np.int64))[1:-1] if len(sizes) else sizes  # tokens of the three blocks around each
        return int(np.sum(sizes * near)) + length * length - others * others

    @override
    def describe(self) -> str:
        return f"three blocks of {self.block} around them and {self.count} extra global tokens"

"""Noise of permutation language models: spans to predict, in a random order (Yang et al. 2019, sections 2.2 and 2.4).

Nothing is replaced: the model sees every token, but where a position is to be predicted only those before it in the order.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.corruption import TextCorruption
from bertfam.corruption.masked_lm.replacement import masked_targets
from bertfam.corruption.masked_lm.selection import to_slots
from bertfam.corruption.permutation_order import order_ranks
from bertfam.corruption.sampling import draw
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, permutation_features


@dataclass(frozen=True)
class PermutationNoise(TextCorruption):
    """XLNet's partial prediction: about a sixth of the tokens, in spans, in a random order.

    A row has blocks, each with its share of the predictions and an order of its own; a later block sees all of an earlier one.
    Each block is walked through from its beginning (from its end, if its text runs backwards): a span of l tokens has a context
    of `context` l tokens, of which a uniform number in [0, `context` l) is before it, and begins with the next word. Spans of 1
    to `longest_span` tokens are drawn in proportion to 1 / l. If the block ends before its share is reached, single tokens are
    added. Control tokens in spans are not predicted, so that rows may have some predictions less.

    As in the published code a span is l tokens, although the paper and the code's comments mean l words: its search for the end
    of the span tests the first token again and again. The published code also begins spans at punctuation marks.

    Attributes:
      context: Tokens for each token to predict: 6, or 7 as in the paper for XLNet-base.
      longest_span: Largest number of tokens of a span.
      max_predictions: Static number of prediction slots per row; None: length / 6 rounded down, for a `context` of 6 (85 at 512).
      blocks: Number of equal parts of a row. A model with a memory keeps the first half of each row, so that its rows have 2.
    """

    packs: ClassVar[bool] = False

    context: int = 6
    longest_span: int = 5
    max_predictions: int | None = None
    blocks: int = 2

    def __post_init__(self) -> None:
        for name, least in (("context", 2), ("longest_span", 1), ("max_predictions", 1), ("blocks", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ValueError(f"{name} {getattr(self, name)} is less than {least}")

    @property
    @override
    def notes(self) -> tuple[str, ...]:
        return ("as in XLNet's published code spans are counted in tokens, where the paper has words",)

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        if length // self.blocks < self.context:
            raise UserError(
                f"length {length} is too short for PermutationNoise, whose {self.blocks} blocks need {self.context} tokens each: "
                f"use at least {self.blocks * self.context}"
            )

    @override
    def predictions(self, length: int) -> int:
        return self.max_predictions or max(1, length // self.context)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape) | masked_features(shape) | permutation_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Select the tokens to predict and draw their order; a pure function of its arguments.

        Args:
          rows: `encoder_input_tokens`, `encoder_segment_ids` int32[n, length] (0 = padding), `maskable` bool[n, length] (False at
            control tokens, unknown tokens and padding), features that are kept, and `encoder_reversed` int32[n, 1], 0 if it is
            missing.
          row_keys: uint64[n], one per row.
          tokens: Ids of the vocabulary.

        Returns:
          The rows without `maskable` and `units`, and with `encoder_ranks` int32[n, length], `encoder_reversed`,
          `masked_positions`, `masked_target_tokens` and `masked_loss_weights` [n, predictions].
        """
        original, real = rows["encoder_input_tokens"], rows["encoder_segment_ids"] > 0
        n, length = original.shape
        is_reversed = rows.get("encoder_reversed", np.zeros((n, 1), np.int32))
        begins = real.copy()
        if len(tokens.starts_word) == tokens.size:
            begins &= tokens.starts_word.take(original) | tokens.control.take(original)
        slots = self.predictions(length)
        width = -(-length // self.blocks)
        spans = np.zeros_like(real)
        for block in range(self.blocks):
            here = slice(block * width, min((block + 1) * width, length))
            share = -(-(slots - block) // self.blocks)  # the shares of all blocks add up to the slots
            spans[:, here] = self._select(
                begins[:, here], real[:, here], is_reversed[:, 0] > 0, share, keys.fold(row_keys, block)
            )
        targets = spans & rows["maskable"]
        functional = real & np.isin(original, [token for token in (tokens.sep, tokens.cls) if token is not None])
        chosen = to_slots(targets, np.broadcast_to(np.arange(length), targets.shape), slots)
        return {name: value for name, value in rows.items() if name not in ("maskable", "units")} | {
            "encoder_ranks": order_ranks(targets, functional, row_keys, self.blocks),
            "encoder_reversed": is_reversed,
            **masked_targets(original, chosen, tokens.pad),
        }

    def _select(
        self, begins: np.ndarray, real: np.ndarray, is_reversed: np.ndarray, share: int, block_keys: np.ndarray
    ) -> np.ndarray:
        """Select spans in one block of each row.

        Args:
          begins: bool[n, width], True where a span may begin.
          real: bool[n, width], True at tokens, which are contiguous.
          is_reversed: bool[n], rows that are walked through from the end.
          share: Largest number of tokens to select.
          block_keys: uint64[n], one per row.

        Returns:
          bool[n, width]; a block of m tokens has min(share, m / context rounded up) of them.
        """
        n, width = real.shape
        if share == 0 or width == 0:
            return np.zeros_like(real)
        begins, real = (np.where(is_reversed[:, None], array[:, ::-1], array) for array in (begins, real))
        sizes = np.count_nonzero(real, axis=1)
        wanted = np.minimum(share, -(-sizes // self.context))
        end = width - np.argmax(real[:, ::-1], axis=1)
        # The first place at or after each one where a span may begin; the width where there is none.
        following = np.where(begins, np.arange(width), width)
        following = np.minimum.accumulate(following[:, ::-1], axis=1)[:, ::-1]
        edges = np.zeros((n, width + 1), np.int64)  # the cumulative sum is 1 in spans
        words = keys.bits(block_keys, streams.SPANS, 2 * share)
        limits = np.cumsum(1 / np.arange(1, self.longest_span + 1))
        left, at = wanted.copy(), np.argmax(real, axis=1)
        active = np.arange(n)
        for draws in range(share):
            active = active[(left[active] > 0) & (at[active] < end[active])]
            if not active.size:
                break
            drawn = words[active, 2 * draws : 2 * draws + 2]
            size = 1 + np.searchsorted(limits, keys.uniform(drawn[:, 0]) * limits[-1], side="right")
            size = np.minimum(size, left[active])
            around = size * self.context
            before = keys.integers(drawn[:, 1], around)
            first = at[active] + before
            first = np.where(first < width, following[active, np.minimum(first, width - 1)], width)
            # A span that would reach the end of the block ends the walk.
            fits = first + size < end[active]
            active, first, size, rest = active[fits], first[fits], size[fits], (around - before)[fits]
            edges[active, first] += 1
            edges[active, first + size] -= 1
            left[active] -= size
            at[active] = first + size + rest
        selected = np.cumsum(edges[:, :width], axis=1) > 0
        selected |= draw(real & ~selected, left, keys.bits(block_keys, streams.FILLING, width))
        return np.where(is_reversed[:, None], selected[:, ::-1], selected)

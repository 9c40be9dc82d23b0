"""Rows of input-target pairs: `inputs </s>` for the encoder, `targets </s>` for the decoder (Raffel et al. 2020).

Inputs and targets that are too long are cut, and keep their end-of-text token. A packed row holds several pairs, and attention is
restricted to equal segment ids in the encoder and the decoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import Corruption, TextCorruption
from bertfam.corruption.decoder_rows import start_id
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PairLayout, SeveralExamples
from bertfam.data.rows.packing import pack
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import Start


@dataclass(frozen=True)
class TextPairs(PairLayout):
    """Layout of input-target pairs.

    Attributes:
      packed: True to pack several pairs into a row. The plan is fixed by the seed. Rows of running text in the same run then have
        positions as well, from 0.
      max_examples: Maximum number of pairs in a row; None: a quarter of the row's length.
    """

    packed: bool = False
    max_examples: int | None = None

    def __post_init__(self) -> None:
        if self.max_examples is not None and (self.max_examples < 2 or not self.packed):
            raise UserError(
                f"TextPairs.max_examples is {self.max_examples}: it must be at least 2, and requires TextPairs.packed = True"
            )

    @property
    @override
    def unpacked(self) -> "TextPairs":
        return TextPairs()

    @property
    @override
    def padding_fix(self) -> str:
        if self.packed:
            return "give shorter rows (Stage.length), or raise TextPairs.max_examples"
        return "pack them (--gin.TextPairs.packed=True)"

    @override
    def most_examples(self, length: int) -> int:
        return (self.max_examples or max(2, length // 4)) if self.packed else 1

    @override
    def check(self, noise: TextCorruption, name: str) -> None:
        if noise.decoder_start is None:
            raise UserError(
                f"{name}: pairs of inputs and targets require an encoder and a decoder, but {type(noise).__name__} has only one "
                "of them: train an encoder-decoder, such as models/t5_1_1_small.gin, with TextData.corruption = @TextToText() or "
                "a noise with both, such as @SpanCorruption(); a causal LM reads them with TextData.pairs = @Completions()"
            )

    @override
    def target_length(self, noise: TextCorruption, length: int) -> int:
        return noise.target_length(length)

    @override
    def plan(self, documents: Documents, noise: TextCorruption, length: int, seed: int, tokens: TokenIds) -> "TextToTextExamples":
        assert noise.decoder_start is not None
        size = noise.input_length(length), noise.target_length(length)
        return self.examples(documents, size, seed, PairFrame(tokens, noise.decoder_start))

    @override
    def prompts(self, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        real = rows["encoder_segment_ids"] > 0
        return [tokens[own] for tokens, own in zip(rows["encoder_input_tokens"], real, strict=True)]

    def examples(self, documents: Documents, size: tuple[int, int], seed: int, frame: "PairFrame") -> "TextToTextExamples":
        """Plan the rows.

        Args:
          documents: The pairs.
          size: Positions of the encoder and of the decoder.
          seed: Seed of the packing plan.
          frame: Control tokens around inputs and targets.
        """
        if min(size) <= frame.size:
            raise UserError(f"rows of {size[0]} and {size[1]} tokens are too short for pairs; use at least {frame.size + 1} each")
        return TextToTextExamples(documents, size, self.most_examples(size[0]) if self.packed else 0, seed, frame)


class PairFrame:
    """Control tokens around inputs and targets: </s> after them (T5), or <s> and </s> around them (BART).

    Attributes:
      lead: Id of the first token; None for no such token.
      end: Id of the last token.
      start: Id of the token that the decoder reads first.
      pad: Id of padding.
    """

    def __init__(self, tokens: TokenIds, start: Start) -> None:
        """Create the frame for a decoder that reads `start` first: padding in T5, </s> in BART."""
        self.lead = tokens.cls if start == "eos" else None
        self.end = tokens.end_of_text("a pair of texts")
        self.start = start_id(start, tokens, "a pair of texts")
        self.pad = tokens.pad

    @property
    def size(self) -> int:
        """Number of control tokens around a text."""
        return 1 if self.lead is None else 2


class TextToTextExamples(SeveralExamples):
    """Rows of one corpus of pairs."""

    def __init__(self, documents: Documents, size: tuple[int, int], most: int, seed: int, frame: PairFrame) -> None:
        """Create rows of `size` positions in the encoder and decoder, with up to `most` pairs each, or unpacked if it is 0."""
        assert documents.pairs
        self._documents, self._size, self._frame = documents, size, frame
        starts = documents.sentence_starts
        lengths = np.diff(starts).reshape(-1, 2)  # tokens of inputs and targets
        self._counts = np.minimum(lengths, np.array(size) - frame.size)
        self.cut = int((lengths > self._counts)[:, 0].sum())
        self.warnings = _warnings(documents.name, lengths, self._counts, size)
        self._is_packed = most > 0
        if self._is_packed:
            # A pair is packed by one size: the larger of the shares that its inputs and targets take of a row.
            longest, full = max(size), self._counts + frame.size
            shares = np.maximum.reduce([-(-full[:, side] * longest // size[side]) for side in (0, 1)])
            self._bounds, self._order = pack(shares, longest, most, seed)
        else:
            self._bounds, self._order = np.arange(len(documents) + 1), np.arange(len(documents))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def fill(self) -> tuple[float, float]:
        """Shares of the encoder's and of the decoder's positions that are not padding."""
        inputs, targets = (self._counts + self._frame.size).sum(axis=0) / (len(self) * np.array(self._size))
        return float(inputs), float(targets)

    @property
    @override
    def example_sizes(self) -> np.ndarray | None:
        return self._counts + self._frame.size if self._is_packed else None

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build finished rows, without random draws.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], unused.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids`, `encoder_positions` int32[n, length];
          `decoder_input_tokens`, `decoder_target_tokens`, `decoder_segment_ids`, `decoder_positions` int32[n, targets] and
          `decoder_loss_weights` float32[n, targets].
        """
        first, count = self._bounds[examples], self._bounds[examples + 1] - self._bounds[examples]
        row = np.repeat(np.arange(len(examples)), count)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        pairs = self._order[np.repeat(first, count) + nth]
        inputs, _, segments, positions = self._side(0, pairs, row, nth, len(examples))
        targets, before, target_segments, target_positions = self._side(1, pairs, row, nth, len(examples))
        return {
            "encoder_input_tokens": inputs,
            "encoder_segment_ids": segments,
            "encoder_token_type_ids": np.zeros_like(inputs),
            "encoder_positions": positions,
            "decoder_input_tokens": before,
            "decoder_target_tokens": targets,
            "decoder_segment_ids": target_segments,
            "decoder_positions": target_positions,
            "decoder_loss_weights": (target_segments > 0).astype(np.float32),
        }

    def _side(
        self, side: int, pairs: np.ndarray, row: np.ndarray, nth: np.ndarray, rows: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, the token before each, segment ids and positions of one side: int32[rows, length] each.

        Args:
          side: 0 for inputs, 1 for targets.
          pairs: int64[m], indices of the pairs.
          row: int64[m], row of each pair.
          nth: int64[m], index of each pair within its row.
          rows: Number of rows.
        """
        frame, width = self._frame, self._size[side]
        size = self._counts[pairs, side] + frame.size
        begin = np.cumsum(size) - size
        within = np.arange(size.sum()) - np.repeat(begin, size)
        # Each text begins where the previous text of its row ends.
        of_row = np.concatenate([[0], np.cumsum(np.bincount(row, size, rows))[:-1]]).astype(np.int64)
        place = np.repeat(row * width + begin - of_row[row], size) + within
        source = np.repeat(self._documents.sentence_starts[2 * pairs + side], size) + within - (frame.size - 1)
        tokens = self._documents.tokens.take(source, mode="clip").astype(np.int32)
        tokens[begin + size - 1] = frame.end
        if frame.lead is not None:
            tokens[begin] = frame.lead
        before = np.roll(tokens, 1)
        before[begin] = frame.start

        def placed(values: np.ndarray, rest: int) -> np.ndarray:
            result = np.full(rows * width, rest, np.int32)
            result[place] = values
            return result.reshape(rows, width)

        return placed(tokens, frame.pad), placed(before, frame.pad), placed(np.repeat(nth + 1, size), 0), placed(within, 0)


@dataclass(frozen=True)
class FeatureSubset(Corruption):
    """`Corruption` that only drops the features that other rows of the run do not have.

    Attributes:
      names: Names of the features to keep.
    """

    names: tuple[str, ...]

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return {name: rows[name] for name in self.names}


@dataclass(frozen=True)
class WithPositions(Corruption):
    """`Corruption` of rows of one example that adds positions from 0, as packed rows of the same run have.

    Attributes:
      corruption: The noise.
      names: Names of the features of the run.
    """

    corruption: Corruption
    names: tuple[str, ...]

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        result = self.corruption.corrupt(rows, row_keys, tokens)
        for name in self.names:
            if name.endswith("coder_positions") and name not in result:
                segments = result[name.replace("_positions", "_segment_ids")]
                result[name] = np.where(segments > 0, np.arange(segments.shape[1]), 0).astype(np.int32)
        return result


def _warnings(name: str, lengths: np.ndarray, kept: np.ndarray, size: tuple[int, int]) -> list[str]:
    cut = (lengths > kept).sum(axis=0).tolist()
    settings = (
        "Stage.length (--length)",
        "Stage.length (of @TextToText(): TextToText.target_tokens, --target_length)",
    )
    lines = [
        f"{many:,} of the {len(lengths):,} pairs of {name} have {what} of more than {room} tokens, which are cut: raise "
        f"{setting} to keep them whole"
        for many, what, room, setting in zip(cut, ("inputs", "targets"), size, settings, strict=True)
        if many
    ]
    if empty := int((lengths[:, 0] == 0).sum()):
        lines.append(f"{empty:,} of the {len(lengths):,} pairs of {name} have no inputs: the encoder reads only their end token")
    return lines

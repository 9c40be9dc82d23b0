"""Pairs of inputs and targets as rows: `inputs </s>` for the encoder, `targets </s>` for the decoder (Raffel et al. 2020).

What is longer than its place is cut, and the end-of-text token stays. Packed, several pairs stand in a row, and those of the
encoder and of the decoder by the same numbers see each other alone.
"""

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import Corruption
from bertfam.corruption.decoder_rows import start_id
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.packing import pack
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import Start


@dataclass(frozen=True)
class TextPairs:
    """How pairs become rows.

    Attributes:
      packed: whether several stand in a row. The plan is fixed by the seed; rows of running text in the same run have positions
        too then, from 0.
      max_examples: at most so many in a row; None: a sixteenth of the row's length.
    """

    packed: bool = False
    max_examples: int | None = None

    def __post_init__(self) -> None:
        if self.max_examples is not None and (self.max_examples < 2 or not self.packed):
            raise UserError(
                f"TextPairs.max_examples is {self.max_examples}: it must be at least 2, and goes with TextPairs.packed = True"
            )

    def most_examples(self, length: int) -> int:
        """Pairs in a row, at most."""
        return (self.max_examples or max(2, length // 16)) if self.packed else 1

    def examples(self, documents: Documents, size: tuple[int, int], seed: int, frame: "PairFrame") -> "TextToTextExamples":
        """Plans the rows.

        Args:
          documents: of pairs.
          size: places of the encoder and of the decoder.
          seed: what decides among equals where rows are packed.
          frame: what stands around inputs and targets.
        """
        if min(size) <= frame.size:
            raise UserError(f"rows of {size[0]} and {size[1]} places are too short for pairs; use at least {frame.size + 1} each")
        return TextToTextExamples(documents, size, self.most_examples(size[0]) if self.packed else 0, seed, frame)


class PairFrame:
    """What stands around inputs and targets: nothing before them and </s> behind (T5), or <s> and </s> (BART).

    Attributes:
      lead: what they begin with; None: nothing.
      end: what they end with.
      start: what the decoder reads first.
      pad: what fills rows up.
    """

    def __init__(self, tokens: TokenIds, start: Start) -> None:
        """Of a model whose decoder reads `start` first: T5's reads padding, BART's </s>."""
        self.lead = tokens.cls if start == "eos" else None
        self.end = tokens.end_of_text("a pair of texts")
        self.start = start_id(start, tokens, "a pair of texts")
        self.pad = tokens.pad

    @property
    def size(self) -> int:
        """Tokens around a text."""
        return 1 if self.lead is None else 2


class TextToTextExamples:
    """The rows of one corpus of pairs."""

    def __init__(self, documents: Documents, size: tuple[int, int], most: int, seed: int, frame: PairFrame) -> None:
        """Of `size` places each; `most` pairs in a row, or 0: not packed."""
        assert documents.pairs
        self._documents, self._size, self._frame = documents, size, frame
        starts = documents.sentence_starts
        lengths = np.diff(starts).reshape(-1, 2)  # tokens of inputs and targets
        self._counts = np.minimum(lengths, np.array(size) - frame.size)
        self.warnings = _warnings(documents.name, lengths, self._counts, size)
        if most:
            # One size that stands for both: the larger share of the row.
            longest, full = max(size), self._counts + frame.size
            shares = np.maximum.reduce([-(-full[:, side] * longest // size[side]) for side in (0, 1)])
            self._bounds, self._order = pack(shares, longest, most, seed)
        else:
            self._bounds, self._order = np.arange(len(documents) + 1), np.arange(len(documents))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @property
    def fill(self) -> tuple[float, float]:
        """The shares of the encoder's and of the decoder's places that are filled."""
        inputs, targets = (self._counts + self._frame.size).sum(axis=0) / (len(self) * np.array(self._size))
        return float(inputs), float(targets)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Finished rows; nothing is drawn.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], not used.

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
        """Tokens, the token before each, segment ids and positions of one side: int32[rows, places] each.

        Args:
          side: 0 for inputs, 1 for targets.
          pairs, row, nth: int64[m], which pairs, in which row, as the how many-th there.
        """
        frame, width = self._frame, self._size[side]
        size = self._counts[pairs, side] + frame.size
        begin = np.cumsum(size) - size
        within = np.arange(size.sum()) - np.repeat(begin, size)
        # Where each text begins in its row: behind those of the same row.
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
            found = np.full(rows * width, rest, np.int32)
            found[place] = values
            return found.reshape(rows, width)

        return placed(tokens, frame.pad), placed(before, frame.pad), placed(np.repeat(nth + 1, size), 0), placed(within, 0)


@dataclass(frozen=True)
class FeatureSubset(Corruption):
    """A `Corruption` that leaves rows as they are, but for features that others of the run do not have.

    Attributes:
      names: of the features.
    """

    names: tuple[str, ...]

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return {name: rows[name] for name in self.names}


@dataclass(frozen=True)
class WithPositions(Corruption):
    """A `Corruption` of rows of one example that adds the positions that packed rows of the same run have: from 0.

    Attributes:
      corruption: the noise.
      names: of the features.
    """

    corruption: Corruption
    names: tuple[str, ...]

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        found = self.corruption.corrupt(rows, row_keys, tokens)
        for name in self.names:
            if name.endswith("coder_positions") and name not in found:
                segments = found[name.replace("_positions", "_segment_ids")]
                found[name] = np.where(segments > 0, np.arange(segments.shape[1]), 0).astype(np.int32)
        return found


def _warnings(name: str, lengths: np.ndarray, kept: np.ndarray, size: tuple[int, int]) -> list[str]:
    cut = (lengths > kept).sum(axis=0).tolist()
    settings = ("Stage.length", "Stage.length (of @TextToText(): TextToText.target_tokens)")
    lines = [
        f"{many:,} of the {len(lengths):,} pairs of {name} have {what} of more than {room} tokens, which are cut: make {setting} "
        "larger, or leave them so"
        for many, what, room, setting in zip(cut, ("inputs", "targets"), size, settings, strict=True)
        if many
    ]
    if empty := int((lengths[:, 0] == 0).sum()):
        lines.append(f"{empty:,} of the {len(lengths):,} pairs of {name} have no inputs: the encoder reads their end alone")
    return lines

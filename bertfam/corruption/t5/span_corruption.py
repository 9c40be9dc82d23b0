"""T5's unsupervised objectives (Raffel et al. 2020, table 3): which tokens are noise x what inputs x what targets become."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.decoder_rows import append_end, sequence_features, sequence_rows, start_id
from bertfam.corruption.t5.random_spans import RandomSpans
from bertfam.corruption.t5.random_tokens import Noise, RandomPrefix, RandomTokens
from bertfam.corruption.t5.sentinels import (
    ClearToSentinels,
    DropClear,
    DropNoise,
    KeepAll,
    MaskNoise,
    NoiseToSentinels,
    Raw,
    ShuffleNoise,
    SpanFormat,
    run_begins,
)
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, Start

# Places of targets in the published settings, all of inputs of 512 tokens: (what targets are, share of noise) -> places.
_PUBLISHED_INPUTS = 512
_PUBLISHED_TARGETS: dict[tuple[SpanFormat, float], int] = {
    (ClearToSentinels(), 0.10): 103,
    (ClearToSentinels(), 0.15): 192,
    (ClearToSentinels(), 0.25): 256,
    (ClearToSentinels(), 0.50): 512,
    (DropClear(), 0.15): 104,
}


@dataclass(frozen=True)
class SpanCorruption(TextCorruption):
    """T5's noise: an encoder reads what inputs become of a text, a decoder writes what targets become of it.

    The defaults are spans of random length, the objective of the published models; `T5_OBJECTIVES` has all of the paper. Inputs
    and targets end with the end token. A row's clean text is as long as makes inputs of the row's length: 568 tokens for 512
    inputs and 114 targets. Noise of another kind than `RandomSpans` has not the same size in every row: there, what would need
    more targets than there are places, or more sentinels, stays clear, from the end of the row on. (As published such targets are
    cut off, and sentinels go on into the ids of words.)

    Attributes:
      noise: which tokens are noise: `RandomSpans`, `RandomTokens`, or `RandomPrefix`.
      inputs: what the encoder reads, see `bertfam.corruption.t5.sentinels`.
      targets: what the decoder writes.
      max_targets: places of the targets; None: with `RandomSpans` as many as they are, else as published where there is such a
        number, or as many as all but one row in some ten thousand need.
      start: what the decoder reads first: "pad" (T5), "eos" (BART), or "bos".
    """

    form: ClassVar[RowForm] = RowForm(framed=False)
    packs: ClassVar[bool] = False

    noise: Noise = RandomSpans()
    inputs: SpanFormat = NoiseToSentinels()
    targets: SpanFormat = ClearToSentinels()
    max_targets: int | None = None
    start: Start = "pad"

    def __post_init__(self) -> None:
        if self.max_targets is not None and self.max_targets < 3:
            raise ValueError(f"max_targets {self.max_targets} is less than 3")
        if self.max_targets is not None and self.noise.is_exact:
            name = type(self.noise).__name__
            raise ValueError(f"max_targets is {self.max_targets}, and with {name} all rows have equally many: leave it out")
        if self.max_targets is not None and not self.targets.has_noise_only:
            raise ValueError(
                f"max_targets is {self.max_targets}, which is for targets of the noise alone, ClearToSentinels and DropClear"
            )

    @property
    @override
    def decoder_start(self) -> Start:
        return self.start

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        tokens.end_of_text("SpanCorruption")
        start_id(self.start, tokens, "SpanCorruption.start")
        there, needed = len(tokens.sentinels), self._sentinels(length)
        if needed and not there:
            raise UserError(
                "the vocabulary has no sentinel tokens, which SpanCorruption needs: "
                f"choose another vocabulary (bertfam vocab --layout=t5 --sentinels={max(needed, 100)})"
            )
        if needed > there:
            # Longer rows never need fewer.
            fits = next((short for short in range(length - 1, 2, -1) if self._sentinels(short) <= there), None)
            fix = f"use rows of at most {fits}, " if fits else "use "
            raise UserError(
                f"rows of {length} tokens, made of {self.raw_length(length)}, may need {needed} sentinels, and the vocabulary "
                f"has {there}: {fix}longer spans, less noise, or a vocabulary with more (bertfam vocab --sentinels={needed})"
            )

    @override
    def raw_length(self, length: int) -> int:
        # At density 0.5 one less where targets would be longer than inputs, as published.
        if length < 3:
            raise UserError(f"rows of {length} tokens are too short for SpanCorruption: use at least 3")
        # Inputs never shrink when a row grows.
        most = 2 * length
        while self._input_lengths(most) <= length and most < 2**20:
            most *= 2
        lengths = np.arange(1, most + 1)
        found = int(lengths[np.flatnonzero(self._input_lengths(lengths) <= length)[-1]])
        return found - int(self.noise.has_short_rows and self._target_lengths(found) > length)

    @override
    def input_length(self, length: int) -> int:
        return int(self._input_lengths(self.raw_length(length)))

    @override
    def target_length(self, length: int) -> int:
        return self._places(self.raw_length(length))

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return sequence_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """See `TextCorruption.corrupt`.

        Args:
          rows: `encoder_input_tokens`, `encoder_segment_ids` int32[n, raw length], text without control tokens.
          row_keys: uint64[n], one a row.
          tokens: the vocabulary's ids.

        Returns:
          what `sequence_rows` gives.
        """
        text, real = rows["encoder_input_tokens"], rows["encoder_segment_ids"] > 0
        width, end, pad = text.shape[1], tokens.end_of_text("SpanCorruption"), tokens.pad
        places = self._places(width)
        lengths = np.count_nonzero(real, axis=1)
        raw = Raw(text, real, self.noise.draw(lengths, width, row_keys), row_keys)
        raw = raw._replace(noise=self._fitting(raw, tokens, places))
        inputs, input_lengths = append_end(self.inputs.write(raw, tokens), lengths > 0, end, int(self._input_lengths(width)), pad)
        targets, target_lengths = append_end(self.targets.write(raw, tokens), lengths > 0, end, places, pad)
        start = start_id(self.start, tokens, "SpanCorruption.start")
        return sequence_rows(inputs, input_lengths, targets, target_lengths, start, pad)

    def _fitting(self, raw: Raw, tokens: TokenIds, places: int) -> np.ndarray:
        """The noise, less what would need more targets or sentinels than there are: bool[n, width]."""
        if self.noise.is_exact:
            return raw.noise
        spans, clear = run_begins(raw.noise), run_begins(raw.real & ~raw.noise)
        if self.targets.aligned:
            clear[:, :1] |= raw.real[:, :1]
        fits = np.ones_like(raw.noise)
        for part in (self.inputs, self.targets):
            if part.sentinels == "spans":
                fits &= _within(spans, len(tokens.sentinels), 0)
            if part.sentinels == "clear":
                fits &= _within(clear, len(tokens.sentinels), 1)
        if (sizes := self.targets.sizes(raw, clear)) is not None:
            written, closing = sizes
            fits &= _within(written, places - 1, closing)
        return raw.noise & fits

    def _input_lengths(self, lengths: np.ndarray | int) -> np.ndarray:
        """Inputs of clean rows of `lengths` int64[...] tokens at most, the end token included: int64[...]."""
        lengths = np.asarray(lengths, np.int64)
        return self.inputs.most(lengths, self.noise.counts(lengths)) + 1

    def _target_lengths(self, lengths: np.ndarray | int) -> np.ndarray:
        """Targets likewise, of nearly all rows."""
        lengths = np.asarray(lengths, np.int64)
        return self.targets.most(lengths, self.noise.counts(lengths)) + 1

    def _places(self, width: int) -> int:
        """Places of the targets of clean rows of `width` tokens."""
        if self.max_targets is not None:
            return min(self.max_targets, width + 2)
        if self.noise.published_density is not None and width + 1 == _PUBLISHED_INPUTS:
            published = _PUBLISHED_TARGETS.get((self.targets, self.noise.published_density))
            if published is not None:
                return published
        return int(self._target_lengths(width))

    def _sentinels(self, length: int) -> int:
        """Sentinels that nearly all rows of `length` need at most."""
        counts = self.noise.counts(np.asarray(self.raw_length(length)))
        needed = {"none": 0, "one": 1, "spans": int(counts.spans), "clear": int(counts.clear)}
        return max(needed[self.inputs.sentinels], needed[self.targets.sentinels])


def _within(written: np.ndarray, most: int, closing: int) -> np.ndarray:
    """How far rows can be followed while at most `most` is written, `closing` behind it included: bool[n, width].

    `written` int64[n, width] is what each place writes; rows in which nothing is too much are followed to their ends.
    """
    so_far = np.cumsum(written, axis=1)
    fits = so_far + closing <= most
    fits |= so_far[:, -1:] <= most
    return fits


# Table 3 of the paper, in its order; `replace_spans` is its baseline, and `random_spans` what its models are pretrained on.
T5_OBJECTIVES: Mapping[str, SpanCorruption] = {
    "prefix_lm": SpanCorruption(RandomPrefix(), DropClear(), DropNoise()),
    "bert_style": SpanCorruption(RandomTokens(), MaskNoise(random_share=0.1), KeepAll()),
    "deshuffling": SpanCorruption(RandomTokens(density=1.0), ShuffleNoise(), KeepAll()),
    "mass_style": SpanCorruption(RandomTokens(), MaskNoise(), KeepAll()),
    "replace_spans": SpanCorruption(RandomTokens(), NoiseToSentinels(), ClearToSentinels()),
    "drop_tokens": SpanCorruption(RandomTokens(), DropNoise(), DropClear()),
    "random_spans": SpanCorruption(RandomSpans(), NoiseToSentinels(), ClearToSentinels()),
}

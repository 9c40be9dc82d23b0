"""T5's unsupervised objectives (Raffel et al. 2020, table 3): combinations of noise, input format and target format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.decoder_rows import append_end, sequence_features, sequence_rows, start_id
from bertfam.corruption.t5.random_spans import RandomSpans
from bertfam.corruption.t5.random_tokens import Noise, RandomPrefix, RandomTokens
from bertfam.corruption.t5.span_formats import (
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

# Target lengths of the published settings, all with inputs of 512 tokens: (format of targets, share of noise) -> target length.
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
    """T5's noise: the encoder reads the corrupted text, and the decoder predicts the targets made from the same text.

    The defaults are spans of random length, the objective of the published models; `T5_OBJECTIVES` has all of the paper. Inputs
    and targets end with the end token. The clean text of a row is as long as inputs of the row's length require: 568 tokens for
    512 inputs and 114 targets. The amount of noise is constant only with `RandomSpans`. With other noise, noise that would exceed
    the target length or the number of sentinels stays clear, from the end of the row. (In the published code such targets are cut
    off, and sentinels run into the ids of words.)

    Attributes:
      noise: Distribution of noise tokens: `RandomSpans`, `RandomTokens`, or `RandomPrefix`.
      inputs: Format of the encoder's inputs, see `bertfam.corruption.t5.span_formats`.
      targets: Format of the decoder's targets.
      max_targets: Target length. None: the exact length with `RandomSpans`; otherwise the published length if there is one, or
        the length that suffices for all but about one row in ten thousand.
      start: Token that the decoder reads first: "pad" (T5), "eos" (BART), or "bos".
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
            raise ValueError(
                f"max_targets is {self.max_targets}, but with {type(self.noise).__name__} all rows have the same length: "
                "leave it out"
            )
        if self.max_targets is not None and not self.targets.has_noise_only:
            raise ValueError(
                f"max_targets is {self.max_targets}, but it applies only to ClearToSentinels and DropClear: leave it out"
            )

    @property
    @override
    def decoder_start(self) -> Start:
        return self.start

    @property
    @override
    def notes(self) -> tuple[str, ...]:
        if not isinstance(self.targets, ClearToSentinels) or self.targets.aligned or not self.noise.begins_rows:
            return self.noise.notes
        return (
            *self.noise.notes,
            "the targets of a row that begins with noise begin before the first sentinel, as published, so that they do not say "
            "where their spans belong: ClearToSentinels.aligned = True puts each span behind its own sentinel",
        )

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        tokens.end_of_text("SpanCorruption")
        start_id(self.start, tokens, "SpanCorruption.start")
        there, needed = len(tokens.sentinels), self._sentinels(length)
        if needed and not there:
            raise UserError(
                "the vocabulary has no sentinel tokens, which SpanCorruption requires: "
                f"choose another vocabulary (bertfam vocab --layout=t5 --sentinels={max(needed, 100)})"
            )
        if needed > there:
            # The number of sentinels never decreases with the length.
            fits = next((short for short in range(length - 1, 2, -1) if self._sentinels(short) <= there), None)
            fix = f"use rows of at most {fits}, " if fits else "use "
            raise UserError(
                f"rows of {length} tokens, made of {self.raw_length(length)}, may need {needed} sentinels, and the vocabulary "
                f"has {there}: {fix}longer spans, less noise, or a vocabulary with more (bertfam vocab --sentinels={needed})"
            )

    @override
    def raw_length(self, length: int) -> int:
        if length < 3:
            raise UserError(f"rows of {length} tokens are too short for SpanCorruption: use at least 3")
        # The input length never decreases with the clean length.
        most = 2 * length
        while self._input_lengths(most) <= length and most < 2**20:
            most *= 2
        lengths = np.arange(1, most + 1)
        longest = int(lengths[np.flatnonzero(self._input_lengths(lengths) <= length)[-1]])
        return longest - int(self.noise.has_short_rows and self._target_lengths(longest) > length)

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
        # `rows` has `encoder_input_tokens` and `encoder_segment_ids` int32[n, raw length]: text without control tokens.
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
        """Return the noise without the part that would exceed the target length or the number of sentinels: bool[n, width]."""
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
        """Return the maximum input length of clean rows of `lengths` int64[...] tokens, with the end token: int64[...]."""
        lengths = np.asarray(lengths, np.int64)
        return self.inputs.most(lengths, self.noise.counts(lengths)) + 1

    def _target_lengths(self, lengths: np.ndarray | int) -> np.ndarray:
        """Return the maximum target length of nearly all such rows, with the end token: int64[...]."""
        lengths = np.asarray(lengths, np.int64)
        return self.targets.most(lengths, self.noise.counts(lengths)) + 1

    def _places(self, width: int) -> int:
        """Return the target length for clean rows of `width` tokens."""
        if self.max_targets is not None:
            return min(self.max_targets, width + 2)
        if self.noise.published_density is not None and width + 1 == _PUBLISHED_INPUTS:
            published = _PUBLISHED_TARGETS.get((self.targets, self.noise.published_density))
            if published is not None:
                return published
        return int(self._target_lengths(width))

    def _sentinels(self, length: int) -> int:
        """Return the number of sentinels that suffices for nearly all rows of `length`."""
        counts = self.noise.counts(np.asarray(self.raw_length(length)))
        needed = {"none": 0, "one": 1, "spans": int(counts.spans), "clear": int(counts.clear)}
        return max(needed[self.inputs.sentinels], needed[self.targets.sentinels])


def _within(written: np.ndarray, most: int, closing: int) -> np.ndarray:
    """Return a mask of the prefix of each row whose formatted length is at most `most`: bool[n, width].

    Args:
      written: int64[n, width], tokens that each position adds.
      most: Maximum formatted length.
      closing: Tokens that close a prefix; a row that fits as a whole does not require them.
    """
    so_far = np.cumsum(written, axis=1)
    fits = so_far + closing <= most
    fits |= so_far[:, -1:] <= most
    return fits


# Table 3 of the paper, in its order. `replace_spans` is the baseline; the published models are pretrained on `random_spans`.
T5_OBJECTIVES: Mapping[str, SpanCorruption] = {
    "prefix_lm": SpanCorruption(RandomPrefix(), DropClear(), DropNoise()),
    "bert_style": SpanCorruption(RandomTokens(), MaskNoise(random_share=0.1), KeepAll()),
    "deshuffling": SpanCorruption(RandomTokens(density=1.0), ShuffleNoise(), KeepAll()),
    "mass_style": SpanCorruption(RandomTokens(), MaskNoise(), KeepAll()),
    "replace_spans": SpanCorruption(RandomTokens(), NoiseToSentinels(), ClearToSentinels()),
    "drop_tokens": SpanCorruption(RandomTokens(), DropNoise(), DropClear()),
    "random_spans": SpanCorruption(RandomSpans(), NoiseToSentinels(), ClearToSentinels()),
}

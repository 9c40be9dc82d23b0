"""Pairs of words that are near each other, and words that are drawn at random (Mikolov et al. 2013b, section 2)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.corruption import Corruption, RowForm, TextCorruption
from bertfam.corruption.masked_lm.replacement import as_frequent_as
from bertfam.corruption.sampling import compact, draw_positions
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, noise_features


@dataclass(frozen=True)
class SkipGrams(TextCorruption):
    """Skip-grams: each word of a text with the words in its window, and negatives for each such pair.

    A row of `length` slots is made from length / pairs_per_word tokens of text. Control and unknown tokens are left out, and so
    is each occurrence of a word of frequency f with probability 1 - sqrt(threshold / f) (equation 5). Of the words that remain,
    each is the centre of a window of 1 .. `window` words on either side, all widths equally likely (Mikolov et al. 2013a, section
    3.2).
    If there are more pairs than slots, a random set of them is used.

    Attributes:
      window: c, the greatest width of a window on either side.
      negatives: k, the words drawn for each pair, from the frequencies of the training text to the power `power`. One that equals
        the word of the pair is kept.
      power: exponent of the frequencies; 0.75 as published.
      threshold: t, the frequency above which words are left out; 0: none are.
      pairs_per_word: slots for each token of text. Without a threshold there are up to window + 1 pairs for each on average.
    """

    form = RowForm(framed=False)
    packs = False

    window: int = 5
    negatives: int = 5
    power: float = 0.75
    threshold: float = 1e-3
    pairs_per_word: int = 4

    def __post_init__(self) -> None:
        for name in ("window", "negatives", "pairs_per_word"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        if not 0 <= self.power <= 1:
            raise ValueError(f"power {self.power} is not in [0, 1]")
        if not 0 <= self.threshold < 1:
            raise ValueError(f"threshold {self.threshold} is not in [0, 1)")

    @override
    def raw_length(self, length: int) -> int:
        if length % self.pairs_per_word:
            raise UserError(
                f"rows have {length} slots for pairs (Stage.length), which SkipGrams.pairs_per_word, {self.pairs_per_word}, does "
                "not divide: change one of them"
            )
        return length // self.pairs_per_word

    @override
    def predictions(self, length: int) -> int:
        return length

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape, token_types=False) | masked_features(shape) | noise_features(shape, self.negatives)

    @override
    def fit(self, counts: Callable[[], np.ndarray]) -> "FittedSkipGrams":
        return FittedSkipGrams(self, counts())

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        raise ValueError("call `fit` first: the words that are drawn depend on the frequencies of the text")


@dataclass(frozen=True, eq=False)
class FittedSkipGrams(Corruption):
    """`SkipGrams` with the frequencies of a text.

    Attributes:
      settings: all settings.
      counts: int64[vocabulary], occurrences of each token in the text.
    """

    settings: SkipGrams
    counts: np.ndarray

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        # `rows` has `encoder_input_tokens` int32[n, words] and `maskable` bool[n, words], False at tokens that are left out.
        settings, counts = self.settings, self._word_counts(tokens)
        words = rows["encoder_input_tokens"]
        count, width = words.shape
        length = width * settings.pairs_per_word
        kept = self._kept(words, counts, row_keys) & rows["maskable"]
        sizes = np.count_nonzero(kept, axis=1)
        text = compact(words, kept, length, tokens.pad)
        centres, contexts, used = self._pairs(sizes, width, length, row_keys)
        drawn = as_frequent_as(counts**settings.power)(keys.bits(row_keys, streams.REPLACEMENT, length * settings.negatives))
        return {
            "encoder_input_tokens": text,
            "encoder_segment_ids": (np.arange(length) < sizes[:, None]).astype(np.int32),
            "masked_positions": centres.astype(np.int32),
            "masked_target_tokens": np.where(used, np.take_along_axis(text, contexts, axis=1), tokens.pad).astype(np.int32),
            "masked_loss_weights": used.astype(np.float32),
            "noise_tokens": drawn.reshape(count, length, settings.negatives).astype(np.int32),
        }

    def word_scores(self, tokens: TokenIds) -> np.ndarray:
        """Return log p(w) - log k q(w), with p the frequency of a word beside others and q among negatives: float64[vocabulary].

        No scores that ignore the centre have a lower expected loss. Words that are not in the text count once.
        """
        counts = np.maximum(self._word_counts(tokens), 1)
        words, drawn = counts * self._shares(counts), counts**self.settings.power
        return np.log(words / words.sum()) - np.log(self.settings.negatives * drawn / drawn.sum())

    def _word_counts(self, tokens: TokenIds) -> np.ndarray:
        """Return the occurrences of each word, 0 for control and unknown tokens; 1 for every word of a text without any."""
        counts = np.zeros(tokens.size, np.int64)
        counts[tokens.pieces] = self.counts[tokens.pieces]
        if not counts.any():
            counts[tokens.pieces] = 1
        return counts

    def _kept(self, words: np.ndarray, counts: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
        """Draw the occurrences that remain: bool[n, words]."""
        if not self.settings.threshold:
            return np.ones(words.shape, bool)
        return keys.uniform(keys.bits(row_keys, streams.SELECTION, words.shape[1])) < self._shares(counts)[words]

    def _shares(self, counts: np.ndarray) -> np.ndarray:
        """Return the share of each word's occurrences that remains: float64[vocabulary]."""
        threshold = self.settings.threshold
        shares = np.sqrt(threshold * counts.sum() / np.maximum(counts, 1)) if threshold else np.ones(len(counts))
        return np.minimum(shares, 1)

    def _pairs(
        self, sizes: np.ndarray, width: int, length: int, row_keys: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the windows, and return pairs of positions in rows of `sizes` words.

        Returns:
          the positions of the centres and of the words in their windows, int64[n, length] each, and a mask of the used slots
          bool[n, length].
        """
        reach = self.settings.window
        radius = 1 + keys.integers(keys.bits(row_keys, streams.WINDOWS, width), reach)  # [n, words]
        offsets = np.concatenate([np.arange(-reach, 0), np.arange(1, reach + 1)])
        place = np.arange(width)[:, None] + offsets  # [words, 2 window]
        is_text = (place >= 0) & (place < sizes[:, None, None]) & (np.arange(width)[:, None] < sizes[:, None, None])
        is_pair = (is_text & (np.abs(offsets) <= radius[..., None])).reshape(len(sizes), -1)
        wanted = np.minimum(np.count_nonzero(is_pair, axis=1), length)
        pairs, used = draw_positions(is_pair, wanted, length, keys.bits(row_keys, streams.ORDER, is_pair.shape[1]))
        centres = pairs // len(offsets)
        return centres, np.where(used, centres + offsets[pairs % len(offsets)], 0), used

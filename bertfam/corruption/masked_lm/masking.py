"""Noise of masked language models: BERT's 15 % with 80/10/10 (Devlin et al. 2019, section 3.1, appendix A.1) and variants."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from typing_extensions import override

from bertfam import features
from bertfam.corruption.corruption import Corruption, TextCorruption
from bertfam.corruption.masked_lm.budgets import Rounding, budget
from bertfam.corruption.masked_lm.replacement import DrawnBy, RandomIds, as_frequent_as, masked_targets, replace, uniform_over
from bertfam.corruption.masked_lm.selection import Choice, SingleTokens
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.masked_lm.span_boundaries import boundary_features
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import find_words
from bertfam.features import FeatureSpec, RowShape

RandomTokens = Literal["pieces", "vocabulary", "text"]
Counted = Literal["row", "maskable"]
_NAMES = {"random_tokens": RandomTokens, "rounding": Rounding, "counted": Counted, "drawn_by": DrawnBy}


@dataclass(frozen=True)
class BertMasking(TextCorruption):
    """BERT's noise: a budget of predictions, a choice of positions, and a replacement of the tokens there.

    A row of n tokens, of which [CLS] and [SEP] count but are never selected, gets min(max_predictions, max(1, round(rate n)))
    predictions at positions drawn without replacement. Each position independently becomes [MASK] with probability `mask_share`
    and a random token with probability `random_share`; otherwise it keeps its token.

    Attributes:
      rate: Share of a row's tokens to predict.
      max_predictions: Static number of prediction slots per row; None: rate * length rounded up (20 at 128, 77 at 512).
      mask_share: Share of the predictions whose input is [MASK].
      random_share: Share of the predictions whose input is a random token.
      random_tokens: Distribution of random tokens: "pieces", uniform over the vocabulary without its control tokens;
        "vocabulary", uniform over all of it, as in BERT's published code; "text", by frequency in the training text, as in
        SpanBERT's published code (see `fit`).
      choice: Rule that selects positions: `SingleTokens`, `WithReplacement` (ELECTRA), `RareTokens` (DistilBERT), `WholeWords`,
        `WordSpans` (SpanBERT), `WordNgrams` (ALBERT), `Units` (ERNIE) or `SalientSpan` (REALM).
      rounding: Rounding of rate n: "nearest", "up" (SpanBERT) or "random", floor(rate n + U) (RoBERTa).
      counted: Tokens that n counts: all of the "row", or the "maskable" ones (SpanBERT).
      drawn_by: Granularity of the replacement: drawn for each "token", or for each "unit" of the choice (SpanBERT).
      slot_margin: If given, rows have (rate + slot_margin) * length slots, rounded down, in place of `max_predictions` (ELECTRA:
        0.005, so 19 at 128 and 79 at 512).
      slot_share: If given, rows have slot_share * length slots, rounded down, in place of `max_predictions` (BigBird: 75 / 512).
      boundaries: True to add the features of the span boundary objective (SpanBERT).
      word_numbers: True to add the number of each token's word, by which a decoder sees whole words (RetroMAE).
      shuffling: Shuffling of windows among the tokens that are not masked, to be predicted as well (StructBERT); None for none.
    """

    rate: float = 0.15
    max_predictions: int | None = None
    mask_share: float = 0.8
    random_share: float = 0.1
    random_tokens: RandomTokens = "pieces"
    choice: Choice = SingleTokens()
    rounding: Rounding = "nearest"
    counted: Counted = "row"
    drawn_by: DrawnBy = "token"
    slot_margin: float | None = None
    slot_share: float | None = None
    boundaries: bool = False
    word_numbers: bool = False
    shuffling: ShuffledWindows | None = None

    def __post_init__(self) -> None:
        for name, allowed in _NAMES.items():
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(get_args(allowed))}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate {self.rate} is not in (0, 1]")
        if self.max_predictions is not None and self.max_predictions < 1:
            raise ValueError(f"max_predictions {self.max_predictions} is less than 1")
        if self.slot_margin is not None and (self.max_predictions is not None or not 0 <= self.slot_margin < 1):
            raise ValueError(f"slot_margin {self.slot_margin} must be in [0, 1), and max_predictions None where it is given")
        if self.slot_share is not None and (self._has_slots or not 0 < self.slot_share <= 1):
            raise ValueError(
                f"slot_share {self.slot_share} must be in (0, 1], and max_predictions and slot_margin None where it is given"
            )
        if not (self.mask_share >= 0 and self.random_share >= 0 and self.mask_share + self.random_share <= 1):
            raise ValueError(
                f"mask_share {self.mask_share} and random_share {self.random_share} must be >= 0 with a sum of at most 1"
            )
        if self.boundaries and self.shuffling:
            raise ValueError(
                "boundaries is True and shuffling is set, but shuffling may change the tokens at a boundary: set only one"
            )
        if self.boundaries and not self.choice.merges:
            raise ValueError(
                f"boundaries is True, but {type(self.choice).__name__} may select tokens next to a unit: set choice to "
                "@WordSpans(), or boundaries to False"
            )

    @override
    def predictions(self, length: int) -> int:
        # The slots of masked tokens come first, then those of shuffled ones.
        return self._masks(length) + (self.shuffling.predictions(length) if self.shuffling else 0)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        specs = features.encoder_features(shape) | features.masked_features(shape)
        specs |= features.span_features(shape) if self.boundaries else {}
        specs |= features.word_features(shape) if self.word_numbers else {}
        return specs | (features.shuffled_features(shape) if self.shuffling else {})

    @property
    @override
    def needs_units(self) -> bool:
        return self.choice.needs_units

    @override
    def fit(self, counts: Callable[[], np.ndarray]) -> Corruption:
        # Only some choices depend on the counts, and random tokens drawn by frequency.
        masking = dataclasses.replace(self, choice=self.choice.fit(counts())) if self.choice.needs_counts else self
        return FittedMasking(masking, counts()) if self.random_tokens == "text" else masking

    @override
    def corrupt(
        self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds, counts: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Mask rows; a pure function of its arguments.

        Args:
          rows: `encoder_input_tokens` int32[n, length], `encoder_segment_ids` int32[n, length] (0 = padding),
            `maskable` bool[n, length] (False at control tokens, unknown tokens and padding), and features that are kept.
          row_keys: uint64[n], one per row.
          tokens: Ids of the vocabulary.
          counts: int64[vocabulary], occurrences of each token in the text; required if `random_tokens` is "text".

        Returns:
          The rows without `maskable` and `units`, with corrupted `encoder_input_tokens`, and with `masked_positions`,
          `masked_target_tokens` and `masked_loss_weights` [n, predictions]. With `boundaries` they also have the features of
          `boundary_features`; with `word_numbers`, `encoder_word_numbers` int32[n, length], the number of each token's word, -1
          at control tokens and padding; with `shuffling`, `shuffled_loss_weights` [n, predictions], 1 in the slots of shuffled
          tokens.
        """
        original = rows["encoder_input_tokens"]
        slots = self._masks(original.shape[1])
        counted = np.count_nonzero(rows["encoder_segment_ids" if self.counted == "row" else "maskable"], axis=1)
        wanted = np.minimum(slots, budget(self.rate, counted, self.rounding, row_keys))
        chosen = self.choice.choose(rows, wanted, slots, row_keys, tokens)
        corrupted = replace(
            original,
            chosen,
            row_keys,
            mask=tokens.require("mask", "BertMasking"),
            mask_share=self.mask_share,
            random_share=self.random_share,
            random_ids=self._random_ids(tokens, counts),
            drawn_by=self.drawn_by,
        )
        result = {name: value for name, value in rows.items() if name not in ("maskable", "units")}
        result["encoder_input_tokens"] = corrupted
        result |= masked_targets(original, chosen, tokens.pad)
        if self.word_numbers:
            is_word = (rows["encoder_segment_ids"] > 0) & ~tokens.control.take(original)
            result["encoder_word_numbers"] = np.where(is_word, find_words(rows, tokens).number, -1).astype(np.int32)
        if self.shuffling:
            result |= self._shuffled(rows, result, row_keys, tokens)
        return result | (boundary_features(rows, chosen, tokens) if self.boundaries else {})

    def _random_ids(self, tokens: TokenIds, counts: np.ndarray | None) -> RandomIds:
        if self.random_tokens == "vocabulary":
            return uniform_over(np.arange(tokens.size))
        if self.random_tokens == "pieces":
            return uniform_over(tokens.pieces)
        assert counts is not None, "call `fit` first"
        of_pieces = np.zeros(tokens.size, np.int64)
        of_pieces[tokens.pieces] = counts[tokens.pieces]
        # A text without any piece has nothing to replace.
        return as_frequent_as(of_pieces) if of_pieces.any() else uniform_over(tokens.pieces)

    def _shuffled(
        self, rows: dict[str, np.ndarray], masked: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds
    ) -> dict[str, np.ndarray]:
        """Return the features with shuffled windows: corrupted tokens, and the slots of masks followed by those of windows."""
        assert self.shuffling is not None
        allowed = rows["maskable"].copy()
        row, slot = np.nonzero(masked["masked_loss_weights"])
        allowed[row, masked["masked_positions"][row, slot]] = False
        counted = np.count_nonzero(rows["encoder_segment_ids"], axis=1)
        corrupted, chosen = self.shuffling.shuffle(masked["encoder_input_tokens"], allowed, counted, row_keys)
        targets = masked_targets(rows["encoder_input_tokens"], chosen, tokens.pad)
        slots = {name: np.concatenate([masked[name], value], axis=1) for name, value in targets.items()}
        none = np.zeros_like(masked["masked_loss_weights"])
        slots["shuffled_loss_weights"] = np.concatenate([none, targets["masked_loss_weights"]], axis=1)
        return slots | {"encoder_input_tokens": corrupted}

    @property
    def _has_slots(self) -> bool:
        """True if `max_predictions` or `slot_margin` gives the number of slots."""
        return self.max_predictions is not None or self.slot_margin is not None

    def _masks(self, length: int) -> int:
        """Return the static number of slots for masked tokens in a row of `length` tokens."""
        if self.slot_share is not None:
            return max(1, int(self.slot_share * length))
        if self.slot_margin is not None:
            return min(length, max(1, int((self.rate + self.slot_margin) * length)))
        return self.max_predictions or math.ceil(self.rate * length)


@dataclass(frozen=True, eq=False)
class FittedMasking(Corruption):
    """`BertMasking` whose random tokens follow the token frequencies of a text.

    Attributes:
      masking: All other settings.
      counts: int64[vocabulary], occurrences of each token in the text.
    """

    masking: BertMasking
    counts: np.ndarray

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return self.masking.corrupt(rows, row_keys, tokens, self.counts)

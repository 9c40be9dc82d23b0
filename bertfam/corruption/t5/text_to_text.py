"""Supervised pairs of inputs and targets, without noise (Raffel et al. 2020, section 2.4)."""

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import TextCorruption
from bertfam.corruption.decoder_rows import sequence_features
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, Start


@dataclass(frozen=True)
class TextToText(TextCorruption):
    """Placeholder for the noise of a run on pairs only; a mixture with running text uses the noise of the text instead.

    Attributes:
      target_tokens: Number of decoder positions.
      start: Token that the decoder reads first: "pad" (T5) or "eos" (BART).
    """

    reads_text: ClassVar[bool] = False

    target_tokens: int = 128
    start: Start = "pad"

    def __post_init__(self) -> None:
        if self.target_tokens < 2:
            raise UserError(f"TextToText.target_tokens is {self.target_tokens}: it must be at least 2")
        if self.start not in get_args(Start):
            raise UserError(f"TextToText.start is {self.start!r}: it must be one of {', '.join(get_args(Start))}")

    @property
    @override
    def decoder_start(self) -> Start:
        return self.start

    @override
    def target_length(self, length: int) -> int:
        return self.target_tokens

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return sequence_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        # Pairs are finished rows, and `TextData.refuse_text` rejects running text earlier.
        raise TypeError("TextToText has no noise")

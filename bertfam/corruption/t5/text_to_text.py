"""No noise: supervised pairs of inputs and targets alone (Raffel et al. 2020, section 2.4)."""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from bertfam.corruption.corruption import TextCorruption
from bertfam.corruption.decoder_rows import sequence_features
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, Start


@dataclass(frozen=True)
class TextToText(TextCorruption):
    """What a run of pairs alone has in place of noise; with running text in the mixture the noise of that is the run's.

    Attributes:
      target_tokens: places of the decoder.
      start: what the decoder reads first: "pad" (T5) or "eos" (BART).
    """

    target_tokens: int = 128
    start: Start = "pad"

    def __post_init__(self) -> None:
        if self.target_tokens < 2:
            raise UserError(f"TextToText.target_tokens is {self.target_tokens}: it must be at least 2")
        if self.start not in get_args(Start):
            raise UserError(f"TextToText.start is {self.start!r}: it must be one of {', '.join(get_args(Start))}")

    @property
    def decoder_start(self) -> Start:
        """See `TextCorruption.decoder_start`."""
        return self.start

    def target_length(self, length: int) -> int:
        """See `TextCorruption.target_length`."""
        return self.target_tokens

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """See `TextCorruption.features`."""
        return sequence_features(shape)

    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """There is nothing to corrupt: pairs are finished rows, and running text is refused before (`TextData.refuse_text`)."""
        raise TypeError("TextToText has no noise")

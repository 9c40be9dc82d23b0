"""Rows of causal language models: the target at each position is the next token (Radford et al. 2018, section 3.1)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape, decoder_features


@dataclass(frozen=True)
class NextTokens(TextCorruption):
    """Clean text, in which the decoder predicts the token after each token.

    The text is one sequence of tokens, with an end-of-text token before the first document and one after each document. Every
    token of it but the first is a target exactly once per epoch. The first token of a document is predicted from the end-of-text
    token before it, and the end-of-text token from the last token of the document, so that a model learns to start and to stop.
    The first input of a row is the last target of the previous row. Documents in a packed row do not attend to each other, and
    each starts with an end-of-text token of its own; a piece of a document that is longer than a row starts with the token before
    it.
    """

    form: ClassVar[RowForm] = RowForm(framed=False, continued=True)

    @override
    def target_length(self, length: int) -> int:
        return length

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return decoder_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        # `rows` has `encoder_input_tokens`, `next_tokens` and `encoder_segment_ids` int32[n, length]; packed rows also have
        # `encoder_positions` int32[n, length]. There are no random draws.
        segments = rows["encoder_segment_ids"]
        result = {
            "decoder_input_tokens": rows["encoder_input_tokens"],
            "decoder_target_tokens": rows["next_tokens"],
            "decoder_segment_ids": segments,
            "decoder_loss_weights": (segments > 0).astype(np.float32),
        }
        return result | ({"decoder_positions": rows["encoder_positions"]} if "encoder_positions" in rows else {})

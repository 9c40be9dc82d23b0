"""The causal language model's rows: at each place the token that follows (Radford et al. 2018, section 3.1)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape, decoder_features


@dataclass(frozen=True)
class NextTokens(TextCorruption):
    """No noise: the decoder reads text and predicts what follows each token.

    The text is one line of tokens with an end-of-text token before the first document and one behind each document. Every token
    of it but the first is a target exactly once an epoch: the first of a document is predicted from the end-of-text token
    before it, and the end-of-text token from the last of the document, so that a model learns to begin and to stop. A row reads
    the last target of the row before as its first input. Documents in a packed row do not see each other, and each begins with
    an end-of-text token of its own; a piece of a document that is longer than a row begins with the token before it.
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
        """See `TextCorruption.corrupt`.

        Args:
          rows: `encoder_input_tokens`, `next_tokens`, `encoder_segment_ids` int32[n, length]; of packed rows
            `encoder_positions` int32[n, length] too.
          row_keys: not used; nothing is drawn.
          tokens: not used.

        Returns:
          the features of the decoder.
        """
        segments = rows["encoder_segment_ids"]
        result = {
            "decoder_input_tokens": rows["encoder_input_tokens"],
            "decoder_target_tokens": rows["next_tokens"],
            "decoder_segment_ids": segments,
            "decoder_loss_weights": (segments > 0).astype(np.float32),
        }
        return result | ({"decoder_positions": rows["encoder_positions"]} if "encoder_positions" in rows else {})

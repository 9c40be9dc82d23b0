"""Sequence-to-sequence objective (Sutskever et al. 2014; T5, BART): predicts targets from earlier ones and an encoded input."""

from dataclasses import dataclass
from typing import ClassVar

import jax
from typing_extensions import override

from bertfam.features import FeatureSpec, RowShape, Start, encoder_features
from bertfam.models.network import Kind
from bertfam.objectives.language_model import Collected, LanguageModelObjective
from bertfam.objectives.objective import Batch, Tree


@dataclass(frozen=True)
class SequenceToSequence(LanguageModelObjective):
    """L = mean over targets t of -log p(y_t | y_1 .. y_t-1, x), by an encoder and a decoder; see `LanguageModelObjective`."""

    network: ClassVar[Kind] = "encoder_decoder"
    shown: ClassVar[str] = "encoder"

    @property
    def decoder_start(self) -> Start | None:
        """Token that the decoder reads before the first target."""
        return self.model.start

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(shape) | encoder_features(shape, token_types=False)

    @override
    def _lengths(self, shape: RowShape) -> dict[str, int]:
        return {"tokens of the encoder": shape.length} | super()._lengths(shape)

    @override
    def decoded(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, Collected]]:
        # Both stacks have layers of the same names, which must not draw the same dropout.
        keys = (None, None) if key is None else jax.random.split(key)
        encoded, of_encoder = self._applied("encoder", params, batch, key=keys[0], train=train, collect=collect)
        read = {"encoded": encoded, "encoded_segment_ids": batch["encoder_segment_ids"]}
        hidden, of_decoder = self._applied("decoder", params, batch, key=keys[1], train=train, collect=collect, **read)
        return hidden, {"encoder": of_encoder, "decoder": of_decoder}

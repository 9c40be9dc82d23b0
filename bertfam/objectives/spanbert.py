"""SpanBERT's objective: masked spans, predicted in place and from their boundaries (Joshi et al. 2020, section 3)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.features import FeatureSpec, RowShape, span_features
from bertfam.layers.heads.span_boundary import SpanBoundaryHead
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import word_table
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, check_coefficients, masked_cross_entropy


@dataclass(frozen=True)
class MlmSbo(Mlm):
    """L = mean over masked positions of CE(vocabulary) + sbo * mean over those in spans of CE(vocabulary) by the boundaries.

    The second mean is over the first `places` tokens of spans that have text on both sides. (The published code divides by their
    number + 1.) `init` makes params {"encoder", "mlm_head", "sbo_head"}.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      sbo: the coefficient of the span boundary loss.
      places: number of tokens of a span that are predicted from its boundaries; the masked language model predicts the others.
      place_size: width of the embeddings of these places.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "sbo")

    sbo: float = 1.0
    places: int = 20
    place_size: int = 200

    def __post_init__(self) -> None:
        check_coefficients(**self.coefficients)
        for name in ("places", "place_size"):
            if not 1 <= getattr(self, name) < 2**31:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1 and below 2^31")

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return super().features(shape) | span_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, carry, aux = super().init(key, shape)
        side = jnp.zeros((1, 1, self.model.hidden_size), jnp.float32)
        table = word_table({"encoder": nn.meta.unbox(params["encoder"])})
        offsets = jnp.zeros((1, 1), jnp.int32)
        params["sbo_head"] = self._head.init(named_key(key, "sbo_head"), side, side, offsets, table)["params"]
        return params, carry, aux

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return super().denominators(batch) | {"sbo": jnp.sum(self._weights(batch))}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        hidden = self.encoded(params, batch, key=key, train=train)
        mlm, metrics = self.masked_loss(params, hidden, batch)
        # [batch, length, embed] -> [batch, predictions, embed]
        left, right = (gather_positions(hidden, batch[f"span_{side}_positions"]) for side in ("left", "right"))
        logits: Any = self._head.apply({"params": params["sbo_head"]}, left, right, batch["span_offsets"], word_table(params))
        sbo, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], self._weights(batch))
        metrics |= {"sbo_loss": Sum(sbo, accuracy.weight), "sbo_accuracy": accuracy}
        return LossOut({"mlm": mlm, "sbo": sbo}, carry, metrics)

    @override
    def flops(self, shape: RowShape) -> int:
        # The width of the output counts as the table's, which holds for all but factorised models.
        h = self.model.hidden_size
        head = 2 * (2 * h + self.place_size) * h + 2 * h * h + 2 * h * self.model.require_vocab_size
        return super().flops(shape) + 3 * shape.predictions * head

    def _weights(self, batch: Batch) -> jax.Array:
        # float32[batch, predictions]
        return jnp.where(batch["span_offsets"] < self.places, batch["span_loss_weights"], 0.0)

    @property
    def _head(self) -> SpanBoundaryHead:
        model = self.model
        return SpanBoundaryHead(model.require_vocab_size, self.places, self.place_size, model.initializer_range, self.execution)

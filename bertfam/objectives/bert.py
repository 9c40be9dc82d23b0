"""BERT's objective: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bertfam.features import FeatureSpec, RowShape, next_sentence_features
from bertfam.layers.gather import gather_positions
from bertfam.models.encoder import init_on_hidden, pooler, sentence_head
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, check_coefficients, masked_cross_entropy


@dataclass(frozen=True)
class MlmNsp(Mlm):
    """L = mlm * mean over masked positions of CE(vocabulary) + nsp * mean over pairs of CE(is next, is random).

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
      nsp: the coefficient of the next-sentence loss.
    """

    mlm: float = 1.0
    nsp: float = 1.0

    def __post_init__(self) -> None:
        check_coefficients(mlm=self.mlm, nsp=self.nsp)

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"mlm": self.mlm, "nsp": self.nsp}

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        return super().features(shape) | next_sentence_features(shape)

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, {}); params are {"encoder", "pooler", "mlm_head", "nsp_head"}, boxed with logical axis names."""
        keys = jax.random.split(key, 4)
        params, carry, aux = super().init(key, shape)
        params["pooler"] = init_on_hidden(self.model, pooler(self.model), keys[1])
        params["nsp_head"] = init_on_hidden(self.model, sentence_head(self.model), keys[2])
        return params, carry, aux

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of masked positions and the number of pairs in the global batch."""
        return super().denominators(batch) | {"nsp": jnp.sum(batch["next_sentence_weights"])}

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The sums of both cross-entropies over a batch."""
        hidden = self.encoded(params, batch, key=key, train=train)
        mlm, metrics = self.masked_loss(params, hidden, batch)
        # [batch, length, embed] -> [batch, examples, embed] -> [batch, examples, 2]
        first = gather_positions(hidden, batch["sequence_start_positions"])
        pooled = pooler(self.model, self.execution).apply({"params": params["pooler"]}, first)
        logits: Any = sentence_head(self.model, execution=self.execution).apply({"params": params["nsp_head"]}, pooled)
        nsp, accuracy = masked_cross_entropy(logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
        metrics |= {"nsp_loss": Sum(nsp, accuracy.weight), "nsp_accuracy": accuracy}
        return LossOut({"mlm": mlm, "nsp": nsp}, carry, metrics)

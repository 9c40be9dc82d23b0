"""BERT's objective: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, next_sentence_features
from bertfam.layers.execution import Execution
from bertfam.layers.heads import ClassificationHead, MaskedLmHead, Pooler, gather_positions
from bertfam.models.bert import BertConfig, Encoder, flops_per_row, word_table
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, masked_cross_entropy


@dataclass(frozen=True)
class MlmNsp:
    """L = mlm * mean over masked positions of CE(vocabulary) + nsp * mean over pairs of CE(is next, is random).

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the masked language model's loss.
      nsp: the coefficient of the next-sentence loss.
    """

    model: BertConfig
    execution: Execution = Execution()
    mlm: float = 1.0
    nsp: float = 1.0

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"mlm": self.mlm, "nsp": self.nsp}

    def sized(self, vocabulary_size: int) -> "MlmNsp":
        """The objective with its model's vocabulary set; raises UserError where another size was asked for."""
        return dataclasses.replace(self, model=self.model.sized(vocabulary_size))

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        return encoder_features(shape) | masked_features(shape) | next_sentence_features(shape)

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, {}); params are {"encoder", "pooler", "mlm_head", "nsp_head"}, boxed with logical axis names."""
        encoder_key, pooler_key, mlm_key, nsp_key = jax.random.split(key, 4)
        tokens = jnp.zeros((1, shape.length), jnp.int32)
        encoder = self._encoder.init(encoder_key, tokens, segment_ids=tokens, token_type_ids=tokens, train=False)["params"]
        hidden = jnp.zeros((1, 1, self.model.hidden_size), jnp.float32)
        table = word_table(jax.tree.map(lambda leaf: leaf, encoder))
        params = {
            "encoder": encoder,
            "pooler": self._pooler.init(pooler_key, hidden)["params"],
            "mlm_head": self._mlm_head.init(mlm_key, hidden, table)["params"],
            "nsp_head": self._nsp_head.init(nsp_key, hidden)["params"],
        }
        return params, {}, {}

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of masked positions and the number of pairs in the global batch."""
        return {"mlm": jnp.sum(batch["masked_loss_weights"]), "nsp": jnp.sum(batch["next_sentence_weights"])}

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The sums of both cross-entropies over a batch."""
        hidden, _ = self._encoder.apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            token_type_ids=batch["encoder_token_type_ids"],
            train=train,
            rngs=None if key is None else {"dropout": key},
        )
        # [batch, length, embed] -> [batch, predictions, embed] -> [batch, predictions, vocab]
        masked = gather_positions(hidden, batch["masked_positions"])
        mlm_logits = self._mlm_head.apply({"params": params["mlm_head"]}, masked, word_table(params["encoder"]))
        # [batch, length, embed] -> [batch, examples, embed] -> [batch, examples, 2]
        first = gather_positions(hidden, batch["sequence_start_positions"])
        pooled = self._pooler.apply({"params": params["pooler"]}, first)
        nsp_logits = self._nsp_head.apply({"params": params["nsp_head"]}, pooled)

        mlm, mlm_accuracy = masked_cross_entropy(mlm_logits, batch["masked_target_tokens"], batch["masked_loss_weights"])
        nsp, nsp_accuracy = masked_cross_entropy(nsp_logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
        metrics = {
            "mlm_loss": Sum(mlm, mlm_accuracy.weight),
            "mlm_accuracy": mlm_accuracy,
            "nsp_loss": Sum(nsp, nsp_accuracy.weight),
            "nsp_accuracy": nsp_accuracy,
        }
        return LossOut({"mlm": mlm, "nsp": nsp}, carry, metrics)

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row, forward and backward."""
        return flops_per_row(self.model, shape.length, shape.predictions)

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.model, self.execution)

    @property
    def _pooler(self) -> Pooler:
        return Pooler(self.model, self.execution)

    @property
    def _mlm_head(self) -> MaskedLmHead:
        return MaskedLmHead(self.model, self.execution)

    @property
    def _nsp_head(self) -> ClassificationHead:
        return ClassificationHead(self.model, self.execution, classes=2)

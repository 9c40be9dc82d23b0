"""BERT's objective: masked language model and next-sentence prediction (Devlin et al. 2019, section 3.1)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, next_sentence_features
from bertfam.kernels.attention import Request, choose
from bertfam.layers.execution import Execution
from bertfam.layers.gather import gather_positions
from bertfam.models.bert import (
    BertConfig,
    Encoder,
    flops_per_row,
    masked_lm_head,
    next_sentence_head,
    pooler,
    word_table,
)
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, masked_cross_entropy, with_vocabulary


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

    def __post_init__(self) -> None:
        for name in ("mlm", "nsp"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"mlm": self.mlm, "nsp": self.nsp}

    def sized(self, vocabulary_size: int) -> "MlmNsp":
        """The objective with its model's vocabulary set; raises UserError where another size was asked for."""
        return dataclasses.replace(self, model=with_vocabulary(self.model, vocabulary_size))

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        if shape.length > self.model.max_length:
            raise UserError(
                f"Stage.length {shape.length} is more than BertConfig.max_length {self.model.max_length}; shorten the rows, or "
                "enlarge the model's table of positions"
            )
        return encoder_features(shape) | masked_features(shape) | next_sentence_features(shape)

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, {}); params are {"encoder", "pooler", "mlm_head", "nsp_head"}, boxed with logical axis names."""
        keys = jax.random.split(key, 4)
        tokens = jnp.zeros((1, shape.length), jnp.int32)
        hidden = jnp.zeros((1, 1, self.model.hidden_size), jnp.float32)
        params = {
            "encoder": self._encoder.init(keys[0], tokens, segment_ids=tokens, token_type_ids=tokens, train=False)["params"],
            "pooler": pooler(self.model).init(keys[1], hidden)["params"],
            "nsp_head": next_sentence_head(self.model).init(keys[2], hidden)["params"],
        }
        table = word_table(nn.meta.unbox(params))
        params["mlm_head"] = masked_lm_head(self.model).init(keys[3], hidden, table)["params"]
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
        mlm_head = masked_lm_head(self.model, self.execution)
        mlm_logits: Any = mlm_head.apply({"params": params["mlm_head"]}, masked, word_table(params))
        # [batch, length, embed] -> [batch, examples, embed] -> [batch, examples, 2]
        first = gather_positions(hidden, batch["sequence_start_positions"])
        pooled = pooler(self.model, self.execution).apply({"params": params["pooler"]}, first)
        nsp_logits: Any = next_sentence_head(self.model, self.execution).apply({"params": params["nsp_head"]}, pooled)

        mlm, mlm_accuracy = masked_cross_entropy(mlm_logits, batch["masked_target_tokens"], batch["masked_loss_weights"])
        nsp, nsp_accuracy = masked_cross_entropy(nsp_logits, batch["next_sentence_labels"], batch["next_sentence_weights"])
        metrics = {
            "mlm_loss": Sum(mlm, mlm_accuracy.weight),
            "mlm_accuracy": mlm_accuracy,
            "nsp_loss": Sum(nsp, nsp_accuracy.weight),
            "nsp_accuracy": nsp_accuracy,
        }
        return LossOut({"mlm": mlm, "nsp": nsp}, carry, metrics)

    def attention(self, shape: RowShape) -> str:
        """The attention backend of training and why."""
        config, execution = self.model, self.execution
        request = Request.here(execution.dtype, shape.length, config.head_dim, False, config.attention_dropout_rate)
        return choose(request, execution.attention)[1]

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row, forward and backward."""
        return flops_per_row(self.model, shape.length, shape.predictions)

    @property
    def _encoder(self) -> Encoder:
        return Encoder(self.model, self.execution)

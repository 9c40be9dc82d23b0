"""Permutation language model (Yang et al. 2019, section 2.2) with a memory of earlier rows (section 2.5)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, permutation_features
from bertfam.layers.execution import Execution
from bertfam.models.encoder import init_encoder_parts, word_table
from bertfam.models.xlnet import Memory, XLNetConfig
from bertfam.objectives.objective import ROWS, Batch, LossOut, Objective, Predictions, Sum, Tree, masked_cross_entropy


@dataclass(frozen=True)
class PermutationLm(Objective):
    """L = mean over predicted tokens of -log p(x_z | tokens before z in the order, memory), by the query stream.

    `init` makes params {"encoder", "mlm_head"}, and with a memory the carry {"rows": {"hidden", "segment_ids"}}, which is empty
    at the first step. Evaluations have no memory.

    Attributes:
      model: the XLNet.
      memory_length: tokens of earlier rows that each row sees, of which the first half of every row enters the memory; 0: none.
      execution: how it is computed; never part of a checkpoint.
    """

    model: XLNetConfig
    memory_length: int = 384
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("plm",)

    def __post_init__(self) -> None:
        if self.memory_length < 0:
            raise ValueError(f"memory_length {self.memory_length} is negative; 0 is no memory")

    @property
    @override
    def remembers_rows(self) -> str | None:
        if not self.memory_length:
            return None
        return f"PermutationLm.memory_length is {self.memory_length}"

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.length > self.model.max_length:
            limit = f"{type(self.model).__name__}.max_length {self.model.max_length}"
            raise UserError(f"Stage.length {shape.length} is more than {limit}; shorten the rows, or raise max_length")
        return encoder_features(shape) | masked_features(shape) | permutation_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params = init_encoder_parts(self.model, key, frozenset({"encoder", "mlm_head"}), {})
        if not self.memory_length:
            return params, {}, {}
        size = (shape.rows, self.model.num_layers, self.memory_length, self.model.hidden_size)
        hidden = nn.LogicallyPartitioned(jnp.zeros(size, self.execution.compute_dtype), ("batch", None, None, None))
        segments = nn.LogicallyPartitioned(jnp.zeros((shape.rows, self.memory_length), jnp.int32), ("batch", None))
        return params, {ROWS: {"hidden": hidden, "segment_ids": segments}}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"plm": jnp.sum(batch["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        memory = Memory(**carry[ROWS]) if carry else None
        collect = frozenset({"memory"} if carry else ())
        hidden, collected = self._encode(params, batch, memory, key=key, train=train, collect=collect)
        total, accuracy = masked_cross_entropy(
            self._logits(params, hidden), batch["masked_target_tokens"], batch["masked_loss_weights"]
        )
        if carry:
            carry = {ROWS: collected["memory"]._asdict()}
        return LossOut({"plm": total}, carry, {"plm_loss": Sum(total, accuracy.weight), "plm_accuracy": accuracy})

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        _, collected = self._encode(params, batch, None, key=None, train=False, collect=frozenset({"hidden_states"}))
        real = batch["encoder_segment_ids"] > 0
        return {"encoder": (collected["hidden_states"][:, :, : real.shape[1]], real)}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        hidden, _ = self._encode(params, batch, None, key=None, train=False)
        probabilities = jax.nn.softmax(self._logits(params, hidden))
        return Predictions.at_masked(batch, probabilities)

    @override
    def flops(self, shape: RowShape) -> int:
        return self.model.flops(shape.length, shape.predictions, self.memory_length)

    def _encode(
        self,
        params: Tree,
        batch: Batch,
        memory: Memory | None,
        *,
        key: jax.Array | None,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Run the encoder: the query stream's output [batch, predictions, embed], and what `collect` names."""
        found: Any = self.model.encoder(self.execution).apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            token_type_ids=batch["encoder_token_type_ids"],
            ranks=batch["encoder_ranks"],
            predicted=batch["masked_positions"],
            is_reversed=batch["encoder_reversed"][:, 0] > 0,
            memory=memory,
            reused=batch["encoder_input_tokens"].shape[1] // 2,
            train=train,
            collect=collect,
            rngs=self.execution.dropout_rngs(key),
        )
        return found

    def _logits(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """Compute the logits float32[batch, predictions, padded vocabulary] of hidden [batch, predictions, embed]."""
        head = self.model.masked_lm_head(self.execution)
        logits: Any = head.apply({"params": params["mlm_head"]}, hidden, word_table(params))
        return logits

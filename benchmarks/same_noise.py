"""The masked language model by which encoders with different objectives are compared."""

from dataclasses import dataclass

import jax
from typing_extensions import override

from bertfam.models.encoder import hidden_to_predict
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, Tree


@dataclass(frozen=True)
class SameNoise(Mlm):
    """Masked LM that predicts by the query stream of models that have one."""

    @override
    def masked_logits(self, params: Tree, hidden: jax.Array, batch: Batch) -> jax.Array:
        inputs = {name: batch[f"encoder_input_{name}" if name == "tokens" else f"encoder_{name}"] for name in _INPUTS}
        return self.logits(params, hidden_to_predict(self.model, params, inputs, hidden, batch["masked_positions"]))


_INPUTS = ("tokens", "segment_ids", "token_type_ids")

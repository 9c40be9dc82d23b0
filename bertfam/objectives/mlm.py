"""The masked language model (Devlin et al. 2019, section 3.1, task 1), alone."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features
from bertfam.kernels.attention import Request, choose
from bertfam.layers.execution import Execution
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import EncoderConfig, init_encoder, init_masked_lm_head, word_table
from bertfam.objectives.objective import Batch, LossOut, Predictions, Sum, Tree, masked_cross_entropy, with_vocabulary
from bertfam.objectives.teacher import Teacher


@dataclass(frozen=True)
class Mlm:
    """L = mean over masked positions of CE(vocabulary).

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
    """

    model: EncoderConfig
    execution: Execution = Execution()

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"mlm": 1.0}

    @property
    def networks(self) -> Mapping[str, EncoderConfig]:
        """The one network."""
        return {"encoder": self.model}

    @property
    def teachers(self) -> Mapping[str, Teacher | None]:
        """None."""
        return {}

    def split(self, params: Tree) -> dict[str, Tree]:
        """See `Objective.split`: all parameters are the one network's."""
        return {"encoder": params}

    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        """See `Objective.joined`."""
        return networks["encoder"]

    def sized(self, vocabulary_size: int) -> Self:
        """The objective with its model's vocabulary set; raises UserError where another size was asked for."""
        return dataclasses.replace(self, model=with_vocabulary(self.model, vocabulary_size))

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        if shape.length > self.model.max_length:
            limit = f"{type(self.model).__name__}.max_length {self.model.max_length}"
            raise UserError(
                f"Stage.length {shape.length} is more than {limit}; shorten the rows, or enlarge the model's table of positions"
            )
        return encoder_features(shape) | masked_features(shape)

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, {}); params are {"encoder", "mlm_head"}, boxed with logical axis names."""
        keys = jax.random.split(key, 4)
        encoder = init_encoder(self.model, keys[0], shape.length)
        return {"encoder": encoder, "mlm_head": init_masked_lm_head(self.model, keys[3], encoder)}, {}, {}

    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        """Nothing."""
        return None

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of masked positions in the global batch."""
        return {"mlm": jnp.sum(batch["masked_loss_weights"])}

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The sum of the cross-entropies over a batch."""
        term, metrics = self.masked_loss(params, self.encoded(params, batch, key=key, train=train), batch)
        return LossOut({"mlm": term}, carry, metrics)

    def encoded(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """The encoder's output: [batch, length, embed]."""
        return self._encode(params, batch, key=key, train=train)[0]

    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """The encoder's hidden states [layers + 1, batch, length, embed], and bool[batch, length], which tokens are real."""
        _, collected = self._encode(params, batch, key=None, train=False, collect=frozenset({"hidden_states"}))
        return {"encoder": (collected["hidden_states"], batch["encoder_segment_ids"] > 0)}

    def _encode(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        found: Any = self.model.encoder(self.execution).apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            positions=batch.get("encoder_positions"),
            token_type_ids=batch["encoder_token_type_ids"],
            train=train,
            collect=collect,
            rngs=None if key is None else {"dropout": key},
        )
        return found

    def masked_loss(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, dict[str, Sum]]:
        """The sum of the cross-entropies at the masked positions of hidden [batch, length, embed], and its metrics."""
        logits = self.masked_logits(params, hidden, batch)
        loss, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], batch["masked_loss_weights"])
        return loss, {"mlm_loss": Sum(loss, accuracy.weight), "mlm_accuracy": accuracy}

    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        """The likeliest tokens at the masked positions, without dropout."""
        hidden = self.encoded(params, batch, key=None, train=False)
        probabilities = jax.nn.softmax(self.masked_logits(params, hidden, batch))
        return Predictions(
            inputs=batch["encoder_input_tokens"],
            segments=batch["encoder_segment_ids"],
            positions=batch["masked_positions"],
            targets=batch["masked_target_tokens"],
            weights=batch["masked_loss_weights"],
            tokens=jnp.argmax(probabilities, axis=-1),
            probabilities=jnp.max(probabilities, axis=-1),
        )

    def masked_logits(self, params: Tree, hidden: jax.Array, batch: Batch) -> jax.Array:
        """float32[batch, predictions, padded vocabulary] at the masked positions of hidden [batch, length, embed]."""
        # [batch, length, embed] -> [batch, predictions, embed] -> [batch, predictions, vocab]
        return self.logits(params, gather_positions(hidden, batch["masked_positions"]))

    def logits(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """float32[batch, places, padded vocabulary] of hidden [batch, places, embed]."""
        head = self.model.masked_lm_head(self.execution)
        logits: Any = head.apply({"params": params["mlm_head"]}, hidden, word_table(params))
        return logits

    def attention(self, shape: RowShape) -> str:
        """The attention backend of training and why, for each kind of layer."""
        config, execution = self.model, self.execution
        sizes = (execution.dtype, shape.length, config.head_dim, shape.examples > 1, config.attention_dropout_rate)
        requests = dict.fromkeys(Request.here(*sizes, window=window) for window in config.windows)
        reasons = {request.window: choose(request, execution.attention)[1] for request in requests}
        if len(reasons) == 1:
            return next(iter(reasons.values()))
        names = {window: "all tokens" if window is None else f"a window of {window}" for window in reasons}
        return "; ".join(f"over {names[window]}, {reason}" for window, reason in reasons.items())

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row, forward and backward."""
        return self.model.flops(shape.length, shape.predictions)

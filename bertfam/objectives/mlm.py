"""Masked language model (Devlin et al. 2019, section 3.1, task 1), alone."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy, has_kernel
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import token_logits
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import MaskedLmConfig, init_encoder, init_masked_lm_head, word_table
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree, masked_cross_entropy


@dataclass(frozen=True)
class Mlm(Objective):
    """L = mean over masked positions of CE(vocabulary).

    `init` makes params {"encoder", "mlm_head"}, without carry or aux.

    Attributes:
      model: the encoder.
      execution: how it is computed; never part of a checkpoint.
    """

    model: MaskedLmConfig
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("mlm",)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.length > self.model.max_length:
            limit = f"{type(self.model).__name__}.max_length {self.model.max_length}"
            raise UserError(
                f"Stage.length {shape.length} is more than {limit}; shorten the rows, or enlarge the model's table of positions"
            )
        alone = [pattern for pattern in self.model.patterns if not pattern.packs]
        if alone and shape.examples > 1:
            raise UserError(
                f"rows are packed, but tokens attend to {alone[0].describe()}, which requires rows of one document: set "
                "TextData.rows = @DocSentences()"
            )
        return encoder_features(shape) | masked_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        encoder = init_encoder(self.model, named_key(key, "encoder"), shape.length)
        head = init_masked_lm_head(self.model, named_key(key, "mlm_head"), encoder)
        return {"encoder": encoder, "mlm_head": head}, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm": jnp.sum(batch["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        term, metrics = self.masked_loss(params, self.encoded(params, batch, key=key, train=train), batch)
        return LossOut({"mlm": term}, carry, metrics)

    def encoded(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> jax.Array:
        """Run the encoder: [batch, length, embed]."""
        return self._encode(params, batch, key=key, train=train)[0]

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
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
            rngs=self.execution.dropout_rngs(key),
        )
        return found

    def masked_loss(self, params: Tree, hidden: jax.Array, batch: Batch) -> tuple[jax.Array, dict[str, Sum]]:
        """Compute the term and the metrics at the masked positions of hidden [batch, length, embed]."""
        targets, weights = batch["masked_target_tokens"], batch["masked_loss_weights"]
        # [batch, length, embed] -> [batch, predictions, embed]
        factors = self.factors(params, gather_positions(hidden, batch["masked_positions"]))
        vocabulary = self.model.require_vocab_size
        if has_kernel(*factors[:2]):
            sums = chunked_cross_entropy(*factors, targets, weights, VocabularyLoss(vocabulary, chunk=targets.shape[1]))
            loss, accuracy = sums.loss, Sum(sums.correct, jnp.sum(weights))
        else:
            loss, accuracy = masked_cross_entropy(token_logits(*factors, vocabulary), targets, weights)
        return loss, {"mlm_loss": Sum(loss, accuracy.weight), "mlm_accuracy": accuracy}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
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
        """Return float32[batch, predictions, padded vocabulary] at the masked positions of hidden [batch, length, embed]."""
        # [batch, length, embed] -> [batch, predictions, embed] -> [batch, predictions, vocab]
        return self.logits(params, gather_positions(hidden, batch["masked_positions"]))

    def logits(self, params: Tree, hidden: jax.Array) -> jax.Array:
        """Compute the logits float32[batch, places, padded vocabulary] of hidden [batch, places, embed]."""
        return token_logits(*self.factors(params, hidden), self.model.require_vocab_size)

    def factors(self, params: Tree, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Apply the masked-token head to hidden [batch, places, embed] up to its product with the word table."""
        head = self.model.masked_lm_head(self.execution)
        found: Any = head.apply({"params": params["mlm_head"]}, hidden, word_table(params), method="factors")
        return found

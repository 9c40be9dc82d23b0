"""Bidirectional language model (Peters et al. 2018, section 3.1): each token from those before it, and from those after it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features
from bertfam.kernels.chunked_cross_entropy import Sums, VocabularyLoss, chunked_cross_entropy
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import token_logits
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.elmo import BilmConfig
from bertfam.models.encoder import init_encoder, word_table
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree

_DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Bilm(Objective):
    """L = mean over predicted tokens t of -log p(x_t | x_1 .. x_t-1) - log p(x_t | x_t+1 .. x_n).

    The rows are those of a masked language model whose tokens are all predicted and all keep their inputs. `init` makes params
    {"encoder", "lm_head"}, without carry or aux.

    Attributes:
      model: the LSTMs.
      execution: how it is computed; never part of a checkpoint.
      chunk: largest number of places of a row whose logits exist at once; changes no result.
    """

    model: BilmConfig
    execution: Execution = Execution()
    chunk: int = 128

    terms: ClassVar[tuple[str, ...]] = _DIRECTIONS

    def __post_init__(self) -> None:
        if not isinstance(self.model, BilmConfig):
            raise UserError(f"Bilm trains a BilmConfig, and {type(self.model).__name__} is none: use models/elmo_small.gin")
        if self.chunk < 1:
            raise ValueError(f"chunk {self.chunk} is less than 1")

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape) | masked_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        encoder = init_encoder(self.model, named_key(key, "encoder"))
        words = None if self.model.characters else word_table({"encoder": nn.meta.unbox(encoder)})
        return {"encoder": encoder, "lm_head": self.model.softmax().init(named_key(key, "lm_head"), words)["params"]}, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return dict.fromkeys(_DIRECTIONS, jnp.sum(batch["masked_loss_weights"]))

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        targets, weights = batch["masked_target_tokens"], batch["masked_loss_weights"]
        settings, count = VocabularyLoss(self.model.require_vocab_size, chunk=self.chunk), jnp.sum(weights)
        terms: dict[str, jax.Array] = {}
        metrics: dict[str, Sum] = {}
        for name, state in self._states(params, batch, key=key, train=train).items():
            sums: Sums = chunked_cross_entropy(state, *self._softmax(params), targets, weights, settings)
            terms[name] = sums.loss
            metrics |= {f"{name}_loss": Sum(sums.cross_entropy, count), f"{name}_accuracy": Sum(sums.correct, count)}
        return LossOut(terms, carry, jax.lax.stop_gradient(metrics))

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        _, collected = self._encode(params, batch, key=None, train=False, collect=frozenset({"hidden_states"}))
        return {"encoder": (collected["hidden_states"], batch["encoder_segment_ids"] > 0)}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        # The product of both directions' probabilities.
        scores = sum(
            jax.nn.log_softmax(token_logits(state, *self._softmax(params), self.model.require_vocab_size))
            for state in self._states(params, batch, key=None, train=False).values()
        )
        probabilities = jax.nn.softmax(scores)
        return Predictions.at_masked(batch, probabilities)

    def _states(self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> dict[str, jax.Array]:
        """Return by direction the states from which tokens are predicted: dtype[batch, predictions, units].

        They are those of the token before or after it, or zeros where its segment has none.
        """
        hidden, _ = self._encode(params, batch, key=key, train=train)
        before, after = jnp.split(hidden, 2, axis=-1)
        segments = batch["encoder_segment_ids"]
        same = (segments[:, 1:] == segments[:, :-1])[..., None]
        ends = (0, 0)
        shifted = {
            "forward": jnp.pad(jnp.where(same, before[:, :-1], 0), [ends, (1, 0), ends]),
            "backward": jnp.pad(jnp.where(same, after[:, 1:], 0), [ends, (0, 1), ends]),
        }
        return {name: gather_positions(states, batch["masked_positions"]) for name, states in shifted.items()}

    def _encode(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        found: Any = self.model.encoder(self.execution).apply(
            {"params": params["encoder"]},
            batch["encoder_input_tokens"],
            segment_ids=batch["encoder_segment_ids"],
            train=train,
            collect=collect,
            rngs=self.execution.dropout_rngs(key),
        )
        return found

    def _softmax(self, params: Tree) -> tuple[jax.Array, jax.Array]:
        """Return the table float32[padded vocabulary, units] and the bias of the tokens."""
        words = None if self.model.characters else word_table(params)
        found: Any = self.model.softmax().apply({"params": params["lm_head"]}, words)
        return found

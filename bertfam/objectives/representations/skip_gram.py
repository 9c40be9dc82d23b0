"""Skip-gram with negative sampling (Mikolov et al. 2013b, section 2.2)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, encoder_features, masked_features, noise_features
from bertfam.layers.embeddings import embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import token_logits
from bertfam.layers.initializers import named_key
from bertfam.layers.pooling import PoolingMode
from bertfam.models.encoder import init_encoder
from bertfam.models.word2vec import Word2VecConfig
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree

CONTEXTS = "contexts"


@dataclass(frozen=True)
class SkipGram(Objective):
    """L = mean over pairs (c, o) of -log sigmoid(u_o . v_c) - sum over k negatives w of log sigmoid(-u_w . v_c) (equation 4).

    `init` makes params {"encoder", "contexts"}, the vectors v of words and the vectors u of words as contexts.

    Attributes:
      model: the vectors.
      negatives: k, as many as the rows have.
      execution: how it is computed; never part of a checkpoint.
    """

    model: Word2VecConfig
    negatives: int = 5
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("skip_gram",)
    pooling: ClassVar[PoolingMode] = "mean"

    def __post_init__(self) -> None:
        if not isinstance(self.model, Word2VecConfig):
            raise UserError(f"SkipGram trains a Word2VecConfig, and {type(self.model).__name__} is none: use models/word2vec.gin")
        if self.negatives < 1:
            raise ValueError(f"negatives {self.negatives} is less than 1")

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return encoder_features(shape, token_types=False) | masked_features(shape) | noise_features(shape, self.negatives)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        encoder = init_encoder(self.model, named_key(key, "encoder"))
        return {"encoder": encoder, CONTEXTS: self.model.context_table().init(named_key(key, CONTEXTS))["params"]}, {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"skip_gram": jnp.sum(batch["masked_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        targets, weights = batch["masked_target_tokens"], batch["masked_loss_weights"]
        centres, contexts = self._centres(params, batch), self._contexts(params)
        # [batch, pairs, 1 + negatives]: the word of the pair, then the drawn ones
        words = jnp.concatenate([targets[..., None], batch["noise_tokens"]], axis=-1)
        vectors = embed_words(contexts, words, centres.dtype)
        scores = jnp.einsum("bpe,bpwe->bpw", centres, vectors, preferred_element_type=jnp.float32)
        of_pairs, of_noise = scores[..., 0], scores[..., 1:]
        losses = jax.nn.softplus(-of_pairs) + jnp.sum(jax.nn.softplus(of_noise), axis=-1)
        total, pairs = jnp.sum(losses * weights), jnp.sum(weights)
        above = jnp.mean(of_pairs[..., None] > of_noise, axis=-1)
        metrics = {"skip_gram_loss": Sum(total, pairs), "skip_gram_accuracy": Sum(jnp.sum(above * weights), pairs)}
        return LossOut({"skip_gram": total}, carry, jax.lax.stop_gradient(metrics))

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        hidden = self._encoded(params, batch["encoder_input_tokens"])
        return {"encoder": (hidden[None], batch["encoder_segment_ids"] > 0)}

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        # A score is the log of a word's probability near the centre over that among the negatives, and so is this softmax.
        logits = token_logits(self._centres(params, batch), self._contexts(params), None, self.model.require_vocab_size)
        probabilities = jax.nn.softmax(logits)
        return Predictions.at_masked(batch, probabilities)

    @override
    def flops(self, shape: RowShape) -> int:
        return (1 + self.negatives) * self.model.flops(shape.length, shape.predictions)

    def _centres(self, params: Tree, batch: Batch) -> jax.Array:
        """Return the vectors of the centres dtype[batch, pairs, embed]."""
        return self._encoded(params, jnp.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1))

    def _encoded(self, params: Tree, tokens: jax.Array) -> jax.Array:
        encoder: Any = self.model.encoder(self.execution)
        hidden: jax.Array = encoder.apply({"params": params["encoder"]}, tokens, train=False)[0]
        return nn.with_logical_constraint(hidden, ("batch", None, None))

    def _contexts(self, params: Tree) -> jax.Array:
        table: Any = self.model.context_table().apply({"params": params[CONTEXTS]})
        return table

"""Base class of the objectives of causal LMs and encoder-decoders: the loss of a decoder's output at every target."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, decoder_features
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy, token_scores
from bertfam.layers.execution import Execution
from bertfam.models.language_model import LanguageModelConfig, head_weights, init_language_model, word_embeddings
from bertfam.models.network import DESCRIPTIONS
from bertfam.objectives.objective import Batch, LossOut, Objective, Predictions, Sum, Tree

Collected = dict[str, jax.Array]


@dataclass(frozen=True)
class LanguageModelObjective(Objective):
    """L = mean over targets of CE(vocabulary), with the z loss and label smoothing of `VocabularyLoss`.

    `init` makes the params that `bertfam.models.language_model` describes, without carry or aux.

    Attributes:
      model: the network.
      z_loss: coefficient of (log Z)^2; PaLM's and t5x's is 1e-4.
      label_smoothing: the share of each target's probability that is spread over all tokens.
      chunk: largest number of places of a row whose logits exist at once; changes no result.
      execution: how it is computed; never part of a checkpoint.
      shown: prefix of the input features that `predictions` shows, "encoder" or "decoder".
    """

    model: LanguageModelConfig
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk: int = 128
    execution: Execution = Execution()

    terms: ClassVar[tuple[str, ...]] = ("lm",)
    shown: ClassVar[str] = "decoder"

    def __post_init__(self) -> None:
        if self.model.kind != self.network:
            name, kinds = type(self.model).__name__, (DESCRIPTIONS[self.network], DESCRIPTIONS[self.model.kind])
            raise UserError(
                f"{type(self).__name__} trains {kinds[0]}, and {name} is {kinds[1]}: use an objective for {name}, such as "
                f"{self.model.objective_file}"
            )
        if not 0 <= self.z_loss < float("inf"):
            raise ValueError(f"z_loss {self.z_loss} must be a number of at least 0; PaLM's is 1e-4")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing {self.label_smoothing} must be at least 0 and below 1")
        if self.chunk < 1:
            raise ValueError(f"chunk {self.chunk} is less than 1")

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        most = self.model.max_length
        for tokens, length in self._lengths(shape).items():
            if most is not None and length > most:
                raise UserError(
                    f"rows have {length} {tokens} and {type(self.model).__name__}.max_length is {most}; shorten the rows "
                    "(Stage.length, --length), or enlarge the model's table of positions"
                )
        return decoder_features(shape)

    def _lengths(self, shape: RowShape) -> dict[str, int]:
        """Return the number of tokens of a row, by a description of the network that reads them."""
        return {"tokens of the decoder": shape.targets}

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        return init_language_model(self.model, key), {}, {}

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return {"lm": jnp.sum(batch["decoder_loss_weights"])}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        hidden = self.decoded(params, batch, key=key, train=train)[0]
        weights = batch["decoder_loss_weights"]
        sums = chunked_cross_entropy(*self.head(params, hidden), batch["decoder_target_tokens"], weights, self.loss_settings)
        targets = jnp.sum(weights)
        metrics = {"lm_loss": Sum(sums.cross_entropy, targets), "lm_accuracy": Sum(sums.correct, targets)}
        if self.z_loss:
            metrics["z_loss"] = Sum(sums.z_loss, targets)
        return LossOut({"lm": sums.loss}, carry, jax.lax.stop_gradient(metrics))

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        hidden = self.decoded(params, batch, key=None, train=False)[0]
        targets = batch["decoder_target_tokens"]
        scores = token_scores(*self.head(params, hidden), targets, self.loss_settings)
        shown = self.shown
        return Predictions(
            inputs=batch[f"{shown}_input_tokens"],
            segments=batch[f"{shown}_segment_ids"],
            positions=jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape),
            targets=targets,
            weights=batch["decoder_loss_weights"],
            tokens=scores.best,
            probabilities=jnp.exp(scores.best_log_probabilities),
        )

    @property
    def loss_settings(self) -> VocabularyLoss:
        """Settings of the loss of a position."""
        return VocabularyLoss(self.model.require_vocab_size, self.z_loss, self.label_smoothing, self.chunk)

    def head(self, params: Tree, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Return what logits are computed from: the decoder's output, scaled, the kernel, and the bias of each word or None."""
        head = head_weights(self.model, params)
        return (hidden * head.scale).astype(self.execution.compute_dtype), head.kernel, head.bias

    @abstractmethod
    def decoded(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, Collected]]:
        """Return the decoder's output [batch, targets, embed], and by network the intermediates that `collect` names."""

    def _applied(
        self,
        which: str,
        params: Tree,
        batch: Batch,
        *,
        key: jax.Array | None,
        train: bool,
        collect: frozenset[str],
        **encoded: Any,
    ) -> tuple[jax.Array, Collected]:
        """Run the "encoder" or the "decoder", and return its output and the collected intermediates."""
        network: Any = getattr(self.model, which)(self.execution)
        found: tuple[jax.Array, Collected] = network.apply(
            {"params": params[which]},
            word_embeddings(params),
            batch[f"{which}_input_tokens"],
            segment_ids=batch[f"{which}_segment_ids"],
            positions=batch.get(f"{which}_positions"),
            train=train,
            collect=collect,
            rngs=self.execution.dropout_rngs(key),
            **encoded,
        )
        return found

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        _, collected = self.decoded(params, batch, key=None, train=False, collect=frozenset({"hidden_states"}))
        return {name: (found["hidden_states"], batch[f"{name}_segment_ids"] > 0) for name, found in collected.items()}

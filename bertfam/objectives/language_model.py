"""What the objectives of models that write text have in common: the loss of a decoder's output at every target."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, decoder_features
from bertfam.kernels.attention import Request, choices
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, chunked_cross_entropy, token_scores
from bertfam.layers.execution import Execution
from bertfam.models.language_model import LanguageModelConfig, head_weights, init_language_model, word_embeddings
from bertfam.objectives.objective import Batch, LossOut, Predictions, Sum, Tree, with_vocabulary
from bertfam.objectives.teacher import Teacher

Collected = dict[str, jax.Array]


@dataclass(frozen=True)
class LanguageModelObjective(ABC):
    """L = mean over targets of CE(vocabulary), with what `VocabularyLoss` adds.

    Attributes:
      model: the network.
      z_loss: coefficient of (log Z)^2; PaLM's and t5x's is 1e-4.
      label_smoothing: the share of each target that is spread over all tokens.
      chunk: places of a row whose logits exist at once, at most; changes no result.
      execution: how it is computed; never part of a checkpoint.
      network: what the network is called among those of a folder.
    """

    model: LanguageModelConfig
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk: int = 128
    execution: Execution = Execution()

    network: ClassVar[str]

    def __post_init__(self) -> None:
        if not 0 <= self.z_loss < float("inf"):
            raise ValueError(f"z_loss {self.z_loss} must be a number of at least 0; PaLM's is 1e-4")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing {self.label_smoothing} must be at least 0 and below 1")
        if self.chunk < 1:
            raise ValueError(f"chunk {self.chunk} is less than 1")

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        return {"lm": 1.0}

    @property
    def networks(self) -> Mapping[str, LanguageModelConfig]:
        """The one network."""
        return {self.network: self.model}

    @property
    def teachers(self) -> Mapping[str, Teacher | None]:
        """None."""
        return {}

    def split(self, params: Tree) -> dict[str, Tree]:
        """See `Objective.split`: all parameters are the one network's."""
        return {self.network: params}

    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        """See `Objective.joined`."""
        return networks[self.network]

    def sized(self, vocabulary_size: int) -> Self:
        """The objective with its model's vocabulary set; raises UserError where another size was asked for."""
        return dataclasses.replace(self, model=with_vocabulary(self.model, vocabulary_size))

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        most = self.model.max_length
        for what, length in self._lengths(shape).items():
            if most is not None and length > most:
                raise UserError(
                    f"rows have {length} {what} and {type(self.model).__name__}.max_length is {most}; shorten the rows "
                    "(Stage.length), or enlarge the model's table of positions"
                )
        return decoder_features(shape)

    def _lengths(self, shape: RowShape) -> dict[str, int]:
        """The tokens of a row by what reads them, in words."""
        return {"tokens of the decoder": shape.targets}

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, {}); see `bertfam.models.language_model` for their parts."""
        return init_language_model(self.model, key), {}, {}

    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        """Nothing."""
        return None

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of targets in the global batch."""
        return {"lm": jnp.sum(batch["decoder_loss_weights"])}

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The sum of the losses over a batch; `lm_loss` is the plain cross-entropy, whatever is added to it."""
        hidden = self.decoded(params, batch, key=key, train=train)[0]
        weights = batch["decoder_loss_weights"]
        found = chunked_cross_entropy(*self._head(params, hidden), batch["decoder_target_tokens"], weights, self._settings())
        targets = jnp.sum(weights)
        metrics = {"lm_loss": Sum(found.cross_entropy, targets), "lm_accuracy": Sum(found.correct, targets)}
        if self.z_loss:
            metrics["z_loss"] = Sum(found.z_loss, targets)
        return LossOut({"lm": found.loss}, carry, jax.lax.stop_gradient(metrics))

    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        """The likeliest token at each target, given those before it, without dropout."""
        hidden = self.decoded(params, batch, key=None, train=False)[0]
        targets = batch["decoder_target_tokens"]
        scores = token_scores(*self._head(params, hidden), targets, self._settings())
        seen = self.seen
        return Predictions(
            inputs=batch[f"{seen}_input_tokens"],
            segments=batch[f"{seen}_segment_ids"],
            positions=jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape),
            targets=targets,
            weights=batch["decoder_loss_weights"],
            tokens=scores.best,
            probabilities=jnp.exp(scores.best_log_probabilities),
        )

    @property
    def seen(self) -> str:
        """Whose tokens are what it answers to: "encoder" or "decoder"."""
        return "encoder" if self.model.has_encoder else "decoder"

    def _settings(self) -> VocabularyLoss:
        return VocabularyLoss(self.model.require_vocab_size, self.z_loss, self.label_smoothing, self.chunk)

    def _head(self, params: Tree, hidden: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        head = head_weights(self.model, params)
        return (hidden * head.scale).astype(self.execution.compute_dtype), head.kernel, head.bias

    @abstractmethod
    def decoded(
        self, params: Tree, batch: Batch, *, key: jax.Array | None, train: bool, collect: frozenset[str] = frozenset()
    ) -> tuple[jax.Array, dict[str, Collected]]:
        """The decoder's output [batch, targets, embed], and by network what `collect` names."""

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
        """The output of the "encoder" or the "decoder", and what was collected."""
        network: Any = getattr(self.model, which)(self.execution)
        found: tuple[jax.Array, Collected] = network.apply(
            {"params": params[which]},
            word_embeddings(params),
            batch[f"{which}_input_tokens"],
            segment_ids=batch[f"{which}_segment_ids"],
            positions=batch.get(f"{which}_positions"),
            train=train,
            collect=collect,
            rngs=None if key is None else {"dropout": key},
            **encoded,
        )
        return found

    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Hidden states [layers + 1, batch, length, embed] of encoder and decoder, and which tokens are real."""
        _, collected = self.decoded(params, batch, key=None, train=False, collect=frozenset({"hidden_states"}))
        return {name: (found["hidden_states"], batch[f"{name}_segment_ids"] > 0) for name, found in collected.items()}

    def attention(self, shape: RowShape) -> str:
        """The attention backend of training and why, for each kind of layer."""
        params = jax.eval_shape(lambda key: nn.meta.unbox(init_language_model(self.model, key)), jax.random.key(0))
        # No choice depends on the number of rows.
        batch = {name: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype) for name, spec in self.features(shape).items()}
        with choices() as found:
            jax.eval_shape(lambda *given: self.decoded(*given, key=jax.random.key(0), train=True)[0], params, batch)
        reasons = {_seen_by(request): reason for request, reason in found.items()}
        if len(set(reasons.values())) == 1:
            return next(iter(reasons.values()))
        return "; ".join(f"{kind}, {reason}" for kind, reason in reasons.items())

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row, forward and backward."""
        return self.model.flops(shape.length, shape.targets)


def _seen_by(request: Request) -> str:
    """What an attention goes over, in words."""
    if request.key_length is not None:
        return "over what was encoded"
    return "over what came before" if request.causal else "over all tokens"

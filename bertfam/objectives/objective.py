"""What every pretraining objective gives to the trainer, the loader, the plan and the exporter."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape
from bertfam.layers.execution import Execution
from bertfam.objectives.teacher import Teacher

Batch = Mapping[str, jax.Array]
Tree = Any


class Sum(NamedTuple):
    """A metric as a weighted sum, merged exactly over batches, microbatches and hosts: float32[] each."""

    total: jax.Array
    weight: jax.Array


class LossOut(NamedTuple):
    """What a forward pass gives.

    Attributes:
      terms: float32[] sums (not means) by name; the trainer divides each by the global batch's denominator of that name.
      carry: what the next step reads without gradient; {} for most objectives.
      metrics: sums to report; for every term of the loss there is one named TERM_loss.
    """

    terms: dict[str, jax.Array]
    carry: Tree
    metrics: dict[str, Sum]


class Predictions(NamedTuple):
    """What a model says at the targets of a batch.

    Attributes:
      inputs: int32[batch, length], the tokens that it sees.
      segments: int32[batch, length], which packed example; 0 = padding.
      positions: int32[batch, predictions], where the targets are, among the inputs or in an order of their own.
      targets: int32[batch, predictions].
      weights: float32[batch, predictions], 0 where there is none.
      tokens: int32[batch, predictions], the likeliest tokens.
      probabilities: float32[batch, predictions], theirs.
    """

    inputs: jax.Array
    segments: jax.Array
    positions: jax.Array
    targets: jax.Array
    weights: jax.Array
    tokens: jax.Array
    probabilities: jax.Array


class Objective(Protocol):
    """A frozen dataclass that owns its networks and heads. The loss is sum over t of coefficients[t] terms[t] / D[t]."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        ...

    @property
    def execution(self) -> Execution:
        """How it is computed."""
        ...

    @property
    def model(self) -> Any:
        """The config of the network that the run is about."""
        ...

    @property
    def networks(self) -> Mapping[str, Any]:
        """The configs of all that can stand alone, as files have it, by name; that of `model` is the first."""
        ...

    @property
    def teachers(self) -> Mapping[str, Teacher | None]:
        """The models that it reads and does not train, by their names in `aux`; None: one that is still to be named."""
        ...

    def split(self, params: Tree) -> dict[str, Tree]:
        """Parameters as {"encoder": ..., heads} of each network by name, of those that are there."""
        ...

    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        """The way back from `split`: the parameters that these networks give."""
        ...

    def sized(self, vocabulary_size: int) -> "Objective":
        """The objective with its models' vocabulary set; raises UserError where another size was asked for."""
        ...

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row."""
        ...

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, carry, aux); params are boxed with logical axis names."""
        ...

    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        """What a new run takes of `aux`, NumPy arrays: where it is from in words, and parts of params; None: nothing."""
        ...

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """What each term is divided by, from the whole global batch alone: float32[] by name."""
        ...

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The loss terms of a batch; `key` feeds dropout and is None outside training."""
        ...

    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """By network: hidden states [layers + 1, batch, length, embed], the embeddings first, and bool[batch, length]: real."""
        ...

    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        """The tokens that it takes for the likeliest, without dropout."""
        ...

    def attention(self, shape: RowShape) -> str:
        """The attention backend of training on this process's devices, and why."""
        ...

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row, forward and backward."""
        ...


def masked_cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, Sum]:
    """Weighted sum of -log softmax(logits)[target], and the accuracy.

    Args:
      logits: float32[..., classes].
      targets: int32[...].
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logits.

    Returns:
      the loss' sum float32[], and the sum of weights where the best class is the target.
    """
    return cross_entropy_of(weights, *cross_entropies(logits, targets, weights))


def cross_entropies(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What `masked_cross_entropy` sums: each place's loss, and whether its best class is the target, 0 or 1: float32[...]."""
    # [..., classes]; 0 times a gradient that is not finite would not be 0.
    logits = jnp.where(weights[..., None] > 0, logits.astype(jnp.float32), 0.0)
    # A comparison instead of a gather: it fuses, its gradient is no scatter, and it shards over the classes.
    classes = jnp.arange(logits.shape[-1], dtype=targets.dtype)
    # [..., classes] -> [...]
    picked = jnp.sum(jnp.where(classes == targets[..., None], logits, 0.0), axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - picked
    return loss, (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)


def cross_entropy_of(weights: jax.Array, losses: jax.Array, correct: jax.Array) -> tuple[jax.Array, Sum]:
    """The sum of the losses of some places and the accuracy there, float32[...] each."""
    return jnp.sum(losses * weights), Sum(jnp.sum(correct * weights), jnp.sum(weights))


def binary_cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted sum of -log sigmoid(logit) where the label is 1, -log sigmoid(-logit) where it is 0: float32[].

    Args:
      logits: float32[...].
      labels: float32[...].
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logit.
    """
    logits = jnp.where(weights > 0, logits.astype(jnp.float32), 0.0)
    return jnp.sum((jax.nn.softplus(logits) - labels * logits) * weights)


def check_coefficients(**coefficients: float) -> None:
    """Raises ValueError where one is no finite number of at least 0, or all are 0."""
    for name, value in coefficients.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} {value} is no coefficient; it must be a number of at least 0")
    if not any(coefficients.values()):
        names = " and ".join(coefficients)
        raise ValueError(f"{names} are {'both' if len(coefficients) == 2 else 'all'} 0: nothing would be learnt; set one above 0")


def with_vocabulary(model: Any, size: int) -> Any:
    """A model config with its `vocab_size` set; raises UserError where it asks for another size."""
    if model.vocab_size not in (None, size):
        raise UserError(
            f"{type(model).__name__}.vocab_size is {model.vocab_size} and the vocabulary has {size} tokens; "
            "leave vocab_size out, or give the vocabulary that it was meant for"
        )
    return dataclasses.replace(model, vocab_size=size)

"""Base class of the pretraining objectives, and the cross-entropies that they share."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self, cast

import jax
import jax.numpy as jnp

from bertfam.data.vocabularies import Vocabulary
from bertfam.features import FeatureSpec, RowShape
from bertfam.kernels.cross_entropy import likeliest
from bertfam.layers.execution import Execution
from bertfam.layers.pooling import PoolingMode
from bertfam.models.network import Kind
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.teacher import Teacher

Batch = Mapping[str, jax.Array]
Tree = Any
# Part of a carry that belongs to the rows of a batch: arrays [batch, ...], of which each microbatch has those of its rows. All
# else passes from one microbatch to the next.
ROWS = "rows"


class Sum(NamedTuple):
    """Metric as a weighted sum, merged exactly over batches, microbatches and hosts: float32[] each."""

    total: jax.Array
    weight: jax.Array


class LossOut(NamedTuple):
    """Result of a forward pass.

    Attributes:
      terms: float32[] sums (not means) by name; the trainer divides each by the global batch's denominator of that name.
      carry: what the next step reads without gradient, by name (see `ROWS`); {} for most objectives.
      metrics: sums to report; for every term of the loss there is one named TERM_loss.
    """

    terms: dict[str, jax.Array]
    carry: Tree
    metrics: dict[str, Sum]


class NetworkSource(NamedTuple):
    """Trained model from which a new run starts a network that --init_from does not have.

    Attributes:
      folder: MODEL_DIR, Hugging Face folder, or folder with the towers query/ and passage/.
      step: step of a MODEL_DIR's checkpoint; None for other folders.
      average: True for the moving average of a MODEL_DIR's parameters.
    """

    folder: str
    step: int | None
    average: bool


class Predictions(NamedTuple):
    """Predictions of a model at the targets of a batch.

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

    @classmethod
    def at_masked(cls, batch: Batch, probabilities: jax.Array) -> Self:
        """Return the predictions at the masked positions of a batch, given float32[batch, predictions, vocabulary]."""
        return cls(
            inputs=batch["encoder_input_tokens"],
            segments=batch["encoder_segment_ids"],
            positions=batch["masked_positions"],
            targets=batch["masked_target_tokens"],
            weights=batch["masked_loss_weights"],
            tokens=jnp.argmax(probabilities, axis=-1),
            probabilities=jnp.max(probabilities, axis=-1),
        )


class Objective(ABC):
    """Base class of pretraining objectives, which are frozen dataclasses that own their networks and heads.

    The loss is sum over t of coefficients[t] terms[t] / D[t]. A subclass writes `model` and the abstract methods; the other
    members have defaults, which suit one network whose parameters are all its own.

    Attributes:
      model: the config of the network that the run is about.
      execution: how it is computed; never part of a checkpoint.
      terms: the names of the loss terms.
      network: the kind of `model`'s network, and its name among those of a folder.
      pooling: the pooling by which its encoder embeds texts.
      normalize: True if the vectors of texts have length 1.
    """

    model: Any
    execution: Execution = Execution()
    terms: ClassVar[tuple[str, ...]] = ("loss",)
    network: ClassVar[Kind] = "encoder"
    pooling: ClassVar[PoolingMode] = "mean"
    normalize: ClassVar[bool] = False

    @property
    def coefficients(self) -> Mapping[str, float]:
        """Coefficient of each loss term: the field of the term's name, or 1 where the objective has no such field."""
        fields: set[str] = {field.name for field in dataclasses.fields(cast(Any, self))}
        return {term: getattr(self, term) if term in fields else 1.0 for term in self.terms}

    @property
    def networks(self) -> Mapping[str, Any]:
        """Configs of all networks that can stand alone, by the names that files use; that of `model` is the first."""
        return {self.network: self.model}

    @property
    def initialized_networks(self) -> tuple[str, ...]:
        """Names of the networks that a warm start from a network of another name initialises: the first of them."""
        return (next(iter(self.networks)),)

    @property
    def network_sources(self) -> Mapping[str, NetworkSource]:
        """Trained models from which networks of a new run start, by the networks' names, beside the one of --init_from."""
        return {}

    @property
    def vocabulary_folders(self) -> Mapping[str, str]:
        """Folders of the vocabularies of networks that have not the run's, by the networks' names."""
        return {}

    @property
    def teachers(self) -> Mapping[str, Teacher | None]:
        """Models that it reads and does not train, by their names in `aux`; None stands for one that is still to be named."""
        return {}

    @property
    def remembers_rows(self) -> str | None:
        """The setting by which the carry has a memory of each row's text (`ROWS`), in words; None if there is none.

        Row r of a batch must then continue row r of the one before.
        """
        return None

    @property
    def huggingface_values(self) -> Mapping[str, Any]:
        """Values of Hugging Face's config.json beside those of the model, such as the names of a classifier's outputs."""
        return {}

    @property
    def frozen(self) -> Frozen:
        """Parts of the parameters that are not trained."""
        return Frozen()

    def split(self, params: Tree) -> dict[str, Tree]:
        """Split parameters into {"encoder": ..., heads} of each network by name, of those that are there."""
        return {self.network: params}

    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        """Join the parameters of networks by name; the inverse of `split`."""
        return networks[self.network]

    def sized(self, vocabulary_size: int) -> Self:
        """Return the objective with its models' vocabulary set; raise UserError where another size was asked for."""
        return dataclasses.replace(cast(Any, self), model=self.model.sized(vocabulary_size))

    def fitted(self, vocabulary: Vocabulary) -> Self:
        """Return the objective with its models fitted to a vocabulary: their size is set, and what else they have of it."""
        sized = self.sized(vocabulary.size)
        fit = getattr(sized.model, "fitted", None)  # a family from outside may have nothing but the size
        return dataclasses.replace(cast(Any, sized), model=fit(vocabulary)) if fit else sized

    @abstractmethod
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features that it reads of each row."""

    @property
    def of_equal_rows(self) -> "Objective":
        """The objective that treats all rows of a batch as it treats those that take the most, for estimates."""
        return self

    def in_pieces(self, count: int) -> "Objective | None":
        """Return the objective that computes a whole batch in so many pieces itself; None if the sum of microbatches is exact.

        A loss that compares all rows of a batch is not the sum of those of its microbatches.
        """
        return None

    def check_rows(self, rows: int, name: str) -> None:
        """Raise UserError if a batch or a microbatch, which `name` names, cannot have so many rows."""
        return

    def sequence_shape(self, shape: RowShape) -> RowShape:
        """Return the sizes of a sequence that attends within itself: a row, or one of the equal parts of a row."""
        return shape

    @abstractmethod
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """Initialise (params, carry, aux); params, and what a carry has of rows, are boxed with logical axis names."""

    def read_aux(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """Read the parts of `aux` that are no teachers, NumPy arrays; raise UserError where they do not fit the vocabulary."""
        return {}

    def evaluated_aux(self, carry: Tree, aux: Tree) -> Tree:
        """Return the `aux` that an evaluation within a run reads: with what the carry has of it by now."""
        return aux

    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        """Return a description of the source and the parts of params that a new run copies from `aux`, NumPy arrays, or None."""
        return None

    @abstractmethod
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """Compute the denominator of each term from the whole global batch alone: float32[] by name."""

    @abstractmethod
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """Compute the loss terms of a batch; `key` feeds dropout and is None outside training."""

    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """Return by network hidden states [layers + 1, batch, length, embed], embeddings first, and bool[batch, length]: real."""
        return {}

    @abstractmethod
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        """Predict the likeliest tokens at the targets, without dropout."""

    def flops(self, shape: RowShape) -> int:
        """Count the matrix-product FLOPs of training on one row, forward and backward."""
        return int(self.model.flops(shape.length, shape.targets or shape.predictions))


def masked_cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, Sum]:
    """Compute the weighted sum of -log softmax(logits)[target], and the accuracy.

    Args:
      logits: float32[..., classes].
      targets: int32[...].
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logits.

    Returns:
      the loss' sum float32[], and the sum of weights where the best class is the target.
    """
    return cross_entropy_of(weights, *cross_entropies(logits, targets, weights))


def cross_entropies(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute each place's loss, and 1 where its best class is the target, else 0: float32[...] each."""
    # [..., classes]; 0 times a gradient that is not finite would not be 0.
    logits = jnp.where(weights[..., None] > 0, logits.astype(jnp.float32), 0.0)
    # A comparison instead of a gather: it fuses, its gradient is no scatter, and it shards over the classes.
    classes = jnp.arange(logits.shape[-1], dtype=targets.dtype)
    # [..., classes] -> [...]
    picked = jnp.sum(jnp.where(classes == targets[..., None], logits, 0.0), axis=-1)
    loss = jax.nn.logsumexp(logits, axis=-1) - picked
    return loss, (likeliest(logits) == targets).astype(jnp.float32)


def cross_entropy_of(weights: jax.Array, losses: jax.Array, correct: jax.Array) -> tuple[jax.Array, Sum]:
    """Sum the losses float32[...] of places by their weights, and their accuracy."""
    return jnp.sum(losses * weights), Sum(jnp.sum(correct * weights), jnp.sum(weights))


def binary_cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute the weighted sum of -log sigmoid(logit) where the label is 1, -log sigmoid(-logit) where it is 0: float32[].

    Args:
      logits: float32[...].
      labels: float32[...].
      weights: float32[...]; a place of weight 0 adds exactly nothing, to the gradient too, whatever its logit.
    """
    logits = jnp.where(weights > 0, logits.astype(jnp.float32), 0.0)
    return jnp.sum((jax.nn.softplus(logits) - labels * logits) * weights)


def check_coefficients(**coefficients: float) -> None:
    """Raise ValueError where one is no finite number of at least 0, or all are 0."""
    for name, value in coefficients.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} {value} is no coefficient; it must be a number of at least 0")
    if not any(coefficients.values()):
        names = " and ".join(coefficients)
        raise ValueError(f"{names} are {'both' if len(coefficients) == 2 else 'all'} 0: nothing would be learnt; set one above 0")

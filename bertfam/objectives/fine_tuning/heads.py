"""Heads of fine-tuned models: each has its outputs, its loss, its metrics and its values in Hugging Face's config.json."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, choice_features, label_features
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.models.mapping import CHOICE_CLASSIFIER, CLASSIFIER, SPAN_CLASSIFIER, TOKEN_CLASSIFIER
from bertfam.objectives.objective import Sum, binary_cross_entropy, cross_entropies, masked_cross_entropy
from bertfam.plurals import plural
from bertfam.storage.untrusted import check_class_names


class Head(ABC):
    """Base class of heads, which label a text or its words; a subclass is a frozen dataclass.

    Attributes:
      part: Name of its parameters.
      labels_words: True if each word has a label, and not the text.
    """

    part: ClassVar[str] = CLASSIFIER
    labels_words: ClassVar[bool] = False

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of outputs of the model."""

    @property
    def labels(self) -> int:
        """Number of labels of a text (see `bertfam.data.rows.labelled.labelled_texts.Labels`)."""
        return 1

    @property
    def choices(self) -> int:
        """Number of texts in a row, each of which has one of the outputs; 1: a row is one text, which has all of them."""
        return 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the outputs; () if it predicts no classes."""
        return ()

    def predicts_as(self, other: "Head") -> bool:
        """Return True if the outputs of another head stand for the same labels, in the same order."""
        return type(other) is type(self) and other.class_names == self.class_names

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features that it reads."""
        return label_features(shape, None if self.labels_words else self.labels)

    def classifier(self, model: Any, execution: Execution) -> Classifier:
        """Return the head of the model's family: its method that is named as the part."""
        made: Classifier = getattr(model, self.part)(self.outputs, execution)
        return made

    def weights(self, labels: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the weight of each label in the loss, given its own: float32[batch, labels] each."""
        return weights

    @abstractmethod
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        """Compute the weighted sum of the losses float32[], and the metrics by name.

        Args:
          outputs: float32[batch, outputs], or float32[batch, length, outputs] for words.
          labels: float32[batch, labels], or float32[batch, length].
          weights: as `labels`, 0 where there is no label.
        """

    @abstractmethod
    def huggingface(self) -> Mapping[str, Any]:
        """Return the values of config.json that describe the outputs."""


@dataclass(frozen=True)
class ClassHead(Head):
    """Base class of heads that predict classes, with an output for each.

    Attributes:
      classes: Names of the classes, in the order of the outputs.
      least: Least number of classes.
    """

    least: ClassVar[int] = 2

    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        name = type(self).__name__
        if len(self.classes) < self.least:
            raise UserError(f"{name}.classes has {plural(len(self.classes), 'name')}: give at least {self.least}")
        if len(set(self.classes)) < len(self.classes):
            twice = next(one for one in self.classes if self.classes.count(one) > 1)
            raise UserError(f"{name}.classes has {twice!r} twice")
        check_class_names(name, self.classes)

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes)

    @property
    @override
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    @abstractmethod
    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Compute the probability of each class: float64[n, classes], given float32[n, classes]."""

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return _named_outputs(self.classes)


class OneClassHead(ClassHead):
    """Base class of heads that predict one of several classes, the one with the greatest output."""

    @override
    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        exponentials = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
        shares: np.ndarray = exponentials / exponentials.sum(axis=1, keepdims=True)
        return shares


@dataclass(frozen=True)
class Classification(OneClassHead):
    """One of several classes: the cross-entropy of softmax(outputs).

    Attributes:
      class_weights: Weight of each class in the loss, whose mean is weighted by them; None: all are 1.
    """

    class_weights: tuple[float, ...] | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None:
            if len(self.class_weights) != len(self.classes):
                raise UserError(
                    f"Classification.class_weights has {len(self.class_weights)} values for {len(self.classes)} classes; "
                    "give one for each"
                )
            if not all(0 < weight < 1e6 for weight in self.class_weights):
                raise UserError(
                    f"Classification.class_weights is {self.class_weights}: weights must be above 0 and below 1,000,000"
                )

    @override
    def weights(self, labels: jax.Array, weights: jax.Array) -> jax.Array:
        if self.class_weights is None:
            return weights
        return weights * jnp.asarray(self.class_weights, jnp.float32)[labels.astype(jnp.int32)]

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        known = weights[:, 0]
        losses, correct = cross_entropies(outputs, labels[:, 0].astype(jnp.int32), known)
        loss = jnp.sum(losses * self.weights(labels, weights)[:, 0])
        return loss, {"accuracy": Sum(jnp.sum(correct * known), jnp.sum(known))}

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return {**super().huggingface(), "problem_type": "single_label_classification"}


@dataclass(frozen=True)
class MultiLabelClassification(ClassHead):
    """Any number of several classes: the mean binary cross-entropy of sigmoid(outputs)."""

    least: ClassVar[int] = 1

    @property
    @override
    def labels(self) -> int:
        return len(self.classes)

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        loss = binary_cross_entropy(outputs, labels, weights)
        # A text counts where all its labels are predicted, and no others.
        known = jnp.min(weights, axis=-1)
        correct = jnp.all((outputs > 0) == (labels > 0.5), axis=-1).astype(jnp.float32)
        return loss, {"exact_match": Sum(jnp.sum(correct * known), jnp.sum(known))}

    @override
    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        shares: np.ndarray = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        return shares

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return {**super().huggingface(), "problem_type": "multi_label_classification"}


@dataclass(frozen=True)
class Tagging(OneClassHead):
    """One of several tags for each word: the cross-entropy of softmax(outputs) at the first token of each word."""

    part: ClassVar[str] = TOKEN_CLASSIFIER
    labels_words: ClassVar[bool] = True

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        loss, accuracy = masked_cross_entropy(outputs, labels.astype(jnp.int32), weights)
        return loss, {"accuracy": accuracy}


@dataclass(frozen=True)
class MultipleChoice(OneClassHead):
    """The right one of several choices, each a text of its own: the cross-entropy of the softmax over their outputs.

    The classes are the names of the choices, in their order.
    """

    part: ClassVar[str] = CHOICE_CLASSIFIER

    @property
    @override
    def choices(self) -> int:
        return len(self.classes)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return choice_features(self.choices)

    @override
    def classifier(self, model: Any, execution: Execution) -> Classifier:
        made: Classifier = model.choice_classifier(execution)
        return made

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        loss, accuracy = masked_cross_entropy(outputs, labels[:, 0].astype(jnp.int32), weights[:, 0])
        return loss, {"accuracy": accuracy}

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True)
class SpanExtraction(Head):
    """First and last token of an answer: the mean of two cross-entropies over the tokens of a row.

    The published code has the padding of a row in the softmax, too.

    Attributes:
      has_no_answer: True if the training texts have questions without an answer, so that the model may predict none.
    """

    part: ClassVar[str] = SPAN_CLASSIFIER

    has_no_answer: bool = False

    @property
    @override
    def outputs(self) -> int:
        return 2

    @property
    @override
    def labels(self) -> int:
        return 2

    @override
    def classifier(self, model: Any, execution: Execution) -> Classifier:
        made: Classifier = model.span_classifier(execution)
        return made

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        # [batch, length, 2] -> [batch, 2, length]
        scores = jnp.swapaxes(outputs, 1, 2)
        losses, correct = cross_entropies(scores, labels.astype(jnp.int32), weights)
        known = jnp.min(weights, axis=-1)
        exact = Sum(jnp.sum(jnp.min(correct, axis=-1) * known), jnp.sum(known))
        return jnp.sum(losses * weights), {"exact_spans": exact}

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return {"has_no_answer": self.has_no_answer}  # read by bertfam alone


@dataclass(frozen=True)
class Regression(Head):
    """A number: the squared difference of the output and the label."""

    @property
    @override
    def outputs(self) -> int:
        return 1

    @override
    def loss(self, outputs: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, dict[str, Sum]]:
        difference = jnp.where(weights > 0, outputs - labels, 0.0)
        total = jnp.sum(weights)
        loss = jnp.sum(jnp.square(difference) * weights)
        return loss, {"absolute_error": Sum(jnp.sum(jnp.abs(difference) * weights), total)}

    @override
    def huggingface(self) -> Mapping[str, Any]:
        return {**_named_outputs(("LABEL_0",)), "problem_type": "regression"}


def _named_outputs(classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "id2label": {str(index): name for index, name in enumerate(classes)},
        "label2id": {name: index for index, name in enumerate(classes)},
    }

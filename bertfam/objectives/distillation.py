"""Distillation: a student learns what a teacher says (Hinton, Vinyals, Dean 2015; DistilBERT, Sanh et al. 2019)."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, get_args

import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape
from bertfam.layers.execution import Execution
from bertfam.models.encoder import EncoderConfig, init_encoder, init_masked_lm_head
from bertfam.objectives.distillation_terms import as_wide, cosine_distances, in_pieces, soft_targets, squared_differences
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import (
    Batch,
    LossOut,
    Predictions,
    Sum,
    Tree,
    check_coefficients,
    masked_cross_entropy,
    with_vocabulary,
)
from bertfam.objectives.student_layers import Layers, select_layers, teacher_params
from bertfam.objectives.teacher import Teacher

TEACHER = "teacher"
Over = Literal["tokens", "masked"]


@dataclass(frozen=True)
class Distillation:
    """L = soft T^2 KL(teacher(T) || student(T)) + mlm CE(masked) + cosine (1 - cos(h_student, h_teacher)) + mse |z_s - z_t|^2.

    Each term is summed over the vocabulary and averaged over tokens, never over rows or the vocabulary: soft and mse over all
    real tokens (not padding), mlm over the masked ones, cosine of the last hidden states over all real tokens. The defaults are
    DistilBERT's. A term whose coefficient is 0 is not computed. The teacher sees the same masked input, without dropout.

    Attributes:
      model: the student.
      execution: how both networks are computed; never part of a checkpoint.
      teacher: the other network; None where `bertfam distill --teacher=DIR` is still to name it.
      soft: the coefficient of the soft targets.
      mlm: the coefficient of the masked language model.
      cosine: the coefficient of the hidden states, for a teacher as wide as the student.
      mse: the coefficient of the squared differences of logits.
      alpha: None, or in the place of all coefficients Hinton's alpha soft + (1 - alpha) mlm (section 2).
      temperature: T, of the soft targets.
      over: which tokens soft and mse are of: all real "tokens", or the "masked" ones alone.
      layers: the teacher's layers that the student's start as, one for each: "spread" takes them evenly from the first to the
        last (see `spread`), "random" takes nothing of the teacher.
      pieces: in how many pieces of a row logits of all tokens are computed, one after another, forward and backward; more need
        less memory.

    Raises:
      UserError: when the teacher cannot teach this student.
    """

    model: EncoderConfig
    execution: Execution = Execution()
    teacher: Teacher | None = None
    soft: float = 5.0
    mlm: float = 2.0
    cosine: float = 1.0
    mse: float = 0.0
    alpha: float | None = None
    temperature: float = 2.0
    over: Over = "tokens"
    layers: Layers | tuple[int, ...] = "spread"
    pieces: int = 8

    def __post_init__(self) -> None:
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha {self.alpha} is not in [0, 1]")
        check_coefficients(**self.coefficients)
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature {self.temperature} must be above 0")
        if self.over not in get_args(Over):
            raise ValueError(f"over {self.over!r} is not one of {', '.join(get_args(Over))}")
        if self.pieces < 1:
            raise ValueError(f"pieces {self.pieces} is less than 1")
        if isinstance(self.layers, str) and self.layers not in get_args(Layers):
            raise ValueError(f"layers {self.layers!r} is not one of {', '.join(get_args(Layers))}, nor a tuple of numbers")
        if self.teacher is not None:
            self._check_teacher(self.teacher)

    def _check_teacher(self, teacher: Teacher) -> None:
        if self._reads_logits and not teacher.has_head:
            raise UserError(
                f"the teacher {teacher.folder} has no masked-language-model head, so it gives no logits but hidden states alone: "
                "set Distillation.soft = 0 and Distillation.mse = 0 (and alpha = None)"
            )
        theirs, ours = teacher.model.hidden_size, self.model.hidden_size
        if self.coefficients["cosine"] and theirs != ours:
            raise UserError(
                f"the teacher {teacher.folder} is {theirs} wide and the student {ours}, so that their hidden states have no "
                "cosine: set Distillation.cosine = 0, or make the student as wide"
            )
        self.teacher_layers  # noqa: B018  (refuses numbers)

    @property
    def teacher_layers(self) -> tuple[int, ...] | None:
        """See `select_layers`; None where nothing is taken of the teacher."""
        if self.teacher is None or self.layers == "random":
            return None
        return select_layers(self.layers, self.model.num_layers, self.teacher.model.num_layers)

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The weight of each loss term."""
        if self.alpha is not None:
            return {"soft": self.alpha, "mlm": 1 - self.alpha, "cosine": 0.0, "mse": 0.0}
        return {"soft": self.soft, "mlm": self.mlm, "cosine": self.cosine, "mse": self.mse}

    @property
    def _reads_logits(self) -> bool:
        return bool(self.coefficients["soft"] or self.coefficients["mse"])

    @property
    def networks(self) -> Mapping[str, EncoderConfig]:
        """The student."""
        return self._student.networks

    @property
    def teachers(self) -> Mapping[str, Teacher | None]:
        """See `Objective.teachers`."""
        return {TEACHER: self.teacher}

    def split(self, params: Tree) -> dict[str, Tree]:
        """See `Objective.split`."""
        return self._student.split(params)

    def joined(self, networks: Mapping[str, Tree]) -> Tree:
        """See `Objective.joined`."""
        return self._student.joined(networks)

    def sized(self, vocabulary_size: int) -> Self:
        """The objective with both models' vocabulary set; raises UserError where another size was asked for."""
        teacher = self.teacher
        if teacher is not None:
            teacher = dataclasses.replace(teacher, model=with_vocabulary(teacher.model, vocabulary_size))
        return dataclasses.replace(self, model=with_vocabulary(self.model, vocabulary_size), teacher=teacher)

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """The features that it reads of each row: the masked language model's."""
        if self.teacher is not None and shape.length > self.teacher.model.max_length:
            raise UserError(
                f"Stage.length {shape.length} is more than the {self.teacher.model.max_length} tokens that the teacher "
                f"{self.teacher.folder} reads; shorten the rows"
            )
        return self._student.features(shape)

    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        """New (params, {}, aux), boxed with logical axis names: params are a masked language model's.

        aux is {"teacher": {"encoder", "mlm_head" if it has one}}, all zeros: the values are in the teacher's folder.
        """
        params, carry, _ = self._student.init(key, shape)
        if self.teacher is None:
            return params, carry, {}
        model, has_head = self.teacher.model, self.teacher.has_head

        def teacher(key: jax.Array) -> Tree:
            encoder = init_encoder(model, key)
            return {"encoder": encoder} | ({"mlm_head": init_masked_lm_head(model, key, encoder)} if has_head else {})

        shapes = jax.eval_shape(teacher, key)
        return params, carry, {TEACHER: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)}

    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        """See `Objective.begun`: the teacher's layers that `layers` names, its embeddings and its head (see `teacher_params`)."""
        layers = self.teacher_layers
        if layers is None or self.teacher is None:
            return None
        told = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} of {self.teacher.folder}"
        return told, teacher_params(self.model, self.teacher.model, aux[TEACHER], layers)

    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of real or of masked tokens in the global batch, for each term that is computed."""
        masked, real = jnp.sum(batch["masked_loss_weights"]), jnp.sum(_real(batch))
        of_logits = masked if self.over == "masked" else real
        found = {"soft": of_logits, "mlm": masked, "cosine": real, "mse": of_logits}
        return {name: found[name] for name, coefficient in self.coefficients.items() if coefficient}

    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        """The sums of the terms over a batch.

        Metrics are the loss of each term that is computed, `mlm_accuracy`, and `teacher_agreement`: the share of the masked
        tokens for which student and teacher take the same token for the likeliest. Outside training the masked language model
        is measured always, and without a teacher (aux is {}) it alone.
        """
        student, teacher, weigh = self._student, self._teaching, self.coefficients
        hidden = student.encoded(params, batch, key=key, train=train)
        terms: dict[str, jax.Array] = {}
        metrics: dict[str, Sum] = {}
        weights, logits = batch["masked_loss_weights"], None
        if weigh["mlm"] or not train:
            logits = student.masked_logits(params, hidden, batch)
            loss, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], weights)
            terms["mlm"] = loss
            metrics |= {"mlm_loss": Sum(loss, accuracy.weight), "mlm_accuracy": accuracy}
        if aux or train:
            assert teacher is not None and self.teacher is not None
            taught = teacher.encoded(aux[TEACHER], batch, key=None, train=False)
            if weigh["cosine"]:
                real = _real(batch)
                terms["cosine"] = cosine_distances(hidden, taught, real)
                metrics["cosine_loss"] = Sum(terms["cosine"], jnp.sum(real))
            if self._reads_logits:
                found, weight = self._of_logits(params, aux[TEACHER], hidden, taught, batch)
                terms |= found
                metrics |= {f"{name}_loss": Sum(term, weight) for name, term in found.items()}
            if logits is not None and self.teacher.has_head and (self._reads_logits or not train):
                said = teacher.masked_logits(aux[TEACHER], taught, batch)
                agree = (jnp.argmax(said, axis=-1) == jnp.argmax(logits, axis=-1)).astype(jnp.float32)
                metrics["teacher_agreement"] = Sum(jnp.sum(agree * weights), jnp.sum(weights))
        return LossOut({name: term for name, term in terms.items() if weigh[name]}, carry, metrics)

    def _of_logits(
        self, params: Tree, teacher: Tree, hidden: jax.Array, taught: jax.Array, batch: Batch
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """The terms of the logits of hidden and taught [batch, length, embed], and the number of tokens, float32[] each."""
        terms = {
            "soft": lambda ours, theirs, weights: soft_targets(ours, theirs, weights, self.temperature),
            "mse": squared_differences,
        }
        terms = {name: term for name, term in terms.items() if self.coefficients[name]}
        student, teaching = self._student, self._teaching
        assert teaching is not None

        def of(ours: jax.Array, theirs: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
            theirs = as_wide(theirs, ours.shape[-1])
            return {name: term(ours, theirs, weights) for name, term in terms.items()}

        if self.over == "masked":
            weights = batch["masked_loss_weights"]
            logits = student.masked_logits(params, hidden, batch), teaching.masked_logits(teacher, taught, batch)
            return of(*logits, weights), jnp.sum(weights)

        # Nothing of a piece is kept for the backward pass but its hidden states.
        @jax.checkpoint
        def of_piece(hidden: jax.Array, taught: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
            return of(student.logits(params, hidden), teaching.logits(teacher, taught), weights)

        weights = _real(batch)
        pieces = tuple(in_pieces(value, self.pieces) for value in (hidden, taught, weights))
        zeros = dict.fromkeys(terms, jnp.zeros(()))
        sums, _ = jax.lax.scan(lambda sums, piece: (jax.tree.map(jnp.add, sums, of_piece(*piece)), None), zeros, pieces)
        return sums, jnp.sum(weights)

    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        """The student's, see `Objective.activations`."""
        return self._student.activations(params, batch)

    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        """The student's likeliest tokens at the masked positions, without dropout."""
        return self._student.predictions(params, batch)

    def attention(self, shape: RowShape) -> str:
        """The attention backend of each network, and why."""
        ours = self._student.attention(shape)
        theirs = ours if self._teaching is None else self._teaching.attention(shape)
        return ours if theirs == ours else f"student: {ours}; teacher: {theirs}"

    def flops(self, shape: RowShape) -> int:
        """Matrix-product FLOPs of training on one row: the student forward and backward, the teacher forward."""
        masked = shape.predictions if self.coefficients["mlm"] or self.over == "masked" else 0
        places = shape.length if self._reads_logits and self.over == "tokens" else 0
        total = self.model.flops(shape.length, masked + places)
        if self.teacher is not None:
            read = shape.predictions if self._reads_logits else 0
            total += self.teacher.model.flops(shape.length, read + places) // 3
        return total

    @property
    def _student(self) -> Mlm:
        return Mlm(self.model, self.execution)

    @property
    def _teaching(self) -> Mlm | None:
        return None if self.teacher is None else Mlm(self.teacher.model, self.execution)


def _real(batch: Batch) -> jax.Array:
    return (batch["encoder_segment_ids"] > 0).astype(jnp.float32)

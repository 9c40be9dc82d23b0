"""Distillation: a student learns a teacher's distribution (Hinton, Vinyals, Dean 2015; DistilBERT, Sanh et al. 2019)."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self, cast, get_args

import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape
from bertfam.layers.execution import Execution
from bertfam.models.encoder import MaskedLmConfig, init_encoder, init_masked_lm_head
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import (
    Batch,
    LossOut,
    Objective,
    Predictions,
    Sum,
    Tree,
    check_coefficients,
    masked_cross_entropy,
)
from bertfam.objectives.student.layers import Layers, select_layers, teacher_params
from bertfam.objectives.student.terms import cosine_distances, in_pieces, soft_targets, squared_differences, with_rows
from bertfam.objectives.teacher import Teacher

TEACHER = "teacher"
Over = Literal["tokens", "masked"]


@dataclass(frozen=True)
class Distillation(Objective):
    """`L = soft T^2 KL(teacher(T) || student(T)) + mlm CE(masked) + cosine (1 - cos(h_s, h_t)) + mse |z_s - z_t|^2`.

    Each term is summed over the vocabulary and averaged over tokens, never over rows or the vocabulary: soft and mse over all
    real tokens (not padding), mlm over the masked ones, cosine of the last hidden states over all real tokens. The defaults are
    DistilBERT's. A term whose coefficient is 0 is not computed. The teacher sees the same masked input, without dropout.

    `init` makes a masked language model's params, and aux {"teacher": {"encoder", "mlm_head" if it has one}} of zeros: the values
    are in the teacher's folder. A new student copies the teacher's layers that `layers` names, its embeddings and its head (see
    `teacher_params`).

    Metrics of `loss` are the loss of each term that is computed, `mlm_accuracy`, and `teacher_agreement`: the share of masked
    tokens for which student and teacher find the same token the likeliest. Outside training the masked language model is always
    measured, and it alone where there is no teacher (aux is {}).

    Attributes:
      model: the student.
      execution: how both networks are computed; never part of a checkpoint.
      teacher: the teacher; None until `bertfam distill --teacher=DIR` names it.
      soft: the coefficient of the soft targets.
      mlm: the coefficient of the masked language model.
      cosine: the coefficient of the cosine distance of hidden states; the teacher must be as wide as the student.
      mse: the coefficient of the squared differences of logits.
      alpha: Hinton's alpha soft + (1 - alpha) mlm (section 2), which replaces all coefficients; None: the coefficients hold.
      temperature: T, the temperature of the soft targets.
      over: tokens that soft and mse cover: all real "tokens", or only the "masked" ones.
      layers: numbers of the teacher's layers that the student's layers start as, one for each; "spread" spaces them evenly from
        the first to the last (see `spread`), "random" copies nothing from the teacher.
      pieces: number of pieces of a row for which logits of all tokens are computed one after another, forward and backward; more
        pieces need less memory.

    Raises:
      UserError: the teacher does not fit this student.
    """

    model: MaskedLmConfig
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
                f"the teacher {teacher.folder} has no masked-language-model head and gives hidden states but no logits: "
                "set Distillation.soft = 0 and Distillation.mse = 0 (and alpha = None)"
            )
        theirs, ours = teacher.model.hidden_size, self.model.hidden_size
        if self.coefficients["cosine"] and theirs != ours:
            raise UserError(
                f"the teacher {teacher.folder} is {theirs} wide and the student {ours}, so their hidden states have no "
                "cosine: set Distillation.cosine = 0, or make the student as wide"
            )
        self.teacher_layers  # noqa: B018  (raises on impossible numbers)

    @property
    def teacher_layers(self) -> tuple[int, ...] | None:
        """Numbers of the teacher's layers that the student copies, see `select_layers`; None where it copies none."""
        if self.teacher is None or self.layers == "random":
            return None
        return select_layers(self.layers, self.model.num_layers, self.teacher.model.num_layers)

    @property
    @override
    def coefficients(self) -> Mapping[str, float]:
        if self.alpha is not None:
            return {"soft": self.alpha, "mlm": 1 - self.alpha, "cosine": 0.0, "mse": 0.0}
        return {"soft": self.soft, "mlm": self.mlm, "cosine": self.cosine, "mse": self.mse}

    @property
    def _reads_logits(self) -> bool:
        return bool(self.coefficients["soft"] or self.coefficients["mse"])

    @property
    @override
    def teachers(self) -> Mapping[str, Teacher | None]:
        return {TEACHER: self.teacher}

    @override
    def sized(self, vocabulary_size: int) -> Self:
        teacher = self.teacher
        if teacher is not None:
            teacher = dataclasses.replace(teacher, model=teacher.model.sized(vocabulary_size))
        return dataclasses.replace(self, model=self.model.sized(vocabulary_size), teacher=teacher)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if self.teacher is not None:
            longest = self.teacher.model.max_length
            if longest is not None and shape.length > longest:
                raise UserError(
                    f"Stage.length {shape.length} is more than the {longest} tokens that the teacher {self.teacher.folder} "
                    "reads; shorten the rows"
                )
        return self._student.features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, carry, _ = self._student.init(key, shape)
        if self.teacher is None:
            return params, carry, {}
        model, has_head = cast(MaskedLmConfig, self.teacher.model), self.teacher.has_head

        def teacher(key: jax.Array) -> Tree:
            encoder = init_encoder(model, key)
            return {"encoder": encoder} | ({"mlm_head": init_masked_lm_head(model, key, encoder)} if has_head else {})

        shapes = jax.eval_shape(teacher, key)
        return params, carry, {TEACHER: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)}

    @override
    def initial_params(self, aux: Tree) -> tuple[str, Tree] | None:
        layers = self.teacher_layers
        if layers is None or self.teacher is None:
            return None
        source = f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))} of {self.teacher.folder}"
        return source, teacher_params(self.model, self.teacher.model, aux[TEACHER], layers)

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        masked, real = jnp.sum(batch["masked_loss_weights"]), jnp.sum(_real(batch))
        of_logits = masked if self.over == "masked" else real
        tokens = {"soft": of_logits, "mlm": masked, "cosine": real, "mse": of_logits}
        return {name: tokens[name] for name, coefficient in self.coefficients.items() if coefficient}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        student, teacher, coefficients = self._student, self._teacher_lm, self.coefficients
        hidden = student.encoded(params, batch, key=key, train=train)
        terms: dict[str, jax.Array] = {}
        metrics: dict[str, Sum] = {}
        weights, logits = batch["masked_loss_weights"], None
        if coefficients["mlm"] or not train:
            logits = student.masked_logits(params, hidden, batch)
            loss, accuracy = masked_cross_entropy(logits, batch["masked_target_tokens"], weights)
            terms["mlm"] = loss
            metrics |= {"mlm_loss": Sum(loss, accuracy.weight), "mlm_accuracy": accuracy}
        if aux or train:
            assert teacher is not None and self.teacher is not None
            taught = teacher.encoded(aux[TEACHER], batch, key=None, train=False)
            if coefficients["cosine"]:
                real = _real(batch)
                terms["cosine"] = cosine_distances(hidden, taught, real)
                metrics["cosine_loss"] = Sum(terms["cosine"], jnp.sum(real))
            if self._reads_logits:
                logit_terms, weight = self._logit_terms(params, aux[TEACHER], hidden, taught, batch)
                terms |= logit_terms
                metrics |= {f"{name}_loss": Sum(term, weight) for name, term in logit_terms.items()}
            if logits is not None and self.teacher.has_head and (self._reads_logits or not train):
                teacher_logits = teacher.masked_logits(aux[TEACHER], taught, batch)
                agree = (jnp.argmax(teacher_logits, axis=-1) == jnp.argmax(logits, axis=-1)).astype(jnp.float32)
                metrics["teacher_agreement"] = Sum(jnp.sum(agree * weights), jnp.sum(weights))
        return LossOut({name: term for name, term in terms.items() if coefficients[name]}, carry, metrics)

    def _logit_terms(
        self, params: Tree, teacher: Tree, hidden: jax.Array, taught: jax.Array, batch: Batch
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """Compute the logits' terms for hidden and taught [batch, length, embed], and the number of tokens: float32[] each."""
        terms = {
            "soft": lambda ours, theirs, weights: soft_targets(ours, theirs, weights, self.temperature),
            "mse": squared_differences,
        }
        terms = {name: term for name, term in terms.items() if self.coefficients[name]}
        student, teaching = self._student, self._teacher_lm
        assert teaching is not None

        def compare(ours: jax.Array, theirs: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
            theirs = with_rows(theirs, ours.shape[-1])
            return {name: term(ours, theirs, weights) for name, term in terms.items()}

        if self.over == "masked":
            weights = batch["masked_loss_weights"]
            logits = student.masked_logits(params, hidden, batch), teaching.masked_logits(teacher, taught, batch)
            return compare(*logits, weights), jnp.sum(weights)

        # The backward pass keeps only the hidden states of a piece.
        @jax.checkpoint
        def compare_piece(hidden: jax.Array, taught: jax.Array, weights: jax.Array) -> dict[str, jax.Array]:
            return compare(student.logits(params, hidden), teaching.logits(teacher, taught), weights)

        weights = _real(batch)
        pieces = tuple(in_pieces(value, self.pieces) for value in (hidden, taught, weights))
        zeros = dict.fromkeys(terms, jnp.zeros(()))
        sums, _ = jax.lax.scan(lambda sums, piece: (jax.tree.map(jnp.add, sums, compare_piece(*piece)), None), zeros, pieces)
        return sums, jnp.sum(weights)

    @override
    def activations(self, params: Tree, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array]]:
        return self._student.activations(params, batch)

    @override
    def predictions(self, params: Tree, batch: Batch) -> Predictions:
        return self._student.predictions(params, batch)

    @override
    def flops(self, shape: RowShape) -> int:
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
    def _teacher_lm(self) -> Mlm | None:
        # Of a teacher without a masked-token head, only the hidden states are computed.
        return None if self.teacher is None else Mlm(cast(MaskedLmConfig, self.teacher.model), self.execution)


def _real(batch: Batch) -> jax.Array:
    return (batch["encoder_segment_ids"] > 0).astype(jnp.float32)

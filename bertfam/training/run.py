"""Configuration of a run: the root of what gin binds."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.corruption.t5.text_to_text import TextToText
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.features import SENTENCES, RowShape
from bertfam.objectives.objective import Objective
from bertfam.sharding.mesh import MeshShape
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.hooks.base import Hook
from bertfam.training.optimizers import AdamW, Optimizer
from bertfam.training.stages import Stage, expand_ramps, total_steps
from bertfam.training.step import NonFinite


@dataclass(frozen=True)
class Run:
    """Configuration of a pretraining run.

    Attributes:
      objective: what is trained, with its model.
      data: where the rows come from.
      stages: steps, row length and batch size, one after another; a `Ramp` becomes the stages that it stands for.
      optimizer: how it is trained.
      average_decay: of a moving average of the parameters, kept beside them (see `moving_average`); None keeps none.
      non_finite: what a loss or gradient that is not finite does. "raise" ends the run with a line that names the step, "skip"
        goes on without that update; neither changes a parameter by it.
      mesh: how devices are laid out.
      microbatches: in how many pieces a batch is computed.
      seed: of everything random.
      log_every: updates between lines of metrics.
      inspect_every: updates between looks inside the step (see `make_inspection`), which take about one more step's time;
        0 never looks.
      digest_every: updates between digests of gradient and parameters (see `Digest`), which `bertfam replay` compares; they take
        about one more step's time; 0 records none.
      eval_every: updates between evaluations; 0 never evaluates.
      eval_batches: at most so many batches an evaluation; None evaluates all held-out rows.
      sample_every: updates between looks at what the model predicts for the first held-out rows; 0 never looks.
      checkpoint_every: updates between checkpoints; the last step is always saved.
      keep_checkpoints: how many of the newest stay; None keeps all.
      keep_every: besides, those of every so many updates stay for good; None: none of them.
      keep_best: besides, the one whose held-out metric of this name ("mlm_loss", "mlm_accuracy") is best; None: none.
      watchdog_seconds: the longest that a step, or an evaluation's batch, may take before the process tells where it stands and
        ends with exit code 76; compiling and saving have an hour at least; 0: any time.
      hooks: hooks of your own, called between steps after those that save and evaluate.
    """

    objective: Objective
    data: TextData
    stages: tuple[Stage, ...]
    optimizer: Optimizer = AdamW()
    average_decay: float | None = None
    non_finite: NonFinite = "raise"
    mesh: MeshShape = MeshShape()
    microbatches: int = 1
    seed: int = 0
    log_every: int = 50
    inspect_every: int = 0
    digest_every: int = 0
    eval_every: int = 1000
    eval_batches: int | None = None
    sample_every: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int | None = 3
    keep_every: int | None = None
    keep_best: str | None = None
    watchdog_seconds: float = 1800
    hooks: tuple[Hook, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages is empty; a run needs at least one Stage")
        object.__setattr__(self, "stages", expand_ramps(self.stages))
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay {self.average_decay} is not in [0, 1); None keeps no average")
        for name in ("microbatches", "log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        looks = (("inspect_every", "looks"), ("digest_every", "records any"), ("sample_every", "looks"))
        for name, what in (("eval_every", "evaluates"), *looks):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative; 0 never {what}")
        for name in ("eval_batches", "keep_checkpoints", "keep_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        if self.total_steps >= 2**31:
            raise ValueError(f"stages have {self.total_steps:,} steps, and a run has fewer than 2^31")
        if self.keep_best is not None and not self.eval_every:
            raise ValueError(f"keep_best is {self.keep_best!r} and eval_every is 0: nothing is measured; set eval_every")
        if not self.watchdog_seconds >= 0:
            raise ValueError(f"watchdog_seconds {self.watchdog_seconds} is negative; 0 watches nothing")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed} must be at least 0 and below 2^63")
        for index, stage in enumerate(self.stages):
            try:
                self.data.check_length(stage.length)
                self._check_features(stage.length)
            except UserError as error:
                raise UserError(f"stages[{index}]: {error}") from error

    def _check_features(self, length: int) -> None:
        read, given = self.objective.features(self.data.shape(length)).keys(), self.data.features(length).keys()
        objective, noise = type(self.objective).__name__, type(self.data.corruption).__name__
        if isinstance(self.data.corruption, TextToText) and not read >= _TOKENS:
            raise UserError(
                f"{noise} is for pairs of inputs and targets, which need an encoder-decoder, and {objective} trains none: take "
                "the run file of one, as runs/t5_1_1_base.gin, or leave tasks/text_to_text.gin out"
            )
        if missing := read - given:
            if "masked_positions" in missing or _TOKENS & missing:
                fix = _MASKING if "masked_positions" in read else _SEQUENCES if _TOKENS <= read else _CAUSAL
                raise UserError(f"{objective} reads {min(missing)}, which rows of {noise} lack: set {fix}")
            name = min(missing)
            given_by = _GIVEN_BY.get(name, "TextData.rows to others (@SentencePairs() has all that MlmNsp reads)")
            raise UserError(
                f"{objective} reads {name}, which rows of {type(self.data.rows).__name__} lack: set {given_by}, or Run.objective "
                "to another (@Mlm())"
            )
        if unread := (_TOKENS & given) - read:
            raise UserError(f"rows of {noise} have {min(unread)}, which {objective} does not read: set {_CAUSAL}")
        reads, begins = (getattr(each, "decoder_start", None) for each in (self.objective, self.data.corruption))
        if reads and begins and reads != begins:
            raise UserError(
                f"{type(self.objective.model).__name__} begins what it writes with {reads} and rows of {noise} with {begins}: "
                f'set {noise}.start = "{reads}"'
            )

    @property
    def keep(self) -> Keep:
        """Retention policy of the checkpoints."""
        return Keep(self.keep_checkpoints, self.keep_every, self.keep_best)

    @property
    def total_steps(self) -> int:
        """Number of updates of the whole run."""
        return total_steps(self.stages)

    def flops_after(self, step: int) -> int:
        """Return the matrix-product FLOPs of the updates after the first `step`."""
        left = 0
        for index, stage in enumerate(self.stages):
            done = min(step, stage.steps)
            left += (stage.steps - done) * stage.batch_size * self.objective.flops(self.shape(index))
            step -= done
        return left

    def shape(self, stage: int) -> RowShape:
        """Return the static sizes of a stage's rows."""
        return self.data.shape(self.stages[stage].length)

    def boxed_params(self) -> Any:
        """Return the shapes of the parameters of a sized run, boxed with logical axis names."""
        return jax.eval_shape(lambda key: self.objective.init(key, self.shape(0))[0], jax.random.key(0))

    def sized(self, vocabulary_size: int) -> "Run":
        """Return the run with its model's vocabulary size set."""
        return dataclasses.replace(self, objective=self.objective.sized(vocabulary_size))


# What rows must be made with to have a feature.
_GIVEN_BY = {
    sentences.labels: f'TextData.rows to @SentencePairs() and SentencePairs.relation to "{relation}"'
    for relation, sentences in SENTENCES.items()
    if relation != SentencePairs.relation
} | {
    "shuffled_loss_weights": "BertMasking.shuffling to @ShuffledWindows()",
    "span_left_positions": "BertMasking.boundaries to True",
}
# What encoders and decoders read, and the noise that gives both, one, or masks.
_TOKENS = {"encoder_input_tokens", "decoder_input_tokens"}
_MASKING = "TextData.corruption to @BertMasking()"
_CAUSAL = "TextData.corruption to @NextTokens() (and TextData.rows to @Chunks())"
_SEQUENCES = (
    "TextData.corruption to @SpanCorruption() (T5) or @Denoising() (BART), and TextData.rows to @Chunks() or @DocSentences()"
)
# What may differ when a run goes on: where and how it is computed and told, never what is learned from what.
_FREE = {
    "Run": {
        *("mesh", "microbatches", "non_finite", "log_every", "inspect_every", "eval_every", "eval_batches", "sample_every"),
        *("digest_every", "checkpoint_every", "watchdog_seconds", "keep_checkpoints", "keep_every", "keep_best", "hooks"),
    },
    "Stage": {"steps"},
    "TextData": {"corpus", "vocabulary", "cache_dir"},
    "Distillation": {"pieces"},
    "CausalLm": {"chunk"},
    "SequenceToSequence": {"chunk"},
    "Teacher": {"folder", "step", "network"},
}
_FREE_CLASSES = {"Execution"}
_DROPOUT = frozenset({"dropout_rate", "attention_dropout_rate", "embedding_dropout_rate", "feed_forward_dropout_rate"})
_RATES = frozenset({"schedule", "weight_decay"})
# Since when a value is another, and the flag that could name another.
_BEGAN = ("when this run began", "--model_dir")


def check_resumable(old: Run, new: Run, step: int) -> None:
    """Raise UserError if `new` would resume after `step` with something else than `old` learned, naming the first such value.

    The length of stages that are not over may change: a longer run's schedule is that of the new total.
    """
    _check_same(old, new, "Run")
    for index, (before, now) in enumerate(zip(old.stages, new.stages, strict=True)):
        done = min(step, before.steps)
        is_over = done == before.steps and index + 1 < len(old.stages)
        if now.steps != before.steps and (is_over or now.steps < done):
            _refuse(f"Run.stages[{index}].steps", before.steps, now.steps)
        step -= done


def check_same_model(old: Any, new: Any) -> None:
    """Raise UserError if a model's config computes something else than an imported one's; only dropout may differ."""
    _check_same(old, new, "Run.objective.model", ("in the imported model", "--model_dir"), _DROPOUT)


def check_same_network(old: Any, new: Any, folder: str, where: str = "Run.objective.model") -> None:
    """Raises UserError where a model's config computes something else than that in `folder`, other than of other tokens."""
    _check_same(old, new, where, (f"in {folder}", "--init_from"), _DROPOUT | {"vocab_size", "table_rows"})


def check_same_optimizer(old: Any, new: Any, folder: str) -> None:
    """Raise UserError if an optimizer's state means something else than that in `folder`: only rate and decay may differ."""
    _check_same(old, new, "Run.optimizer", (f"in {folder}", "--init_from (or leave --init_optimizer out)"), _RATES)


def _check_same(old: Any, new: Any, where: str, when: tuple[str, str] = _BEGAN, free: Collection[str] = ()) -> None:
    if type(old) is not type(new):
        _refuse(where, old, new, when)
    name = type(old).__name__
    if name in _FREE_CLASSES:
        return
    if dataclasses.is_dataclass(old):
        for field in dataclasses.fields(old):
            if field.name not in _FREE.get(name, free):
                _check_same(getattr(old, field.name), getattr(new, field.name), f"{where}.{field.name}", when)
    elif isinstance(old, tuple | list) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True)):
            _check_same(left, right, f"{where}[{index}]", when)
    elif old != new:
        _refuse(where, old, new, when)


def _refuse(where: str, old: Any, new: Any, when: tuple[str, str] = _BEGAN) -> None:
    since, flag = when
    raise UserError(f"{where} was {_short(old)} {since} and is {_short(new)} now; change it back, or use another {flag}")


def _short(value: Any) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)

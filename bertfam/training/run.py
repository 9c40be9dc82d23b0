"""Configuration of a run, the root of the gin configuration."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax
from flax import linen as nn

from bertfam.compression.quantization import Quantization, axes_of
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.features import SENTENCES, RowShape
from bertfam.models.conversion import adopted
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Objective
from bertfam.plurals import plural
from bertfam.sharding.mesh import MeshShape
from bertfam.training.checkpoints.retention import Keep, evaluations_since_best
from bertfam.training.evaluations.base import Evaluation
from bertfam.training.hooks.base import Hook
from bertfam.training.logs.trackers import Tracker
from bertfam.training.optimizers import AdamW, Optimizer
from bertfam.training.schedules import joint_schedule
from bertfam.training.stages import Stage, expanded, locate, total_steps
from bertfam.training.stages.phases import Phase, Shaped, initial_shapes, initial_values, phases_of
from bertfam.training.state import TrainState, first_state
from bertfam.training.step import NonFinite


@dataclass(frozen=True)
class Run:
    """Configuration of a pretraining run.

    Attributes:
      objective: objective to train, with its model.
      data: source of the rows.
      stages: stages in order, each with its steps, row length, batch size and perhaps settings of its own; a `Ramp`, and a
        stage whose noise changes, are replaced by their stages.
      optimizer: optimizer and learning-rate schedule.
      average_decay: decay of the moving average of the parameters (see `moving_average`); None keeps no average.
      non_finite: policy for an update whose loss or gradient is not finite. "raise" ends the run with a line that names the step,
        "skip" continues without that update; neither applies it to the parameters.
      mesh: layout of the devices.
      microbatches: number of pieces in which each batch is computed; "auto" is the least number with which a step fits the memory
        of the devices.
      seed: random seed.
      seed_bits: number of bits of the seed that initial parameters and dropout read, which a run keeps: 64, and 32 for runs begun
        before it was recorded.
      log_every: updates between lines of metrics.
      inspect_every: updates between inspections of the step (see `make_inspection`), each of which takes about as long as a step;
        0 disables them.
      digest_every: updates between digests of gradient and parameters (see `Digest`), which `bertfam replay` compares; each takes
        about as long as a step; 0 disables them.
      eval_every: updates between evaluations; 0 disables them.
      eval_batches: maximum number of batches per evaluation; "auto" is a tenth of `eval_every`, at least 16, so that evaluations
        take a few percent of the time; None evaluates all held-out rows, as `bertfam evaluate` does.
      sample_every: updates between samples of the model's predictions for the first held-out rows; 0 disables them.
      checkpoint_every: updates between checkpoints; the last step is always saved.
      keep_checkpoints: number of newest checkpoints to keep; None keeps all.
      keep_every: also keep, for good, the checkpoints of every so many updates; None keeps no others.
      keep_best: also keep that with the best held-out metric of this name ("mlm_loss", "mlm_accuracy"); None keeps none.
      patience: evaluations in a row without a better `keep_best` after which the run is complete; None: it makes all updates.
      watchdog_seconds: longest duration of a step or an evaluation batch, after which the process prints its stacks and
        ends with exit code 76; compiling and saving have an hour at least; 0 disables it.
      trackers: services that follow the metrics, such as `Wandb`, beside metrics.jsonl and TensorBoard.
      evaluations: measurements of the model on tasks of your own, such as `FeatureProbe`, every so many updates of theirs.
      hooks: hooks of your own, called between steps after those that save and evaluate.
      quantization: how the parameters of a model that `bertfam quantize` wrote are stored; None: in floats, as every run trains
        them.
    """

    objective: Objective
    data: TextData
    stages: tuple[Stage, ...]
    optimizer: Optimizer = AdamW()
    average_decay: float | None = None
    non_finite: NonFinite = "raise"
    mesh: MeshShape = MeshShape()
    microbatches: int | Literal["auto"] = "auto"
    seed: int = 0
    seed_bits: int = 64
    log_every: int = 50
    inspect_every: int = 0
    digest_every: int = 0
    eval_every: int = 1000
    eval_batches: int | Literal["auto"] | None = "auto"
    sample_every: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int | None = 3
    keep_every: int | None = None
    keep_best: str | None = None
    patience: int | None = None
    watchdog_seconds: float = 1800
    trackers: tuple[Tracker, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    hooks: tuple[Hook, ...] = ()
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages is empty; a run needs at least one Stage")
        object.__setattr__(self, "stages", expanded(self.stages))
        if self.average_decay is not None and not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay {self.average_decay} is not in [0, 1); None keeps no average")
        for name in ("microbatches", "log_every", "checkpoint_every"):
            if getattr(self, name) != "auto" and getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        for name in ("eval_every", "inspect_every", "digest_every", "sample_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative; 0 turns it off")
        for name in ("eval_batches", "keep_checkpoints", "keep_every", "patience"):
            if getattr(self, name) not in (None, "auto") and getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")
        if self.total_steps >= 2**31:
            raise ValueError(f"stages have {self.total_steps:,} steps; a run must have fewer than 2^31")
        if self.keep_best is not None and not self.eval_every:
            raise ValueError(f"keep_best is {self.keep_best!r}, but eval_every is 0 and nothing is evaluated; set eval_every")
        if self.patience is not None and self.keep_best is None:
            raise ValueError(f"patience is {self.patience}, but keep_best names no metric that is to improve; set keep_best")
        if not 0 <= self.watchdog_seconds < math.inf:
            raise ValueError(f"watchdog_seconds {self.watchdog_seconds} is not a number of seconds; 0 turns the watchdog off")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed {self.seed} must be at least 0 and below 2^63")
        if self.seed_bits not in (32, 64):
            raise ValueError(f"seed_bits is {self.seed_bits}: it must be 64, or 32 as in runs of earlier versions")
        for index, stage in enumerate(self.stages):
            try:
                self.data_of(index).check_length(stage.length)
                self._check_features(index)
            except UserError as error:
                raise UserError(f"stages[{index}]: {error}") from error
        self._check_memory()

    def _check_memory(self) -> None:
        """Raise UserError if the model remembers each row's text and the next batch does not continue it."""
        setting = self.objective.remembers_rows
        if setting is None:
            return
        sizes = sorted({stage.batch_size for stage in self.stages})
        if len(sizes) > 1:
            raise UserError(
                f"{setting}, and a memory belongs to a row of the batch, but stages have batches of {sizes[0]} to {sizes[-1]} "
                "rows: give all stages one batch_size, or have no memory"
            )
        if self.data.order != "streams":
            raise UserError(
                f"{setting}, but rows do not continue those of the batch before: set "
                'TextData.order = "streams", or have no memory'
            )

    def _check_features(self, stage: int) -> None:
        trained, data, length = self.objective_of(stage), self.data_of(stage), self.stages[stage].length
        read, given = trained.features(self.shape(stage)).keys(), data.features(length).keys()
        objective, noise = type(trained).__name__, type(data.corruption).__name__
        if not data.corruption.reads_text and not read >= _TOKENS:
            raise UserError(
                f"{noise} is for pairs of inputs and targets, which need an encoder-decoder, and {objective} trains none: use "
                "the run file of one, such as runs/t5_1_1_base.gin, or leave tasks/text_to_text.gin out"
            )
        if missing := read - given:
            if "masked_positions" in missing or _TOKENS & missing:
                fix = _MASKING if "masked_positions" in read else _SEQUENCES if _TOKENS <= read else _CAUSAL
                raise UserError(f"{objective} reads {min(missing)}, which rows of {noise} lack: set {fix}")
            name = min(missing)
            given_by = _GIVEN_BY.get(name, "TextData.rows to others (@SentencePairs() has all that MlmNsp reads)")
            raise UserError(
                f"{objective} reads {name}, which rows of {type(data.rows).__name__} lack: set {given_by}, or Run.objective "
                "to another (@Mlm())"
            )
        if "encoder_ranks" in given - read:
            raise UserError(f"{noise} shows {objective} the tokens that it is to predict: set {_MASKING}")
        if unread := (_TOKENS & given) - read:
            raise UserError(f"rows of {noise} have {min(unread)}, which {objective} does not read: set {_CAUSAL}")
        model_start, row_start = getattr(trained, "decoder_start", None), data.corruption.decoder_start
        if model_start and row_start and model_start != row_start:
            raise UserError(
                f"the decoder of {type(trained.model).__name__} starts with {model_start}, but rows of {noise} with "
                f'{row_start}: set {noise}.start = "{model_start}"'
            )
        drawn, of_rows = (getattr(one, "negatives", None) for one in (trained, data.corruption))
        if "noise_tokens" in read and drawn != of_rows:
            raise UserError(
                f"{objective}.negatives is {drawn}, and {noise}.negatives {of_rows}: give both one number (NEGATIVES = {drawn})"
            )

    @property
    def microbatch_count(self) -> int:
        """Number of pieces in which each batch is computed; 1 for an "auto" that is not resolved."""
        return 1 if self.microbatches == "auto" else self.microbatches

    @property
    def key_seed(self) -> int:
        """Seed of the initial parameters and of dropout."""
        return self.seed % 2**self.seed_bits

    @property
    def most_eval_batches(self) -> int | None:
        """Maximum number of batches per evaluation, with "auto" resolved; None: all."""
        return max(_LEAST_EVAL_BATCHES, self.eval_every // 10) if self.eval_batches == "auto" else self.eval_batches

    @property
    def phase_ends(self) -> frozenset[int]:
        """Numbers of updates after which another stage begins, one of which has settings of its own."""
        pairs = zip(self.stages, self.stages[1:], strict=False)
        ends = itertools.accumulate(stage.steps for stage in self.stages)
        return frozenset(end for end, (one, other) in zip(ends, pairs, strict=False) if one.own_settings != other.own_settings)

    @property
    def keep(self) -> Keep:
        """Retention policy of the checkpoints."""
        return Keep(self.keep_checkpoints, self.keep_every, self.keep_best)

    @property
    def total_steps(self) -> int:
        """Number of updates of the whole run."""
        return total_steps(self.stages)

    def end_reason(self, scores: Mapping[int, Mapping[str, Any]]) -> str | None:
        """Return the reason for which the run is complete before its last update (see `patience`); None if it is not.

        Args:
          scores: the held-out scores by step, of all evaluations so far.
        """
        if self.patience is None or evaluations_since_best(scores, str(self.keep_best)) < self.patience:
            return None
        return f"{self.keep_best} has not improved in {plural(self.patience, 'evaluation')} (Run.patience)"

    def flops_after(self, step: int, flops_per_step: Sequence[int] | None = None) -> int:
        """Return the matrix-product FLOPs of the updates after the first `step`.

        Args:
          step: number of updates that are done.
          flops_per_step: FLOPs of an update of each stage; None: those of rows of one example.
        """
        left = 0
        for index, stage in enumerate(self.stages):
            done = min(step, stage.steps)
            flops = flops_per_step[index] if flops_per_step else self.row_flops(index) * stage.batch_size
            left += (stage.steps - done) * flops
            step -= done
        return left

    def shape(self, stage: int, length: int | None = None) -> RowShape:
        """Return the static sizes of a stage's rows and batches; rows have the stage's `length` unless another is given."""
        return self.data_of(stage).shape(length or self.stages[stage].length)._replace(rows=self.stages[stage].batch_size)

    def row_flops(self, stage: int, length: int | None = None) -> int:
        """Return the matrix-product FLOPs of training on a row of one example of a stage; see `shape`."""
        return self.objective_of(stage).flops(self.shape(stage, length))

    def objective_of(self, stage: int) -> Objective:
        """Return the objective of a stage, computed as that of the run is."""
        own: Any = self.stages[stage].objective
        return self.objective if own is None else dataclasses.replace(own, execution=self.objective.execution)

    def data_of(self, stage: int) -> TextData:
        """Return the data of a stage."""
        return self.stages[stage].data(self.data)

    def at(self, step: int) -> "Run":
        """Return the run of the stage that made the update that led to `step`, with its objective and its data alone."""
        index, _ = locate(self.stages, min(max(step, 1), self.total_steps) - 1)
        stage = self.stages[index]
        if not stage.own_settings:
            return self
        own = dataclasses.replace(stage, objective=None, corruption=None)
        return dataclasses.replace(self, objective=self.objective_of(index), data=self.data_of(index), stages=(own,))

    @functools.cached_property
    def schedule(self) -> optax.Schedule:
        """Learning rate by step."""
        return joint_schedule(self.optimizer.schedule, [(stage.steps, stage.schedule) for stage in self.stages])

    def build_optimizer(self) -> optax.GradientTransformationExtraArgs:
        """Build the optax transformation of a sized run."""
        return self.optimizer.build(self.total_steps, self.boxed_trained, self.schedule)

    @property
    def _shaped(self) -> list[Shaped]:
        """Objective of each stage with the shape of its rows."""
        return [(self.objective_of(index), self.shape(index)) for index in range(len(self.stages))]

    @property
    def _shaped_once(self) -> tuple[Shaped, ...]:
        """All objectives, that of the run first, each with the shape of the first rows that it reads."""
        first: dict[Objective, Shaped] = {}
        for shaped in self._shaped:
            first.setdefault(shaped[0], shaped)
        own = first.pop(self.objective, (self.objective, self.shape(0)))
        return (own, *first.values())

    def initial_values(self, key: jax.Array) -> tuple[Any, Any, Any]:
        """Initialise (params, carry, aux) of a sized run; params are boxed with logical axis names."""
        return initial_values(self._shaped_once, key)

    @functools.cached_property
    def initial_shapes(self) -> tuple[Any, Any, Any]:
        """The shapes of (params, carry, aux) of a sized run; params are boxed with logical axis names."""
        return initial_shapes(self._shaped_once)

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Phase of each stage of a sized run: its objective and the parameters that it trains."""
        if not any(stage.objective or stage.frozen for stage in self.stages):
            return (Phase.of(self.objective),) * len(self.stages)
        return phases_of(self._shaped, [stage.frozen_parts for stage in self.stages], self.boxed_params.keys())

    @property
    def frozen(self) -> Frozen:
        """Parameters that no stage of a sized run trains."""
        return self.phases[0].frozen

    @property
    def boxed_params(self) -> Any:
        """The shapes of the parameters of a sized run, boxed with logical axis names."""
        return self.initial_shapes[0]

    @functools.cached_property
    def stored_params(self) -> Any:
        """The shapes of the parameters of a sized run as its checkpoints store them, without boxes."""
        shapes = nn.meta.unbox(self.boxed_params)
        quantization, axes = self.quantization, axes_of(self.boxed_params)
        return jax.eval_shape(lambda params: quantization.quantized(params, axes), shapes) if quantization else shapes

    @functools.cached_property
    def boxed_trained(self) -> Any:
        """The shapes of the parameters that are not frozen, boxed with logical axis names."""
        return jax.eval_shape(self.frozen.trained, self.boxed_params)

    @functools.cached_property
    def boxed_state(self) -> TrainState:
        """The shapes of the state of a sized run; parameters, and their copies, are boxed with logical axis names."""
        return _state_shapes(self._shaped_once, self.frozen, self.optimizer, self.total_steps, self.average_decay is not None)

    def sized(self, vocabulary_size: int) -> "Run":
        """Return the run with its model's vocabulary size set."""
        return self._with_objectives(lambda objective: objective.sized(vocabulary_size))

    def fitted(self, vocabulary: Vocabulary) -> "Run":
        """Return the run with its model fitted to a vocabulary."""
        return self._with_objectives(lambda objective: objective.fitted(vocabulary))

    def _with_objectives(self, change: Callable[[Objective], Objective]) -> "Run":
        stages = tuple(
            stage if stage.objective is None else dataclasses.replace(stage, objective=change(stage.objective))
            for stage in self.stages
        )
        return dataclasses.replace(self, objective=change(self.objective), stages=stages)


@functools.lru_cache(maxsize=8)
def _state_shapes(shaped: tuple[Shaped, ...], frozen: Frozen, optimizer: Optimizer, steps: int, averaged: bool) -> TrainState:
    initial = initial_shapes(shaped)
    built = optimizer.build(steps, jax.eval_shape(frozen.trained, initial[0]))
    state: TrainState = jax.eval_shape(lambda initial: first_state(initial, built, frozen, averaged=averaged), initial)
    return state


_LEAST_EVAL_BATCHES = 16
# Settings that give rows a feature.
_GIVEN_BY = {
    sentences.labels: f'TextData.rows to @SentencePairs() and SentencePairs.relation to "{relation}"'
    for relation, sentences in SENTENCES.items()
    if relation != SentencePairs.relation
} | {
    "shuffled_loss_weights": "BertMasking.shuffling to @ShuffledWindows()",
    "span_left_positions": "BertMasking.boundaries to True",
    "encoder_word_numbers": "BertMasking.word_numbers to True",
    "encoder_ranks": "TextData.corruption to @PermutationNoise()",
    "noise_tokens": "TextData.corruption to @SkipGrams()",
}
# Input features of encoders and decoders, and the settings that give rows one of them, both, or masks.
_TOKENS = {"encoder_input_tokens", "decoder_input_tokens"}
_MASKING = "TextData.corruption to @BertMasking()"
_CAUSAL = "TextData.corruption to @NextTokens() (and TextData.rows to @Chunks())"
_SEQUENCES = (
    "TextData.corruption to @SpanCorruption() (T5) or @Denoising() (BART), and TextData.rows to @Chunks() or @DocSentences()"
)
# Fields that may change when a run resumes: they affect where it is computed and what is logged, never what is learned.
_FREE = {
    "Run": {
        "stages",  # `check_resumable` compares them
        *("mesh", "microbatches", "non_finite", "log_every", "inspect_every", "eval_every", "eval_batches", "sample_every"),
        *(
            "digest_every",
            "checkpoint_every",
            "watchdog_seconds",
            "keep_checkpoints",
            "keep_every",
            "keep_best",
            "patience",
            "trackers",
            "evaluations",
            "hooks",
        ),
    },
    "TextData": {"corpus", "vocabulary", "cache_dir"},
    "Distillation": {"pieces"},
    "CausalLm": {"chunk"},
    "SequenceToSequence": {"chunk"},
    "Teacher": {"folder", "step", "network"},
}
_FREE_CLASSES = {"Execution"}
_DROPOUT = frozenset(f"{where}dropout_rate" for where in ("", "attention_", "attention_output_", "embedding_", "feed_forward_"))
# Fields of a model in which a run may differ from the one that it starts from.
FREE_OF_NETWORKS = _DROPOUT | {"vocab_size", "table_rows", "classifier_pooling", "classifier_dropout_rate"}
_RATES = frozenset({"schedule", "weight_decay"})
# Time of the old value, and the flag that could name another run or model.
_AT_START = ("when this run started", "--model_dir")


def check_resumable(old: Run, new: Run, step: int, folder: str = "MODEL_DIR") -> None:
    """Raise UserError if `new` changes a value of the run `old`, stopped after `step`, that must not change when it resumes.

    The message names the first such value. Stages that have not begun may change, the present one may become longer or end at
    `step`, and others may follow; the schedule then has the length of the new total.

    Args:
      old: the run as it was saved.
      new: the run to resume.
      step: number of updates that are done.
      folder: MODEL_DIR, for messages.
    """
    _check_same(old, new, "Run", (_AT_START[0], f"--model_dir, where --init_from={folder} starts from these weights"))
    start = f"--gin_file={folder}/config.gin --init_from={folder} --init_optimizer"
    restart = f"start a new run from this one by {start} and another --model_dir"
    check_begun_stages(old, new, step, f"or {restart}")
    if any(stage.own_settings for stage in (*old.stages, *new.stages)):
        _check_same_state(old, new, restart)
    for index, (before, now) in enumerate(zip(old.stages, new.stages, strict=False)):
        if sum(stage.steps for stage in old.stages[:index]) < step:
            for name in before.own_settings.keys() | now.own_settings.keys():
                _check_same(getattr(before, name), getattr(now, name), f"Run.stages[{index}].{name}")


def _check_same_state(old: Run, new: Run, restart: str) -> None:
    """Raise UserError if the stages of a sized run use or train parameters that it did not begin with."""
    if further := sorted(new.boxed_params.keys() - old.boxed_params.keys()):
        raise UserError(
            f"Run.stages use {further[0]} now, which this run did not make at its first step; leave it out, or {restart}"
        )
    moments = [jax.tree.map(lambda leaf: leaf.shape, nn.meta.unbox(run.boxed_state.opt_state)) for run in (old, new)]
    if moments[0] != moments[1]:
        raise UserError(
            "Run.stages freeze other parts in all stages now than when this run started, and so moments are missing or left "
            f"over; change them back, or {restart}"
        )


def check_begun_stages(old: Run, new: Run, step: int, otherwise: str) -> None:
    """Raise UserError if stages of `new` have other batches than the first `step` updates of `old` were made with.

    Args:
      old: the run that made the updates.
      new: the run that goes on.
      step: number of updates that are done.
      otherwise: advice that ends the message: "or ...".
    """
    for index, (before, now) in enumerate(itertools.zip_longest(old.stages, new.stages)):
        if step <= 0:
            return
        done, is_last = min(step, before.steps), step <= before.steps
        where = f"Run.stages[{index}]"
        if now is None:
            made = f"{plural(done, 'update')} {'is' if done == 1 else 'are'} done"
            raise UserError(f"{where}, of which {made}, is not in Run.stages now; put it back, {otherwise}")
        for name in ("length", "batch_size"):
            if getattr(now, name) != getattr(before, name):
                fix = _end_of_stage(old.stages, now, index, done) if is_last else "change it back"
                raise UserError(f"{where}.{name} {_change(getattr(before, name), getattr(now, name))}; {fix}, {otherwise}")
        if now.steps < done or (now.steps != before.steps and not is_last):
            least = f"at least {done:,}" if is_last else f"{done:,}"
            raise UserError(
                f"{where}.steps {_change(before.steps, now.steps)}, but {done:,} are done; set it to {least}, {otherwise}"
            )
        step -= done


def _end_of_stage(stages: Sequence[Stage], new: Stage, index: int, done: int) -> str:
    """Return the advice that ends a stage after its first `done` updates and continues with a new one."""
    fix = f"for a change from here on, set Run.stages[{index}].steps to {done} and list a Stage with the new value after it"
    if len(stages) > 1:
        return fix
    (stage,) = stages
    parts = {"done": dataclasses.replace(stage, steps=done), "next": dataclasses.replace(new, steps=max(new.steps - done, 1))}
    flags = ["--gin.Run.stages='(@done/Stage(), @next/Stage())'"]
    for name, part in parts.items():
        flags += [f"--gin.{name}/Stage.{field}={getattr(part, field)}" for field in ("steps", "length", "batch_size")]
    return f"{fix}: {' '.join(flags)}"


def check_same_model(old: Any, new: Any) -> None:
    """Raise UserError if a model's config differs from that of an imported model in anything but dropout."""
    _check_same(old, new, "Run.objective.model", ("in the imported model", "--model_dir"), _DROPOUT)


def check_same_network(
    old: Any,
    new: Any,
    folder: str,
    where: str = "Run.objective.model",
    sizes: Collection[str] = (),
    flag: str = "--init_from",
) -> None:
    """Raise UserError if a model cannot start from the parameters in `folder`; see `bertfam.models.conversion.adopted`.

    Dropout and vocabulary size may differ in any case, and so may `sizes` of a model that grows.
    """
    values = {field.name: getattr(new, field.name) for field in dataclasses.fields(new)}
    expected = adopted(type(new), old, values, sizes) or old
    _check_same(expected, new, where, (f"in {folder}", flag), FREE_OF_NETWORKS)


def check_same_optimizer(old: Any, new: Any, folder: str) -> None:
    """Raise UserError if an optimizer differs from that in `folder` in anything but learning rate and weight decay."""
    _check_same(old, new, "Run.optimizer", (f"in {folder}", "--init_from (or leave --init_optimizer out)"), _RATES)


def _check_same(old: Any, new: Any, where: str, when: tuple[str, str] = _AT_START, free: Collection[str] = ()) -> None:
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


def _refuse(where: str, old: Any, new: Any, when: tuple[str, str] = _AT_START) -> None:
    since, flag = when
    if where.startswith("Run.objective.model"):  # the weights are of a model with the old value
        flag = flag.partition(",")[0]
    raise UserError(f"{where} {_change(old, new, since)}; change it back, or use another {flag}")


def _change(old: Any, new: Any, since: str = _AT_START[0]) -> str:
    return f"was {_short(old)} {since} and is {_short(new)} now"


def _short(value: Any) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else repr(value)

"""Trainer: state of a run on a mesh, and the programs that train, evaluate and inspect it; `loop` calls them."""

import dataclasses
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from bertfam.data.rows.batches import Batches, BatchSource
from bertfam.data.text_data import HeldOut
from bertfam.errors import UserError, is_terminal
from bertfam.features import FeatureSpec
from bertfam.multihost.preemption import Stop
from bertfam.objectives.objective import Predictions
from bertfam.sharding.chips import peak_flops
from bertfam.sharding.named_shardings import batch_shardings, check_batch, padded_decoder_rows
from bertfam.suggest import did_you_mean
from bertfam.training.checkpoints import Checkpoints, on_devices
from bertfam.training.integrity.digest import Digest, Digester
from bertfam.training.logs.inspection import make_inspection, scalars
from bertfam.training.logs.metrics import means, weights
from bertfam.training.logs.phase_timer import COMPILING, EVALUATING, PhaseTimer
from bertfam.training.logs.progress import Rates
from bertfam.training.logs.row_flops import row_flops
from bertfam.training.optimizers.tensors import describe
from bertfam.training.prefetch import Batch, global_batch
from bertfam.training.run import Run
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState, first_state, shardings_of
from bertfam.training.step import INITIALISATION, TERM, Metrics, make_eval_step, make_train_step, root_key, seed_words

_EVAL_BATCHES_IN_FLIGHT = 2


class Scores(NamedTuple):
    """Scores on held-out rows.

    Attributes:
      values: the loss, and the mean of each metric.
      targets: number of targets of each loss term.
      corpora: the values by corpus; empty if the rows are of one corpus.
    """

    values: dict[str, float]
    targets: dict[str, int]
    corpora: dict[str, dict[str, float]]


@dataclass(frozen=True)
class StageProgram:
    """Name, features, shardings, batch size and rates of a stage, or of its rows of one length."""

    name: str
    features: dict[str, FeatureSpec]
    shardings: dict[str, jax.sharding.NamedSharding]
    batch_size: int
    rates: Rates

    def batch(self, source: BatchSource, step: int) -> Batch:
        """Build a step's batch on the devices."""
        return global_batch(source, step, self.batch_size, self.features, self.shardings)


@dataclass(frozen=True)
class PhasePrograms:
    """Jitted functions of the stages that train alike; each compiles once for each shape of a batch."""

    step: Any
    eval_step: Any
    predictions: Any
    inspection: Any
    digester: Digester


class Trainer:
    """Sized run on a mesh, with everything checked that can be checked before compiling."""

    def __init__(self, run: Run, mesh: jax.sharding.Mesh, phase_timer: PhaseTimer | None = None) -> None:
        """Check the run against the mesh; raises UserError if a size does not divide over it."""
        self.run, self.mesh = run, mesh
        self.phase_timer = phase_timer or PhaseTimer()
        self.compiled_bytes: dict[str, int] = {}  # on each device, by the name of the program
        params = run.boxed_params
        self.tensors = describe(params)
        self.optimizer: optax.GradientTransformation = run.build_optimizer()
        self.schedule = run.schedule
        self.shardings = shardings_of(run.boxed_state, mesh, run.mesh)
        self.abstract_state: TrainState = on_devices(nn.meta.unbox(run.boxed_state), self.shardings)
        if run.keep_best is not None:
            for index in {phase: index for index, phase in enumerate(run.phases)}.values():
                self._check_metric(run.keep_best, index)
        self.stages = [self._stage(index) for index in range(len(run.stages))]
        self._programs: dict[tuple[int, int], StageProgram] = {}
        self.row_lengths: dict[int, list[int]] = {}  # of the stages whose text is planned in rows of several lengths
        self._new_state = jax.jit(self._fresh, static_argnums=1, out_shardings=self.shardings)
        self._seed, self._replicated = seed_words(run.key_seed), NamedSharding(self.mesh, PartitionSpec())
        evaluations = {phase.objective: self._evaluation(phase) for phase in run.phases}
        self._by_phase = {
            phase: self._phase_programs(phase, *evaluations[phase.objective]) for phase in dict.fromkeys(run.phases)
        }

    def _evaluation(self, phase: Phase) -> tuple[Any, Any]:
        """Return the jitted functions that evaluate and that predict."""

        def predictions(params: Any, batch: Batch) -> Predictions:
            return phase.objective.predictions(phase.used(params), batch)

        return jax.jit(make_eval_step(phase)), jax.jit(predictions, out_shardings=self._replicated)

    def _phase_programs(self, phase: Phase, eval_step: Any, predictions: Any) -> PhasePrograms:
        run = self.run
        microbatches = run.microbatch_count
        policies: Any = {"non_finite": run.non_finite, "average_decay": run.average_decay}
        step = make_train_step(phase, self.optimizer, microbatches=microbatches, **policies)
        inspection = make_inspection(phase, self.optimizer, describe(run.boxed_trained), microbatches=microbatches)
        trained = nn.meta.unbox(run.boxed_trained)
        return PhasePrograms(
            step=jax.jit(step, donate_argnums=0, out_shardings=(self.shardings, None)),
            eval_step=eval_step,
            predictions=predictions,
            inspection=jax.jit(inspection, out_shardings=self._replicated),
            digester=Digester(phase, self.shardings.params, trained, seed=self._seed, microbatches=microbatches),
        )

    def _programs_of(self, stage: int) -> PhasePrograms:
        return self._by_phase[self.run.phases[stage]]

    def _fresh(self, key: jax.Array, replaced: frozenset[str]) -> TrainState:
        run = self.run
        state = first_state(run.initial_values(key), self.optimizer, run.frozen, averaged=run.average_decay is not None)
        fresh: TrainState = nn.meta.unbox(state)
        if not replaced:
            return fresh
        params = traverse_util.flatten_dict(fresh.params, sep="/")
        params |= {path: jnp.zeros_like(params[path]) for path in replaced}
        return fresh._replace(params=traverse_util.unflatten_dict(params, sep="/"))

    def _stage(self, index: int, length: int | None = None) -> StageProgram:
        stage, shape = self.run.stages[index], self.run.shape(index, length)
        check_batch(stage.batch_size, self.run.microbatch_count, self.mesh, self.run.mesh.rules)
        self.run.objective_of(index).check_rows(stage.batch_size // self.run.microbatch_count, "a microbatch")
        features = padded_decoder_rows(self.run.objective_of(index).features(shape), self.mesh, self.run.mesh.rules)
        peak = peak_flops(self.mesh.devices.flat[0])
        rates = Rates(
            stage.batch_size * (length or stage.length),
            stage.batch_size * self.run.row_flops(index, length),
            None if peak is None else peak * self.mesh.size,
        )
        name = f"stage {index + 1}" + (f" for rows of {length} tokens" if length else "")
        return StageProgram(name, features, batch_shardings(features, self.mesh, self.run.mesh.rules), stage.batch_size, rates)

    def program(self, stage: int, length: int | None = None) -> StageProgram:
        """Return the program of a stage's rows of one length (see `BatchSource.row_length`).

        Raises:
          UserError: the length does not divide over the mesh.
        """
        if length is None:
            return self.stages[stage]
        if (stage, length) not in self._programs:
            self._programs[stage, length] = self._stage(stage, length)
        return self._programs[stage, length]

    def count_flops(self, sources: Sequence[Batches]) -> None:
        """Count the FLOPs of a step by the plan of the text; before, rows count as those of one example with the stage's length.

        Args:
          sources: the batches of each stage.

        Raises:
          UserError: rows of a length that the plan has do not divide over the mesh.
        """
        for index, source in enumerate(sources):
            program, objective = self.stages[index], self.run.objective_of(index)
            if counts := source.row_counts:
                self.row_lengths[index] = list(counts)
                own = [self.program(index, length).rates.flops_per_step for length in counts]
                flops = round(np.average(own, weights=[*counts.values()]))
            else:
                flops = program.batch_size * row_flops(objective, self.run.shape(index), source.sequence)
            rates = dataclasses.replace(program.rates, flops_per_step=flops)
            self.stages[index] = dataclasses.replace(program, rates=rates)

    @property
    def flops_per_step(self) -> list[int]:
        """FLOPs of a step of each stage."""
        return [program.rates.flops_per_step for program in self.stages]

    def _check_metric(self, name: str, stage: int) -> None:
        batch = {
            feature: jax.ShapeDtypeStruct((self.mesh.size, *spec.shape), spec.dtype)
            for feature, spec in self.run.objective_of(stage).features(self.run.shape(stage)).items()
        }
        with self._axis_rules():
            metrics = jax.eval_shape(
                make_eval_step(self.run.phases[stage]), self.abstract_state.params, batch, self.abstract_state.aux
            )
        names = ["loss", *(name for name in metrics if not name.startswith(TERM))]
        if name not in names:
            hint = did_you_mean(name, names, f"one of {', '.join(names)}")
            raise UserError(f"Run.keep_best is {name!r}, which is not a metric of the evaluation{hint}")

    @contextmanager
    def on_mesh(self) -> Iterator[None]:
        """Have programs of models, which are called within, computed on the mesh of the run."""
        with jax.set_mesh(self.mesh), self._axis_rules():
            yield

    def _axis_rules(self) -> Any:
        if self.mesh.size == 1:  # Constraints on shardings would cost a seventh of the time to trace a step.
            return nullcontext()
        return nn.logical_axis_rules(self.run.mesh.rules.items())

    def new_state(self, replaced: Collection[str] = ()) -> TrainState:
        """Make a fresh state, the same on every mesh.

        Args:
          replaced: paths of parameters, names with slashes between, whose values the caller replaces: they are 0, so that no
            program that draws them is compiled.
        """
        with jax.set_mesh(self.mesh), self._axis_rules():
            key = jax.random.fold_in(root_key(self.run.key_seed), INITIALISATION)
            return self._new_state(key, frozenset(replaced))

    def restored(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """Restore a checkpoint's state on this mesh."""
        state = checkpoints.restore(step, self.abstract_state)
        if (held := int(state.step)) != step:
            folder = checkpoints.directory / str(step)
            raise UserError(f"{folder} holds the state of step {held}: it was renamed or copied; remove it, or name it {held}")
        return state

    def from_imported(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """Make a fresh state with the parameters of an imported model's checkpoint; heads that it lacks are initialised."""
        state, parts = self.new_state(), checkpoints.parts(step)
        like = {name: part for name, part in self.abstract_state.params.items() if name in parts}
        return self.with_params(state, state.params | checkpoints.restore_params(step, like))

    def with_params(self, state: TrainState, params: Any) -> TrainState:
        """Replace the parameters of a fresh state, and start their moving average, if kept, from them."""
        return state._replace(params=params, average=jax.tree.map(jnp.copy, params) if state.average else {})

    def with_aux(self, state: TrainState, aux: Any) -> TrainState:
        """Return the state with `aux`, the values that the objective reads but does not train: a tree of NumPy arrays."""
        return state._replace(aux=self.placed_aux(aux))

    def placed_aux(self, aux: Any) -> Any:
        """Place the tree of NumPy arrays `aux` on the devices."""
        return jax.tree.map(
            lambda value, sharding: jax.make_array_from_callback(value.shape, sharding, lambda index: value[index]),
            aux,
            self.shardings.aux,
        )

    def lower_step(self, stage: int, length: int | None = None) -> jax.stages.Lowered:
        """Lower a stage's step, also for devices that are not attached; see `program`."""
        seed, rate = (
            jax.ShapeDtypeStruct(shape, dtype, sharding=self._replicated)
            for shape, dtype in ((self._seed.shape, self._seed.dtype), ((), np.float32))
        )
        with jax.set_mesh(self.mesh), self._axis_rules():
            return self._programs_of(stage).step.lower(self.abstract_state, self.abstract_batch(stage, length), seed, rate)

    def lower_evaluation(self, stage: int) -> jax.stages.Lowered:
        """Lower the evaluation of a batch of a stage's shape, also for devices that are not attached."""
        with jax.set_mesh(self.mesh), self._axis_rules():
            return self._programs_of(stage).eval_step.lower(
                self.abstract_state.params, self.abstract_batch(stage), self.abstract_state.aux
            )

    def abstract_batch(self, stage: int, length: int | None = None) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and shardings of a stage's batch; see `program`."""
        program = self.program(stage, length)
        return {
            name: jax.ShapeDtypeStruct((program.batch_size, *spec.shape), spec.dtype, sharding=program.shardings[name])
            for name, spec in program.features.items()
        }

    def compile_step(self, stage: int, length: int | None = None) -> tuple[Callable[..., Any], str]:
        """Compile a stage's step of (state, batch, number of updates before it); see `program`.

        Returns:
          The step, and a description of its compile time and memory.
        """
        began = time.monotonic()
        with self.phase_timer.during(COMPILING, long=True):
            compiled = self.lower_step(stage, length).compile()
        memory = compiled.memory_analysis()
        description = f"compiled {self.program(stage, length).name} in {time.monotonic() - began:.1f} s"
        if memory is not None:
            used = (
                memory.argument_size_in_bytes
                + memory.output_size_in_bytes
                - memory.alias_size_in_bytes
                + memory.temp_size_in_bytes
            )
            self.compiled_bytes[self.program(stage, length).name] = used
            description += f"; uses {used / 2**20:,.1f} MiB on each device"
        return self.seeded(compiled), description

    def seeded(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled step as a function of state, batch and the number of updates before it.

        The learning rate of that number is an argument of the program, so that runs that differ in schedule and length share it.
        """
        seed = jax.make_array_from_callback(self._seed.shape, self._replicated, lambda index: self._seed[index])
        return lambda state, batch, number: step(state, batch, seed, np.float32(self.schedule(number)))

    def scores(self, params: Any, held_out: HeldOut, stage: int, stop: Stop | None = None, *, aux: Any = None) -> Scores | None:
        """Compute the loss and the means of all metrics over held-out rows of a stage's shape; None if `stop` interrupts.

        Rows of several corpora are scored corpus by corpus, in at most one batch more for each.

        `aux` is the one of the state; without it, metrics that depend on it are left out.
        """
        parts = held_out.corpora or {"": held_out}
        places = [(part.source, step) for part in parts.values() for step in range(part.steps)]

        compiled = set[int | None]()

        def batch(index: int) -> Batch:
            source, step = places[index]
            length = source.row_length(step)
            self.phase_timer.begin(EVALUATING, long=length not in compiled)  # the first batch of a length includes compiling
            compiled.add(length)
            return self.program(stage, length).batch(source, step)

        with jax.set_mesh(self.mesh), self._axis_rules():
            interrupted = (stop or Stop()).ask
            eval_step = self._programs_of(stage).eval_step
            metrics = evaluate(lambda batch: eval_step(params, batch, aux or {}), batch, len(places), interrupted)
        if metrics is None:
            return None
        metrics = jax.device_get(metrics)  # once, for the sums that follow
        counts = weights(metrics)
        targets = {name: round(counts.get(TERM + name, 0.0)) for name in self.run.objective_of(stage).coefficients}
        values, corpora = self._values(metrics, stage), {}
        if held_out.corpora:
            remaining = iter(metrics)
            corpora = {name: self._values([*islice(remaining, part.steps)], stage) for name, part in parts.items()}
        return Scores(values, targets, corpora)

    def _values(self, metrics: list[Metrics], stage: int) -> dict[str, float]:
        """Compute the loss and the mean of each metric over batches."""
        values, coefficients = means(metrics), self.run.objective_of(stage).coefficients
        terms = {name: values.pop(TERM + name, 0.0) for name in coefficients}
        return {"loss": sum(weight * terms[name] for name, weight in coefficients.items())} | values

    def predictions(self, params: Any, held_out: HeldOut, stage: int) -> Predictions:
        """Predict for the first held-out rows of a stage's shape: NumPy arrays."""
        with jax.set_mesh(self.mesh), self._axis_rules():
            return jax.device_get(self._programs_of(stage).predictions(params, self.stages[stage].batch(held_out.source, 0)))

    def inspect(self, state: TrainState, batch: Batch, stage: int) -> dict[str, float]:
        """Inspect a step of a stage on this batch; see `make_inspection`."""
        with jax.set_mesh(self.mesh), self._axis_rules():
            return scalars(jax.device_get(self._programs_of(stage).inspection(state, batch, self._seed)))

    def digest(self, state: TrainState, batch: Batch, stage: int) -> Digest:
        """Digest the gradient of this batch and the parameters on the devices; see `Digester`."""
        with jax.set_mesh(self.mesh), self._axis_rules():
            return self._programs_of(stage).digester(state, batch)


def evaluate(
    step: Callable[[dict[str, Any]], Metrics],
    batches: Callable[[int], dict[str, Any]],
    steps: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[Metrics] | None:
    """Compute the metrics of `steps` batches, with a progress bar where stderr is a terminal.

    Args:
      step: returns the metrics of a batch.
      batches: returns the batch of an index.
      steps: number of batches, equal on every host.
      stop: returns True after a batch to interrupt the evaluation.

    Returns:
      The metrics of each batch, whose exact weighted means are the same on every mesh; None if the evaluation was interrupted.
    """
    metrics: list[Metrics] = []
    silent = jax.process_index() > 0 or not is_terminal(sys.stderr)
    for index in tqdm(range(steps), "evaluating", unit=" batches", disable=silent, leave=False):
        metrics.append(step(batches(index)))
        # Keep only as many batches in flight as the device needs to stay busy.
        if index >= _EVAL_BATCHES_IN_FLIGHT:
            jax.block_until_ready(metrics[index - _EVAL_BATCHES_IN_FLIGHT])
        if stop():
            return None
    return metrics

"""Ahead-of-time compilation of a run's programs for a mesh: training, evaluation, decoding; without data or devices."""

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding

from bertfam.decoding.decode import Source, decode
from bertfam.decoding.prompts import prompt_format
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import Greedy, Limits
from bertfam.features import RowShape
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Objective
from bertfam.planning.gpu_time import GpuTime, predict
from bertfam.planning.hlo.allocations import Allocation, temporary_dump
from bertfam.planning.hlo.memory import Memory, memory, memory_of_too_large
from bertfam.sharding.chips import memory_bytes
from bertfam.sharding.named_shardings import partition_spec, path_name
from bertfam.training.run import Run
from bertfam.training.run_plan import local_bytes
from bertfam.training.trainer import Trainer

Kind = Literal["train", "evaluate", "decode"]
KINDS: tuple[Kind, ...] = ("train", "evaluate", "decode")
TRAINING: tuple[Kind, ...] = ("train",)
# Number of prompts per device of the batch's mesh axes.
_PROMPTS = 8
# Bytes of an operand of a matrix product: TPUs round it to bfloat16 for any `Execution.dtype`, and their compiler does so once.
_OPERAND_BYTES = 2
# Parameters that generated tokens after the first do not read in full: embedding tables, and kernels for keys and values of a
# source.
_READ_ONCE = re.compile(r"decoder/(embeddings|.*cross_attention/(key|value))/")
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Program:
    """Compiled program, or one that is too large for the memory of a device.

    Attributes:
      job: job that was compiled.
      compiled: the compiled program; None if it is too large.
      too_large: message of the compiler if it is too large, else None.
      seconds: time that compiling took.
      largest: largest arrays, if `Job.compile` was called with their number.
      dump_text: optimized HLO from the compiler's dump; "" if there is none.
    """

    job: "Job"
    compiled: jax.stages.Compiled | None
    too_large: str | None
    seconds: float
    largest: tuple[Allocation, ...] = ()
    dump_text: str = ""

    @cached_property
    def text(self) -> str:
        """The optimized HLO text; "" if the program is too large."""
        if self.compiled is None:
            return ""
        # JAX cannot read some programs for TPUs back from the compiler (libtpu 0.0.52: "async-update instruction").
        return self.dump_text or self.compiled.as_text() or ""

    @cached_property
    def memory(self) -> Memory:
        """Memory that it requires on a device, even if that exceeds the memory of the device."""
        trainer = self.job.trainer
        full_state, batch, gradients = trainer.abstract_state, trainer.abstract_batch(self.job.stage), 0
        state = full_state if self.job.kind == "train" else full_state._replace(opt_state={}, average={})
        if self.job.kind == "train":
            gradients = 1 if trainer.run.microbatch_count == 1 else 2
        if self.job.kind == "decode":
            batch = {}
        if self.compiled is not None:
            result = memory(self.compiled, state, batch, gradients=gradients)
        else:
            limit = memory_bytes(trainer.mesh.devices.flat[0]) or 0
            result = memory_of_too_large(self.too_large or "", state, batch, limit=limit, gradients=gradients)
        if self.job.kind == "evaluate":
            optimizer = sum(map(local_bytes, jax.tree.leaves((full_state.opt_state, full_state.average))))
            result = replace(result, optimizer=optimizer)
        return result

    def fits(self, memory: int | None) -> bool:
        """Return whether it fits devices with the given bytes of memory; None means unknown."""
        return self.compiled is not None and (memory is None or self.memory.total <= memory)


@dataclass(frozen=True)
class Job:
    """Program to compile.

    Attributes:
      kind: purpose of the program.
      stage: stage of the run that sets its shape.
      rows: rows of the global batch; for decoding, the number of generated texts.
      length: tokens of a row; for decoding, of a prompt (or source) and the generated text together.
      flops: matrix-product FLOPs of one run on all devices, computed from the model's sizes.
      reread: least bytes of parameters that a device reads after it has read all of them once: for each further generated token
        the parameters that compute it; otherwise 0.
      trainer: trainer of the run on the mesh.
      lower: returns the lowered program.
    """

    kind: Kind
    stage: int
    rows: int
    length: int
    flops: int
    reread: int
    trainer: Trainer
    lower: Callable[[], jax.stages.Lowered]

    @property
    def name(self) -> str:
        """Name in tables: train 256 x 128, with the stage if another one has such rows."""
        stages = self.trainer.run.stages
        others = (stages[index] for index in stages_of(self.trainer.run) if index != self.stage)
        is_alike = self.kind == "train" and any((other.batch_size, other.length) == (self.rows, self.length) for other in others)
        return f"{self.kind} {self.rows} x {self.length}" + (f", stage {self.stage + 1}" if is_alike else "")

    @cached_property
    def predicted(self) -> GpuTime | None:
        """Predicted time of a training step on one GPU; None if there is no prediction."""
        mesh = self.trainer.mesh
        return predict(self.trainer.run, self.stage, mesh.devices.flat[0]) if self.kind == "train" and mesh.size == 1 else None

    def compile(self, largest: int = 0) -> Program:
        """Compile the program; a result that is too large for the devices says so, all other errors are raised.

        Args:
          largest: number of largest arrays to include.
        """
        start = time.monotonic()
        lowered = self.lower()
        dumps = largest or self.trainer.mesh.devices.flat[0].platform == "tpu"
        with temporary_dump() as dump:
            try:
                compiled, too_large = lowered.compile(compiler_options=dump.options if dumps else None), None
            except jax.errors.JaxRuntimeError as error:
                if _OUT_OF_MEMORY not in str(error):
                    raise
                compiled, too_large = None, str(error)
            arrays = tuple(dump.largest(largest)) if largest else ()
            return Program(self, compiled, too_large, time.monotonic() - start, arrays, dump.text)


def jobs(run: Run, mesh: jax.sharding.Mesh, kinds: Collection[Kind] = KINDS) -> list[Job]:
    """Return the programs of a sized run on a mesh.

    There is a training step for each row length of its stages, with the largest batch of that length. For the longest rows
    there is an evaluation step and, for models with a decoder, greedy decoding of a batch.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    trainer = Trainer(run, mesh)
    stages = stages_of(run)
    longest = max(stages, key=lambda stage: run.stages[stage].length)
    result = [_training(trainer, stage) for stage in stages] if "train" in kinds else []
    if "evaluate" in kinds:
        result.append(_evaluation(trainer, longest))
    if "decode" in kinds and "decoder" in trainer.abstract_state.params:
        result.append(_decoding(trainer, longest))
    return result


def stages_of(run: Run) -> list[int]:
    """Return the index of the stage with the largest batch for each form of rows, objective and part of the parameters."""
    largest: dict[tuple[RowShape, Objective, Frozen], int] = {}
    for index, stage in enumerate(run.stages):
        key = run.shape(index)._replace(rows=1), run.objective_of(index), stage.frozen_parts
        if key not in largest or stage.batch_size > run.stages[largest[key]].batch_size:
            largest[key] = index
    return list(largest.values())


def compile_programs(run: Run, mesh: jax.sharding.Mesh, kinds: Collection[Kind] = KINDS, largest: int = 0) -> dict[str, Program]:
    """Compile the programs of `jobs`, each with so many of its largest arrays; return them by name."""
    return {job.name: job.compile(largest) for job in jobs(run, mesh, kinds)}


def largest_bytes(programs: Mapping[str, Program]) -> int:
    """Return the bytes that the largest of the programs requires on each device."""
    return max(program.memory.total for program in programs.values())


def _training(trainer: Trainer, stage: int) -> Job:
    rows, length, flops = _sizes(trainer, stage)
    return Job("train", stage, rows, length, flops, 0, trainer, lambda: trainer.lower_step(stage))


def _evaluation(trainer: Trainer, stage: int) -> Job:
    rows, length, flops = _sizes(trainer, stage)
    return Job("evaluate", stage, rows, length, flops // 3, 0, trainer, lambda: trainer.lower_evaluation(stage))


def _sizes(trainer: Trainer, stage: int) -> tuple[int, int, int]:
    rows = trainer.run.stages[stage].batch_size
    return rows, trainer.run.stages[stage].length, rows * trainer.run.row_flops(stage)


def _decoding(trainer: Trainer, stage: int) -> Job:
    """Return the decoding of half a row from a prompt of the other half, or of the targets of a row for an encoder-decoder."""
    run, mesh = trainer.run, trainer.mesh
    config: Any = run.objective.model
    shape = run.shape(stage)
    prompt, source, new = prompt_format(config).lengths(shape.length, shape.targets)
    # Logits of a prompt are computed for its last token only, and the last generated token is not read.
    flops = config.flops(source or 0, prompt + new - 1) // 3 - (prompt - 1) * 2 * config.table_width * config.require_vocab_size
    rules = run.mesh.rules
    split = NamedSharding(mesh, partition_spec(("batch",), rules))
    rows = _PROMPTS * mesh.size // split.shard_shape((mesh.size,))[0]

    def global_array(length: int | None = None, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((rows,) if length is None else (rows, length), dtype, sharding=split)

    def lower() -> jax.stages.Lowered:
        with jax.set_mesh(mesh), nn.logical_axis_rules(rules.items()):
            return decode.lower(
                trainer.abstract_state.params,
                Prompts(global_array(prompt), global_array(), global_array(dtype=jnp.bool_)),
                None if source is None else Source(global_array(source), global_array(source)),
                None,
                config=config,
                strategy=Greedy(),
                limits=Limits(max_new_tokens=new),
                ends=Ends((), 0, 0),
                texts=1,
                execution=run.objective.execution,
            )

    flops, reread = rows * flops, (new - 1) * _token_bytes(trainer)
    return Job("decode", stage, rows, (source or prompt) + new, flops, reread, trainer, lower)


def _token_bytes(trainer: Trainer) -> int:
    """Return the bytes per device of decoder and head that are read to generate a token, as operands of matrix products."""
    params: Any = trainer.abstract_state.params
    head = "lm_head" if "kernel" in params.get("lm_head", {}) else "embeddings"
    leaves, _ = jax.tree_util.tree_flatten_with_path({name: params[name] for name in ("decoder", head)})
    read = [leaf for path, leaf in leaves if not _READ_ONCE.match(path_name(path))]
    return sum(local_bytes(leaf) // leaf.dtype.itemsize for leaf in read) * _OPERAND_BYTES

"""The programs that a run needs on a mesh, compiled without data and without the devices: training, evaluation, decoding."""

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import NamedSharding

from bertfam.decoding.networks import Source, decode
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import Greedy, Limits
from bertfam.planning.hlo.allocations import Allocation, temporary_dump
from bertfam.planning.hlo.memory import Memory, memory, memory_of_too_large
from bertfam.sharding.chips import memory_bytes
from bertfam.sharding.placement import partition_spec, path_name
from bertfam.training.run import Run
from bertfam.training.summary import local_bytes
from bertfam.training.trainer import Trainer

Kind = Literal["train", "evaluate", "decode"]
KINDS: tuple[Kind, ...] = ("train", "evaluate", "decode")
TRAINING: tuple[Kind, ...] = ("train",)
# Prompts that each device of a batch's axes goes on from.
_PROMPTS = 8
# Bytes of a number in a product: TPUs round it to bfloat16, whatever `Execution.dtype` is, and their compiler does that once.
_PRODUCTS = 2
# A decoder's tables, of which few rows are read, and what makes keys and values of a source.
_READ_ONCE = re.compile(r"decoder/(embeddings|.*cross_attention/(key|value))/")
_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Program:
    """A program that was compiled, or that the compiler found too large for the memory of a device.

    Attributes:
      job: what it does.
      compiled: None where it is too large.
      too_large: the compiler's words then, else None.
      seconds: that compiling took.
      largest: the largest arrays, where `Job.compile` was asked for them.
      written: the optimised program as the compiler has written it down, "" where it has not.
    """

    job: "Job"
    compiled: jax.stages.Compiled | None
    too_large: str | None
    seconds: float
    largest: tuple[Allocation, ...] = ()
    written: str = ""

    @cached_property
    def text(self) -> str:
        """The optimised program; "" where it is too large."""
        if self.compiled is None:
            return ""
        # JAX cannot read some programs for TPUs back from the compiler (libtpu 0.0.52: "async-update instruction").
        return self.written or self.compiled.as_text() or ""

    @cached_property
    def memory(self) -> Memory:
        """What it needs of a device's memory, also where that is more than there is."""
        trainer = self.job.trainer
        whole, batch, gradients = trainer.abstract_state, trainer.abstract_batch(self.job.stage), 0
        state = whole if self.job.kind == "train" else whole._replace(opt_state={}, average={})
        if self.job.kind == "train":
            gradients = 1 if trainer.run.microbatches == 1 else 2
        if self.job.kind == "decode":
            batch = {}
        if self.compiled is not None:
            found = memory(self.compiled, state, batch, gradients=gradients)
        else:
            limit = memory_bytes(trainer.mesh.devices.flat[0]) or 0
            found = memory_of_too_large(self.too_large or "", state, batch, limit=limit, gradients=gradients)
        if self.job.kind == "evaluate":
            found = replace(found, optimizer=sum(map(local_bytes, jax.tree.leaves((whole.opt_state, whole.average)))))
        return found

    def fits(self, memory: int | None) -> bool:
        """Whether it fits devices that have so many bytes; None: nobody knows how many."""
        return self.compiled is not None and (memory is None or self.memory.total <= memory)


@dataclass(frozen=True)
class Job:
    """A program to compile.

    Attributes:
      kind: what for.
      stage: of the run, whose shape it has.
      rows: of the whole batch; of texts to write, how many.
      length: tokens of a row; of texts to write, of a prompt (or source) and what is written.
      flops: matrix-product FLOPs of one run of it on all devices, counted from the model's sizes.
      again: bytes of parameters that a device reads at the least after it has read all of them once: for each further token that
        is written those that make it; else 0.
      trainer: of the run on the mesh.
      lower: gives the program that is still to be compiled.
    """

    kind: Kind
    stage: int
    rows: int
    length: int
    flops: int
    again: int
    trainer: Trainer
    lower: Callable[[], jax.stages.Lowered]

    @property
    def name(self) -> str:
        """As in tables: train 256 x 128."""
        return f"{self.kind} {self.rows} x {self.length}"

    def compile(self, largest: int = 0) -> Program:
        """Compiles it; what is too large for the devices is told by the result, all other errors are raised.

        Args:
          largest: so many of the largest arrays are found, too.
        """
        began = time.monotonic()
        lowered = self.lower()
        writes = largest or self.trainer.mesh.devices.flat[0].platform == "tpu"
        with temporary_dump() as dump:
            try:
                compiled, too_large = lowered.compile(compiler_options=dump.options if writes else None), None
            except jax.errors.JaxRuntimeError as error:
                if _OUT_OF_MEMORY not in str(error):
                    raise
                compiled, too_large = None, str(error)
            found = tuple(dump.largest(largest)) if largest else ()
            return Program(self, compiled, too_large, time.monotonic() - began, found, dump.text)


def jobs(run: Run, mesh: jax.sharding.Mesh, kinds: Collection[Kind] = KINDS) -> list[Job]:
    """The programs of a sized run on a mesh.

    There is a step of training for each length of its stages, with the largest batch of that length; a step of evaluation, and
    for models that write text the greedy decoding of a batch, for the longest rows.

    Raises:
      UserError: where sizes do not divide over the mesh.
    """
    trainer = Trainer(run, mesh)
    stages = stages_of(run)
    longest = max(stages, key=lambda stage: run.stages[stage].length)
    found = [_training(trainer, stage) for stage in stages] if "train" in kinds else []
    if "evaluate" in kinds:
        found.append(_evaluation(trainer, longest))
    if "decode" in kinds and "decoder" in trainer.abstract_state.params:
        found.append(_decoding(trainer, longest))
    return found


def stages_of(run: Run) -> list[int]:
    """Of each length of rows the stage with the largest batch."""
    largest: dict[int, int] = {}
    for index, stage in enumerate(run.stages):
        if stage.length not in largest or stage.batch_size > run.stages[largest[stage.length]].batch_size:
            largest[stage.length] = index
    return list(largest.values())


def compile_programs(run: Run, mesh: jax.sharding.Mesh, kinds: Collection[Kind] = KINDS) -> dict[str, Program]:
    """The programs by their names, compiled; see `jobs`."""
    return {job.name: job.compile() for job in jobs(run, mesh, kinds)}


def _training(trainer: Trainer, stage: int) -> Job:
    rows, length, flops = _sizes(trainer, stage)
    return Job("train", stage, rows, length, flops, 0, trainer, lambda: trainer.lower_step(stage))


def _evaluation(trainer: Trainer, stage: int) -> Job:
    rows, length, flops = _sizes(trainer, stage)
    return Job("evaluate", stage, rows, length, flops // 3, 0, trainer, lambda: trainer.lower_evaluation(stage))


def _sizes(trainer: Trainer, stage: int) -> tuple[int, int, int]:
    rows, shape = trainer.run.stages[stage].batch_size, trainer.run.shape(stage)
    return rows, trainer.run.stages[stage].length, rows * trainer.run.objective.flops(shape)


def _decoding(trainer: Trainer, stage: int) -> Job:
    """Prompts of half a row, to which a decoder writes the other half; an encoder-decoder reads a row and writes its targets."""
    run, mesh = trainer.run, trainer.mesh
    config: Any = run.objective.model
    shape = run.shape(stage)
    new = shape.targets if config.has_encoder else max(run.stages[stage].length // 2, 1)
    length = shape.length if config.has_encoder else run.stages[stage].length - new
    rules = run.mesh.rules
    split = NamedSharding(mesh, partition_spec(("batch",), rules))
    rows = _PROMPTS * mesh.size // split.shard_shape((mesh.size,))[0]

    def whole(length: int | None = None, dtype: Any = jnp.int32) -> Any:
        return jax.ShapeDtypeStruct((rows,) if length is None else (rows, length), dtype, sharding=split)

    def lower() -> jax.stages.Lowered:
        tokens = whole(1 if config.has_encoder else length)
        with jax.set_mesh(mesh), nn.logical_axis_rules(rules.items()):
            return decode.lower(
                trainer.abstract_state.params,
                Prompts(tokens, whole(), whole(dtype=jnp.bool_)),
                Source(whole(length), whole(length)) if config.has_encoder else None,
                None,
                config=config,
                strategy=Greedy(),
                limits=Limits(max_new_tokens=new),
                ends=Ends((), 0, 0),
                texts=1,
                execution=run.objective.execution,
            )

    # Of a prompt the last token's logits alone are computed, and nobody reads the last token that is written.
    unread = 0 if config.has_encoder else (length - 1) * 2 * config.table_width * config.require_vocab_size
    read = config.flops(length, new) if config.has_encoder else config.flops(0, length + new - 1)
    return Job("decode", stage, rows, length + new, rows * (read // 3 - unread), (new - 1) * _of_a_token(trainer), trainer, lower)


def _of_a_token(trainer: Trainer) -> int:
    """Bytes of a device's parameters that each token is made with, as products read them: of decoder and head."""
    params: Any = trainer.abstract_state.params
    head = "lm_head" if "kernel" in params.get("lm_head", {}) else "embeddings"
    leaves, _ = jax.tree_util.tree_flatten_with_path({name: params[name] for name in ("decoder", head)})
    read = [leaf for path, leaf in leaves if not _READ_ONCE.match(path_name(path))]
    return sum(local_bytes(leaf) // leaf.dtype.itemsize for leaf in read) * _PRODUCTS

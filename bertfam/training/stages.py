"""Stages of a run, each with its row length and batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Batches, BatchSource
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache

# Of a batch: 64 times those of the largest batches of PaLM (Chowdhery et al. 2022), and 1 GiB of int32 for each feature.
_MOST_TOKENS = 2**28
_MOST_SIZES = 100


@dataclass(frozen=True)
class Stage:
    """Consecutive steps with one batch shape.

    Attributes:
      steps: number of updates.
      length: tokens per row.
      batch_size: rows of the global batch.
    """

    steps: int
    length: int = 128
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name, bits in (("steps", 31), ("length", 24), ("batch_size", 24)):
            if not 1 <= getattr(self, name) < 2**bits:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1 and below 2^{bits}")
        if (tokens := self.batch_size * self.length) >= _MOST_TOKENS:
            raise ValueError(
                f"batch_size {self.batch_size} of length {self.length} is {tokens:,} tokens, and a batch has fewer than "
                f"{_MOST_TOKENS:,}"
            )


@dataclass(frozen=True)
class Ramp(Stage):
    """Batch size that grows in equal steps; `Run` replaces the ramp by the equivalent list of stages.

    Attributes:
      steps: number of updates in total, split evenly over the batch sizes; the last size also takes the remainder.
      length: tokens per row.
      batch_size: rows of the last global batches.
      first_batch_size: rows of the first global batches.
      sizes: number of evenly spaced batch sizes, including both ends.
      multiple: sizes between the ends are rounded to a multiple of this, so that they divide over devices and microbatches.
    """

    first_batch_size: int = 64
    sizes: int = 4
    multiple: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("first_batch_size", 1), ("multiple", 1), ("sizes", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} {getattr(self, name)} is less than {least}")
        if self.sizes > _MOST_SIZES:
            raise ValueError(f"sizes {self.sizes} is more than {_MOST_SIZES}; each size is compiled separately")
        for name in ("first_batch_size", "multiple"):
            if getattr(self, name) > self.batch_size:
                raise ValueError(
                    f"{name} {getattr(self, name)} is more than batch_size {self.batch_size}, with which the ramp ends"
                )
        if self.steps < self.sizes:
            raise ValueError(f"steps {self.steps} is less than sizes {self.sizes}; each size needs at least one step")

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of the ramp."""
        last, steps_per_size = self.sizes - 1, self.steps // self.sizes
        rise = (self.batch_size - self.first_batch_size) / last
        inner = (max(round((self.first_batch_size + rise * i) / self.multiple), 1) * self.multiple for i in range(1, last))
        steps = [steps_per_size] * last + [self.steps - steps_per_size * last]
        sizes = (self.first_batch_size, *inner, self.batch_size)
        return tuple(Stage(count, self.length, size) for count, size in zip(steps, sizes, strict=True))


def expand_ramps(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return all stages in order, with each ramp replaced by its stages."""
    return tuple(stage for item in stages for stage in (item.stages() if isinstance(item, Ramp) else (item,)))


def locate(stages: Sequence[Stage], step: int) -> tuple[int, int]:
    """Return the stage of the update after `step` updates, and the number of updates of that stage before it."""
    for index, stage in enumerate(stages):
        if step < stage.steps:
            return index, step
        step -= stage.steps
    raise IndexError(f"step is {step} updates beyond the last stage")


def total_steps(stages: Sequence[Stage]) -> int:
    """Return the number of updates of all stages."""
    return sum(stage.steps for stage in stages)


def stage_batches(
    data: TextData,
    stages: Sequence[Stage],
    index: int,
    cache: TokenCache,
    tokens: TokenIds,
    seed: int,
    opened: Mapping[int, Batches] | None = None,
) -> Batches:
    """Return the batches of a stage.

    Stages of the same length have the same rows: they continue one order and one count of epochs, so that each document is used
    E times in E epochs, whatever their number and batch sizes.

    Args:
      data: the run's data.
      stages: the run's stages.
      index: the stage.
      cache: the token cache.
      tokens: ids of the vocabulary.
      seed: seed of the run.
      opened: batches of earlier stages, whose planned rows are used again.
    """
    stage, same = stages[index], [number for number in range(index) if stages[number].length == stages[index].length]
    if not same or not data.continues_stages:
        return data.training(cache, tokens, stage.length, stage.batch_size, seed, index)
    last = same[-1]
    before = (opened or {}).get(last) or stage_batches(data, stages, last, cache, tokens, seed)
    return data.continued(before, stages[last].steps, stage.batch_size)


def seen(stages: Sequence[Stage], batches: Sequence[Batches], step: int) -> dict[str, float]:
    """Return the tokens of all rows of the first `step` updates, and the epochs of text that they are."""
    tokens, epochs = 0, 0.0
    for stage, source in zip(stages, batches, strict=True):
        steps = min(step, stage.steps)
        tokens, epochs, step = (
            tokens + source.tokens(steps, stage.length),
            epochs + steps * stage.batch_size / source.sequence.epoch_rows,
            step - steps,
        )
    return {"tokens_seen": tokens, "epoch": epochs}


@dataclass(frozen=True)
class StagedBatches(BatchSource):
    """Batches of a whole run; each stage has its own source, whose steps count from the start of the stage."""

    stages: Sequence[Stage]
    sources: Sequence[BatchSource]

    @override
    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        index, within = locate(self.stages, step)
        return self.sources[index].rows(within, start, stop)

    @override
    def row_length(self, step: int) -> int | None:
        index, within = locate(self.stages, step)
        return self.sources[index].row_length(within)

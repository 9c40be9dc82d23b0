"""Stages of a run, each with its row length and batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from typing_extensions import override

from bertfam.corruption.corruption import TextCorruption
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Batches, BatchSource
from bertfam.data.rows.mixture import Shares
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache
from bertfam.objectives.frozen import Frozen
from bertfam.objectives.objective import Objective
from bertfam.training.schedules import Schedule

# Of a batch: 64 times those of the largest batches of PaLM (Chowdhery et al. 2022), and 1 GiB of int32 for each feature.
_MOST_TOKENS = 2**28
_MOST_SIZES = 100


@dataclass(frozen=True)
class Stage:
    """Consecutive updates of a run with one batch shape, and with settings that hold in this stage alone.

    All stages share the parameters and the state of the optimizer. A stage leaves what it does not use or has frozen as it is,
    with its moments and its moving average.

    Attributes:
      steps: number of updates.
      length: tokens per row.
      batch_size: rows of the global batch.
      objective: objective of the stage, whose model has parameters of the run's shapes and may differ in all else, such as
        `global_theta` and `window`; None: `Run.objective`. It is computed as that is.
      corruption: noise of the stage; None: `TextData.corruption`.
      shares: shares of the corpora in the rows of the stage; None: those of the mixture.
      schedule: learning-rate schedule over the updates of the stage; None: that of the optimizer, over all stages without one.
      frozen: parts of the parameters that the stage does not train, such as ("encoder",).
      frozen_layers: number of the lowest layers of these parts that are frozen, with the embeddings below; None: all of a part.
      early_corruption: noise of the first `early_steps` updates; `Run` makes a stage of its own of them, and one of the rest if
        there is any. Unlike two stages in a gin file, the two have `steps` updates together, and no schedule of their own.
        None: the noise does not change.
      early_steps: number of these updates.
    """

    steps: int
    length: int = 128
    batch_size: int = 256
    objective: Objective | None = None
    corruption: TextCorruption | None = None
    shares: Shares | None = None
    schedule: Schedule | None = None
    frozen: tuple[str, ...] = ()
    frozen_layers: int | None = None
    early_corruption: TextCorruption | None = None
    early_steps: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("steps", 31), ("length", 24), ("batch_size", 24)):
            if not 1 <= getattr(self, name) < 2**bits:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1 and below 2^{bits}")
        if (tokens := self.batch_size * self.length) >= _MOST_TOKENS:
            raise ValueError(
                f"batch_size {self.batch_size} of length {self.length} is {tokens:,} tokens, and a batch has fewer than "
                f"{_MOST_TOKENS:,}"
            )
        if self.frozen_layers is not None and self.frozen_layers < 0:
            raise ValueError(f"frozen_layers {self.frozen_layers} is negative; None freezes all layers")
        if (self.early_corruption is None) != (self.early_steps == 0) or self.early_steps < 0:
            raise ValueError(
                f"early_steps is {self.early_steps} and early_corruption {'not ' * (self.early_corruption is None)}given: give "
                "both, or leave both out"
            )
        if self.early_corruption is not None and self.schedule is not None:
            raise ValueError(
                "a Stage with early_corruption has no schedule of its own; leave it out, so that the optimizer's runs over all "
                "its updates, or write two stages"
            )
        if self.frozen_layers is not None and not self.frozen:
            raise ValueError(f'frozen_layers is {self.frozen_layers}, but frozen names no part; name one, such as ("encoder",)')

    @property
    def own_settings(self) -> dict[str, Any]:
        """Settings that hold in this stage alone, by name."""
        shape = {"steps", "length", "batch_size", "early_steps"}
        own = {field.name: getattr(self, field.name) for field in fields(Stage) if field.name not in shape}
        return {name: value for name, value in own.items() if value not in (None, ())}

    @property
    def frozen_parts(self) -> Frozen:
        """The parameters that the stage does not train."""
        return Frozen(dict.fromkeys(self.frozen, self.frozen_layers))

    def stages(self) -> tuple["Stage", ...]:
        """Return the stages by which `Run` replaces it: itself, unless its first updates have other noise."""
        if self.early_corruption is None:
            return (self,)
        late = replace(self, early_corruption=None, early_steps=0)
        early = replace(late, steps=min(self.early_steps, self.steps), corruption=self.early_corruption)
        return (early, replace(late, steps=self.steps - early.steps)) if early.steps < self.steps else (early,)

    def data(self, data: TextData) -> TextData:
        """Return the data of a run with the noise of the stage; raise UserError if the two do not go together."""
        return data if self.corruption is None else replace(data, corruption=self.corruption)


@dataclass(frozen=True)
class Ramp(Stage):
    """Batch size that grows in equal steps; `Run` replaces the ramp by the equivalent list of stages.

    Attributes:
      steps: number of updates in total, split evenly over the batch sizes; the last size also takes the remainder.
      length: tokens per row.
      batch_size: rows of the last global batches; these and the other settings are those of `Stage`.
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
        if self.early_corruption is not None:
            raise ValueError("a Ramp has the same noise in all its updates; leave early_corruption out")
        if self.schedule is not None:
            raise ValueError("a Ramp has no schedule of its own; leave it out, so that it has the optimizer's")
        if self.steps < self.sizes:
            raise ValueError(f"steps {self.steps} is less than sizes {self.sizes}; each size needs at least one step")

    @override
    def stages(self) -> tuple[Stage, ...]:
        last, steps_per_size = self.sizes - 1, self.steps // self.sizes
        rise = (self.batch_size - self.first_batch_size) / last
        inner = (max(round((self.first_batch_size + rise * i) / self.multiple), 1) * self.multiple for i in range(1, last))
        steps = [steps_per_size] * last + [self.steps - steps_per_size * last]
        sizes = (self.first_batch_size, *inner, self.batch_size)
        own = {field.name: getattr(self, field.name) for field in fields(Stage)}
        return tuple(Stage(**own | {"steps": count, "batch_size": size}) for count, size in zip(steps, sizes, strict=True))


def expanded(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return all stages in order, with each ramp, and each stage whose noise changes, replaced by its stages."""
    return tuple(stage for item in stages for stage in item.stages())


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

    Stages of the same length have the same rows, unless their noise requires others: they continue one order and one count of
    epochs, so that each document is used E times in E epochs, whatever their number, batch sizes, noise and shares.

    Args:
      data: the run's data.
      stages: the run's stages.
      index: the stage.
      cache: the token cache.
      tokens: ids of the vocabulary.
      seed: seed of the run.
      opened: batches of earlier stages, whose planned rows are used again.
    """
    stage, own = stages[index], stages[index].data(data)
    same = [
        number
        for number in range(index)
        if stages[number].length == stage.length and own.has_rows_of(stages[number].data(data), stage.length, cache)
    ]
    if not same or not data.continues_stages:
        return own.training(cache, tokens, stage.length, stage.batch_size, seed, index, own_shares=stage.shares)
    last = same[-1]
    before = (opened or {}).get(last) or stage_batches(data, stages, last, cache, tokens, seed)
    batches = own.continued(before, stages[last].steps, stage.batch_size)
    if (stage.corruption, stage.shares) == (stages[last].corruption, stages[last].shares):
        return batches
    return own.with_own_settings(batches, cache, tokens, stage.length, stage.shares)


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

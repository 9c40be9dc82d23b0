"""A run as a list of stages, and which stage a step belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertfam.data.batches import BatchSource


@dataclass(frozen=True)
class Stage:
    """Steps of one shape.

    Attributes:
      steps: how many updates.
      length: tokens a row.
      batch_size: rows of the global batch.
    """

    steps: int
    length: int = 128
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("steps", "length", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is less than 1")


def locate(stages: Sequence[Stage], step: int) -> tuple[int, int]:
    """Which stage the update after `step` updates belongs to, and how many of that stage came before."""
    for index, stage in enumerate(stages):
        if step < stage.steps:
            return index, step
        step -= stage.steps
    raise IndexError(f"step is {step} beyond the last stage")


def total_steps(stages: Sequence[Stage]) -> int:
    """The updates of all stages."""
    return sum(stage.steps for stage in stages)


@dataclass(frozen=True)
class StagedBatches:
    """The batches of a whole run: each stage has its own source, counted from its first step."""

    stages: Sequence[Stage]
    sources: Sequence[BatchSource]

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """See `BatchSource.rows`."""
        index, within = locate(self.stages, step)
        return self.sources[index].rows(within, start, stop)

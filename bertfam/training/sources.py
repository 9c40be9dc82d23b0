"""From a run and a token cache to batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertfam.corruption import keys as random
from bertfam.corruption.masking import TokenIds
from bertfam.data.batches import BatchSource, CorruptedBatches
from bertfam.data.cache import TokenCache
from bertfam.data.order import Contiguous, Shuffled
from bertfam.training.run import Run
from bertfam.training.stages import Stage, locate

_PLAN, _ORDER, _NOISE = range(3)
# Held-out rows and their masks are the same for every run and seed, so that losses compare.
_EVALUATION_SEED = 0


@dataclass(frozen=True)
class StagedBatches:
    """The batches of a whole run: each stage has its own source, counted from its first step."""

    stages: Sequence[Stage]
    sources: Sequence[BatchSource]

    def rows(self, step: int, start: int, stop: int) -> dict[str, np.ndarray]:
        """See `BatchSource.rows`."""
        index, within = locate(self.stages, step)
        return self.sources[index].rows(within, start, stop)


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows of one stage's shape, each once, the last batch filled with rows of weight 0."""

    source: BatchSource
    steps: int
    batch_size: int


def training_batches(run: Run, cache: TokenCache, tokens: TokenIds) -> StagedBatches:
    """The training batches of a run."""
    documents = cache.documents("train")
    sources = []
    for index, stage in enumerate(run.stages):
        examples = run.rows.examples(documents, stage.length, _key(run.seed, _PLAN, index), tokens)
        order = Shuffled(len(examples), stage.batch_size, _key(run.seed, _ORDER, index))
        sources.append(CorruptedBatches(order, examples, run.corruption, tokens, _key(run.seed, _NOISE, index)))
    return StagedBatches(run.stages, sources)


def held_out(run: Run, cache: TokenCache, tokens: TokenIds, stage: int, split: str = "validation") -> HeldOut | None:
    """The rows to evaluate on in a stage; None where the split has no document."""
    documents = cache.documents(split)
    if not len(documents):
        return None
    shape = run.stages[stage]
    examples = run.rows.examples(documents, shape.length, _key(_EVALUATION_SEED, _PLAN, 0), tokens)
    order = Contiguous(len(examples), shape.batch_size)
    source = CorruptedBatches(order, examples, run.corruption, tokens, _key(_EVALUATION_SEED, _NOISE, 0))
    return HeldOut(source, min(order.steps, run.eval_batches or order.steps), shape.batch_size)


def _key(seed: int, use: int, stage: int) -> int:
    return int(random.fold(seed, use, stage)[0])

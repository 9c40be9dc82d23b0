"""Hook that ends a run at a held-out masked loss, measured on the same rows and noise whatever the run trains on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import jax
from typing_extensions import override

from benchmarks.same_noise import SameNoise
from bertfam.config import register
from bertfam.data import vocabularies
from bertfam.data.rows.running_text import FullSentences
from bertfam.data.text_data import HeldOut, TextData
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.models.encoder import MaskedLmConfig
from bertfam.training.hooks.base import Hook
from bertfam.training.state import TrainState

_ROWS = 32  # of a batch


@register
@dataclass(frozen=True)
class TargetLoss(Hook):
    """Hook that measures the masked loss at 15 % noise on held-out rows of whole sentences, and ends the run at a target.

    Attributes:
      model: encoder of the run.
      cache_dir: token cache of the run.
      target: the loss, in nats, at which the run is complete.
      every: updates between two measurements.
      length: tokens of a row.
      rows: largest number of rows.
    """

    model: MaskedLmConfig
    cache_dir: str
    target: float
    every: int = 50
    length: int = 64
    rows: int = 512
    _losses: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _clock: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    phase: ClassVar[str] = "target"

    @override
    def due(self, step: int) -> bool:
        if not self._clock:  # The first update has compiled the step.
            self._clock.append(time.process_time())
        return step % self.every == 0

    @override
    def metrics(self, step: int, state: TrainState) -> Mapping[str, float]:
        """Return loss, accuracy, and CPU seconds of the updates after the first, without those of the measurements."""
        now = time.process_time()
        held_out, measure = self._held_out, self._measure
        sums = [measure(state.params, held_out.source.rows(batch, 0, _ROWS)) for batch in range(held_out.steps)]
        means = {name: float(sum(one[name].total for one in sums) / sum(one[name].weight for one in sums)) for name in sums[0]}
        self._losses[step] = means["mlm_loss"]
        cpu_seconds = now - self._clock[0]
        self._clock[0] += time.process_time() - now
        return means | {"cpu_seconds": cpu_seconds}

    @override
    def end_reason(self, step: int) -> str | None:
        loss = min(self._losses.values(), default=float("inf"))
        return f"the held-out loss is {loss:.4f}, of a target of {self.target:g}" if loss <= self.target else None

    @cached_property
    def _cache(self) -> TokenCache:
        return TokenCache(self.cache_dir)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return vocabularies.load(str(self._cache.directory / "vocab"))

    @cached_property
    def _held_out(self) -> HeldOut:
        data, most = TextData(rows=FullSentences()), max(1, self.rows // _ROWS)
        held_out = data.held_out(self._cache, self._vocabulary.token_ids, self.length, _ROWS, at_most=most)
        if held_out is None:
            raise UserError(f"{self._cache.directory} has too little held-out text for rows of {self.length} tokens")
        return held_out

    @cached_property
    def _measure(self) -> Any:
        objective = SameNoise(self.model).sized(self._vocabulary.size)
        return jax.jit(lambda params, batch: objective.loss(params, {}, {}, batch, key=None, train=False).metrics)

"""Training loop: compile, inspect, step, run hooks."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax

from bertfam.data.rows.batches import BatchSource
from bertfam.multihost.preemption import Stop
from bertfam.training.hooks.base import Hook
from bertfam.training.integrity.digest import DIGEST, disagreement, mismatches
from bertfam.training.logs.phase_timer import COMPILING, INSPECTING, TRAINING, WAITING
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.prefetch import Batch, Prefetcher
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

_BATCHES_AT_ONCE = 8  # of rows from a bucket, each of which waits for its requests


def train(
    trainer: Trainer,
    state: TrainState,
    source: BatchSource,
    log: ProgressLog,
    hooks: Sequence[Hook],
    stop: Stop | None = None,
    *,
    waits_for_rows: bool = False,
) -> TrainState:
    """Train from the state's step to the end of the run, or until `stop` ends it.

    If rows come from a bucket (`waits_for_rows`), batches of several steps are made at once.
    """
    start, total, phase_ends = int(state.step), trainer.run.total_steps, trainer.run.phase_ends
    stop, phase_timer = stop or Stop(), trainer.phase_timer

    def make(step: int) -> Batch:
        stage, _ = locate(trainer.run.stages, step)
        return trainer.program(stage, source.row_length(step)).batch(source, step)

    def call(hooks: Sequence[Hook], step: int, state: TrainState) -> TrainState:
        log.stragglers.pause()
        for hook in hooks:
            with phase_timer.during(hook.phase, long=True):
                state = hook.after(step, state)
                if metrics := hook.metrics(step, state):
                    log.write(step, hook.phase, metrics)
        return state

    batches = (
        Prefetcher(make, start, total, _BATCHES_AT_ONCE, _BATCHES_AT_ONCE) if waits_for_rows else Prefetcher(make, start, total)
    )
    steps = _CompiledSteps(trainer, stop)
    try:
        state = call([hook for hook in hooks if hook.owed(start)], start, state)
        for step in range(start, total):
            # Set during an evaluation, or by its scores.
            if stop.due or any(hook.end_reason(step) for hook in hooks):
                break
            stage, _ = locate(trainer.run.stages, step)
            length = source.row_length(step)
            train_step, is_new = steps.find(stage, length, is_first=step == start)
            if is_new:
                log.stragglers.pause()
            phase_timer.begin(TRAINING)
            batch, idle = batches.get(log.busy)
            phase_timer.move(idle, WAITING)
            _inspect(trainer, stage, step + 1, state, batch, log)
            log.stragglers.before_update(log.busy(), idle)
            state, metrics = train_step(state, batch, step)
            if is_new:
                # The first run of a program builds its cuDNN kernels, which fails while another thread copies to the GPU.
                jax.block_until_ready(state)
            batches.refill()
            stops = stop.ask()
            log.stragglers.after_update()  # called here because `ask` may have waited for another process
            due = [hook for hook in hooks if hook.due(step + 1)]
            if due or stops:
                # Count all of its time in the interval that ends here.
                jax.block_until_ready(state)
            # An interval also ends at every checkpoint, so that a resumed run logs the same lines as an uninterrupted one, and
            # where the metrics change.
            ends = due or stops or step + 1 in phase_ends or log.ends_interval(step + 1)
            rate = float(trainer.schedule(step)) if ends else None
            log.add(metrics, trainer.program(stage, length).rates, rate)
            if due:
                log.flush()
                state = call(due, step + 1, state)
    finally:
        batches.close()
    stop.finish_round()
    log.flush()
    return state


class _CompiledSteps:
    """Compiled steps of the present stage, by the length of their rows."""

    def __init__(self, trainer: Trainer, stop: Stop) -> None:
        self._trainer, self._stop, self._stage = trainer, stop, -1
        self._steps, self._used = dict[int | None, Callable[..., Any]](), set[int | None]()

    def find(self, stage: int, length: int | None, *, is_first: bool) -> tuple[Callable[..., Any], bool]:
        """Return the step of rows of a length, and True if it has not run yet; `is_first`: of the first update."""
        if stage != self._stage:
            self._steps, self._used, self._stage = {}, set(), stage
        if length not in self._steps:
            with self._stop.nothing_to_save() if is_first else nullcontext():
                self._compile(stage, [length, *(other for other in self._trainer.row_lengths.get(stage, ()) if other != length)])
            if is_first:
                self._stop.barrier("compiling")
        is_new = length not in self._used
        self._used.add(length)
        return self._steps[length], is_new

    def _compile(self, stage: int, lengths: Sequence[int | None]) -> None:
        """Compile the steps of rows of these lengths, at the same time in a run of one process."""
        # The compilers of several processes exchange what they have measured, in the same order.
        threads = len(lengths) if jax.process_count() == 1 else 1
        with self._trainer.phase_timer.during(COMPILING, long=True), ThreadPoolExecutor(threads, "compile") as pool:
            for length in lengths:
                print(f"compiling {self._trainer.program(stage, length).name}", flush=True)
            compiled = pool.map(partial(self._trainer.compile_step, stage), lengths)
            for length, (step, description) in zip(lengths, compiled, strict=True):
                self._steps[length] = step
                print(description, flush=True)


def _inspect(trainer: Trainer, stage: int, update: int, state: TrainState, batch: Batch, log: ProgressLog) -> None:
    """Log the inspection and the digests of an update where they are due."""
    inspects, digests = (bool(every) and update % every == 0 for every in (trainer.run.inspect_every, trainer.run.digest_every))
    if not (inspects or digests):
        return
    jax.block_until_ready(state)
    log.stragglers.pause()
    with trainer.phase_timer.during(INSPECTING, long=True):
        if inspects:
            log.write(update, "inspect", trainer.inspect(state, batch, stage))
        if digests:
            digest = trainer.digest(state, batch, stage)
            log.write(update, DIGEST, digest.line())
            if found := mismatches([digest.copies]):
                print(f"step {update:,}: {disagreement(found)}", flush=True)

"""Updates recomputed from a checkpoint, on several arrangements of the same devices, and what the results say of these.

Three things are compared bit by bit: what devices hold that must hold the same; what groups of devices make of the same rows,
each by itself; and what an arrangement computes with what the run recorded, if by the same program on the same kind of devices.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from bertfam.data.batches import BatchSource
from bertfam.training.digest import Digest, disagreement, suspects
from bertfam.training.metrics import means
from bertfam.training.run import Run
from bertfam.training.stages import locate
from bertfam.training.state import TrainState
from bertfam.training.step import Metrics
from bertfam.training.trainer import Trainer

# How far a loss may be from that of another program, mesh or kind of devices, which adds in another order.
TOLERANCE = 1e-3
# Metrics of a logged interval that are compared.
_LOGGED = ("loss", "gradient_norm")
_RECORD = "the record"  # its vote, where two devices disagree
Lines = Mapping[int, Mapping[str, Any]]


@dataclass
class Replayed:
    """What one arrangement has computed, by the step that an update leads to.

    Attributes:
      devices: in the mesh's order.
      platform: theirs: "cpu", "gpu", "tpu".
      metrics: of every update from the checkpoint on.
      digests: of the first update, where what was restored shows, of the last, and of those that the run recorded.
      again: the last one's, computed a second time.
      alone: of the last update, where every group of devices computes the same rows by itself; None where it was not computed.
    """

    devices: list[str]
    platform: str
    metrics: dict[int, Metrics] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)
    again: Digest | None = None
    alone: Digest | None = None


@dataclass
class Verdict:
    """What the comparison says, in words: `faults` where a device is wrong, `notes` of what was compared and what cannot be.

    `suspects` are the devices that hold something wrong, with what that is.
    """

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspects: dict[str, list[str]] = field(default_factory=dict)


def rotated(mesh: jax.sharding.Mesh, places: int) -> jax.sharding.Mesh:
    """The same devices, each of which does what one some places before it did."""
    return jax.sharding.Mesh(np.roll(mesh.devices.reshape(-1), -places).reshape(mesh.devices.shape), mesh.axis_names)


def by_itself(run: Run, mesh: jax.sharding.Mesh) -> Run | None:
    """The run with batches as small as one device's share, which all groups of devices compute; None where there is one group."""
    parts = math.prod(mesh.shape[axis] for axis in run.mesh.rules.axes("batch"))
    rules = dataclasses.replace(run.mesh.rules, batch=None)
    stages = tuple(dataclasses.replace(stage, batch_size=stage.batch_size // parts) for stage in run.stages)
    same = dataclasses.replace(run, mesh=dataclasses.replace(run.mesh, rules=rules), stages=stages)
    return same if parts > 1 else None


def replay(
    trainer: Trainer,
    state: TrainState,
    source: BatchSource,
    update: int,
    recorded: Collection[int],
    alone: Trainer | None,
    tell: Callable[[int], None],
) -> Replayed:
    """Recomputes the updates from a state on, up to the one that leads to step `update`.

    Args:
      trainer: of the run, on one arrangement of the devices.
      state: of a checkpoint; it is used up.
      source: the run's batches.
      update: the last.
      recorded: the updates whose digests are computed, besides the first and the last.
      alone: of `by_itself`, on the same arrangement.
      tell: is told every step that was reached.
    """
    devices = list(trainer.mesh.devices.flat)
    found = Replayed([str(device) for device in devices], devices[0].platform)
    start, compiled = int(state.step), -1
    for step in range(start, update):
        stage, _ = locate(trainer.run.stages, step)
        if stage != compiled:
            (train_step, _), compiled = trainer.compile_step(stage), stage
        batch = trainer.stages[stage].batch(source, step)
        last = step + 1 == update
        if step == start or last or step + 1 in recorded:
            found.digests[step + 1] = trainer.digest(state, batch)
        if last:
            found.again = trainer.digest(state, batch)
            found.alone = alone.digest(state, alone.stages[stage].batch(source, step)) if alone else None
        state, metrics = train_step(state, batch)
        found.metrics[step + 1] = jax.device_get(metrics)
        tell(step + 1)
    return found


def compare(found: Sequence[Replayed], recorded: Lines, logged: Lines) -> Verdict:
    """Compares what all arrangements have computed with each other and with the run's own.

    Args:
      found: of each arrangement; all of the same updates.
      recorded: lines of digests by step.
      logged: lines of training by step.
    """
    verdict = Verdict()
    same = {step: line for step, line in recorded.items() if line["program"] == found[0].digests[step].program}
    _compare_copies(verdict, found, same)
    if _repeats(verdict, found):
        _compare_arrangements(verdict, found)
        _compare_recorded(verdict, found[0], same)
    for step in recorded.keys() - same.keys():
        verdict.notes.append(
            f"update {step:,} was recorded by another program, mesh, kind of devices or compiler: its losses alone are compared"
        )
        _compare_loss(verdict, f"the loss of update {step:,}", found[0].digests[step].loss, recorded[step]["loss"])
    _compare_logged(verdict, found[0], logged, exactly=0 < len(same) == len(recorded))
    return verdict


def _compare_copies(verdict: Verdict, found: Sequence[Replayed], same: Lines) -> None:
    """Devices that hold the same, in one arrangement."""
    wrong: dict[str, set[str]] = {}
    for each in found:
        votes = [(digest, same.get(step, {})) for step, digest in each.digests.items()]
        for digest, line in votes + ([(each.alone, {})] if each.alone else []):
            split = {leaf for leaf, shard in digest.copies if shard}
            record = {(leaf, 0): {_RECORD: line[leaf]} for leaf, _ in digest.copies if leaf in line and leaf not in split}
            # The record decides between devices; it is no reason to doubt those that agree.
            if among := suspects([digest.copies]):
                decided = suspects([digest.copies, record])
                for device in decided.keys() & among.keys() or among:
                    wrong.setdefault(device, set()).update(among[device])
    verdict.suspects = {device: sorted(leaves) for device, leaves in sorted(wrong.items())}
    if wrong:
        verdict.faults.append(disagreement(verdict.suspects))


def _repeats(verdict: Verdict, found: Sequence[Replayed]) -> bool:
    """Whether one program on one arrangement gives the same bits again."""
    for each in found:
        last = max(each.digests)
        if each.again is not None and (names := _differing(each.digests[last].line(), each.again.line())):
            if each.platform == "gpu":
                verdict.notes.append(
                    "this platform does not repeat bits: the same program on the same devices gave two results "
                    f"({_told(names)}), so that only losses are compared; XLA_FLAGS=--xla_gpu_deterministic_ops=true makes it"
                )
            else:
                verdict.faults.append(
                    f"silent data corruption: the same program on the same devices gave two results for update {last:,} "
                    f"({_told(names)})"
                )
            return False
    return True


def _compare_arrangements(verdict: Verdict, found: Sequence[Replayed]) -> None:
    first, *others = found
    for number, other in enumerate(others, 2):
        # Elsewhere more than two may add in an order that depends on where they are.
        exact = first.platform == "cpu" or len(first.devices) <= 2
        for step in sorted(first.digests):
            one, two = first.digests[step], other.digests[step]
            if not (names := _differing(one.leaves() | {"loss": one.loss}, two.leaves() | {"loss": two.loss})):
                continue
            told = f"arrangement {number} of the devices computed another update {step:,} than the first ({_told(names)})"
            if exact:
                verdict.faults.append(f"silent data corruption: {told}")
            else:
                verdict.notes.append(f"{told}, as it may where sums are in the order of places")
                _compare_loss(verdict, f"the loss of update {step:,} in arrangement {number}", two.loss, one.loss)
            return


def _compare_recorded(verdict: Verdict, found: Replayed, same: Lines) -> None:
    for step in sorted(same):
        if names := _differing(same[step], found.digests[step].line()):
            verdict.faults.append(
                f"update {step:,} is not what the run recorded ({_told(names)}): a device computed or held something wrong then, "
                "or this machine rounds otherwise"
            )
            return
    if same:
        verdict.notes.append(f"{_plural(len(same), 'recorded digest')} compared, bit by bit")


def _compare_logged(verdict: Verdict, found: Replayed, logged: Lines, *, exactly: bool) -> None:
    """The means of intervals that were recomputed from end to end."""
    steps = sorted(logged)
    equal = compared = 0
    for before, step in zip([0, *steps], steps, strict=False):
        updates = range(before + 1, step + 1)
        if not found.metrics.keys() >= set(updates):
            continue
        recomputed, compared = means([found.metrics[update] for update in updates]), compared + 1
        wrong = [name for name in _LOGGED if _bits(recomputed.get(name)) != _bits(logged[step].get(name))]
        equal += not wrong
        for name in wrong:
            what, tolerance = f"the mean {name} of updates {before + 1:,} to {step:,}", 0 if exactly else TOLERANCE
            _compare_loss(verdict, what, recomputed.get(name), logged[step].get(name), tolerance)
    if compared:
        verdict.notes.append(f"{_plural(compared, 'logged interval')} compared, {equal:,} equal in all bits")
    if max(found.metrics) not in logged:
        verdict.notes.append("the log has no line of that step: its loss is in a mean with later ones")


def _compare_loss(verdict: Verdict, what: str, ours: float | None, theirs: float | None, tolerance: float = TOLERANCE) -> None:
    ours, theirs = (math.nan if value is None else value for value in (ours, theirs))
    if not (math.isclose(ours, theirs, rel_tol=tolerance) or math.isnan(ours) and math.isnan(theirs)):
        verdict.faults.append(f"{what} is {ours:.9g} and was {theirs:.9g}")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    # NaN is None in a line, and here equal to itself.
    return [name for name in one.keys() | other.keys() if _bits(one.get(name)) != _bits(other.get(name))]


def _bits(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _told(names: Sequence[str]) -> str:
    first, *more = sorted(names)
    return first + (f" and {len(more)} more" if more else "")


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"

"""Mismatches between recomputed updates, the devices and the record of the run.

Three things are compared bit by bit: what devices hold that must hold the same; what groups of devices make of the same rows,
each by itself; and what an arrangement computes with what the run recorded, if by the same program on the same kind of devices.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfam.training.integrity.digest import disagreement, mismatches
from bertfam.training.integrity.replay import Replayed
from bertfam.training.logs.metrics import means

# How far a loss may be from that of another program, mesh or kind of devices, which adds in another order.
TOLERANCE = 1e-3
# Metrics of a logged interval that are compared.
_LOGGED = ("loss", "gradient_norm")
_RECORD = "the record"  # its vote, where two devices disagree
Lines = Mapping[int, Mapping[str, Any]]


@dataclass
class Mismatches:
    """Result of the comparison, in words: `faults` where a device is wrong, `notes` of what was compared and what cannot be.

    `suspects` are the devices that hold something wrong, with what that is.
    """

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspects: dict[str, list[str]] = field(default_factory=dict)


def compare(found: Sequence[Replayed], recorded: Lines, logged: Lines) -> Mismatches:
    """Compare what all arrangements have computed with each other and with the run's own.

    Args:
      found: of each arrangement; all of the same updates.
      recorded: lines of digests by step.
      logged: lines of training by step.
    """
    verdict = Mismatches()
    same = {step: line for step, line in recorded.items() if line["program"] == found[0].digests[step].program}
    unsteady = _unsteady(found)
    steady = not unsteady
    _compare_copies(verdict, found, same, by_themselves=steady)
    if steady:
        _compare_arrangements(verdict, found)
        _compare_recorded(verdict, found[0], same)
    elif found[0].platform == "gpu":
        verdict.notes.append(
            "this platform does not repeat bits: the same program on the same devices gave two results "
            f"({_told(unsteady)}), so that only losses are compared; XLA_FLAGS=--xla_gpu_deterministic_ops=true makes it"
        )
    else:
        verdict.faults.append(
            "silent data corruption: the same program on the same devices gave two results for update "
            f"{max(found[0].digests):,} ({_told(unsteady)})"
        )
    for step in sorted(recorded):
        if step in same and steady:
            continue
        if step not in same:
            other = "another program, mesh, kind of devices or compiler"
            verdict.notes.append(f"update {step:,} was recorded by {other}: its losses alone are compared")
        _compare_loss(verdict, f"the loss of update {step:,}", found[0].digests[step].loss, recorded[step]["loss"])
    _compare_logged(verdict, found[0], logged, exactly=steady and 0 < len(same) == len(recorded))
    return verdict


def _unsteady(found: Sequence[Replayed]) -> list[str]:
    """Return the names that one program on one arrangement computed differently the second time."""
    for each in found:
        if each.again is not None and (names := _differing(each.digests[max(each.digests)].line(), each.again.line())):
            return names
    return []


def _compare_copies(verdict: Mismatches, found: Sequence[Replayed], same: Lines, *, by_themselves: bool) -> None:
    """Compare replicas in one arrangement, and what device groups computed from the same rows `by_themselves`."""
    wrong: dict[str, set[str]] = {}
    for each in found:
        votes = [(digest, same.get(step, {})) for step, digest in each.digests.items()]
        for digest, line in votes + ([(each.alone, {})] if each.alone and by_themselves else []):
            split = {leaf for leaf, shard in digest.copies if shard}
            record = {(leaf, 0): {_RECORD: line[leaf]} for leaf, _ in digest.copies if leaf in line and leaf not in split}
            # The record decides between devices; it is no reason to doubt those that agree.
            if among := mismatches([digest.copies]):
                decided = mismatches([digest.copies, record])
                for device in decided.keys() & among.keys() or among:
                    wrong.setdefault(device, set()).update(among[device])
    verdict.suspects = {device: sorted(leaves) for device, leaves in sorted(wrong.items())}
    if wrong:
        verdict.faults.append(disagreement(verdict.suspects))


def _compare_arrangements(verdict: Mismatches, found: Sequence[Replayed]) -> None:
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


def _compare_recorded(verdict: Mismatches, found: Replayed, same: Lines) -> None:
    for step in sorted(same):
        if names := _differing(same[step], found.digests[step].line()):
            verdict.faults.append(
                f"update {step:,} is not what the run recorded ({_told(names)}): a device computed or held something wrong then, "
                "or this machine rounds otherwise"
            )
            return
    if same:
        verdict.notes.append(f"{_plural(len(same), 'recorded digest')} compared, bit by bit")


def _compare_logged(verdict: Mismatches, found: Replayed, logged: Lines, *, exactly: bool) -> None:
    """Compare the means of intervals that were recomputed completely."""
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


def _compare_loss(verdict: Mismatches, what: str, ours: float | None, theirs: float | None, tolerance: float = TOLERANCE) -> None:
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

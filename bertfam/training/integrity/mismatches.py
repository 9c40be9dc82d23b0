"""Mismatches between devices, recomputed updates and the record of the run.

Three comparisons are bitwise: replicated values on different devices; the results of groups of devices that each compute the
same rows; and the results of an arrangement with those that the run recorded, if the program and the kind of devices are the
same.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfam.plurals import listed, plural
from bertfam.training.integrity.digest import disagreement, mismatches
from bertfam.training.integrity.replay import Replayed
from bertfam.training.logs.metrics import means

# Relative tolerance for losses of another program, mesh or kind of devices, where sums have another order. The differences grow
# from update to update, so it is widened by those of the arrangements: this multiple of the largest so far.
TOLERANCE, _DRIFT = 1e-3, 10.0
# Metrics of logged intervals that are compared where bits must be equal; else the loss alone.
_LOGGED = ("loss", "gradient_norm")
_RECORD = "the record"  # votes like a device if two devices disagree
Lines = Mapping[int, Mapping[str, Any]]


@dataclass
class Mismatches:
    """Result of a comparison.

    Attributes:
      faults: descriptions of wrong results.
      notes: descriptions of what was compared, and of what cannot be.
      suspects: names of the wrong leaves by device.
    """

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    suspects: dict[str, list[str]] = field(default_factory=dict)


def compare(replayed: Sequence[Replayed], recorded: Lines, logged: Lines) -> Mismatches:
    """Compare the results of all arrangements with each other and with those of the run.

    Args:
      replayed: results of each arrangement, all of the same updates.
      recorded: recorded digests by step.
      logged: logged training metrics by step.
    """
    result = Mismatches()
    same = {step: line for step, line in recorded.items() if line["program"] == replayed[0].digests[step].program}
    irreproducible = _irreproducible(replayed)
    is_reproducible = not irreproducible
    _compare_copies(result, replayed, same, groups=is_reproducible)
    if is_reproducible:
        _compare_arrangements(result, replayed)
        _compare_recorded(result, replayed[0], same)
    elif replayed[0].platform == "gpu":
        result.notes.append(
            "results are not bitwise reproducible on this platform: the same program on the same devices gave two results "
            f"({listed(sorted(irreproducible), 1)}), so only losses are compared; {_remedy(replayed[0].attention)} makes them "
            "reproducible"
        )
    else:
        result.faults.append(
            "silent data corruption: the same program on the same devices gave two results for update "
            f"{max(replayed[0].digests):,} ({listed(sorted(irreproducible), 1)})"
        )
    drifts = _drifts(replayed)
    for step in sorted(recorded):
        if step in same and is_reproducible:
            continue
        if step not in same:
            result.notes.append(
                f"update {step:,} was recorded by another program, mesh, kind of devices or compiler: only its loss is compared"
            )
        ours, theirs = replayed[0].digests[step].loss, recorded[step]["loss"]
        _compare_loss(result, f"the loss of update {step:,}", ours, theirs, drift=drifts[step])
    exactly = is_reproducible and 0 < len(same) == len(recorded)
    _compare_logged(result, replayed[0], logged, None if exactly else drifts)
    return result


def _remedy(attention: Collection[str]) -> str:
    """Return what makes results of these attention backends the same in every run on GPUs."""
    # The flag of XLA does not reach kernels of other packages.
    replaced = " with Execution.attention = 'hopper' in place of 'fa4'" if "fa4" in attention else ""
    return f"XLA_FLAGS=--xla_gpu_deterministic_ops=true{replaced}"


def _irreproducible(replayed: Sequence[Replayed]) -> list[str]:
    """Return the names of the results that differ when one arrangement computes the same program twice."""
    for one in replayed:
        if one.again is not None and (names := _differing(one.digests[max(one.digests)].line(), one.again.line())):
            return names
    return []


def _compare_copies(result: Mismatches, replayed: Sequence[Replayed], same: Lines, *, groups: bool) -> None:
    """Compare the replicas within each arrangement and, if `groups`, the results of device groups for the same rows."""
    wrong: dict[str, set[str]] = {}
    for one in replayed:
        votes = [(digest, same.get(step, {})) for step, digest in one.digests.items()]
        for digest, line in votes + ([(one.alone, {})] if one.alone and groups else []):
            split = {leaf for leaf, shard in digest.copies if shard}
            record = {(leaf, 0): {_RECORD: line[leaf]} for leaf, _ in digest.copies if leaf in line and leaf not in split}
            # The record decides between devices that differ; it casts no doubt on devices that agree.
            if differing := mismatches([digest.copies]):
                decided = mismatches([digest.copies, record])
                for device in decided.keys() & differing.keys() or differing:
                    wrong.setdefault(device, set()).update(differing[device])
    result.suspects = {device: sorted(leaves) for device, leaves in sorted(wrong.items())}
    if wrong:
        result.faults.append(disagreement(result.suspects))


def _compare_arrangements(result: Mismatches, replayed: Sequence[Replayed]) -> None:
    first, *others = replayed
    for number, other in enumerate(others, 2):
        # On accelerators, the order of a sum over more than two devices may depend on their positions.
        exact = first.platform == "cpu" or len(first.devices) <= 2
        for step in sorted(first.digests):
            one, two = first.digests[step], other.digests[step]
            if not (names := _differing(one.leaves() | {"loss": one.loss}, two.leaves() | {"loss": two.loss})):
                continue
            difference = (
                f"update {step:,} of arrangement {number} of the devices differs from that of the first ({listed(names, 1)})"
            )
            if exact:
                result.faults.append(f"silent data corruption: {difference}")
            else:
                result.notes.append(f"{difference}, which is possible because the order of sums depends on positions")
                _compare_loss(result, f"the loss of update {step:,} in arrangement {number}", two.loss, one.loss)
            return


def _compare_recorded(result: Mismatches, replayed: Replayed, same: Lines) -> None:
    for step in sorted(same):
        if names := _differing(same[step], replayed.digests[step].line()):
            result.faults.append(
                f"update {step:,} differs from the record of the run ({listed(names, 1)}): a device computed or held a wrong "
                "value then, or this machine rounds differently"
            )
            return
    if same:
        result.notes.append(f"{plural(len(same), 'recorded digest')} compared, bit by bit")


def _compare_logged(result: Mismatches, first: Replayed, logged: Lines, drifts: Mapping[int, float] | None) -> None:
    """Compare the logged means of intervals whose updates were all recomputed, exactly or with the `drifts` of updates."""
    steps = sorted(logged)
    equal = compared = 0
    for before, step in zip([0, *steps], steps, strict=False):
        updates = range(before + 1, step + 1)
        if not first.metrics.keys() >= set(updates):
            continue
        recomputed, compared = means([first.metrics[update] for update in updates]), compared + 1
        wrong = [name for name in _LOGGED if _bits(recomputed.get(name)) != _bits(logged[step].get(name))]
        equal += not wrong
        for name in wrong if drifts is None else {"loss"}.intersection(wrong):
            what = f"the mean {name} of updates {before + 1:,} to {step:,}"
            allowed: dict[str, float] = {"tolerance": 0} if drifts is None else {"drift": drifts[step]}
            _compare_loss(result, what, recomputed.get(name), logged[step].get(name), **allowed)
    if compared:
        result.notes.append(f"{plural(compared, 'logged interval')} compared, {equal:,} equal in all bits")
    if max(first.metrics) not in logged:
        result.notes.append("the log has no line for that step: its loss is part of a mean with later steps")


def _drifts(replayed: Sequence[Replayed]) -> dict[int, float]:
    """Return how far rounding may move the loss of each update, by the largest difference of the arrangements up to it."""
    first, *others = (
        {update: means([metrics]).get("loss", math.nan) for update, metrics in one.metrics.items()} for one in replayed
    )
    drifts, largest = dict[int, float](), 0.0
    for update in sorted(first):
        differences = (abs(other[update] - first[update]) for other in others)
        largest = max([largest, *filter(math.isfinite, differences)])
        drifts[update] = _DRIFT * largest
    return drifts


def _compare_loss(
    result: Mismatches, what: str, ours: float | None, theirs: float | None, tolerance: float = TOLERANCE, drift: float = 0.0
) -> None:
    ours, theirs = (math.nan if value is None else value for value in (ours, theirs))
    allowed = tolerance * max(abs(ours), abs(theirs)) + drift
    if not (ours == theirs or abs(ours - theirs) <= allowed or math.isnan(ours) and math.isnan(theirs)):
        result.faults.append(f"{what} is {ours:.9g} and was {theirs:.9g}")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    # Lines hold None for NaN, which counts as equal to NaN here.
    return sorted(name for name in one.keys() | other.keys() if _bits(one.get(name)) != _bits(other.get(name)))


def _bits(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

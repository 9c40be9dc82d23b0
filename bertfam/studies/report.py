"""Report of a study as JSON values: scores over seeds, comparisons, verdicts, and cost."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertfam.evaluation.suites.comparison import compare_outcomes
from bertfam.evaluation.suites.report import versions
from bertfam.evaluation.suites.results import Result
from bertfam.plurals import listed, plural
from bertfam.storage.json_values import json_value
from bertfam.studies.inference import LEVEL, difference, holm, interval, seeds_to_decide
from bertfam.studies.runs import DIVERGED, StudyRun
from bertfam.studies.scores.score import is_lower_better
from bertfam.studies.study import Claim
from bertfam.studies.study_plan import StudyPlan

REPRODUCED, REFUTED, UNDECIDED = "reproduced", "not reproduced", "undecided at this size"
_COSTS = ("seconds", "seconds_of_updates", "flops", "tokens")

Values = Mapping[str, Mapping[str, Mapping[int, float]]]  # score -> arm -> seed -> value


def make_report(plan: StudyPlan, name: str) -> dict[str, Any]:
    """Return the report of all finished runs as JSON values.

    It has "study", "question", "equal" (a sentence), "arms" with the cost of each, "scores" by name and arm with their values by
    seed and interval, "claims" with their verdicts, "comparisons" of the other arms with the first one, "notes", "diverged",
    "missing" and "versions". Numbers that JSON does not have are null.
    """
    runs = list(plan.seed_runs())
    trained = {run: result for run in runs if (result := plan.folder(run).training)}
    finished = [run for run in trained if plan.folder(run).is_finished(plan.study.scores)]
    results = {run: _results(plan, run) for run in finished}
    values = _values(results)
    return json_value(
        {
            "study": name,
            "question": plan.study.question,
            "equal": _held_equal(plan),
            "arms": {arm.arm.name: _arm(plan, arm.arm.name, trained) for arm in plan.arms},
            "scores": {
                score: {arm: {"values": own, **interval(list(own.values()))._asdict()} for arm, own in by_arm.items()}
                for score, by_arm in values.items()
            },
            "claims": _claims(plan.study.claims, values, results),
            "comparisons": _comparisons(plan, values, results),
            "notes": _notes(plan),
            "diverged": {run.title: trained[run].settings["message"] for run in trained if _diverged(trained[run])},
            "missing": [run.title for run in runs if run not in finished],
            "versions": versions() | {"devices": _devices(trained.values())},
        }
    )


def _results(plan: StudyPlan, run: StudyRun) -> dict[str, Result]:
    """Return the results of a run by the name of the score; {} if it has diverged."""
    found = {score.name: plan.folder(run).score(score) for score in plan.study.scores}
    return {name: result for name, result in found.items() if result}


def _values(results: Mapping[StudyRun, Mapping[str, Result]]) -> dict[str, dict[str, dict[int, float]]]:
    """Return the finite values by score, arm and seed."""
    values: dict[str, dict[str, dict[int, float]]] = {}
    for run, own in results.items():
        for score, value in itertools.chain.from_iterable(result.scores.items() for result in own.values()):
            if math.isfinite(value):
                values.setdefault(score, {}).setdefault(run.arm, {})[run.seed] = value
    return values


def _diverged(result: Result) -> bool:
    return bool(result.settings["status"] == DIVERGED)


def _held_equal(plan: StudyPlan) -> str:
    """Return one sentence about what was the same for all runs."""
    study, arms = plan.study, [plan.scaled(arm) for arm in plan.arms]
    amount = study.amount + (", with equal numbers of parameters" if study.equal == "parameters" else "")
    same = ["order of the data for a seed", "held-out text"]
    if len({arm.vocabulary.fingerprint for arm in arms}) == 1:
        same.insert(0, "vocabulary")
    rates = (
        f"; each arm tried {plural(len(study.rates_of(study.arms[0])), 'learning rate')}" if study.rates_of(study.arms[0]) else ""
    )
    others = {
        "tokens": [arm.tokens for arm in arms],
        "FLOPs": [arm.flops for arm in arms],
        "updates": [arm.updates for arm in arms],
    }
    differing = [f"{name} by a factor of {max(own) / min(own):.2f}" for name, own in others.items() if max(own) > 1.05 * min(own)]
    differ = f"; the arms differed in {' and '.join(differing)}" if differing else ""
    return f"Every run had {amount}, and all arms the same {', '.join(same[:-1])} and {same[-1]}{rates}{differ}."


def _arm(plan: StudyPlan, name: str, trained: Mapping[StudyRun, Result]) -> dict[str, Any]:
    """Return the sizes, the learning rates and the cost of an arm."""
    arm = next(arm for arm in plan.arms if arm.arm.name == name)
    scaled, rates = plan.scaled(arm), plan.rates(arm)
    own = [result for run, result in trained.items() if run.arm == name]
    spent = [*own, *filter(None, rates.values())]
    return {
        "files": list(arm.arm.files),
        "bindings": list(arm.arm.bindings),
        "teacher": arm.arm.teacher,
        "parameters": arm.parameters,
        "updates": scaled.updates,
        "tokens": scaled.tokens,
        "flops": scaled.flops,
        "seconds_a_run": sum(result.scores["seconds_of_updates"] for result in own) / len(own) if own else None,
        "seconds": sum(result.scores["seconds"] for result in spent),
        "learning_rate": plan.best_rate(arm),
        "learning_rates": {str(rate): result and result.scores.get("loss") for rate, result in rates.items()},
    }


def _claims(claims: Sequence[Claim], values: Values, results: Mapping[StudyRun, Mapping[str, Result]]) -> list[dict[str, Any]]:
    """Return the test of each claim, with p-values corrected for the number of claims, and its verdict."""
    tests = [_compare(claim.score, claim.better, claim.worse, values, results) for claim in claims]
    for test, claim in zip(_corrected(tests), claims, strict=True):
        test["least"] = claim.least
        if claim.score not in values:
            test["verdict"], test["reason"] = UNDECIDED, f"no run has a score {claim.score}; there are {listed(values, 20)}"
            continue
        test["verdict"], test["reason"] = _verdict(test, claim, sum("difference" in one for one in tests))
    return tests


def _comparisons(plan: StudyPlan, values: Values, results: Mapping[StudyRun, Mapping[str, Result]]) -> list[dict[str, Any]]:
    """Return the tests of every arm against the first one, by every score, without those of claims."""
    first, *others = [arm.arm.name for arm in plan.arms]
    claimed = {(claim.score, frozenset((claim.better, claim.worse))) for claim in plan.study.claims}
    pairs = [(score, other) for score in values for other in others if (score, frozenset((first, other))) not in claimed]
    return _corrected([_compare(score, other, first, values, results) for score, other in pairs])


def _compare(
    score: str, one: str, other: str, values: Values, results: Mapping[StudyRun, Mapping[str, Result]]
) -> dict[str, Any]:
    """Compare two arms by a score; the difference is positive where the first one is better."""
    first, second = (values.get(score, {}).get(arm, {}) for arm in (one, other))
    seeds = sorted(first.keys() & second.keys())
    test: dict[str, Any] = {"score": score, "arms": [one, other], "seeds": seeds}
    sign = -1 if is_lower_better(score) else 1
    if len(seeds) > 1:
        test["difference"] = difference([sign * first[seed] for seed in seeds], [sign * second[seed] for seed in seeds])._asdict()
    texts = [_outcomes(score, arm, seeds, results) for arm in (one, other)]
    if all(texts) and len({len(own) for of_arm in texts for own in of_arm}) == 1:
        found = compare_outcomes(*([[sign * value for value in own] for own in of_arm] for of_arm in texts))
        test["texts"] = found._asdict()
    return test


def _outcomes(
    score: str, arm: str, seeds: Sequence[int], results: Mapping[StudyRun, Mapping[str, Result]]
) -> list[tuple[float, ...]]:
    """Return the values of single texts, of each seed of an arm, of the score that they average to; [] if it has none."""
    found = []
    for run, own in results.items():
        result = next((result for result in own.values() if next(iter(result.scores)) == score), None)
        if run.arm == arm and run.seed in seeds and result and result.outcomes:
            found.append(result.outcomes)
    return found


def _corrected(tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add Holm's corrected p-value to each test."""
    tested = [test["difference"] for test in tests if "difference" in test]
    for own, p_value in zip(tested, holm([own["p_value"] for own in tested]), strict=True):
        own["corrected"] = p_value
    return tests


def _verdict(test: Mapping[str, Any], claim: Claim, comparisons: int) -> tuple[str, str]:
    """Return the verdict on a claim and its reason."""
    if (own := test.get("difference")) is None:
        return UNDECIDED, "fewer than two seeds have finished in both arms"
    mean = f"{claim.better} is {'better' if own['mean'] >= 0 else 'worse'} by {abs(own['mean']):.4g}"
    p_value = f"p = {own['corrected']:.3g} after correction for {plural(comparisons, 'claim')}"
    if own["corrected"] <= LEVEL:
        return (REPRODUCED if own["mean"] > 0 else REFUTED), f"{mean}; {p_value}"
    if claim.least and own["high"] < claim.least:
        return REFUTED, f"{mean}, and the 95 % interval ends at {own['high']:.4g}, below the {claim.least:g} that would matter"
    needed = seeds_to_decide(own["mean"], own["deviation"], comparisons)
    more = "more than 1,000 seeds" if needed is None else plural(needed, "seed")
    return UNDECIDED, f"{mean}; {p_value}; a difference of this size would need {more} an arm (80 % power)"


def _devices(results: Iterable[Result]) -> str:
    """Return the devices that the runs were trained on; this process may have others."""
    return listed(sorted({str(result.settings.get("devices")) for result in results}), 5)


def _notes(plan: StudyPlan) -> list[str]:
    """Return remarks about the learning rates that were chosen."""
    notes = []
    for arm in plan.arms:
        rates, best = plan.study.rates_of(arm.arm), plan.best_rate(arm)
        if best is not None and best in (min(rates), max(rates)):
            end = "lowest" if best == min(rates) else "highest"
            notes.append(f"{arm.arm.name}: the best learning rate, {best:g}, is the {end} of those tried")
        diverged = [rate for rate, result in plan.rates(arm).items() if result and _diverged(result)]
        if diverged:
            notes.append(f"{arm.arm.name}: training diverged with the learning rates {listed(diverged, 10)}")
    return notes

"""Tables of a study's report, as rows of cells, as Markdown, and as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertfam.evaluation.suites.report import markdown_table, markdown_text
from bertfam.training.run_plan import duration, si

ABOUT_TESTS = (
    "Differences are positive where the first arm is better. Their 95 % intervals and p-values are those of a paired t-test over "
    "seeds; p-values are corrected for the number of tests in the table (Holm). The effect is the difference in standard "
    "deviations of single seeds. The interval over texts is of a paired bootstrap over held-out texts, with seeds averaged, "
    "where the score has values of single texts."
)
TESTS = {"Tests of the claims": "claims", "Other comparisons": "comparisons"}


def sections(report: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the tables of the report by their titles, without those that are empty."""
    tables = {
        "Verdicts": _verdict_rows(report),
        "Scores": score_rows(report),
        **{title: _test_rows(report[name]) for title, name in TESTS.items()},
        "Arms and cost": _cost_rows(report),
        "Learning rates": _rate_rows(report),
        "Diverged": [["run", "reason"], *([run, reason] for run, reason in report["diverged"].items())],
        "Missing": [["run"], *([run] for run in report["missing"])],
        "Versions": [["", "version"], *map(list, report["versions"].items())],
    }
    return {title: table for title, table in tables.items() if len(table) > 1}


def score_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the scores: a row of each score, and a cell of each arm with mean, interval and number of seeds."""
    arms = list(report["arms"])
    rows = ([score, *(_cell(by_arm.get(arm)) for arm in arms)] for score, by_arm in report["scores"].items())
    return [["score", *arms], *rows]


def _cell(own: Mapping[str, Any] | None) -> str:
    if own is None:
        return ""
    if own["low"] is None:
        return f"{own['mean']:.4f} (1 seed)"
    return f"{own['mean']:.4f} [{own['low']:.4f}, {own['high']:.4f}] ({own['seeds']})"


def _verdict_rows(report: Mapping[str, Any]) -> list[list[str]]:
    rows = ([_claim(claim), claim["verdict"], claim["reason"]] for claim in report["claims"])
    return [["claim", "verdict", "reason"], *rows]


def _claim(claim: Mapping[str, Any]) -> str:
    better, worse = claim["arms"]
    return f"{better} is better than {worse} ({claim['score']})"


def _test_rows(tests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for test in tests:
        own, texts = test.get("difference"), test.get("texts")
        cells = ["", "", "", ""]
        if own:
            effect = "-" if own["effect"] is None else f"{own['effect']:+.2f}"
            cells = [f"{own['mean']:+.4f}", f"{own['low']:+.4f} to {own['high']:+.4f}", effect, f"{own['corrected']:.3g}"]
        over_texts = f"{texts['low']:+.4f} to {texts['high']:+.4f} ({texts['texts']:,})" if texts else ""
        rows.append([test["score"], " - ".join(test["arms"]), *cells, over_texts, str(len(test["seeds"]))])
    return [["score", "arms", "difference", "95 % interval", "effect", "p", "over texts", "seeds"], *rows]


def _cost_rows(report: Mapping[str, Any]) -> list[list[str]]:
    header = ["arm", "parameters", "updates", "tokens", "FLOP a run", "updates of a run", "all runs", "learning rate"]
    rows = []
    for name, arm in report["arms"].items():
        seconds = "" if arm["seconds_a_run"] is None else duration(arm["seconds_a_run"])
        rate = "as set" if arm["learning_rate"] is None else f"{arm['learning_rate']:g}"
        sizes = [f"{arm[key]:,}" for key in ("parameters", "updates", "tokens")]
        rows.append([name, *sizes, si(arm["flops"]).strip(), seconds, duration(arm["seconds"]), rate])
    return [header, *rows]


def _rate_rows(report: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, arm in report["arms"].items():
        losses = {rate: "diverged" if loss is None else f"{loss:.4f}" for rate, loss in arm["learning_rates"].items()}
        rows += [[name, rate, loss] for rate, loss in losses.items()]
    return [["arm", "learning rate", "held-out loss of its objective"], *rows]


def summary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for a terminal: what was equal, the scores, and the verdicts."""
    yield report["equal"]
    for score, by_arm in report["scores"].items():
        yield from (f"  {score:<20} {arm:<24} {_cell(own)}" for arm, own in by_arm.items())
    yield from (f"{_claim(claim)}: {claim['verdict'].upper()}: {claim['reason']}" for claim in report["claims"])
    for title in ("diverged", "missing"):
        if report[title]:
            yield f"{title}: {', '.join(report[title])}"


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"# {markdown_text(report['study'])}", "")
    if report["question"]:
        yield from (markdown_text(report["question"]), "")
    yield markdown_text(report["equal"])
    yield from (f"- {markdown_text(note)}" for note in report["notes"])
    for title, table in sections(report).items():
        yield from ("", f"## {title}", "")
        if title in TESTS:
            yield from (ABOUT_TESTS, "")
        yield from markdown_table(table)

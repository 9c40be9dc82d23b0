"""Suites of tasks: runs that are kept, paired tests, and reports."""

import json
import math
import re
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.errors import UserError
from bertfam.evaluation.suites import minimal_pair_suite
from bertfam.evaluation.suites.comparison import compare_outcomes
from bertfam.evaluation.suites.minimal_pair_suite import MinimalPairSuite
from bertfam.evaluation.suites.page import page
from bertfam.evaluation.suites.report import make_report, markdown
from bertfam.evaluation.suites.results import Result
from bertfam.evaluation.suites.suite import Model, SuiteRuns


def test_right_and_wrong_texts_are_compared_by_mcnemars_test():
    one, other = np.zeros(100), np.zeros(100)
    one[:30], other[24:32] = 1, 1  # 24 texts that only the first has right, 2 that only the second has
    found = compare_outcomes([one], [other])
    assert found.test == "McNemar" and found.texts == 100 and found.difference == pytest.approx(0.22)
    assert found.p_value == pytest.approx(2 * sum(comb(26, k) for k in range(3)) / 2**26)
    error = np.std(one - other) / 10
    assert found.low == pytest.approx(0.22 - 1.96 * error, abs=0.02) and found.high == pytest.approx(
        0.22 + 1.96 * error, abs=0.02
    )
    assert found == compare_outcomes([one], [other])
    same = compare_outcomes([one], [one])
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_other_scores_are_compared_by_a_permutation_test():
    generator = np.random.default_rng(0)
    one = generator.standard_normal(60)
    found = compare_outcomes([one, one + 1], [one - 0.1 * generator.random(60)])
    assert found.test == "permutation" and found.p_value < 0.01
    assert compare_outcomes([one], [generator.permutation(one)]).p_value > 0.05


PAIRS = [{"sentence_good": f"He sees {name}.", "sentence_bad": f"He see {name}."} for name in ("it", "her", "<b>")]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return start(*counts), which makes the runs of models that prefer the right sentence of so many pairs."""
    (tmp_path / "pairs").mkdir()
    for name in ("agreement", "other"):
        (tmp_path / f"pairs/{name}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    calls = []

    def scorer(folder, step):
        calls.append(folder)
        right = int(folder)
        return SimpleNamespace(score=lambda texts, where: np.array([1.0] * right + [0.0] * (6 - right)), description="toy")

    monkeypatch.setattr(minimal_pair_suite, "_scorer", scorer)

    def start(*counts, choose=list):
        suite = MinimalPairSuite(str(tmp_path / "pairs"), None, choose)
        return SuiteRuns(suite, [Model(f"<{count}>", str(count), None) for count in counts], [0], tmp_path / "report")

    return SimpleNamespace(start=start, calls=calls, folder=tmp_path)


def test_finished_runs_are_kept_and_others_are_not(runs):
    lines = []
    first = runs.start(1)
    assert first.plan()[0] == "suite blimp: 2 tasks x 1 model x 1 seed = 2 runs"
    assert first.run(lines.append, lambda: None) == 0 and len(runs.calls) == 2
    assert lines[0] == "[1 of 2] agreement, <1>, seed 0: " and "accuracy 0.6667" in lines[1] and "left" in lines[1]
    more = runs.start(1, 3)
    assert "4 runs, of which 2 finished" in more.plan()[0]
    assert more.run(lines.append, lambda: None) == 0 and len(runs.calls) == 4
    (runs.folder / "pairs/other.jsonl").write_text(json.dumps(PAIRS[0]) + "\n")
    assert "of which 2 finished" in runs.start(1, 3).plan()[0]


RESULT = {"scores": {"accuracy": 1.0}, "outcomes": [1, 1, 1], "settings": {}}


@pytest.mark.parametrize(
    "content",
    ["", '{"scores": {"acc', "{}", "[]", b"\xff", RESULT | {"scores": {"accuracy": float("inf")}}, RESULT | {"scores": {}},
     RESULT | {"outcomes": [1, 1, "x"]}, RESULT | {"outcomes": 5}, RESULT | {"outcomes": [1, 1, float("nan")]},
     RESULT | {"settings": []}, RESULT | {"scores": {"accuracy": True}}],
)  # fmt: skip
def test_damaged_results_are_measured_again(runs, content, capsys):
    runs.start(1).run(lambda line: None, lambda: None)
    folder = runs.folder / "report/runs/_1_/agreement"
    raw = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
    (folder / "seed_0.json").write_bytes(raw)
    assert "of which 1 finished" in runs.start(1).plan()[0]
    (line,) = capsys.readouterr().err.splitlines()
    assert "seed_0.json" in line and line.endswith(": it is measured again")
    (folder / "source.json").write_bytes(b"\xff")
    again = runs.start(1)
    assert again.run(lambda line: None, lambda: None) == 0 and len(runs.calls) == 3
    assert "of which 2 finished" in runs.start(1).plan()[0] and markdown(make_report(again))


def test_results_of_other_texts_and_links_out_of_the_folder_are_refused(runs, tmp_path):
    runs.start(1).run(lambda line: None, lambda: None)
    folder = runs.folder / "report/runs/_1_/agreement"
    (folder / "seed_0.json").write_text(json.dumps(RESULT | {"outcomes": [1]}))
    more = runs.start(1, 2)
    with pytest.raises(UserError, match="has other scores or another number of texts than that of <1> with seed 0"):
        more.run(lambda line: None, lambda: None)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="agreement is a link out of its folder"):
        runs.start(1)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(UserError, match="agreement cannot be written"):
        runs.start(1).run(lambda line: None, lambda: None)


def test_reports_have_the_scores_and_escape_text(runs):
    all_runs = runs.start(1, 3)
    all_runs.run(lambda text: None, lambda: None)
    report = make_report(all_runs)
    own = report["tasks"]["agreement"]
    # The first sentence of one pair is preferred, and two pairs are ties.
    assert own["scores"]["<1>"]["accuracy"]["mean"] == pytest.approx(2 / 3) and report["mean"]["<3>"] == 1
    assert own["tests"][0]["difference"] == pytest.approx(-1 / 3)
    assert "| agreement | accuracy | 0.6667 | 1.0000 |" in markdown(report) and "- &lt;1>: 1" in markdown(report)
    assert own["scores"]["<1>"]["accuracy"]["deviation"] is None and "0.0000" not in markdown(report).partition("## Tests")[0]
    html = page(report)
    assert (
        "<td>0.6667</td>" in html and "&lt;1&gt;" in html and "<1>" not in html and "<script" not in html and "http:" not in html
    )
    assert html.count("<circle") == 4


def test_a_score_that_is_not_defined_is_named_in_each_report(runs):
    """The correlation with predictions that are all equal."""
    all_runs = runs.start(1, 3)
    lines = []
    all_runs.run(lines.append, lambda: None)
    all_runs.results["agreement", "<3>", 0] = Result({"accuracy": math.nan}, (1, 1, 1), {})
    report = make_report(all_runs)
    note = "agreement by <3>, seed 0: accuracy undefined, as the correlation with predictions that are all equal"
    assert report["tasks"]["agreement"]["notes"][0].startswith(note) and note.replace("<", "&lt;") in markdown(report)
    assert "| agreement | accuracy | 0.6667 | undefined |" in markdown(report) and "| mean |  | 0.6667 | undefined |" in markdown(
        report
    )
    html = page(report)
    assert "<td>undefined</td>" in html and "nan" not in html.lower() and html.count("<circle") == 3


def test_a_plot_holds_all_values(runs):
    """Also those of a metric that is no share and no percentage."""
    all_runs = runs.start(1, 3)
    all_runs.run([].append, lambda: None)
    all_runs.results["agreement", "<3>", 0] = Result({"accuracy": 250.0}, (1, 1, 1), {})
    places = [float(place) for place in re.findall(r"<circle cx='([\d.]+)'", page(make_report(all_runs)))]
    (width,) = set(re.findall(r"viewBox='0 0 (\d+) ", page(make_report(all_runs))))
    assert len(places) == 4 and max(places) < int(width)

"""Report of cloze measurements: values for JSON, and tables of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertfam.analysis.cloze.bias_pairs import DIRECTIONS
from bertfam.analysis.cloze.blanks import BlankScores, calibration_of, summarize
from bertfam.errors import UserError

MODEL, UNIGRAM = "model", "unigram"
BIAS = "bias"  # kind whose answers are those of the stereotype, and not right ones
_COLUMNS = {
    "rank": "{:,.0f}",
    "probability": "{:.4f}",
    "top1": "{:.1%}",
    "top10": "{:.1%}",
    "choice": "{:.1%}",
    "chance": "{:.1%}",
}
_SHOWN = 3  # predictions of an item in tables

Scores = Mapping[str, Sequence[BlankScores]]  # by the names of the predictors, the model first


def blank_report(scores: Scores, given: int) -> dict[str, Any]:
    """Return the results of the items of each kind, as JSON values.

    Args:
      scores: scores of the items that the model can read.
      given: number of items that were given.

    Raises:
      UserError: the model can read none.
    """
    if not scores[MODEL]:
        raise UserError("every item is longer than the model reads; shorten them")
    kinds = list(dict.fromkeys(one.item.kind for one in scores[MODEL]))
    return {
        "skipped": given - len(scores[MODEL]),
        "kinds": {
            kind: {name: summarize([one for one in own if one.item.kind == kind]) for name, own in scores.items()}
            for kind in kinds
        },
        "calibration": {name: calibration_of([one for one in own if one.item.kind != BIAS]) for name, own in scores.items()},
        "items": [_item(one) for one in scores[MODEL]],
    }


def _item(one: BlankScores) -> dict[str, Any]:
    fillers = zip((*one.item.answers, *one.item.distractors), one.probabilities.tolist(), one.ranks.tolist(), strict=True)
    return {
        "kind": one.item.kind,
        "text": one.item.text,
        "answers": one.item.answers,
        "rank": one.rank,
        "probability": one.probability,
        "choice": one.choice,
        "fillers": [{"text": text, "probability": probability, "rank": rank} for text, probability, rank in fillers],
        "best": [{"token": token, "probability": probability} for token, probability in one.best],
    }


def tables(report: Mapping[str, Any], *, show_items: bool = False) -> dict[str, list[list[str]]]:
    """Return the tables of a report by their titles; the first row of each is its header."""
    found = {}
    if blanks := report.get("blanks"):
        found["Blanks"] = _kind_rows(blanks["kinds"])
        if blanks["calibration"][MODEL]["items"]:
            found["Calibration of the likeliest token, all kinds but bias"] = _bin_rows(blanks["calibration"][MODEL])
        if show_items:
            found["Items"] = _item_rows(blanks["items"])
    if facts := report.get("facts"):
        found["Facts"] = _fact_rows(facts)
        if facts[MODEL]["facts"]:
            found["Calibration of the likeliest token, facts"] = _bin_rows(facts[MODEL]["calibration"])
    if bias := report.get("bias"):
        found["Pairs about bias: how often the more stereotyping sentence is likelier"] = _bias_rows(bias)
    return found


def _kind_rows(kinds: Mapping[str, Any]) -> list[list[str]]:
    rows = [["kind", "items", "by", "rank", "probability", "top-1", "top-10", "choice", "chance", "ECE"]]
    for kind, own in kinds.items():
        for name, summary in own.items():
            cells = [_cell(form, summary[column]) for column, form in _COLUMNS.items()]
            error = _cell("{:.3f}", summary["calibration"]["error"] if summary["calibration"]["items"] else None)
            rows.append([kind, f"{summary['items']:,}", name, *cells, error])
    return rows


def _bin_rows(calibration: Mapping[str, Any]) -> list[list[str]]:
    rows = [["probability", "predictions", "mean", "right"]]
    for own in calibration["bins"]:
        if own["predictions"]:
            shares = f"{own['confidence']:.3f}", f"{own['accuracy']:.3f}"
            rows.append([f"{own['low']:.1f} to {own['high']:.1f}", f"{own['predictions']:,}", *shares])
    rows.append(["expected calibration error", "", "", f"{calibration['error']:.3f}"])
    return rows


def _item_rows(items: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["text", "rank", "probability", "likeliest tokens"]]
    for own in items:
        best = "  ".join(f"{one['token']} {one['probability']:.1%}" for one in own["best"][:_SHOWN])
        rows.append([own["text"], f"{own['rank']:,}", f"{own['probability']:.4f}", best])
    return rows


def _fact_rows(facts: Mapping[str, Any]) -> list[list[str]]:
    rows = [["relation", "facts", "left out", "P@1", "P@10", "P@1 of objects", UNIGRAM, "majority"]]

    def cells(own: Mapping[str, Any], unigram: Mapping[str, Any]) -> list[str]:
        shares = [own.get(name) for name in ("p_at_1", "p_at_10", "typed_p_at_1")]
        shares += [unigram.get("typed_p_at_1"), own.get("majority")]
        return [f"{own['facts']:,}", f"{own['left_out']:,}", *(_cell("{:.1%}", share) for share in shares)]

    unigram = facts.get(UNIGRAM, {"relations": {}})
    for relation, own in facts[MODEL]["relations"].items():
        rows.append([relation, *cells(own, unigram["relations"].get(relation, {}))])
    return [*rows, ["mean of relations", *cells(facts[MODEL], unigram)]]


def _bias_rows(bias: Mapping[str, Any]) -> list[list[str]]:
    parts = ("all", *DIRECTIONS)
    rows = [["type", *(cell for part in parts for cell in (part, "likelier")), "ties"]]
    for name, own in [*bias["types"].items(), ("all", bias)]:
        cells = [cell for part in parts for cell in (f"{own[part]['pairs']:,}", _cell("{:.1%}", own[part]["prefers"]))]
        rows.append([name, *cells, f"{own['ties']:,}"])
    return rows


def _cell(form: str, value: float | None) -> str:
    return "-" if value is None else form.format(value)

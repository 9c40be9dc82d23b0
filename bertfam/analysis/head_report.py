"""Report of the roles of heads: measured values, and tables of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from bertfam.analysis.attention_sums import AttentionSums
from bertfam.analysis.coreference import CoreferenceTask, Passage
from bertfam.analysis.dependencies import DependencyTask, Sentence
from bertfam.analysis.head_statistics import head_statistics, head_sums, statistic_features
from bertfam.analysis.subject import Subject, batches
from bertfam.errors import UserError, warn
from bertfam.plurals import plural

TRAINED, RANDOM = "trained", "random initialisation"
_FEWEST = 50  # words of a relation that tables show
_MOST = 8  # heads of a table of the best ones
# Column of the table of heads -> the statistic.
_COLUMNS = {
    "conf": "confidence",
    "entropy": "entropy",
    "prev": "previous",
    "next": "next",
    "same": "same",
    "[CLS]": "cls",
    "[SEP]": "sep",
    "punct": "punctuation",
    "rare": "rare",
}

_CROSS_COLUMNS = {
    **{name: _COLUMNS[name] for name in ("conf", "entropy", "[CLS]", "[SEP]", "punct", "rare")},
    "place": "same_place",
}

Parameters = Mapping[str, Any]  # parameters by the name of their column


def measure_statistics(subject: Subject, params: Parameters, texts: Sequence[str], batch_size: int) -> dict[str, Any]:
    """Measure the statistics of all heads on texts, as JSON values."""
    rows = [subject.row(text) for text in texts]
    rows = [row for row in rows if (row.texts >= 0).any()]
    if not rows:
        raise UserError("--input has no text")
    if cut := sum(row.is_cut for row in rows):
        warn([f"{plural(cut, 'text')} of {len(rows):,} cut after {subject.length} tokens"])
    features, sums = statistic_features(subject, rows), AttentionSums(subject, head_sums)
    by_params = {name: sums.total(own, batches(features, batch_size), f"statistics, {name}") for name, own in params.items()}
    first = next(iter(by_params.values()))
    return {
        "texts": len(rows),
        "tokens": int(first["queries"]),
        "uniform_entropy": (first["uniform_entropy"] / first["queries"]).tolist(),
        "rare_by_chance": float(first["rare_by_chance"] / first["queries"]),
        "heads": {name: [asdict(one) | {"roles": one.roles} for one in head_statistics(own)] for name, own in by_params.items()},
    }


def measure_dependencies(subject: Subject, params: Parameters, sentences: Sequence[Sentence], batch_size: int) -> dict[str, Any]:
    """Measure the best head for each relation of sentences, as JSON values."""
    task = DependencyTask(subject, sentences)
    scores = _measured(subject, params, task, batch_size, "dependencies")
    counts = {"sentences": len(task.sentences), "skipped": task.skipped}
    return counts | {"scores": {name: [asdict(one) for one in task.scores(sums)] for name, sums in scores.items()}}


def measure_coreference(subject: Subject, params: Parameters, passages: Sequence[Passage], batch_size: int) -> dict[str, Any]:
    """Measure all heads on passages with pronouns, as JSON values."""
    task = CoreferenceTask(subject, passages)
    scores = _measured(subject, params, task, batch_size, "coreference")
    counts = {"passages": len(task.passages), "skipped": task.skipped, "baselines": task.baselines()}
    return counts | {"scores": {name: [asdict(one) for one in task.scores(sums)] for name, sums in scores.items()}}


def _measured(
    subject: Subject, params: Parameters, task: DependencyTask | CoreferenceTask, batch_size: int, name: str
) -> dict[str, dict[str, np.ndarray]]:
    sums: Callable[[Any, Mapping[str, jax.Array]], dict[str, jax.Array]] = task.sums
    program = AttentionSums(subject, sums)
    return {column: program.total(own, batches(task.features, batch_size), f"{name}, {column}") for column, own in params.items()}


def tables(report: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the tables of a report by their titles; the first row of each is its header."""
    found = {}
    if statistics := report.get("statistics"):
        for name, heads in statistics["heads"].items():
            found[f"Heads, {name}"] = _head_rows(heads)
        found["Means over the heads of a layer"] = _layer_rows(statistics["heads"])
    if cross := report.get("cross_attention"):
        for name, heads in cross["heads"].items():
            found[f"Cross-attention, {name}"] = _cross_rows(heads)
    if dependencies := report.get("dependencies"):
        found["Dependencies"] = _dependency_rows(dependencies["scores"])
    if coreference := report.get("coreference"):
        found["Coreference"] = _coreference_rows(coreference)
    return found


def notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence about the data of each kind of table, by the beginning of their titles."""
    found = {}
    if own := report.get("statistics"):
        # Layers with windows differ from others.
        ends = min(own["uniform_entropy"]), max(own["uniform_entropy"])
        uniform = " to ".join(dict.fromkeys(f"{value:.2f}" for value in ends))
        found["Heads"] = (
            f"{plural(own['texts'], 'text')}, {plural(own['tokens'], 'token')} as queries. Entropy of uniform attention: "
            f"{uniform} nats. Rare tokens by chance: {own['rare_by_chance']:.1%}."
        )
    if own := report.get("cross_attention"):
        found["Cross-attention"] = (
            f"{plural(own['pairs'], 'text')} with targets, whose {plural(own['tokens'], 'token')} are the queries. Entropy of "
            f"uniform attention: {own['uniform_entropy']:.2f} nats. By chance: the same place {own['place_by_chance']:.1%}, rare "
            f"tokens {own['rare_by_chance']:.1%}."
        )
    if own := report.get("dependencies"):
        found["Dependencies"] = (
            f"{plural(own['sentences'], 'sentence')}, {own['skipped']:,} too long. Accuracy of the best head for each relation "
            "with at least "
            f"{_FEWEST} words, and of the best fixed offset. Heads and offsets are chosen on these sentences."
        )
    if own := report.get("coreference"):
        found["Coreference"] = (
            f"{plural(own['passages'], 'passage')}, {own['skipped']:,} too long. Share of the pronouns for which a head gives "
            "more weight to the right one of two names."
        )
    return found


def _head_rows(heads: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["head", *_COLUMNS, "offset", "share", "roles"]]
    for own in heads:
        cells = [f"{own[name]:.2f}" for name in _COLUMNS.values()]
        rows.append([_name(own), *cells, f"{own['offset']:+d}", f"{own['offset_share']:.2f}", ", ".join(own["roles"])])
    return rows


def _cross_rows(heads: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    rows = [["head", *_CROSS_COLUMNS, "roles"]]
    return rows + [
        [_name(own), *(f"{own[name]:.2f}" for name in _CROSS_COLUMNS.values()), ", ".join(own["roles"])] for own in heads
    ]


def _layer_rows(by_params: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    rows = [["layer", "parameters", *_COLUMNS, "[SEP] to [SEP]", "entropy of [CLS]"]]
    names = (*_COLUMNS.values(), "sep_to_sep", "cls_entropy")
    layers = sorted({own["layer"] for heads in by_params.values() for own in heads})
    for layer in layers:
        for params, heads in by_params.items():
            chosen = [own for own in heads if own["layer"] == layer]
            rows.append([str(layer), params, *(f"{np.mean([own[name] for own in chosen]):.2f}" for name in names)])
    return rows


def _dependency_rows(scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[list[str]]:
    header = ["relation", "words", "offset", "accuracy"]
    rows = [[*header, *(cell for name in scores for cell in (name, "accuracy", "direction"))]]
    for own in zip(*scores.values(), strict=True):
        first = own[0]
        if first["count"] >= _FEWEST:
            cells = [cell for one in own for cell in (_name(one), f"{one['accuracy']:.1%}", one["direction"])]
            rows.append(
                [first["relation"], f"{first['count']:,}", f"{first['offset']:+d}", f"{first['offset_accuracy']:.1%}", *cells]
            )
    return rows


def _coreference_rows(coreference: Mapping[str, Any]) -> list[list[str]]:
    rows = [["", "head", "direction", "accuracy"]]
    rows += [[name, "", "", f"{share:.1%}"] for name, share in coreference["baselines"].items()]
    for name, scores in coreference["scores"].items():
        rows += [[name, _name(own), own["direction"], f"{own['accuracy']:.1%}"] for own in scores[:_MOST]]
    return rows


def _name(own: Mapping[str, Any]) -> str:
    return f"{own['layer']}-{own['head']}"

"""Facts as cloze texts: precision at 1 for each relation (LAMA, Petroni et al. 2019)."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertfam.analysis.cloze.blanks import Filler, fill_blank, hidden_token
from bertfam.analysis.cloze.calibration import calibrate
from bertfam.analysis.cloze.items import Item
from bertfam.data.corpora.formats import read_objects, replace_invalid, string_field
from bertfam.decoding.hidden_tokens import TokenPredictor, predict
from bertfam.errors import UserError

_SUBJECT, _OBJECT = "[X]", "[Y]"
_FIELDS = ("relation", "template", "subject", "object")
_FORM = (
    f'each line must be {{"relation": a name, "template": a text with {_SUBJECT} and {_OBJECT}, "subject": a text, '
    '"object": a text}'
)


class Fact(NamedTuple):
    """Fact in the words of its relation's template.

    Attributes:
      relation: name of the relation.
      subject: the subject.
      item: the template with the subject, a blank for the object, and the object as answer.
    """

    relation: str
    subject: str
    item: Item


def read_facts(path: str | os.PathLike[str], limit: int | None = None) -> list[Fact]:
    """Read a file of JSON lines with "relation", "template", "subject" and "object", plain or compressed.

    Args:
      path: the file.
      limit: number of facts of each relation; None: all.

    Raises:
      UserError: a line is malformed, or there is none.
    """
    facts, counts = [], Counter[str]()
    for where, record in read_objects(path, "utf-8", f"; {_FORM}"):
        texts = [replace_invalid(string_field(record, name, where, _FORM)).strip() for name in _FIELDS]
        relation, template, subject, answer = texts
        if template.count(_SUBJECT) != 1 or template.count(_OBJECT) != 1:
            raise UserError(f"{where}: the template must have {_SUBJECT} and {_OBJECT} once each, and is {template!r}")
        if not answer:
            raise UserError(f'{where}: "object" is empty; {_FORM}')
        counts[relation] += 1
        if limit is None or counts[relation] <= limit:
            before, _, behind = template.partition(_OBJECT)
            before, behind = (part.replace(_SUBJECT, subject) for part in (before, behind))
            facts.append(Fact(relation, subject, Item(before, behind, (answer,), (), relation, where)))
    if not facts:
        raise UserError(f"{path} has no line: {_FORM}")
    return facts


@dataclass(frozen=True)
class FactScores:
    """Scores of the facts of one relation whose objects are single tokens, float64[facts] each but for the counts.

    Attributes:
      relation: name of the relation.
      left_out: number of facts whose objects are several tokens or unknown, or that are longer than the model reads.
      ranks: rank of the object among all tokens, without the other objects of the same subject.
      typed_ranks: its rank among all objects of the relation, without the other objects of the same subject.
      confidences: probability of the likeliest token.
      is_right: 1 if that is an object of the subject.
      majority: share of the relation's commonest object.
    """

    relation: str
    left_out: int
    ranks: np.ndarray
    typed_ranks: np.ndarray
    confidences: np.ndarray
    is_right: np.ndarray
    majority: float

    def numbers(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        if not len(self.ranks):
            return {"facts": 0, "left_out": self.left_out}
        return {
            "facts": len(self.ranks),
            "left_out": self.left_out,
            "p_at_1": float(np.mean(self.ranks <= 1)),
            "p_at_10": float(np.mean(self.ranks <= 10)),
            "typed_p_at_1": float(np.mean(self.typed_ranks <= 1)),
            "majority": self.majority,
        }


def score_facts(
    predictor: TokenPredictor, facts: Sequence[Fact], *, batch_size: int, progress: str | None = None
) -> list[FactScores]:
    """Score the facts of each relation, in the order in which the relations come first.

    Raises:
      UserError: an object has no token, or the model's logits are not numbers.
    """
    grouped: defaultdict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        grouped[fact.relation].append(fact)
    return [
        _score_relation(predictor, name, own, batch_size, progress and f"{progress}, {name}") for name, own in grouped.items()
    ]


def _score_relation(
    predictor: TokenPredictor, relation: str, facts: Sequence[Fact], batch_size: int, progress: str | None
) -> FactScores:
    filled = [(fact, fill_blank(predictor, fact.item, fact.item.answers[0])) for fact in facts]
    kept = [(fact, filler) for fact, filler in filled if _is_scored(predictor, filler)]
    objects = [int(filler.tokens[filler.places[0]]) for _, filler in kept]
    types = np.unique(np.array(objects, np.int64))
    rows = [hidden_token(predictor, filler) for _, filler in kept]
    found = predict(predictor, rows, choices=types, batch_size=batch_size, progress=progress)
    if np.isnan(found.log_probabilities).any():
        raise UserError("the model's logits are not numbers, so it fills no blank: did its training diverge?")
    valid: defaultdict[str, set[int]] = defaultdict(set)  # objects of each subject
    for (fact, _), token in zip(kept, objects, strict=True):
        valid[fact.subject].add(token)
    ranks, typed, is_right = (np.zeros(len(kept)) for _ in range(3))
    for number, ((fact, _), token) in enumerate(zip(kept, objects, strict=True)):
        likelier = found.choices[number] > found.choices[number][types == token]
        others = np.isin(types, list(valid[fact.subject] - {token}))
        ranks[number] = found.ranks[number, 0] - np.sum(likelier & others)
        typed[number] = 1 + np.sum(likelier & ~others)
        is_right[number] = int(found.best[number, 0, 0]) in valid[fact.subject]
    confidences = np.exp(found.best_log_probabilities[:, 0, 0]) if kept else np.zeros(0)
    majority = max(Counter(objects).values(), default=0) / max(len(objects), 1)
    return FactScores(relation, len(facts) - len(kept), ranks, typed, confidences, is_right, majority)


def _is_scored(predictor: TokenPredictor, filler: Filler) -> bool:
    fits = predictor.max_length is None or len(filler.tokens) <= predictor.max_length
    return len(filler.places) == 1 and filler.is_known and fits


def fact_report(scores: Sequence[FactScores]) -> dict[str, Any]:
    """Return the results of all relations as JSON values, with their means over relations and the calibration of all facts."""
    relations = {one.relation: one.numbers() for one in scores}
    scored = [own for own in relations.values() if own["facts"]]
    names = ("p_at_1", "p_at_10", "typed_p_at_1", "majority")
    means = {name: float(np.mean([own[name] for own in scored])) if scored else None for name in names}
    confidences, is_right = (np.concatenate([getattr(one, name) for one in scores]) for name in ("confidences", "is_right"))
    error, bins = calibrate(confidences, is_right)
    counts = {name: sum(own[name] for own in relations.values()) for name in ("facts", "left_out")}
    calibration = {"error": error, "bins": [one._asdict() for one in bins]}
    return {**counts, **means, "relations": relations, "calibration": calibration}

"""Questions with several texts to label, which are scored and submitted together: MultiRC and ReCoRD."""

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from bertfam.finetuning.answer_scores import exact, f1

Record = Mapping[str, Any]


class Questions(ABC):
    """Base class of questions whose texts are records, one after another, each with two outputs: those of wrong and right."""

    @abstractmethod
    def scores(self, records: Sequence[Record], outputs: np.ndarray) -> dict[str, float]:
        """Compute the published scores by name, given the outputs float32[records, 2]."""

    @abstractmethod
    def outcomes(self, records: Sequence[Record], outputs: np.ndarray) -> np.ndarray:
        """Return 1 for each question with the right answer, else 0: float64[questions]."""

    @abstractmethod
    def lines(self, records: Sequence[Record], outputs: np.ndarray) -> Iterator[str]:
        """Yield the lines of a submission."""


class AnswerSets(Questions):
    """MultiRC's questions: any number of the given answers are right (Khashabi et al. 2018, section 5).

    F1a is the F1 of right answers over all answers of all questions, and the exact match is the share of questions whose answers
    are all labelled rightly.
    """

    @override
    def scores(self, records: Sequence[Record], outputs: np.ndarray) -> dict[str, float]:
        predicted, true = outputs.argmax(axis=1) == 1, _labels(records)
        both = 2 * np.sum(predicted & true)
        f1a = both / max(predicted.sum() + true.sum(), 1)
        return {"f1a": float(f1a), "exact_match": float(self.outcomes(records, outputs).mean())}

    @override
    def outcomes(self, records: Sequence[Record], outputs: np.ndarray) -> np.ndarray:
        is_right = (outputs.argmax(axis=1) == 1) == _labels(records)
        return np.array([is_right[own].all() for own in self._groups(records).values()], np.float64)

    @override
    def lines(self, records: Sequence[Record], outputs: np.ndarray) -> Iterator[str]:
        labels, passages = outputs.argmax(axis=1).tolist(), dict[Hashable, list[Any]]()
        for (passage, question), own in self._groups(records).items():
            answers = [{"idx": records[index]["answer_idx"], "label": labels[index]} for index in own]
            passages.setdefault(passage, []).append({"idx": question, "answers": answers})
        for passage, questions in passages.items():
            yield json.dumps({"idx": passage, "passage": {"questions": questions}}) + "\n"

    def _groups(self, records: Sequence[Record]) -> dict[Any, list[int]]:
        return _grouped((record["passage_idx"], record["question_idx"]) for record in records)


class Cloze(Questions):
    """ReCoRD's queries: the predicted entity is that with the greatest margin of right over wrong.

    Scores are exact match and F1 of words as SQuAD's, the best over the true answers of a query (Zhang et al. 2018, section 5).
    """

    @override
    def scores(self, records: Sequence[Record], outputs: np.ndarray) -> dict[str, float]:
        predicted = self._predicted(records, outputs)
        values = [
            [max(metric(records[index]["answer"], true) for true in records[index]["answers"]) for metric in (f1, exact)]
            for index in predicted
        ]
        return dict(zip(("f1", "exact_match"), np.mean(values, axis=0).tolist(), strict=True))

    @override
    def outcomes(self, records: Sequence[Record], outputs: np.ndarray) -> np.ndarray:
        best = [records[index] for index in self._predicted(records, outputs)]
        return np.array([max(exact(record["answer"], true) for true in record["answers"]) for record in best])

    @override
    def lines(self, records: Sequence[Record], outputs: np.ndarray) -> Iterator[str]:
        for index in self._predicted(records, outputs):
            line = {"idx": records[index]["question_idx"], "label": records[index]["answer"]}
            yield json.dumps(line) + "\n"

    def _predicted(self, records: Sequence[Record], outputs: np.ndarray) -> list[int]:
        """Return the record of the predicted entity of each query."""
        margin = outputs[:, 1] - outputs[:, 0]
        groups = _grouped(record["question_idx"] for record in records)
        return [max(own, key=margin.__getitem__) for own in groups.values()]


def _grouped(keys: Iterator[Hashable]) -> dict[Any, list[int]]:
    """Return the indices of equal keys, by key."""
    groups = dict[Any, list[int]]()
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return groups


def _labels(records: Sequence[Record]) -> np.ndarray:
    """Return the true labels of records: bool[records]."""
    return np.array([str(record["label"]) == "1" for record in records])

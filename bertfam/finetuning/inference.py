"""Kinds of prediction from file to file: what is read, predicted, written and scored."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.open_questions import AnswerFiles, OpenQuestion, read_questions
from bertfam.data.corpora.labelled.question_files import Question, QuestionFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.corpora.labelled.target_files import TargetFiles
from bertfam.decoding.strategies import BeamSearch, Greedy, Strategy
from bertfam.errors import UserError
from bertfam.finetuning.answer_scores import score_answers
from bertfam.finetuning.answers import Answer, find_answers
from bertfam.finetuning.predictions import PredictionFormat, Records, cell_line, json_line, prediction_format, records_of
from bertfam.finetuning.predictor import Predictor
from bertfam.finetuning.rag_predictor import RagAnswer, RagPredictor
from bertfam.finetuning.scores import has_entities, require, right, score, score_tags, score_targets
from bertfam.finetuning.target_predictor import TargetPredictor
from bertfam.objectives.fine_tuning.heads import SpanExtraction
from bertfam.retrieval.hard_negatives import words_of


@dataclass(frozen=True)
class Inference(ABC):
    """Base class of the kinds of prediction.

    Attributes:
      predictor: The model.
      batch_size: Rows at a time.
      corpus: The files.
    """

    predictor: Any
    batch_size: int
    corpus: FileCorpus

    @property
    def at_once(self) -> int:
        """Number of items between two writes."""
        return 2048

    @abstractmethod
    def items(self) -> Iterator[Any]:
        """Yield what is predicted, with the true labels if they are read."""

    @abstractmethod
    def predict(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs for each item."""

    @abstractmethod
    def records(self, items: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
        """Return the records of a file of predictions."""

    @abstractmethod
    def scores(self, items: Sequence[Any], outputs: Sequence[Any]) -> dict[str, float]:
        """Return the scores of predictions for items with true labels."""

    def check_scores(self) -> None:  # noqa: B027  (SQuAD's scores need no package)
        """Raise UserError if a package that `scores` uses is not installed."""

    def outcomes(self, items: Sequence[Any], outputs: Sequence[Any]) -> np.ndarray:
        """Return the first of the scores of each item alone: float64[items]. Models are compared by it, item by item."""
        return np.array([next(iter(self.scores([item], [output]).values())) for item, output in zip(items, outputs, strict=True)])

    @property
    def header(self) -> str:
        """Line before the first record; "" where there is none."""
        return ""

    @property
    def end(self) -> str:
        """Text with which a record ends, and that it has nowhere else."""
        return "\n"

    @property
    def conversion(self) -> Callable[[str], str] | None:
        """Conversion of all records to the content of the file; None: they are that."""
        return None


@dataclass(frozen=True)
class TextInference(Inference):
    """Labels of texts.

    Attributes:
      predictor: The model.
      output: The file to write; None for scores alone.
      probabilities: Write the probability of each class, too.
    """

    predictor: Predictor
    corpus: LabelledFiles
    output: str | None
    probabilities: bool

    @override
    def items(self) -> Iterator[tuple[list[str], str | None]]:
        for path in self.corpus.files("train"):
            for where, texts, label in self.corpus.records(path):
                yield texts, None if self.corpus.label is None else self.corpus.numbers(label, where)

    @override
    def predict(self, items: Sequence[tuple[list[str], str | None]]) -> Sequence[np.ndarray]:
        return list(self.predictor.outputs([texts for texts, _ in items], self.batch_size))

    @override
    def records(self, items: Sequence[Any], outputs: Sequence[np.ndarray]) -> list[str]:
        return self._records.of_texts(np.stack(outputs))

    @override
    def scores(self, items: Sequence[tuple[list[str], str | None]], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        return score(self.predictor.objective.head, np.stack(outputs), _labels(items))

    @override
    def check_scores(self) -> None:
        require("sklearn")

    @override
    def outcomes(self, items: Sequence[tuple[list[str], str | None]], outputs: Sequence[np.ndarray]) -> np.ndarray:
        return right(self.predictor.objective.head, np.stack(outputs), _labels(items))

    @property
    @override
    def header(self) -> str:
        return self._records.header

    @property
    def _records(self) -> Records:
        return records_of(self.predictor.objective.head, str(self.output), probabilities=self.probabilities)


def _labels(items: Sequence[tuple[list[str], str | None]]) -> np.ndarray:
    """Return the true labels float32[texts, labels]."""
    return np.array([str(label).split() for _, label in items], np.float32)


@dataclass(frozen=True)
class WordInference(Inference):
    """Tags of words.

    Attributes:
      predictor: The model.
      output: The file to write; None for scores alone.
    """

    predictor: Predictor
    corpus: TaggedFiles
    output: str | None

    @override
    def items(self) -> Iterator[tuple[list[str], list[str]]]:
        for path in self.corpus.files("train"):
            for where, words, tags in self.corpus.records(path):
                self.corpus.check_tags(tags, where)
                yield words, tags

    @override
    def predict(self, items: Sequence[tuple[list[str], list[str]]]) -> Sequence[np.ndarray]:
        return self.predictor.word_outputs([words for words, _ in items], self.batch_size)

    @override
    def records(self, items: Sequence[tuple[list[str], list[str]]], outputs: Sequence[np.ndarray]) -> list[str]:
        return self._records.of_words([words for words, _ in items], outputs)

    @override
    def scores(self, items: Sequence[tuple[list[str], list[str]]], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        return score_tags(self.predictor.objective.head, outputs, [tags for _, tags in items])

    @override
    def check_scores(self) -> None:
        if has_entities(self.predictor.objective.head):
            require("seqeval")

    @property
    @override
    def end(self) -> str:
        return self._records.end

    @property
    def _records(self) -> Records:
        return records_of(self.predictor.objective.head, str(self.output), probabilities=False)


@dataclass(frozen=True)
class QuestionInference(Inference):
    """Answers to questions.

    Attributes:
      predictor: The model.
      output: The file to write; None for scores alone.
      threshold: Margin of no answer, above which there is none, for a model that was trained on such questions.
    """

    predictor: Predictor
    corpus: QuestionFiles
    output: str | None
    threshold: float = 0.0

    @override
    def items(self) -> Iterator[Question]:
        for path in self.corpus.files("train"):
            yield from self.corpus.questions(path)

    @override
    def predict(self, items: Sequence[Question]) -> Sequence[Answer]:
        pairs = [(item.question, item.context) for item in items]
        return find_answers(self.predictor, pairs, batch_size=self.batch_size)

    @override
    def records(self, items: Sequence[Question], outputs: Sequence[Answer]) -> list[str]:
        return [
            json.dumps(
                {
                    "id": item.id,
                    "prediction": answer.predicted(self.predictor.objective.head, self.threshold),
                    "begin": answer.begin,
                    "score": answer.score,
                    "no_answer_score": answer.no_answer_score,
                },
                ensure_ascii=False,
            )
            + "\n"
            for item, answer in zip(items, outputs, strict=True)
        ]

    @override
    def scores(self, items: Sequence[Question], outputs: Sequence[Answer]) -> dict[str, float]:
        margins = [answer.no_answer_margin for answer in outputs] if self._has_no_answer else None
        return score_answers(items, [answer.text for answer in outputs], margins, self.threshold)

    @property
    @override
    def conversion(self) -> Callable[[str], str] | None:
        if not str(self.output).endswith((".json", ".jsonl")):
            raise UserError(f"--output={self.output}: the name must end in .json (SQuAD's format) or .jsonl")
        return _squad_format if str(self.output).endswith(".json") else None

    @property
    def _has_no_answer(self) -> bool:
        head = self.predictor.objective.head
        assert isinstance(head, SpanExtraction)
        return head.has_no_answer


@dataclass(frozen=True)
class TargetInference(Inference):
    """Target texts.

    Attributes:
      predictor: The model.
      output: The file to write; None for scores alone.
      strategy: Method of choosing tokens.
    """

    predictor: TargetPredictor
    corpus: TargetFiles
    output: str | None
    strategy: Strategy

    @property
    @override
    def at_once(self) -> int:
        return 256

    @override
    def items(self) -> Iterator[tuple[str, str | None]]:
        for path in self.corpus.files("train"):
            for _, text, target in self.corpus.records(path):
                yield text, target

    @override
    def predict(self, items: Sequence[tuple[str, str | None]]) -> Sequence[str]:
        found = self.predictor.generate([text for text, _ in items], self.strategy, self.batch_size)
        return [text.text for text in found]

    @override
    def records(self, items: Sequence[Any], outputs: Sequence[str]) -> list[str]:
        if self._format == "jsonl":
            return [json_line({"prediction": text}) for text in outputs]
        return [cell_line([text], self._format) for text in outputs]

    @override
    def scores(self, items: Sequence[tuple[str, str | None]], outputs: Sequence[str]) -> dict[str, float]:
        return score_targets(outputs, [str(target) for _, target in items])

    @override
    def check_scores(self) -> None:
        require("sacrebleu")

    @property
    @override
    def header(self) -> str:
        return "" if self._format == "jsonl" else cell_line(["prediction"], self._format)

    @property
    def _format(self) -> PredictionFormat:
        return prediction_format(str(self.output))


@dataclass(frozen=True)
class RagInference(Inference):
    """Answers to questions from passages.

    Attributes:
      predictor: The model.
      output: The file to write; None for scores alone.
      strategy: Method of choosing tokens.
      answered: True to read the answers of the questions, for scores.
    """

    predictor: RagPredictor
    corpus: AnswerFiles
    output: str | None
    strategy: Greedy | BeamSearch
    answered: bool

    @property
    @override
    def at_once(self) -> int:
        return 256

    @override
    def items(self) -> Iterator[OpenQuestion]:
        for path in self.corpus.files("train"):
            yield from read_questions(path, answered=self.answered)

    @override
    def predict(self, items: Sequence[OpenQuestion]) -> Sequence[RagAnswer]:
        return self.predictor.answer([item.question for item in items], self.strategy, self.batch_size)

    @override
    def records(self, items: Sequence[OpenQuestion], outputs: Sequence[RagAnswer]) -> list[str]:
        if self._format != "jsonl":
            return [cell_line([answer.text], self._format) for answer in outputs]
        texts = self._texts(outputs)
        return [
            json_line(
                {
                    "question": item.question,
                    "prediction": answer.text,
                    "score": answer.score,
                    "passages": [
                        {"passage": number, "probability": probability, "text": texts[number]}
                        for number, probability in zip(answer.passages, answer.probabilities, strict=True)
                    ],
                }
            )
            for item, answer in zip(items, outputs, strict=True)
        ]

    @override
    def scores(self, items: Sequence[OpenQuestion], outputs: Sequence[RagAnswer]) -> dict[str, float]:
        asked = [Question("", item.question, "", [(text, 0) for text in item.answers], False) for item in items]
        scores = score_answers(asked, [answer.text for answer in outputs], None, 0.0)
        words = {number: words_of(text) for number, text in self._texts(outputs).items()}
        found = [
            any(words_of(text) in words[number] for text in item.answers for number in answer.passages)
            for item, answer in zip(items, outputs, strict=True)
        ]
        return scores | {"answer_in_passages": 100 * float(np.mean(found))}

    def _texts(self, outputs: Sequence[RagAnswer]) -> dict[int, str]:
        """Return the texts of the passages of answers by their numbers."""
        return self.predictor.index.texts_of({number for answer in outputs for number in answer.passages})

    @property
    @override
    def header(self) -> str:
        return "" if self._format == "jsonl" else cell_line(["prediction"], self._format)

    @property
    def _format(self) -> PredictionFormat:
        return prediction_format(str(self.output))


def _squad_format(records: str) -> str:
    """Return the predictions in the format of SQuAD's evaluation: an object with the answer of each question."""
    values = map(json.loads, records.removesuffix("\n").split("\n"))  # U+2028 ends no line
    return json.dumps({value["id"]: value["prediction"] for value in values}, ensure_ascii=False, indent=1) + "\n"

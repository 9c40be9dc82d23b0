"""Scores of a fine-tuned model on the held-out texts of a benchmark task."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from bertfam.data.corpora.file_corpus import is_held_out
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.errors import UserError
from bertfam.finetuning.benchmarks.task import Layout, TaskFiles, read_layout
from bertfam.finetuning.inference import Inference, QuestionInference, TextInference, WordInference
from bertfam.finetuning.predictor import Predictor
from bertfam.finetuning.published import files_of
from bertfam.objectives.fine_tuning.heads import ClassHead


class TaskScores(NamedTuple):
    """Scores on the held-out texts of a task.

    Attributes:
      scores: Each published score by its name, and those of further files as FILE_SCORE.
      outcomes: Score of each held-out text alone, float64[texts] (see `Inference.outcomes`), or of each question of several
        texts; further files have none.
      texts: Number of held-out texts.
    """

    scores: dict[str, float]
    outcomes: np.ndarray
    texts: int


def score_task(predictor: Predictor, files: TaskFiles, batch_size: int = 32) -> TaskScores:
    """Predict the held-out texts of a task and score them by its metrics.

    Args:
      predictor: A model that was fine-tuned on the task; its classes are those of its training files.
      files: The files of the task.
      batch_size: Texts at a time.

    Raises:
      UserError: If the model predicts labels of another kind, or a text has a label that it does not know.
    """
    head = predictor.objective.head
    known: dict[str, Any] = {"classes": head.classes} if isinstance(head, ClassHead) else {}
    trained = predictor.corpus or files_of(head, files.corpus.train)
    kinds = [getattr(corpus, "kind", None) for corpus in (files.corpus, trained)]
    if type(files.corpus) is not type(trained) or kinds[0] != kinds[1]:
        raise UserError(f"the model was not fine-tuned on {files.task.name}, whose labels are of another kind; name its model")
    own: Any = dataclasses.replace(files.corpus, **known)
    scores, outcomes, texts, questions = dict[str, float](), np.zeros(0), 0, files.task.questions
    paths = {"": own.validation or own.train} | {name: (path,) for name, path in files.further.items()}
    for name, names in paths.items():
        fraction = own.validation_fraction if not name and not own.validation else 0.0
        corpus = dataclasses.replace(own, train=tuple(names), validation=(), validation_fraction=fraction)
        inference = _inference(predictor, corpus, batch_size)
        items = _held_out(inference.items(), corpus)
        outputs = inference.predict(items)
        records = _held_out(read_layout(corpus), corpus) if questions else []
        computed = questions.scores(records, np.stack(outputs)) if questions else inference.scores(items, outputs)
        published = [metric for metric in files.task.metrics if metric in computed]
        scores |= {f"{name}_{metric}" if name else metric: computed[metric] for metric in published}
        if not name:
            alone = questions.outcomes(records, np.stack(outputs)) if questions else inference.outcomes(items, outputs)
            outcomes, texts = alone, len(items)
    return TaskScores(scores, outcomes, texts)


def _inference(predictor: Predictor, corpus: Layout, batch_size: int) -> Inference:
    if isinstance(corpus, LabelledFiles):
        return TextInference(predictor, batch_size, corpus, None, False)
    if isinstance(corpus, TaggedFiles):
        return WordInference(predictor, batch_size, corpus, None)
    return QuestionInference(predictor, batch_size, corpus, None)


def _held_out(items: Iterable[Any], corpus: Layout) -> Sequence[Any]:
    """Return the items of all texts of a corpus, or of the held-out ones where it holds some out."""
    if not corpus.validation_fraction:
        return list(items)
    documents = chain.from_iterable(map(corpus.read, corpus.files("train")))
    pairs = zip(items, documents, strict=True)
    return [item for item, lines in pairs if is_held_out(lines, corpus.validation_fraction)]

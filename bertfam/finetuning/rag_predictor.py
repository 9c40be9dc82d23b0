"""Answers of a retrieval-augmented generator, with the passages that it read."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import jax
import numpy as np

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.open_questions import AnswerFiles
from bertfam.data.rows.labelled.question_answers import QuestionAnswers
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_labelled
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.decode import Source, divided_on_cpu
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.over_passages import decode_over_passages
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits
from bertfam.objectives.retrieval.dual_encoder import QUERY
from bertfam.objectives.retrieval.rag import INDEX, Rag
from bertfam.retrieval.index import Index
from bertfam.training.model_dir import TrainedModel

_GREEDY = Greedy()


@dataclass(frozen=True)
class RagAnswer:
    """Answer with its passages.

    Attributes:
      text: The answer.
      score: Its marginal log-likelihood; of a beam search over the marginal of tokens, divided by a power of its length.
      passages: Numbers of the passages in the index, the best first.
      probabilities: p(z | x) of each.
    """

    text: str
    score: float
    passages: list[int]
    probabilities: list[float]


@dataclass(frozen=True)
class RagPredictor:
    """Fine-tuned generator that answers questions from passages.

    Attributes:
      objective: The objective that it was trained with, with other passages or another marginal where these are asked for.
      params: Its parameters.
      vocabulary: Vocabulary of the generator.
      corpus: The questions that it was trained on.
      layout: The layout of its rows.
      length: Tokens of a row.
      step: Step of its checkpoint.
      counts: Number of questions so far: all that were "read", and those of which a part was "cut" off.
      cut_part: Part of a long question that is cut off.
    """

    objective: Rag
    params: Any
    vocabulary: Vocabulary
    corpus: AnswerFiles
    layout: QuestionAnswers
    length: int
    step: int
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    cut_part: ClassVar[str] = "ends"

    @property
    def text_length(self) -> int:
        """Tokens beyond which a question is cut off."""
        return self.layout.question_length

    @cached_property
    def index(self) -> Index:
        """The index of the passages."""
        return Index.open(str(self.objective.index))

    def answer(self, questions: Sequence[str], strategy: Greedy | BeamSearch = _GREEDY, batch_size: int = 8) -> list[RagAnswer]:
        """Answer questions.

        Args:
          questions: The questions.
          strategy: Method of choosing tokens, of each passage or of their marginal.
          batch_size: Questions at a time.
        """
        answers: list[RagAnswer] = []
        ends = end_tokens(self.objective.model, self.vocabulary.token_ids)
        limits = Limits(max_new_tokens=self.layout.target_tokens)
        # "float32" alone would mean TF32 on GPUs and bfloat16 passes on TPUs.
        with jax.default_matmul_precision("highest"):
            for begin in range(0, len(questions), batch_size):
                asked = questions[begin : begin + batch_size]
                rows = self._rows(asked, batch_size)
                found = self._retrieve(self._params[QUERY], self._aux, rows)
                source = Source(found.inputs["encoder_input_tokens"], found.inputs["encoder_segment_ids"])
                decoded = decode_over_passages(
                    self._params[self.objective.network],
                    source,
                    found.log_probabilities,
                    jax.numpy.arange(batch_size) < len(asked),
                    config=self.objective.model,
                    marginal=self.objective.marginal,
                    strategy=strategy,
                    limits=limits,
                    ends=ends,
                    execution=self._objective.execution.concrete,
                )
                numbers, probabilities = np.asarray(found.numbers), np.exp(np.asarray(found.log_probabilities))
                tokens, lengths, scores = (np.asarray(part)[:, 0] for part in (decoded.tokens, decoded.lengths, decoded.scores))
                for row in range(len(asked)):
                    text = self.vocabulary.decode(tokens[row, : lengths[row]].tolist(), skip_special=True).strip()
                    passages = numbers[row].tolist(), probabilities[row].tolist()
                    answers.append(RagAnswer(text, float(scores[row]), *passages))
        return answers

    def _rows(self, questions: Sequence[str], count: int) -> dict[str, np.ndarray]:
        """Return the rows of questions without answers, filled up with padding to `count`."""
        block = tokenise_labelled(self.vocabulary, [self.corpus.lines(question, "") for question in questions])
        documents = Documents(
            "the input",
            block.tokens,
            np.concatenate([[0], np.cumsum(block.sentences)]),
            2 * np.arange(len(questions) + 1),
            labels=block.labels,
            label_count=self.corpus.labels,
        )
        examples = self.layout.examples(documents, self.length, 0, self.vocabulary.token_ids)
        self.counts.update(read=len(questions), cut=examples.cut)
        indices = np.arange(len(questions))
        rows = examples.rows(indices, keys.fold(0, indices))
        return {name: np.pad(value, ((0, count - len(value)), (0, 0))) for name, value in rows.items()}

    @cached_property
    def _objective(self) -> Rag:
        """The objective as it is computed here."""
        if jax.default_backend() != "cpu":
            return self.objective
        # Models that were trained on GPUs compute in bfloat16, which takes a CPU twice as long.
        execution = dataclasses.replace(self.objective.execution, dtype="float32")
        return dataclasses.replace(self.objective, execution=execution)

    @cached_property
    def _params(self) -> dict[str, Any]:
        return {name: divided_on_cpu(network) for name, network in self.objective.split(self.params).items()}

    @cached_property
    def _aux(self) -> dict[str, Any]:
        stored = self.objective.read_aux(self.vocabulary)[INDEX]
        return {INDEX: {name: jax.device_put(rows[slice(0, rows.shape[0]), slice(None)]) for name, rows in stored.items()}}

    @cached_property
    def _retrieve(self) -> Any:
        objective = self._objective
        return jax.jit(lambda tower, aux, rows: objective.retrieve(tower, aux, rows, key=None, train=False))


def rag_predictor(opened: TrainedModel) -> RagPredictor:
    """Return the predictor of a trained model whose objective is `Rag`."""
    run = opened.run
    objective, corpus, layout = run.objective, run.data.corpus, run.data.rows
    assert isinstance(objective, Rag) and isinstance(corpus, AnswerFiles) and isinstance(layout, QuestionAnswers)
    return RagPredictor(objective, opened.params, opened.vocabulary, corpus, layout, run.stages[-1].length, opened.step)

"""Predictions of a fine-tuned model for texts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.corruption import TextCorruption
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN, LabelledCorpus
from bertfam.data.corpora.labelled.target_corpus import TargetCorpus
from bertfam.data.rows.labelled.labelled_texts import LabelledExamples, Labels, frame_size
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.length_batches import WINDOW, computed, length_batches, row_length
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import Block, tokenise_labelled
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.finetuning.rag_predictor import RagPredictor, rag_predictor
from bertfam.finetuning.target_predictor import TargetPredictor, target_predictor
from bertfam.layers.stack import divided
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.objectives.retrieval.rag import Rag
from bertfam.plurals import plural
from bertfam.training.model_dir import TrainedModel, open_model

_READ = (
    "encoder_input_tokens",
    "encoder_segment_ids",
    "encoder_token_type_ids",
    "sequence_start_positions",
    "decoder_input_tokens",
)


@dataclass(frozen=True)
class Predictor:
    """Fine-tuned model that predicts labels of texts.

    Attributes:
      objective: The objective that it was trained with.
      params: Its parameters.
      vocabulary: Its vocabulary.
      corpus: The texts that it was trained on; None if it was trained on a token cache alone.
      layout: The layout of its rows.
      length: Tokens of a row.
      step: Step of its checkpoint; None: it is of a Hugging Face folder, which has no steps.
      corruption: The noise of its rows, which is none.
      counts: Number of texts so far: all that were "read", and those of which a part was "cut" off.
      cut_part: Part of a long text that is cut off.
    """

    objective: FineTuning
    params: Any
    vocabulary: Vocabulary
    corpus: Corpus | None
    layout: RowLayout
    length: int
    step: int | None
    corruption: TextCorruption = Labels()  # noqa: RUF009 - frozen
    counts: Counter[str] = field(default_factory=Counter, compare=False)
    cut_part: ClassVar[str] = "ends"

    def outputs(self, texts: Sequence[Sequence[str]], batch_size: int = 32) -> np.ndarray:
        """Compute the outputs of the head for texts, of one string or two each: float32[texts, outputs].

        Those of a text in several windows are the mean of the windows' outputs.

        Raises:
          UserError: If a text has not as many strings as those that the model was trained on.
        """
        self._check_parts(texts)
        labels = self.objective.head.labels
        found = np.zeros((len(texts), self.objective.head.outputs), np.float32)
        for begin in range(0, len(texts), WINDOW * batch_size):
            window = texts[begin : begin + WINDOW * batch_size]
            block = tokenise_labelled(self.vocabulary, [[*parts, " ".join([UNKNOWN] * labels)] for parts in window])
            bounds = np.concatenate([[0], np.cumsum(block.documents)])
            rows, text = self._rows(block, bounds, block.labels, labels)
            for indices, outputs in self.batch_outputs(rows, batch_size):
                np.add.at(found, begin + text[indices], outputs)
            found[begin : begin + len(window)] /= np.bincount(text)[:, None]
        return found

    def word_outputs(self, sentences: Sequence[Sequence[str]], batch_size: int = 32) -> list[np.ndarray]:
        """Compute the outputs of a head of words for sentences, lists of words: float32[words, outputs] each.

        A sentence that is longer than a row is divided between words. A word without tokens has outputs of 0.
        """
        found: list[np.ndarray] = []
        for begin in range(0, len(sentences), WINDOW * batch_size):
            window = sentences[begin : begin + WINDOW * batch_size]
            block = tokenise_labelled(self.vocabulary, [[*words, ""] for words in window], words=True)
            # The label of a word is its number, so that the rows say where its first token is.
            numbers = np.arange(len(block.sentences), dtype=np.float32)
            rows, _ = self._rows(block, self._pieces(block), numbers, 1)
            outputs_of_words = np.zeros((len(numbers), self.objective.head.outputs), np.float32)
            for indices, outputs in self.batch_outputs(rows, batch_size):
                row, position = np.nonzero(rows["label_weights"][indices])
                words = rows["labels"][indices[row], position].astype(np.int64)
                outputs_of_words[words] = outputs[row, position]
            found += np.split(outputs_of_words, np.cumsum(block.documents)[:-1])
        return found

    def _pieces(self, block: Block) -> np.ndarray:
        """Return the first word of each piece of a sentence that fits into a row, and the number of words: int64[pieces + 1]."""
        frame = self.vocabulary.token_ids.frame
        assert frame is not None
        room, starts = self.length - frame_size(frame, is_pair=False), [0]
        ends, size = set(np.cumsum(block.documents).tolist()), 0
        for word, tokens in enumerate(block.sentences.tolist()):
            if size and size + tokens > room:
                starts.append(word)
                size = 0
            size += tokens
            if word + 1 in ends:
                starts.append(word + 1)
                size = 0
        return np.array(starts)

    def _check_parts(self, texts: Sequence[Sequence[str]]) -> None:
        count = len(texts[0]) if texts else 1
        choices = self.objective.head.choices
        if choices > 1:
            count = 1 + choices
        elif isinstance(self.corpus, LabelledCorpus):
            count = 1 if self.corpus.text_pair is None else 2
        wrong = next((number for number, parts in enumerate(texts) if len(parts) != count), None)
        if wrong is not None or (count > 2 and choices == 1):
            needed = "pairs of texts, (FIRST, SECOND)" if count == 2 else "single texts"
            if choices > 1:
                needed = f"a text and its {choices} choices, (TEXT, CHOICE, ...)"
            raise UserError(f"the model reads {needed}, and text {(wrong or 0) + 1} is {plural(len(texts[wrong or 0]), 'text')}")

    @property
    def text_length(self) -> int:
        """Tokens beyond which a text is cut off: those of a row, or of each choice's part of it."""
        return self.length // self.objective.head.choices

    def batch_outputs(self, rows: dict[str, np.ndarray], batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Compute the outputs of rows in batches of similar length, each with the indices int64[n] of its rows.

        Raises:
          UserError: If an output is NaN or infinite.
        """
        batches = length_batches(rows, _READ, batch_size, self.length, self.objective.head.choices)
        for indices, outputs in computed(batches, lambda batch: self._apply(self._divided, batch)):
            if not np.isfinite(outputs).all():
                if self.step is None:
                    raise UserError(
                        "the outputs of the model are NaN or infinite: its files are damaged, or its training diverged"
                    )
                raise UserError(
                    f"the outputs of step {self.step:,} are NaN or infinite: its training diverged; use an earlier checkpoint "
                    "(--step), or train at a lower rate (--learning_rate)"
                )
            yield indices, outputs

    def _rows(
        self, block: Block, bounds: np.ndarray, labels: np.ndarray | None, count: int
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Make the rows of tokenised texts; also return the index of each row's text, int64[rows].

        Args:
          block: The tokens.
          bounds: int64[texts + 1], the first part or word of each text, and the number of them.
          labels: See `Documents.labels`.
          count: See `Documents.label_count`.
        """
        documents = Documents(
            "the input",
            block.tokens,
            np.concatenate([[0], np.cumsum(block.sentences)]),
            bounds,
            labels=labels,
            label_count=count,
            labels_words=self.objective.head.labels_words,
        )
        examples = self.layout.examples(documents, self.length, 0, self.vocabulary.token_ids)
        if isinstance(examples, LabelledExamples) and len(examples):
            # Models may read rows that are far longer than the texts.
            longest = row_length(int(examples.row_sizes.max()) // examples.parts, self.length // examples.parts)
            examples = examples.shortened(examples.parts * longest)
        indices = np.arange(len(examples))
        row_keys = keys.fold(0, indices)
        rows = self.corruption.corrupt(examples.rows(indices, row_keys), row_keys, self.vocabulary.token_ids)
        self.counts["read"] += len(documents)
        if not isinstance(examples, LabelledExamples):
            return rows, indices
        self.counts["cut"] += examples.cut
        return rows, examples.documents_of(indices)

    @cached_property
    def _divided(self) -> Any:
        return divided(self.params)

    @cached_property
    def _apply(self) -> Any:
        objective = self.objective
        if jax.default_backend() == "cpu":
            # Models that were trained on GPUs compute in bfloat16, which takes a CPU twice as long.
            objective = replace(objective, execution=replace(objective.execution, dtype="float32"))
        return jax.jit(lambda params, rows: objective.outputs(params, rows, key=None, train=False))


def open_predictor(model_dir: str | Path, step: int | None = None, *, average: bool = False) -> Predictor:
    """Open a model that is fine-tuned on labels, as `open_fine_tuned` does.

    Raises:
      UserError: If the folder has no such model.
    """
    predictor = open_fine_tuned(model_dir, step, average=average)
    if isinstance(predictor, RagPredictor):
        raise UserError(f"{model_dir} answers questions from passages, and predicts no labels")
    if isinstance(predictor, TargetPredictor):
        raise UserError(f"{model_dir} was trained on --target={predictor.corpus.target}, and generates texts instead of labels")
    return predictor


def open_fine_tuned(
    model_dir: str | Path, step: int | None = None, *, average: bool = False
) -> Predictor | TargetPredictor | RagPredictor:
    """Open a fine-tuned model.

    Args:
      model_dir: Folder of its run.
      step: Step of its checkpoint; None: the newest.
      average: Use the moving average of the parameters.

    Raises:
      UserError: If the folder has no such model, or one that predicts neither labels nor targets.
    """
    model = open_model(model_dir, step, average=average)
    if isinstance(model.run.objective, Rag):
        return rag_predictor(model)
    predictor = make_predictor(model)
    if predictor is None:
        name = type(model.run.objective).__name__
        raise UserError(
            f"{model_dir} was trained with {name}, and predicts no labels of texts: fine-tune it by `bertfam finetune "
            f"--init_from={model_dir} --train=FILE`"
        )
    return predictor


def make_predictor(model: TrainedModel) -> Predictor | TargetPredictor | None:
    """Make the predictor of a fine-tuned model; None if the model predicts neither labels nor targets."""
    objective, data, length = model.run.objective, model.run.data, model.run.stages[-1].length
    if isinstance(data.corpus, TargetCorpus):
        return target_predictor(model)
    if not isinstance(objective, FineTuning):
        return None
    corpus = data.corpus if isinstance(data.corpus, Corpus) else None
    return Predictor(objective, model.params, model.vocabulary, corpus, data.rows, length, model.step, data.corruption)

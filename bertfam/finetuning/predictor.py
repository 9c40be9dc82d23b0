"""Predictions of a fine-tuned model for texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertfam.config.state import preserve_gin
from bertfam.corruption import keys
from bertfam.data.corpora.labelled_files import UNKNOWN, LabelledFiles
from bertfam.data.rows.labelled_texts import LabelledTexts
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_labelled
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.training.model_dir import open_model, read_run

_SHORTEST = 32  # tokens of the shortest rows; each length is compiled once, and twice the one before
# Texts that are tokenised together and then sorted by length, so that rows of a batch have little padding.
_WINDOW = 64


@dataclass(frozen=True)
class Predictor:
    """Fine-tuned model that predicts labels of texts.

    Attributes:
      objective: The objective that it was trained with.
      params: Its parameters.
      vocabulary: Its vocabulary.
      corpus: The labelled files that it was trained on; None if it was trained on a token cache alone.
      length: Tokens of a row, beyond which texts are cut off.
      step: Step of its checkpoint.
    """

    objective: FineTuning
    params: Any
    vocabulary: Vocabulary
    corpus: LabelledFiles | None
    length: int
    step: int

    def outputs(self, texts: Sequence[Sequence[str]], batch_size: int = 32) -> np.ndarray:
        """Compute the outputs of the head for texts, of one string or two each: float32[texts, outputs].

        Raises:
          UserError: If a text has not as many strings as those that the model was trained on.
        """
        self._check_parts(texts)
        found = np.zeros((len(texts), self.objective.head.outputs), np.float32)
        for begin in range(0, len(texts), _WINDOW * batch_size):
            window = texts[begin : begin + _WINDOW * batch_size]
            for indices, rows in self._batches(window, batch_size):
                found[begin + indices] = np.asarray(self._apply(self.params, rows))[: len(indices)]
        return found

    def _check_parts(self, texts: Sequence[Sequence[str]]) -> None:
        count = len(texts[0]) if texts else 1
        if self.corpus is not None:
            count = 1 if self.corpus.text_pair is None else 2
        wrong = next((number for number, parts in enumerate(texts) if len(parts) != count), None)
        if wrong is not None or count > 2:
            needed = "pairs of texts, (FIRST, SECOND)" if count == 2 else "single texts"
            raise UserError(f"the model reads {needed}, and text {(wrong or 0) + 1} is {plural(len(texts[wrong or 0]), 'text')}")

    def _batches(self, texts: Sequence[Sequence[str]], batch_size: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yield batches of rows of similar length, each with the indices of its texts: int64[n], n <= batch_size."""
        rows = self._rows(texts)
        sizes = (rows["encoder_segment_ids"] > 0).sum(axis=1)
        order = np.argsort(sizes, kind="stable")
        for begin in range(0, len(order), batch_size):
            indices = order[begin : begin + batch_size]
            # Every batch of a length has as many rows, so that it is compiled once.
            chosen = np.pad(indices, (0, batch_size - len(indices)), mode="edge")
            length = self._row_length(int(sizes[indices].max()))
            yield indices, {name: value[chosen, :length] for name, value in rows.items()}

    def _row_length(self, size: int) -> int:
        """Return the length of the rows that hold `size` tokens: a power of 2 times `_SHORTEST`, or that of the run."""
        length = _SHORTEST
        while length < size:
            length *= 2
        return min(length, self.length)

    def _rows(self, texts: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
        labels = self.objective.head.labels
        block = tokenise_labelled(self.vocabulary, [[*parts, " ".join([UNKNOWN] * labels)] for parts in texts])
        documents = Documents(
            "the input",
            block.tokens,
            np.concatenate([[0], np.cumsum(block.sentences)]),
            np.concatenate([[0], np.cumsum(block.documents)]),
            labels=block.labels,
            label_count=labels,
        )
        examples = LabelledTexts().examples(documents, self.length, 0, self.vocabulary.token_ids)
        indices = np.arange(len(texts))
        return examples.rows(indices, keys.fold(0, indices))

    @cached_property
    def _apply(self) -> Any:
        objective = self.objective
        return jax.jit(lambda params, rows: objective.outputs(params, rows, key=None, train=False))


def find_predictor(path: str | Path, step: int | None = None) -> Predictor | None:
    """Open the fine-tuned model of a folder as `open_predictor` does; None if the folder has another model."""
    folder = to_path(path)
    if not (folder / "config.gin").is_file():
        return None
    with preserve_gin():
        return open_predictor(folder, step) if isinstance(read_run(folder).objective, FineTuning) else None


def open_predictor(model_dir: str | Path, step: int | None = None, *, average: bool = False) -> Predictor:
    """Open a fine-tuned model.

    Args:
      model_dir: Folder of its run.
      step: Step of its checkpoint; None: the newest.
      average: Use the moving average of the parameters.

    Raises:
      UserError: If the folder has no such model, or one that predicts no labels.
    """
    opened = open_model(model_dir, step, average=average)
    objective = opened.run.objective
    if not isinstance(objective, FineTuning):
        raise UserError(
            f"{model_dir} was trained with {type(objective).__name__}, and predicts no labels of texts: fine-tune it by `bertfam "
            f"finetune --init_from={model_dir} --train=FILE`"
        )
    corpus = opened.run.data.corpus
    return Predictor(
        objective,
        opened.params,
        opened.vocabulary,
        corpus if isinstance(corpus, LabelledFiles) else None,
        opened.run.stages[-1].length,
        opened.step,
    )

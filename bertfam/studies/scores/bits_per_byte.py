"""Bits per byte of held-out sentences, which compare models with different vocabularies."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.api import load_networks
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.evaluation.sentence_scores import scorer
from bertfam.evaluation.suites.results import Result
from bertfam.studies.scores.score import Score, Trained
from bertfam.training.run import Run


@dataclass(frozen=True)
class BitsPerByte(Score):
    """Bits that a model needs for each byte of held-out sentences, by its log-probability or pseudo-log-likelihood.

    bits_per_byte = -sum over sentences of score(sentence) / (bytes ln 2), with the scores of
    `bertfam.evaluation.sentence_scores`: of a causal LM log p, of a masked language model and an encoder-decoder the
    pseudo-log-likelihood (Salazar et al. 2020). Each token is masked in turn, so a sentence of n tokens costs n rows.
    Pseudo-log-likelihoods and log-probabilities do not compare with each other.

    Attributes:
      sentences: number of sentences, the first ones of the held-out text.
      shortest: bytes of UTF-8 of the shortest sentence that counts.
      longest: bytes of the longest one.
    """

    sentences: int = 200
    shortest: int = 20
    longest: int = 200

    name: ClassVar[str] = "bits_per_byte"
    metrics: ClassVar[tuple[str, ...]] = ("bits_per_byte",)

    def __post_init__(self) -> None:
        if self.sentences < 1 or not 1 <= self.shortest <= self.longest:
            raise ValueError(f"{self.sentences} sentences of {self.shortest} to {self.longest} bytes are none")

    @override
    def check(self, arm: str, run: Run) -> None:
        if not run.data.corpora:
            raise UserError("BitsPerByte scores held-out sentences of the text itself: give --input or --task beside --cache_dir")

    @override
    def measure(self, trained: Trained) -> Result:
        sentences = list(itertools.islice(self._held_out(trained.data), self.sentences))
        if not sentences:
            raise UserError(f"the held-out text has no sentence of {self.shortest} to {self.longest} bytes for BitsPerByte")
        scores = scorer(load_networks(trained.model_dir))
        where = [f"held-out sentence {number}" for number in range(1, len(sentences) + 1)]
        bits = -scores.score(sentences, where) / math.log(2)
        sizes = np.array([len(sentence.encode()) for sentence in sentences])
        outcomes = bits / sizes.mean()
        return Result({"bits_per_byte": float(outcomes.mean())}, tuple(outcomes.tolist()), {"score": scores.description})

    def _held_out(self, data: TextData) -> Iterator[str]:
        for corpus in data.corpora.values():
            for document in corpus.documents("validation"):
                yield from (text for text in document if self.shortest <= len(text.encode()) <= self.longest)

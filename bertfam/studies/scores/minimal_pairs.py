"""Accuracy on minimal pairs of sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.api import load_networks
from bertfam.evaluation.minimal_pairs import outcomes, read_pairs
from bertfam.evaluation.sentence_scores import scorer
from bertfam.evaluation.suites.results import Result
from bertfam.studies.scores.score import Score, Trained
from bertfam.training.run import Run


@dataclass(frozen=True)
class MinimalPairs(Score):
    """Share of pairs in which the grammatical sentence is likelier (BLiMP, Warstadt et al. 2020); chance is 0.5.

    Attributes:
      path: BLiMP's zip file, or a folder of its files.
      limit: number of pairs of each file; None: all.
    """

    path: str
    limit: int | None = None

    name: ClassVar[str] = "blimp"
    metrics: ClassVar[tuple[str, ...]] = ("blimp",)

    @override
    def check(self, arm: str, run: Run) -> None:
        read_pairs(Path(self.path), 1)

    @override
    def measure(self, trained: Trained) -> Result:
        pairs = [pair for own in read_pairs(Path(self.path), self.limit).values() for pair in own]
        scores = scorer(load_networks(trained.model_dir))
        found = outcomes(pairs, scores.score)
        return Result({"blimp": float(np.mean(found))}, tuple(found.tolist()), {"score": scores.description})

"""Suite of minimal pairs: each file is a task, and no model is trained."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from typing_extensions import override

from bertfam.api import load_networks
from bertfam.evaluation.minimal_pairs import Pair, outcomes, read_pairs
from bertfam.evaluation.sentence_scores import Scorer, scorer
from bertfam.evaluation.suites.results import Result, TaskFolder
from bertfam.evaluation.suites.suite import Model, Suite, SuiteTask
from bertfam.plurals import plural


class MinimalPairSuite(Suite):
    """Share of the pairs of each file in which the grammatical sentence is likelier (see `bertfam.evaluation.minimal_pairs`)."""

    name = "blimp"

    def __init__(self, path: str, limit: int | None, choose: Callable[[Sequence[str]], Sequence[str]]) -> None:
        """Read the pairs.

        Args:
          path: BLiMP's zip file, or a folder of its files.
          limit: Number of pairs of each file; None: all.
          choose: Returns the tasks among the names of all files, without .jsonl.

        Raises:
          UserError: There are none, or a line is malformed.
        """
        found = read_pairs(Path(path), limit)
        self._pairs = {name: found[name] for name in choose(list(found))}
        self.settings = {"limit": limit}
        self.tasks = [
            SuiteTask(name, ("accuracy",), len(pairs), plural(len(pairs), "pair"), (), {"pairs": _digest(pairs)})
            for name, pairs in self._pairs.items()
        ]

    @override
    def measure(self, task: SuiteTask, model: Model, seed: int, folder: TaskFolder) -> Result:
        scores = _scorer(model.folder, model.step)
        values = outcomes(self._pairs[task.name], scores.score)
        return Result({"accuracy": float(np.mean(values))}, tuple(values.tolist()), {"score": scores.description})


@lru_cache(maxsize=1)  # the tasks of a model follow one another
def _scorer(folder: str, step: int | None) -> Scorer:
    return scorer(load_networks(folder, step=step))


def _digest(pairs: Sequence[Pair]) -> str:
    """Return a digest of the sentences."""
    return hashlib.sha256(json.dumps([pair[:2] for pair in pairs]).encode()).hexdigest()

"""What a model predicts for some rows, as text: `the [MASK] sat on the [MASK]  |  cat: dog 0.41, mat: mat 0.63`."""

import numpy as np

from bertfam.data.preview.visible import visible
from bertfam.data.vocabularies import Vocabulary
from bertfam.objectives.objective import Predictions

_TARGETS = 80  # as many as a row of 512 tokens has masks; a model that writes text has one at every place


def sample_texts(found: Predictions, vocabulary: Vocabulary, count: int) -> list[str]:
    """One line a row: its text as the model sees it, and for its targets in order: target, best guess, its probability.

    Of more than `_TARGETS` targets so many are told, spread evenly from the first to the last.

    Args:
      found: NumPy arrays.
      vocabulary: of their ids.
      count: at most so many rows, the first ones that have a target.
    """
    texts = []
    for row in np.flatnonzero(found.weights.any(axis=1))[:count]:
        seen = vocabulary.decode(found.inputs[row][found.segments[row] > 0])
        slots = [slot for slot in np.argsort(found.positions[row], kind="stable") if found.weights[row, slot] > 0]
        if len(slots) > _TARGETS:
            slots = [slots[place] for place in np.linspace(0, len(slots) - 1, _TARGETS).round().astype(int)]
        targets, guesses = (vocabulary.pieces(ids[row, slots]) for ids in (found.targets, found.tokens))
        likely = found.probabilities[row, slots]
        told = [f"{target}: {guess} {share:.2f}" for target, guess, share in zip(targets, guesses, likely, strict=True)]
        texts.append(visible(f"{' '.join(seen.split())}  |  {', '.join(told)}"))
    return texts

"""Control tasks (Hewitt and Liang 2019), and baselines that see no hidden states."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np


def control_labels(types: Sequence[str], known: Sequence[str], labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the label of each target in the control task, which gives every word type one label, drawn at random.

    Labels are drawn with the frequencies of the task's own labels, as in section 2.2 of the paper. A probe learns the control
    task only by memorising word types.

    Args:
      types: the word type of each target.
      known: all word types, each of which gets a label.
      labels: int32[n], labels of the task, not negative.
      seed: seed of the draws.

    Returns:
      int32[targets].
    """
    order = sorted(set(known))
    drawn = np.random.default_rng(seed).choice(labels, len(order))
    by_type = dict(zip(order, drawn.tolist(), strict=True))
    return np.array([by_type[name] for name in types], np.int32)


def baselines(train: tuple[Sequence[str], np.ndarray], held_out: tuple[Sequence[str], np.ndarray]) -> dict[str, float]:
    """Return accuracies on held-out targets: of the commonest label, and of the commonest one of each word type.

    Args:
      train: word type and label of each target to train on.
      held_out: word type and label of each held-out target.
    """
    types, labels = train
    commonest = Counter(labels.tolist()).most_common(1)[0][0]
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for name, label in zip(types, labels.tolist(), strict=True):
        counts[name][label] += 1
    best = {name: own.most_common(1)[0][0] for name, own in counts.items()}
    predicted = np.array([best.get(name, commonest) for name in held_out[0]])
    return {
        "commonest label": float((held_out[1] == commonest).mean()),
        "commonest label of the word": float((held_out[1] == predicted).mean()),
    }

"""What a model must beat: predictions from counts alone, on the same masks."""

from collections.abc import Iterable

import numpy as np

from bertfam.data.batches import BatchSource
from bertfam.data.documents import Documents

_CHUNK = 1 << 24


def unigram_counts(texts: Iterable[Documents], size: int) -> np.ndarray:
    """How often each token occurs: int64[size]."""
    counts = np.zeros(size, np.int64)
    for documents in texts:
        for start in range(0, len(documents.tokens), _CHUNK):
            counts += np.bincount(documents.tokens[start : start + _CHUNK], minlength=size)
    return counts


def baselines(source: BatchSource, steps: int, batch_size: int, counts: np.ndarray) -> dict[str, float]:
    """The scores of predictors that see no context, on the masks of the first `steps` batches.

    Args:
      source: the batches that the model was evaluated on.
      steps: how many.
      batch_size: rows a batch.
      counts: int64[vocabulary], the training text's tokens.

    Returns:
      `unigram_loss`, nats a masked token of the training frequencies with one added to each count; `most_frequent_accuracy`,
      of always predicting the commonest token; where rows have next-sentence labels, `nsp_majority_accuracy`, of always
      predicting the commoner one.
    """
    log_probability = np.log((counts + 1) / (counts.sum() + len(counts)))
    best = int(np.argmax(counts))
    loss = hits = weight = 0.0
    labels = np.zeros(2)
    for step in range(steps):
        rows = source.rows(step, 0, batch_size)
        targets, weights = rows["masked_target_tokens"], rows["masked_loss_weights"].astype(np.float64)
        loss -= float(np.sum(log_probability[targets] * weights))
        hits += float(np.sum((targets == best) * weights))
        weight += float(weights.sum())
        if "next_sentence_labels" in rows:
            labels += np.bincount(rows["next_sentence_labels"].ravel(), rows["next_sentence_weights"].ravel(), minlength=2)
    majority = {"nsp_majority_accuracy": float(labels.max() / labels.sum())} if labels.any() else {}
    return {"unigram_loss": loss / weight, "most_frequent_accuracy": hits / weight} | majority

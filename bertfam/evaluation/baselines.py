"""What a model must beat: predictions from counts alone, on the same masks."""

from collections.abc import Iterable

import numpy as np

from bertfam.data.batches import BatchSource
from bertfam.data.documents import Documents
from bertfam.features import SENTENCES

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
      of always predicting the commonest token, both at masked tokens; the same with `sbo_` before it at the tokens of spans that
      have text on both sides, and with `shuffled_` at shuffled tokens, where rows have such; `shuffled_unmoved_accuracy`, of
      predicting each of these where it stands; where rows have labels of sentence pairs, such as `nsp_majority_accuracy`, of
      always predicting the commonest.
    """
    log_probability = np.log((counts + 1) / (counts.sum() + len(counts)))
    best = int(np.argmax(counts))
    # By what stands before the names: the sums of losses, hits and weights.
    of_tokens = {prefix: np.zeros(3) for prefix in ("", "sbo_", "shuffled_")}
    unmoved = 0.0
    labels = {sentences: np.zeros(len(sentences.classes)) for sentences in SENTENCES.values()}
    for step in range(steps):
        rows = source.rows(step, 0, batch_size)
        targets = rows["masked_target_tokens"]
        shuffled = rows.get("shuffled_loss_weights", np.zeros(targets.shape))
        weights = {"": rows["masked_loss_weights"] - shuffled, "shuffled_": shuffled}
        weights |= {"sbo_": rows["span_loss_weights"]} if "span_loss_weights" in rows else {}
        for prefix, weight in weights.items():
            values = np.stack([-log_probability[targets], targets == best, np.ones(targets.shape)])
            of_tokens[prefix] += np.sum(values * weight.astype(np.float64), axis=(1, 2))
        if shuffled.any():
            seen = np.take_along_axis(rows["encoder_input_tokens"], rows["masked_positions"], axis=1)
            unmoved += float(np.sum((seen == targets) * shuffled))
        for sentences, sums in labels.items():
            if sentences.labels in rows:
                sums += np.bincount(rows[sentences.labels].ravel(), rows[sentences.weights].ravel(), minlength=len(sums))
    scores: dict[str, float] = {}
    for prefix, (loss, hits, weight) in of_tokens.items():
        if weight or not prefix:
            scores |= {f"{prefix}unigram_loss": float(loss / weight), f"{prefix}most_frequent_accuracy": float(hits / weight)}
    if of_shuffled := of_tokens["shuffled_"][2]:
        scores["shuffled_unmoved_accuracy"] = unmoved / float(of_shuffled)
    given = {sentences.term: sums for sentences, sums in labels.items() if sums.any()}
    return scores | {f"{term}_majority_accuracy": float(sums.max() / sums.sum()) for term, sums in given.items()}

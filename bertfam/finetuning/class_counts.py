"""Numbers of texts of each class in a token cache."""

import numpy as np

from bertfam.data.token_cache.cache import TokenCache
from bertfam.objectives.fine_tuning.heads import OneClassHead
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.training.run import Run


def class_counts(run: Run, cache: TokenCache) -> dict[str, int]:
    """Count the training texts, or words, of each class; {} if the run predicts no classes."""
    head = run.objective.head if isinstance(run.objective, FineTuning) else None
    classes = head.class_names if head else ()
    totals = np.zeros(len(classes), np.int64)
    for corpus in cache.corpora if classes else ():
        labels = cache.stored_documents("train", corpus).labels
        if labels is None:
            return {}
        values, width = labels[:], cache.label_count(corpus)
        if isinstance(head, OneClassHead):
            known = values[np.isfinite(values)].astype(np.int64)
            totals += np.bincount(known[(known >= 0) & (known < len(classes))], minlength=len(classes))
        else:
            totals += np.nan_to_num(values.reshape(-1, width)).sum(axis=0).astype(np.int64)
    return dict(zip(classes, totals.tolist(), strict=True))

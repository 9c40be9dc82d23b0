"""Labels in a token cache: a check that the head has classes for them, and the number of texts of each class."""

from collections.abc import Mapping

import numpy as np

from bertfam.data.corpora.corpus import SPLITS
from bertfam.data.token_cache.cache import TokenCache, feature_path
from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.heads import OneClassHead
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.pages.visible import visible
from bertfam.training.run import Run

_ROUNDING = 1e-6  # metrics are computed in float32


def check_labels(run: Run, cache: TokenCache) -> None:
    """Raise UserError for a label that the run's head cannot learn; digests alone would not tell a cache made to harm."""
    if not isinstance(run.objective, FineTuning):
        return
    head, count = run.objective.head, len(run.objective.head.class_names)
    for corpus in cache.corpora:
        for split in SPLITS:
            labels = cache.stored_documents(split, corpus).labels
            values = np.zeros(0, np.float32) if labels is None else labels[:]
            if isinstance(head, OneClassHead):
                is_wrong = (values < 0) | (values >= count) | (values != np.floor(values))
            else:
                is_wrong = (values < 0) | (values > 1) if count else np.isinf(values)
            wrong = values[is_wrong & ~np.isnan(values)]  # nan: the label is not known
            if len(wrong):
                path = feature_path(cache.directory / corpus / split, "labels", "values")
                raise UserError(
                    f"{path} holds the label {wrong[0]:g}, which is {f'none of the {count} classes' if count else 'no number'}; "
                    f"delete {cache.directory} and build it again"
                )


def class_counts(run: Run, cache: TokenCache, split: str = "train") -> dict[str, int]:
    """Count the texts, or words, of each class in a split; {} if the run predicts no classes."""
    head = run.objective.head if isinstance(run.objective, FineTuning) else None
    classes = head.class_names if head else ()
    totals = np.zeros(len(classes), np.int64)
    for corpus in cache.corpora if classes else ():
        labels = cache.stored_documents(split, corpus).labels
        if labels is None:
            return {}
        values, width = labels[:], cache.label_count(corpus)
        if isinstance(head, OneClassHead):
            known = values[np.isfinite(values)].astype(np.int64)
            totals += np.bincount(known[(known >= 0) & (known < len(classes))], minlength=len(classes))
        else:
            totals += np.nan_to_num(values.reshape(-1, width)).sum(axis=0).astype(np.int64)
    return dict(zip(classes, totals.tolist(), strict=True))


def constant_warnings(run: Run, cache: TokenCache, scores: Mapping[str, float]) -> list[str]:
    """Return a warning if held-out scores are no better than those of the most frequent class alone."""
    counts = class_counts(run, cache, "validation")
    if "accuracy" not in scores or not any(counts.values()):
        return []
    name = max(counts, key=counts.__getitem__)
    share = counts[name] / sum(counts.values())
    if scores["accuracy"] > share + _ROUNDING:
        return []
    return [
        f"the held-out accuracy, {scores['accuracy']:.4f}, is not above that of always predicting {visible(name)}, {share:.4f}: "
        "give a higher --learning_rate (small models often need 1e-4 to 1e-3), more --epochs or more texts"
    ]

"""Scores of predicted labels, by scikit-learn's metrics."""

import math
from collections.abc import Sequence

import numpy as np

from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.heads import Classification, Head, MultiLabelClassification


def score(head: Head, outputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute the scores of predictions by name.

    Of one class: "accuracy"; "f1", that of the second class, of two; "macro_f1"; "mcc", Matthews' correlation. Of several
    classes: "exact_match", "micro_f1" and "macro_f1". Of numbers: "pearson", "spearman" and "mse".

    Args:
      head: The head that makes the predictions.
      outputs: float32[texts, outputs].
      labels: float32[texts, labels], all of them known.

    Raises:
      UserError: If scikit-learn is not installed.
    """
    try:
        from scipy import stats
        from sklearn import metrics
    except ImportError as error:
        raise UserError("scores need scikit-learn: pip install 'bertfam[finetune]', or leave --label out") from error

    if isinstance(head, Classification):
        predicted, true = outputs.argmax(axis=1), labels[:, 0].astype(int)
        of_two = {"f1": metrics.f1_score(true, predicted, zero_division=0)} if head.outputs == 2 else {}
        scores = {
            "accuracy": metrics.accuracy_score(true, predicted),
            **of_two,
            "macro_f1": metrics.f1_score(true, predicted, average="macro", zero_division=0),
            "mcc": metrics.matthews_corrcoef(true, predicted),
        }
    elif isinstance(head, MultiLabelClassification):
        predicted, true = outputs > 0, labels > 0.5
        scores = {
            "exact_match": metrics.accuracy_score(true, predicted),
            "micro_f1": metrics.f1_score(true, predicted, average="micro", zero_division=0),
            "macro_f1": metrics.f1_score(true, predicted, average="macro", zero_division=0),
        }
    else:
        predicted, true = outputs[:, 0], labels[:, 0]
        # The correlation with a constant is not defined.
        varies = len(true) > 1 and np.ptp(predicted) > 0 and np.ptp(true) > 0
        scores = {
            "pearson": stats.pearsonr(predicted, true).statistic if varies else math.nan,
            "spearman": stats.spearmanr(predicted, true).statistic if varies else math.nan,
            "mse": metrics.mean_squared_error(true, predicted),
        }
    return {name: float(value) for name, value in scores.items()}


def describe(scores: dict[str, float]) -> Sequence[str]:
    """Return a line for each score."""
    width = max(map(len, scores))
    return [f"{name:{width}}  {value:.4f}" for name, value in scores.items()]

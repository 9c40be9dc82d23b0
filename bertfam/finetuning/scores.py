"""Scores of predicted labels, by scikit-learn's metrics."""

import importlib.util
import math
from collections.abc import Sequence

import numpy as np

from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.heads import ClassHead, Head, OneClassHead

# Package -> the scores that it computes, its name in pip's index, and the flag that asks for them.
_PACKAGES = {
    "sklearn": ("scores", "scikit-learn", "--label"),
    "seqeval": ("scores of entities", "seqeval", "--label"),
    "sacrebleu": ("scores of texts", "sacrebleu", "--target"),
}


def require(package: str) -> None:
    """Raise UserError if a package that computes scores is not installed."""
    if importlib.util.find_spec(package) is None:
        scores, name, flag = _PACKAGES[package]
        raise UserError(f"{scores} need {name}: pip install 'bertfam[finetune]', or leave {flag} out")


def has_entities(head: Head) -> bool:
    """Return whether the classes are tags of entities, such as B-PER, I-PER and O."""
    return all(name == "O" or name[:2] in ("B-", "I-") for name in head.class_names)


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
    require("sklearn")
    from scipy import stats
    from sklearn import metrics

    if isinstance(head, OneClassHead):
        predicted, true = outputs.argmax(axis=1), labels[:, 0].astype(int)
        of_two = {"f1": metrics.f1_score(true, predicted, zero_division=0)} if head.outputs == 2 else {}
        scores = {
            "accuracy": metrics.accuracy_score(true, predicted),
            **of_two,
            "macro_f1": metrics.f1_score(true, predicted, average="macro", zero_division=0),
            "mcc": metrics.matthews_corrcoef(true, predicted),
        }
    elif isinstance(head, ClassHead):
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


def right(head: Head, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return 1 for each text whose labels are all predicted, else 0; of numbers the negative squared error: float64[texts].

    Args:
      head: The head that makes the predictions.
      outputs: float32[texts, outputs].
      labels: float32[texts, labels], all of them known.
    """
    if isinstance(head, OneClassHead):
        return (outputs.argmax(axis=1) == labels[:, 0]).astype(np.float64)
    if isinstance(head, ClassHead):
        return np.all((outputs > 0) == (labels > 0.5), axis=1).astype(np.float64)
    return -np.square(outputs[:, 0].astype(np.float64) - labels[:, 0])


def score_tags(head: Head, outputs: Sequence[np.ndarray], tags: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute the scores of tags of words: "accuracy" of words, and of tags such as B-PER those of entities by seqeval.

    The latter are "precision", "recall" and "f1" of whole entities, with their kind.

    Args:
      head: The head that makes the predictions.
      outputs: float32[words, outputs] of each sentence.
      tags: The true tag of each word of each sentence, all of them classes of the head.

    Raises:
      UserError: If seqeval is not installed.
    """
    classes = head.class_names
    predicted = [[classes[index] for index in own.argmax(axis=1)] for own in outputs]
    pairs = [(one, true) for own, trues in zip(predicted, tags, strict=True) for one, true in zip(own, trues, strict=True)]
    scores = {"accuracy": sum(one == true for one, true in pairs) / max(len(pairs), 1)}
    if has_entities(head):
        require("seqeval")
        from seqeval import metrics

        true = [list(own) for own in tags]
        for name, metric in (("precision", metrics.precision_score), ("recall", metrics.recall_score), ("f1", metrics.f1_score)):
            scores[name] = float(metric(true, predicted, zero_division=0))
    return scores


def score_targets(texts: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
    """Compute the scores of generated texts by name.

    They are "exact_match", the share of texts that are their targets up to white space, and sacrebleu's "bleu" (Papineni et al.
    2002, Post 2018) and "chrf" (Popovic 2015) of all texts together, from 0 to 100.

    Args:
      texts: The generated texts.
      targets: The target of each.

    Raises:
      UserError: If sacrebleu is not installed.
    """
    require("sacrebleu")
    from sacrebleu.metrics import BLEU, CHRF

    exact = sum(text.split() == target.split() for text, target in zip(texts, targets, strict=True))
    return {
        "exact_match": exact / len(texts),
        # Without the effective order, targets of fewer than 4 words have 0.
        "bleu": float(BLEU(effective_order=True, force=True).corpus_score(texts, [targets]).score),
        "chrf": float(CHRF().corpus_score(texts, [targets]).score),
    }


def describe(scores: dict[str, float]) -> Sequence[str]:
    """Return a line for each score."""
    width = max(map(len, scores))
    return [f"{name:{width}}  {value:.4f}" for name, value in scores.items()]

"""Word similarity: Spearman's correlation of cosines with human judgements, from vectors of words whatever their contexts."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertfam.analysis.representations.word_vectors import Occurrence, unit, vectors
from bertfam.analysis.subject import Subject
from bertfam.data.corpora.text_lines import read_lines
from bertfam.errors import UserError
from bertfam.plurals import plural


class Pair(NamedTuple):
    """Two lower-cased words and the score that people gave them."""

    first: str
    second: str
    score: float


def read_pairs(path: str) -> list[Pair]:
    """Read lines of two words and a score, with tabs or spaces between them; raise UserError for another line."""
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        score = _number(parts[2]) if len(parts) == 3 else math.nan
        if not math.isfinite(score):
            raise UserError(f"{path}:{number}: {line.strip()[:60]!r} is not two words and a number, with tabs between them")
        pairs.append(Pair(parts[0].lower(), parts[1].lower(), score))
    if len(pairs) < 3:
        raise UserError(f"{path} has {plural(len(pairs), 'pair')} of words, too few for a correlation; give at least 3")
    return pairs


def _number(word: str) -> float:
    """Return a number, NaN for another word."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def static_vectors(
    subject: Subject, texts: Sequence[str], occurrences: Mapping[str, Sequence[Occurrence]], batch_size: int
) -> dict[str, np.ndarray]:
    """Average the vectors of each word over its contexts (Bommasani et al. 2020, section 3): float32[layers + 1, embed] each.

    Words without an occurrence that the model reads whole are left out.
    """
    words = [word for word, own in occurrences.items() for _ in own]
    flat = [occurrence for own in occurrences.values() for occurrence in own]
    sums: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for numbers, found in vectors(subject, texts, flat, batch_size, "reading contexts"):
        for number, vector in zip(numbers, found, strict=True):
            word = words[number]
            sums[word] = sums.get(word, 0) + vector
            counts[word] = counts.get(word, 0) + 1
    return {word: total / counts[word] for word, total in sums.items()}


def correlations(pairs: Sequence[Pair], static: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return Spearman's correlation of each layer's cosines with the scores, and the numbers of pairs used and left out.

    Args:
      pairs: the pairs; those with a word that has no vector are left out.
      static: vectors of words float32[layers + 1, embed].

    Returns:
      JSON values; the correlations are [] for fewer than three pairs, and None where all cosines or all scores are equal.
    """
    used = [pair for pair in pairs if pair.first in static and pair.second in static]
    report: dict[str, Any] = {"pairs": len(used), "left_out": len(pairs) - len(used), "spearman": []}
    if len(used) < 3:
        return report
    # [pairs, layers + 1, embed] each
    first, second = (unit(np.stack([static[word] for word in column])) for column in list(zip(*used, strict=True))[:2])
    cosines = np.sum(first * second, axis=-1)
    scores = [pair.score for pair in used]
    report["spearman"] = [_spearman(layer, np.array(scores)) for layer in cosines.T]
    return report


def _spearman(cosines: np.ndarray, scores: np.ndarray) -> float | None:
    from scipy import stats

    varies = min(np.ptp(cosines), np.ptp(scores)) > 0
    return float(stats.spearmanr(cosines, scores).statistic) if varies else None


def names_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the path of each file of pairs by its name, without folder and endings; where two have one name, by the path."""
    names = {path: Path(path).name.removesuffix(".gz").removesuffix(".zst").removesuffix(".txt") for path in paths}
    counts = Counter(names.values())
    return {name if counts[name] == 1 else path: path for path, name in names.items()}

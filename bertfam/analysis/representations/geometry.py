"""Geometry of layers: anisotropy and self-similarity of words, and the similarity of layers by centred kernel alignment."""

from collections.abc import Sequence

import numpy as np

from bertfam.analysis.representations.word_vectors import unit


def anisotropy(vectors: np.ndarray) -> float:
    """Return the mean cosine of all pairs of vectors float32[n, embed] (Ethayarajh 2019, section 3.4)."""
    return _mean_cosine(unit(vectors.astype(np.float64)))


def self_similarity(vectors: np.ndarray, words: Sequence[str]) -> tuple[float | None, int]:
    """Return the mean cosine of occurrences of one word in different contexts, and the number of words that have several.

    Each word counts once (Ethayarajh 2019, definition 1). The mean is None if no word has several.

    Args:
      vectors: float32[n, embed].
      words: the word of each vector.
    """
    rows: dict[str, list[int]] = {}
    for number, word in enumerate(words):
        rows.setdefault(word, []).append(number)
    several = [own for own in rows.values() if len(own) > 1]
    units = unit(vectors.astype(np.float64))
    return float(np.mean([_mean_cosine(units[own]) for own in several])) if several else None, len(several)


def _mean_cosine(units: np.ndarray) -> float:
    count, total = len(units), units.sum(axis=0)
    return float((total @ total - count) / (count * (count - 1)))


def aligned(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the linear CKA of every layer of two models: float64[layers of the first, layers of the second].

    CKA is HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)) with K = X X^T and L = Y Y^T (Kornblith et al. 2019, section 3), by the
    unbiased estimate of HSIC (Song et al. 2012, equation 5): the biased one grows with the width where vectors are few.

    Args:
      first: float32[layers, n, embed], vectors of n > 3 words.
      second: float32[layers, n, embed], of the same words; the width may differ.
    """
    kernels = [_centred(layer) for layer in first]
    others = kernels if second is first else [_centred(layer) for layer in second]
    norms, other_norms = ([np.sqrt(np.sum(kernel * kernel)) for kernel in own] for own in (kernels, others))
    return np.array(
        [
            [np.sum(kernel * other) / (norm * other_norm) for other, other_norm in zip(others, other_norms, strict=True)]
            for kernel, norm in zip(kernels, norms, strict=True)
        ],
        np.float64,
    )


def _centred(vectors: np.ndarray) -> np.ndarray:
    """Return the U-centred kernel of vectors [n, embed]: products of two of them sum to n (n - 3) HSIC (Szekely, Rizzo 2014)."""
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    kernel = centred @ centred.T
    np.fill_diagonal(kernel, 0.0)
    count = len(kernel)
    means = kernel.sum(axis=1) / (count - 2)
    kernel -= means[:, None] + means[None, :] - kernel.sum() / ((count - 1) * (count - 2))
    np.fill_diagonal(kernel, 0.0)
    return kernel.astype(np.float32)

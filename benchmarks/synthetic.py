"""Synthetic rows for any objective: full length, every prediction slot used."""

from collections.abc import Mapping

import numpy as np

from bertfam.features import FeatureSpec


def rows(features: Mapping[str, FeatureSpec], count: int, vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Make rows of random tokens below `vocabulary`, with one example each and spread positions: [count, ...] by feature."""
    random = np.random.default_rng(seed)
    length = max(max(spec.shape, default=1) for spec in features.values())

    def feature(name: str, spec: FeatureSpec) -> np.ndarray:
        shape = (count, *spec.shape)
        if name.endswith("_tokens"):
            return random.integers(5, vocabulary, shape)
        if name.endswith("_positions"):
            spread = np.linspace(0, length - 1, spec.shape[0]).astype(int) if spec.shape[0] > 1 else np.zeros(1, int)
            return np.broadcast_to(spread, shape)
        return np.full(shape, 1 if name.endswith(("_weights", "segment_ids")) else 0)

    return {name: feature(name, spec).astype(spec.dtype) for name, spec in features.items()}

"""Methods that merge the parameters of checkpoints, tensor by tensor: weighted averages, and TIES.

mergekit (0.1.4) was considered. It merges torch models of transformers, and trims each tensor by itself, where TIES trims the
vector of all parameters.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
from flax import traverse_util
from typing_extensions import override

from bertfam.training.checkpoints.saved_params import SavedParams, read_together

_SLICE = 2**20  # values


class Method(Protocol):
    """Method of merging."""

    def merge(self, checkpoints: Sequence[SavedParams]) -> Any:
        """Merge the parameters of two or more checkpoints of one architecture: a tree of NumPy arrays in their dtypes."""
        ...


class Average(Method):
    """Weighted average: sum over i of share_i theta_i."""

    def __init__(self, shares: Sequence[float]) -> None:
        """Set the share of each checkpoint; they sum to 1."""
        self.shares = tuple(shares)

    @override
    def merge(self, checkpoints: Sequence[SavedParams]) -> Any:
        return traverse_util.unflatten_dict(self.flat(checkpoints, checkpoints[0].shapes), sep="/")

    def flat(self, checkpoints: Sequence[SavedParams], paths: Collection[str]) -> dict[str, np.ndarray]:
        """Average the tensors at some paths."""

        def merged(tensors: Sequence[np.ndarray]) -> np.ndarray:
            return average(tensors, self.shares)

        return {path: _in_slices(merged, tensors) for path, tensors in read_together(checkpoints, paths)}


class Ties(Method):
    """TIES (Yadav et al. 2023, arXiv 2306.01708, algorithm 1): trim, elect signs, average the values of the elected sign.

    Parameters that the base lacks, such as those of a new head, are averaged.
    """

    def __init__(self, base: SavedParams, density: float, scale: float) -> None:
        """Set the settings.

        Args:
          base: the checkpoint from which the others were trained, by which their changes are measured.
          density: share of the changes of a checkpoint that are kept, the largest ones; above 0, at most 1.
          scale: factor of the merged change, lambda in the paper.
        """
        self.base, self.density, self.scale = base, density, scale

    @override
    def merge(self, checkpoints: Sequence[SavedParams]) -> Any:
        ours = checkpoints[0].shapes
        shared = [path for path in ours if path in self.base.shapes]
        thresholds = [self._threshold(checkpoint, shared) for checkpoint in checkpoints]

        def merged(tensors: Sequence[np.ndarray]) -> np.ndarray:
            return ties(tensors[0], tensors[1:], thresholds, self.scale)

        flat = {path: _in_slices(merged, tensors) for path, tensors in read_together([self.base, *checkpoints], shared)}
        new = Average(weighted_shares((1.0,) * len(checkpoints))).flat(checkpoints, [path for path in ours if path not in flat])
        return traverse_util.unflatten_dict(flat | new, sep="/")

    def _threshold(self, checkpoint: SavedParams, paths: Sequence[str]) -> float:
        """Return the least magnitude of a kept change, of those of all parameters that the base has too."""
        magnitudes = np.empty(sum(checkpoint.shapes[path].size for path in paths), np.float32)  # as large as the checkpoint
        start = 0
        for _, (base, tensor) in read_together([self.base, checkpoint], paths):
            magnitudes[start : start + tensor.size] = np.abs(change(base, tensor)).ravel()
            start += tensor.size
        return least_kept(magnitudes, self.density)


def weighted_shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the shares of checkpoints that have these weights."""
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def exponential_shares(decay: float, count: int) -> tuple[float, ...]:
    """Return the shares of an exponential moving average: m_1 = theta_1, m_i = decay m_{i-1} + (1 - decay) theta_i.

    Args:
      decay: share of the average that the next checkpoint leaves, from 0 to below 1.
      count: number of checkpoints, the oldest first.
    """
    return (decay ** (count - 1), *((1 - decay) * decay ** (count - 1 - place) for place in range(1, count)))


def average(tensors: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    """Average tensors by shares that sum to 1, in float64; equal tensors keep their bits."""
    first = tensors[0].astype(np.float64)
    merged = first.copy()
    for tensor, share in zip(tensors[1:], shares[1:], strict=True):
        merged += share * (tensor - first)
    return merged.astype(tensors[0].dtype)


def change(base: np.ndarray, tensor: np.ndarray) -> np.ndarray:
    """Return the change from the base, float32: the task vector of TIES."""
    return tensor.astype(np.float32) - base.astype(np.float32)


def least_kept(magnitudes: np.ndarray, density: float) -> float:
    """Return the least of the largest magnitudes, a share of `density` and at least one of them; reorders the array."""
    trimmed = magnitudes.size - max(round(density * magnitudes.size), 1)
    magnitudes.partition(trimmed)
    return float(magnitudes[trimmed])


def ties(base: np.ndarray, tensors: Sequence[np.ndarray], thresholds: Sequence[float], scale: float) -> np.ndarray:
    """Merge tensors by TIES.

    Args:
      base: the tensor of the base.
      tensors: that of each checkpoint.
      thresholds: least magnitude of a kept change, of each checkpoint.
      scale: factor of the merged change.

    Returns:
      base + scale * mean of the kept changes of the elected sign, that of their sum; parameters without one stay as they are.
    """
    total = np.zeros(base.shape)
    for tensor, threshold in zip(tensors, thresholds, strict=True):
        total += _kept(change(base, tensor), threshold)
    elected = np.sign(total)
    agreed, count = np.zeros(base.shape), np.zeros(base.shape, np.int32)
    for tensor, threshold in zip(tensors, thresholds, strict=True):
        kept = _kept(change(base, tensor), threshold)
        agrees = (np.sign(kept) == elected) & (elected != 0)
        agreed[agrees] += kept[agrees]
        count += agrees
    return (base + scale * agreed / np.maximum(count, 1)).astype(base.dtype)


def _in_slices(merge: Callable[[Sequence[np.ndarray]], np.ndarray], tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Merge tensors slice by slice, so that intermediate values in float64 take little memory."""
    merged, flat = np.empty(tensors[0].shape, tensors[0].dtype), [tensor.reshape(-1) for tensor in tensors]
    for start in range(0, merged.size, _SLICE):
        place = slice(start, start + _SLICE)
        merged.reshape(-1)[place] = merge([tensor[place] for tensor in flat])
    return merged


def _kept(changes: np.ndarray, threshold: float) -> np.ndarray:
    """Return the changes that are not trimmed, and 0 in place of others."""
    return np.where(np.abs(changes) >= threshold, changes, 0)

"""Hidden states of the tokens of spans, of all layers."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bertfam.analysis.probes.data import ProbeSplit
from bertfam.analysis.subject import Subject, row_features
from bertfam.data.rows.length_batches import computed, length_batches


class LayerFeatures:
    """Hidden states of a network, for any of its parameters; each shape of rows is compiled once.

    Attributes:
      shape: layers + 1, the embeddings first, and the embedding dimension.
    """

    def __init__(self, subject: Subject, batch_size: int) -> None:
        """Prepare the program."""
        self._subject, self._batch_size = subject, batch_size

        def states(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
            with jax.default_matmul_precision("highest"):
                found = subject.intermediates(params, batch, ("hidden_states",))["hidden_states"]
            return jnp.moveaxis(found, 0, 2).astype(jnp.float32)  # [batch, length, layers + 1, embed]

        self._states = jax.jit(states)
        one = row_features([subject.row("a")], subject.vocabulary.token_ids.pad)
        found = jax.eval_shape(states, subject.model.params, one)
        self.shape: tuple[int, int] = (found.shape[2], found.shape[3])

    def size(self, split: ProbeSplit) -> int:
        """Return the bytes of the features of a split."""
        return 4 * split.token_count * self.shape[0] * self.shape[1]

    def compute(self, params: Any, split: ProbeSplit, progress: str) -> np.ndarray:
        """Compute the hidden states of the tokens of a split's spans: float32[tokens, layers + 1, embed]."""
        features = row_features(split.rows, self._subject.vocabulary.token_ids.pad)
        params = jax.device_put(params)
        longest = features["encoder_segment_ids"].shape[1]
        batches = length_batches(features, tuple(features), self._batch_size, longest)
        outputs = computed(batches, lambda batch: self._states(params, batch))
        return span_states(tqdm(outputs, progress, unit=" batches", disable=None, leave=False), split, self.shape)


def span_states(batches: Iterable[tuple[np.ndarray, np.ndarray]], split: ProbeSplit, shape: tuple[int, int]) -> np.ndarray:
    """Return the hidden states of the tokens of a split's spans: float32[tokens, layers + 1, embed].

    Args:
      batches: numbers of rows of the split int64[rows], each row once, and their hidden states
        float32[rows, length, layers + 1, embed].
      split: the targets.
      shape: layers + 1, and the embedding dimension.
    """
    found = np.empty((split.token_count, *shape), np.float32)
    starts = np.cumsum([0, *map(len, split.positions)])
    for indices, states in batches:
        for index, own in zip(indices.tolist(), states, strict=True):
            found[starts[index] : starts[index + 1]] = own[split.positions[index]]
    return found


def standardize(train: np.ndarray, *others: np.ndarray) -> None:
    """Shift and scale each dimension of each layer in place, to mean 0 and variance 1 over the tokens of `train`.

    Args:
      train: float32[tokens, layers + 1, embed].
      others: features that are shifted and scaled as `train` is.
    """
    mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
    for own in (train, *others):
        own -= mean
    scale = np.sqrt(np.einsum("tle,tle->le", train, train) / len(train))
    scale[scale < np.finfo(np.float32).tiny] = 1
    for own in (train, *others):
        own /= scale

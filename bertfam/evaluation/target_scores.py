"""Log-likelihoods of given targets after inputs."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.api import LanguageModel
from bertfam.decoding.prompts import prompt_format
from bertfam.errors import UserError
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, token_scores
from bertfam.layers.execution import Execution
from bertfam.models.language_model import LanguageModelConfig, encode, head_weights, word_embeddings

# Rows are padded to a multiple of this, so that few shapes are compiled.
_MULTIPLE = 32


class TargetScores(NamedTuple):
    """Scores of targets.

    Attributes:
      log_likelihoods: float64[n], log p(targets | inputs) each.
      greedy: bool[n], True where each token of the target is the likeliest.
    """

    log_likelihoods: np.ndarray
    greedy: np.ndarray


def log_likelihoods(
    model: LanguageModel, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], *, batch_size: int = 32
) -> np.ndarray:
    """Compute log p(targets | inputs) = sum over the targets of log p(token | inputs, previous targets), in full float32.

    An encoder reads the inputs; a causal LM reads them before the targets, or its start token if there are none.

    Args:
      model: see `bertfam.api.load`.
      inputs: int[length] each, with the tokens that end them.
      targets: int[length] each, with the tokens that end them.
      batch_size: rows per batch.

    Returns:
      float64[n].

    Raises:
      UserError: where a text is longer than the model reads.
    """
    return score_targets(model, inputs, targets, batch_size=batch_size).log_likelihoods


def score_targets(
    model: LanguageModel, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], *, forced: int = 0, batch_size: int = 32
) -> TargetScores:
    """Score targets as `log_likelihoods` does, and compare them with the likeliest tokens; the first `forced` ones are given."""
    start = model.ends.start
    if start is None:
        raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
    read, written = [np.asarray(text, np.int32) for text in inputs], [np.asarray(text, np.int32) for text in targets]
    before, sources = prompt_format(model.config).split(read, start)
    # One row: what precedes the targets, and all targets but the last; scored from the last place before the targets on.
    rows = [np.concatenate([text, target[:-1]]) for text, target in zip(before, written, strict=True)]
    _check(model, [*rows, *read])
    found, greedy = np.zeros(len(rows)), np.zeros(len(rows), bool)
    # Rows of a batch are of similar length.
    order = sorted(range(len(rows)), key=lambda number: (_padded(len(rows[number])), len(read[number])))
    with jax.default_matmul_precision("highest"):
        for begin in range(0, len(order), batch_size):
            some = order[begin : begin + batch_size]
            tokens, segments = _table([rows[number] for number in some], batch_size, model.config.max_length)
            wanted, weights = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32)
            for row, number in enumerate(some):
                first, size = len(before[number]) - 1, len(written[number])
                wanted[row, first : first + size] = written[number]
                weights[row, first + forced : first + size] = 1
            source = sources and _table([sources[number] for number in some], batch_size, model.config.max_length)
            sums, misses = _scores(model.params, tokens, segments, wanted, weights, source, config=model.config)
            found[some], greedy[some] = np.asarray(sums, np.float64)[: len(some)], np.asarray(misses)[: len(some)] == 0
    return TargetScores(found, greedy)


@functools.partial(jax.jit, static_argnames="config")
def _scores(
    params: Any,
    tokens: jax.Array,
    segments: jax.Array,
    wanted: jax.Array,
    weights: jax.Array,
    source: tuple[jax.Array, jax.Array] | None,
    *,
    config: LanguageModelConfig,
) -> tuple[jax.Array, jax.Array]:
    """Score rows in the form of `_table`: float32[rows], and int32[rows], the targets that are not the likeliest tokens."""
    execution, words, given = Execution(), word_embeddings(params), {}
    same: dict[str, Any] = {"positions": None, "train": False}
    if source is not None:
        encoded, _ = encode(config, params, *source, execution)
        given = {"encoded": encoded, "encoded_segment_ids": source[1]}
    decoder: Any = config.decoder(execution)
    hidden, _ = decoder.apply({"params": params["decoder"]}, words, tokens, segment_ids=segments, **same, **given)
    head = head_weights(config, params)
    found = token_scores(hidden * head.scale, head.kernel, head.bias, wanted, VocabularyLoss(config.require_vocab_size))
    misses = jnp.sum((weights > 0) & (found.best != wanted), axis=1)
    return jnp.sum(jnp.where(weights > 0, found.log_probabilities, 0), axis=1), misses


def _padded(length: int) -> int:
    return -(-length // _MULTIPLE) * _MULTIPLE


def _table(texts: Sequence[np.ndarray], rows: int, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and segment ids int32[rows, length], of a length of at most `most`; rows without a text have one token."""
    length = _padded(max([1, *map(len, texts)]))
    tokens = np.zeros((rows, length if most is None else min(length, most)), np.int32)
    segments = np.zeros_like(tokens)
    segments[:, 0] = 1
    for row, text in enumerate(texts):
        tokens[row, : len(text)], segments[row, : len(text)] = text, 1
    return tokens, segments


def _check(model: LanguageModel, texts: Sequence[np.ndarray]) -> None:
    longest, most = max(map(len, texts)), model.config.max_length
    if most is not None and longest > most:
        raise UserError(f"a text has {longest} tokens and the model reads at most {most}; shorten it")

"""Chunked cross-entropy over a large vocabulary, which holds the logits of only a few positions of every row at a time.

For 32 rows of 1,024 tokens and 50,304 words the logits alone are 6.6 GB in float32, and training holds them more than once. Here
rows are processed in chunks along their length, so that under data parallelism every device processes its own rows. A training
step computes the gradients of the hidden states and of the kernel while a chunk's logits exist, so it does not compute the logits
twice. An evaluation computes only the sums.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertfam.kernels import cross_entropy

# Logit of table rows that are not tokens; exp(logit - max) is exactly 0 in float32.
NO_TOKEN_LOGIT = -1e9


@dataclass(frozen=True)
class VocabularyLoss:
    """Settings of the loss of a position with logits l over the real tokens V, with log Z = logsumexp(l).

        (1 - label_smoothing) (log Z - l[target]) + label_smoothing mean over v in V of (log Z - l[v]) + z_loss (log Z)^2

    Attributes:
      vocab_size: number of real tokens; further rows of the kernel have no probability and no gradient.
      z_loss: coefficient of the z-loss, which keeps log Z near 0 (Chowdhery et al. 2022, section 5: 1e-4).
      label_smoothing: share of the targets that is spread over all tokens (Szegedy et al. 2016, section 7).
      chunk: maximum number of positions of a row whose logits exist at once; it does not change results.
    """

    vocab_size: int
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk: int = 128


class Sums(NamedTuple):
    """Weighted sums over all positions, float32[].

    Attributes:
      loss: the loss of `VocabularyLoss`; only it has a gradient.
      cross_entropy: log Z - l[target], without smoothing or z-loss.
      z_loss: z_loss (log Z)^2.
      correct: 1 where the likeliest token is the target.
    """

    loss: jax.Array
    cross_entropy: jax.Array
    z_loss: jax.Array
    correct: jax.Array


class TokenScores(NamedTuple):
    """Scores of each position [batch, length]: log-probability of the target, likeliest token and its log-probability."""

    log_probabilities: jax.Array
    best: jax.Array
    best_log_probabilities: jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def chunked_cross_entropy(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    weights: jax.Array,
    settings: VocabularyLoss,
) -> Sums:
    """Compute the loss of a language model's hidden states.

    Args:
      hidden: dtype[batch, length, embed].
      kernel: float32[rows, embed], rows >= vocab_size.
      bias: float32[rows] or None.
      targets: int32[batch, length].
      weights: float32[batch, length], constants; a position of weight 0 contributes exactly 0 to the sums and to the gradients
        of the others, whatever its hidden state is.
      settings: settings of the loss.
    """
    weighted = _zero_unweighted(hidden, weights)
    head = _replicate_embed(kernel, hidden.dtype)

    def step(carry: None, hidden: jax.Array, targets: jax.Array) -> Any:
        return carry, _loss_terms(_logits(hidden, head, bias, settings), targets, settings)[0]

    _, terms = _over_chunks(step, None, settings.chunk, weighted, targets)
    return _weighted_sums(terms, weights)


def has_kernel(hidden: jax.Array, kernel: jax.Array) -> bool:
    """Return True if a kernel computes losses and gradients on the devices at hand, for arguments of `chunked_cross_entropy`."""
    return cross_entropy.supports((*hidden.shape[:2], len(kernel)), hidden.dtype)


def _forward(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    weights: jax.Array,
    settings: VocabularyLoss,
) -> tuple[Sums, Any]:
    """Return the sums, and the gradients of the loss as residuals."""
    head = _replicate_embed(kernel, hidden.dtype)
    parts = _batch_parts(len(hidden))

    def by_part(values: jax.Array) -> jax.Array:
        return values.reshape(parts, -1, *values.shape[1:])

    def step(carry: Any, hidden: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        terms, slope = _terms_and_slope(_products(hidden, head, bias), targets, weights, settings, hidden.dtype)
        kernel_gradient, bias_gradient = carry
        if bias is not None:
            bias_gradient += jnp.sum(by_part(slope), axis=(1, 2), dtype=jnp.float32)
        slope = slope.astype(hidden.dtype)
        hidden_gradient = jnp.einsum("bcv,ve->bce", slope, head, preferred_element_type=jnp.float32)
        kernel_gradient += jnp.einsum("pbcv,pbce->pve", by_part(slope), by_part(hidden), preferred_element_type=jnp.float32)
        return (nn.with_logical_constraint(kernel_gradient, ("batch", "vocab", None)), bias_gradient), (
            terms,
            nn.with_logical_constraint(hidden_gradient.astype(hidden.dtype), ("batch", None, None)),
        )

    # Every device sums the gradients of its own rows; the sum over devices follows once, after the last chunk.
    zeros = jnp.zeros((parts, *kernel.shape), jnp.float32), None if bias is None else jnp.zeros((parts, *bias.shape), jnp.float32)
    (kernel_gradient, bias_gradient), (terms, hidden_gradient) = _over_chunks(
        step, zeros, settings.chunk, _zero_unweighted(hidden, weights), targets, weights
    )
    kernel_gradient = nn.with_logical_constraint(jnp.sum(kernel_gradient, axis=0), ("vocab", "embed")).astype(kernel.dtype)
    bias_gradient = None if bias_gradient is None else jnp.sum(bias_gradient, axis=0)
    return _weighted_sums(terms, weights), (hidden_gradient, kernel_gradient, bias_gradient)


def _backward(settings: VocabularyLoss, gradients: Any, cotangent: Sums) -> Any:
    return (*jax.tree.map(lambda array: (cotangent.loss * array).astype(array.dtype), gradients), None, None)


chunked_cross_entropy.defvjp(_forward, _backward)


def token_scores(
    hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, targets: jax.Array, settings: VocabularyLoss
) -> TokenScores:
    """Score the targets of every position, without gradient; see `chunked_cross_entropy` for arguments."""
    head = _replicate_embed(kernel, hidden.dtype)

    def step(carry: None, hidden: jax.Array, targets: jax.Array) -> Any:
        logits = _logits(hidden, head, bias, settings)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        best = cross_entropy.likeliest(logits)
        return carry, TokenScores(_target_logits(logits, targets) - log_z, best, jnp.max(logits, axis=-1) - log_z)

    return jax.lax.stop_gradient(_over_chunks(step, None, settings.chunk, hidden, targets)[1])


def target_log_probabilities(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    weights: jax.Array,
    settings: VocabularyLoss,
) -> jax.Array:
    """Compute the log-probability of the target of every position: float32[batch, length], 0 at those of weight 0.

    Unlike the sums of `chunked_cross_entropy` they may enter any loss. Its gradient computes the logits of each chunk again. See
    there for arguments; of the settings, only the vocabulary's size and the chunk count.
    """
    head = _replicate_embed(kernel, hidden.dtype)

    @jax.checkpoint
    def step(carry: None, hidden: jax.Array, targets: jax.Array) -> Any:
        logits = _logits(hidden, head, bias, settings)
        return carry, _target_logits(logits, targets) - jax.nn.logsumexp(logits, axis=-1)

    _, found = _over_chunks(step, None, settings.chunk, _zero_unweighted(hidden, weights), targets)
    return jnp.where(weights > 0, found, 0.0)


def _over_chunks(step: Callable[..., Any], carry: Any, most: int, *inputs: jax.Array) -> tuple[Any, Any]:
    """Scan `step(carry, *chunks) -> (carry, outputs)` over chunks of inputs [batch, length, ...] along the length.

    Args:
      step: the function of a chunk.
      carry: the initial carry.
      most: maximum length of a chunk.
      *inputs: arrays [batch, length, ...].

    Returns:
      The last carry, and the outputs [batch, length, ...].
    """
    batch, length = inputs[0].shape[:2]
    count = -(-length // most)
    chunk = -(-length // count)  # as equal as possible, for little padding
    if count * chunk > length:
        inputs = tuple(jnp.pad(array, ((0, 0), (0, count * chunk - length), *((0, 0),) * (array.ndim - 2))) for array in inputs)

    def body(carry: Any, index: jax.Array) -> Any:
        return step(carry, *(jax.lax.dynamic_slice_in_dim(array, index * chunk, chunk, axis=1) for array in inputs))

    carry, outputs = jax.lax.scan(body, carry, jnp.arange(count))
    # [count, batch, chunk, ...] -> [batch, length, ...]
    return carry, jax.tree.map(
        lambda array: jnp.moveaxis(array, 0, 1).reshape(batch, count * chunk, *array.shape[3:])[:, :length], outputs
    )


def _zero_unweighted(hidden: jax.Array, weights: jax.Array) -> jax.Array:
    """Zero the hidden states of weight 0, since 0 times a value that is not finite would not be 0."""
    return jnp.where(weights[..., None] > 0, hidden, jnp.zeros((), hidden.dtype))


def _replicate_embed(kernel: jax.Array, dtype: Any) -> jax.Array:
    """Cast the kernel and shard it over the vocabulary only, so that it is gathered once and not in every chunk."""
    return nn.with_logical_constraint(kernel.astype(dtype), ("vocab", None))


def _logits(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, settings: VocabularyLoss) -> jax.Array:
    """Compute the logits float32[batch, chunk, rows] of a chunk."""
    return _of_tokens(_products(hidden, kernel, bias), settings)


def _products(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Compute logits as `_logits` does, those of table rows that are not tokens too."""
    logits = jnp.einsum("bce,ve->bcv", hidden, kernel, preferred_element_type=jnp.float32)
    if bias is not None:
        logits += bias
    return nn.with_logical_constraint(logits, ("batch", None, "vocab"))


def _of_tokens(products: jax.Array, settings: VocabularyLoss) -> jax.Array:
    return jnp.where(jnp.arange(products.shape[-1]) < settings.vocab_size, products, NO_TOKEN_LOGIT)


def _is_target(logits: jax.Array, targets: jax.Array) -> jax.Array:
    # A comparison instead of a gather, since it fuses and shards over the vocabulary.
    return jnp.arange(logits.shape[-1], dtype=targets.dtype) == targets[..., None]


def _target_logits(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(_is_target(logits, targets), logits, 0.0), axis=-1)


def _terms_and_slope(
    products: jax.Array, targets: jax.Array, weights: jax.Array, settings: VocabularyLoss, dtype: Any
) -> tuple[Sums, jax.Array]:
    """Return the terms [batch, chunk] of each position's loss, and its derivatives [batch, chunk, rows], weighted.

    A kernel computes the derivatives in `dtype` where it supports it; otherwise they are float32.
    """
    if cross_entropy.supports(products.shape, dtype):
        own = cross_entropy.Settings(settings.vocab_size, settings.z_loss, settings.label_smoothing, dtype)
        statistics, slope = cross_entropy.statistics_and_slope(products, targets, weights, own)
        return _terms_of(statistics, settings), slope
    logits = _of_tokens(products, settings)
    terms, log_z = _loss_terms(logits, targets, settings)
    real = jnp.arange(logits.shape[-1]) < settings.vocab_size
    slope = jnp.exp(logits - log_z) * (1 + 2 * settings.z_loss * log_z)
    slope -= jnp.where(_is_target(logits, targets), 1 - settings.label_smoothing, 0.0)
    slope -= jnp.where(real, settings.label_smoothing / settings.vocab_size, 0.0)
    return terms, slope * weights[..., None]


def _loss_terms(logits: jax.Array, targets: jax.Array, settings: VocabularyLoss) -> tuple[Sums, jax.Array]:
    """Return the terms [batch, chunk] of each position's loss, and log Z [batch, chunk, 1]."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    total = jnp.zeros_like(log_z)
    if settings.label_smoothing:
        real = jnp.arange(logits.shape[-1]) < settings.vocab_size
        total = jnp.sum(jnp.where(real, logits, 0.0), axis=-1)
    correct = (cross_entropy.likeliest(logits) == targets).astype(jnp.float32)
    statistics = cross_entropy.Statistics(log_z, _target_logits(logits, targets), total, correct)
    return _terms_of(statistics, settings), log_z[..., None]


def _terms_of(statistics: cross_entropy.Statistics, settings: VocabularyLoss) -> Sums:
    log_z = statistics.log_z
    of_target = log_z - statistics.target
    z_loss = settings.z_loss * log_z * log_z
    loss = of_target + z_loss
    if settings.label_smoothing:
        loss += settings.label_smoothing * (log_z - statistics.total / settings.vocab_size - of_target)
    return Sums(loss, of_target, z_loss, statistics.correct)


def _weighted_sums(terms: Sums, weights: jax.Array) -> Sums:
    return Sums(*(jnp.sum(term * weights) for term in terms))


def _batch_parts(batch: int) -> int:
    """Return the number of devices over which rows are sharded; 1 if it does not divide the batch."""
    (axes,) = nn.logical_to_mesh_axes(("batch",)) or (None,)
    mesh = jax.sharding.get_abstract_mesh()
    names = (axes,) if isinstance(axes, str) else axes or ()
    parts = math.prod(mesh.shape[name] for name in names if name in mesh.shape)
    return parts if batch % parts == 0 else 1

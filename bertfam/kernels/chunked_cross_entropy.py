"""Cross-entropy over a large vocabulary without its logits: they exist for a few places of every row at a time.

For 32 rows of 1,024 tokens and 50,304 words the logits alone are 6.6 GB in float32, and training holds them more than once. Here
rows are gone through in chunks of their length, so that under data parallelism every device goes through its own rows. A
training step makes the gradients of the hidden states and of the kernel while a chunk's logits are there: there is no second
product for them. An evaluation makes the sums alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

# Logits of table rows that are no token; exp(logit - max) is exactly 0 in float32.
NO_TOKEN_LOGIT = -1e9


@dataclass(frozen=True)
class VocabularyLoss:
    """Loss of a place with logits l over the real tokens V, with log Z = logsumexp(l).

        (1 - label_smoothing) (log Z - l[target]) + label_smoothing mean over v in V of (log Z - l[v]) + z_loss (log Z)^2

    Attributes:
      vocab_size: real tokens; further rows of the kernel get no probability and no gradient.
      z_loss: keeps log Z near 0 (Chowdhery et al. 2022, section 5: 1e-4).
      label_smoothing: the share of the targets that is spread over all tokens (Szegedy et al. 2016, section 7).
      chunk: places of a row whose logits exist at once, at most; changes no result.
    """

    vocab_size: int
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    chunk: int = 128


class Sums(NamedTuple):
    """Weighted sums over all places, float32[] each.

    Attributes:
      loss: what `VocabularyLoss` says; it alone has a gradient.
      cross_entropy: log Z - l[target], without smoothing or z-loss.
      z_loss: z_loss (log Z)^2.
      correct: 1 where the likeliest token is the target.
    """

    loss: jax.Array
    cross_entropy: jax.Array
    z_loss: jax.Array
    correct: jax.Array


class TokenScores(NamedTuple):
    """Log-probability of the target, likeliest token and its log-probability of each place: [batch, length] each."""

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
      weights: float32[batch, length], constants; a place of weight 0 adds exactly nothing, to the gradients of the others too,
        whatever is in `hidden`.
      settings: what is summed.
    """
    used = _used(hidden, weights)
    head = _whole(kernel, hidden.dtype)

    def step(carry: None, hidden: jax.Array, targets: jax.Array) -> Any:
        return carry, _measured(_logits(hidden, head, bias, settings), targets, settings)[0]

    _, places = _over_chunks(step, None, settings.chunk, used, targets)
    return _summed(places, weights)


def _forward(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    targets: jax.Array,
    weights: jax.Array,
    settings: VocabularyLoss,
) -> tuple[Sums, Any]:
    """Return the sums, and the gradients of the loss."""
    head = _whole(kernel, hidden.dtype)
    parts = _batch_parts(len(hidden))

    def by_part(values: jax.Array) -> jax.Array:
        return values.reshape(parts, -1, *values.shape[1:])

    def step(carry: Any, hidden: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        logits = _logits(hidden, head, bias, settings)
        places, log_z = _measured(logits, targets, settings)
        real = jnp.arange(logits.shape[-1]) < settings.vocab_size
        # [batch, chunk, rows]: the derivative of each place's loss
        slope = jnp.exp(logits - log_z) * (1 + 2 * settings.z_loss * log_z)
        slope -= jnp.where(_is_target(logits, targets), 1 - settings.label_smoothing, 0.0)
        slope -= jnp.where(real, settings.label_smoothing / settings.vocab_size, 0.0)
        slope *= weights[..., None]
        of_kernel, of_bias = carry
        if bias is not None:
            of_bias += jnp.sum(by_part(slope), axis=(1, 2))
        slope = slope.astype(hidden.dtype)
        of_hidden = jnp.einsum("bcv,ve->bce", slope, head, preferred_element_type=jnp.float32)
        of_kernel += jnp.einsum("pbcv,pbce->pve", by_part(slope), by_part(hidden), preferred_element_type=jnp.float32)
        return (nn.with_logical_constraint(of_kernel, ("batch", "vocab", None)), of_bias), (
            places,
            nn.with_logical_constraint(of_hidden.astype(hidden.dtype), ("batch", None, None)),
        )

    # Every device sums up what its own rows give, and devices add theirs up once, behind the last chunk.
    zeros = jnp.zeros((parts, *kernel.shape), jnp.float32), None if bias is None else jnp.zeros((parts, *bias.shape), jnp.float32)
    (of_kernel, of_bias), (places, of_hidden) = _over_chunks(
        step, zeros, settings.chunk, _used(hidden, weights), targets, weights
    )
    of_kernel = nn.with_logical_constraint(jnp.sum(of_kernel, axis=0), ("vocab", "embed")).astype(kernel.dtype)
    of_bias = None if of_bias is None else jnp.sum(of_bias, axis=0)
    return _summed(places, weights), (of_hidden, of_kernel, of_bias)


def _backward(settings: VocabularyLoss, gradients: Any, asked: Sums) -> Any:
    return (*jax.tree.map(lambda each: (asked.loss * each).astype(each.dtype), gradients), None, None)


chunked_cross_entropy.defvjp(_forward, _backward)


def token_scores(
    hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, targets: jax.Array, settings: VocabularyLoss
) -> TokenScores:
    """Score the targets of every place, without gradient; see `chunked_cross_entropy`."""
    head = _whole(kernel, hidden.dtype)

    def step(carry: None, hidden: jax.Array, targets: jax.Array) -> Any:
        logits = _logits(hidden, head, bias, settings)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        best = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return carry, TokenScores(_picked(logits, targets) - log_z, best, jnp.max(logits, axis=-1) - log_z)

    return jax.lax.stop_gradient(_over_chunks(step, None, settings.chunk, hidden, targets)[1])


def _over_chunks(step: Callable[..., Any], carry: Any, most: int, *inputs: jax.Array) -> tuple[Any, Any]:
    """Call `step(carry, *chunks) -> (carry, outputs)` for chunks of [batch, length, ...] along the length.

    Returns:
      the last carry, and the outputs [batch, length, ...].
    """
    batch, length = inputs[0].shape[:2]
    count = -(-length // most)
    chunk = -(-length // count)  # as equal as can be, so that little is padding
    if count * chunk > length:
        inputs = tuple(jnp.pad(each, ((0, 0), (0, count * chunk - length), *((0, 0),) * (each.ndim - 2))) for each in inputs)

    def body(carry: Any, index: jax.Array) -> Any:
        return step(carry, *(jax.lax.dynamic_slice_in_dim(each, index * chunk, chunk, axis=1) for each in inputs))

    carry, outputs = jax.lax.scan(body, carry, jnp.arange(count))
    # [count, batch, chunk, ...] -> [batch, length, ...]
    return carry, jax.tree.map(
        lambda each: jnp.moveaxis(each, 0, 1).reshape(batch, count * chunk, *each.shape[3:])[:, :length], outputs
    )


def _used(hidden: jax.Array, weights: jax.Array) -> jax.Array:
    """Zero the hidden states that have no weight: 0 times a value that is not finite would not be 0."""
    return jnp.where(weights[..., None] > 0, hidden, jnp.zeros((), hidden.dtype))


def _whole(kernel: jax.Array, dtype: Any) -> jax.Array:
    """The kernel as products take it, split over the vocabulary alone: gathered once, not in every chunk."""
    return nn.with_logical_constraint(kernel.astype(dtype), ("vocab", None))


def _logits(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, settings: VocabularyLoss) -> jax.Array:
    """float32[batch, chunk, rows]."""
    logits = jnp.einsum("bce,ve->bcv", hidden, kernel, preferred_element_type=jnp.float32)
    if bias is not None:
        logits += bias
    logits = nn.with_logical_constraint(logits, ("batch", None, "vocab"))
    return jnp.where(jnp.arange(len(kernel)) < settings.vocab_size, logits, NO_TOKEN_LOGIT)


def _is_target(logits: jax.Array, targets: jax.Array) -> jax.Array:
    # A comparison instead of a gather: it fuses, and it shards over the vocabulary.
    return jnp.arange(logits.shape[-1], dtype=targets.dtype) == targets[..., None]


def _picked(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(_is_target(logits, targets), logits, 0.0), axis=-1)


def _measured(logits: jax.Array, targets: jax.Array, settings: VocabularyLoss) -> tuple[Sums, jax.Array]:
    """Return the terms of each place, [batch, chunk], and log Z [batch, chunk, 1]."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    cross_entropy = log_z - _picked(logits, targets)
    z_loss = settings.z_loss * log_z * log_z
    loss = cross_entropy + z_loss
    if settings.label_smoothing:
        real = jnp.arange(logits.shape[-1]) < settings.vocab_size
        mean = jnp.sum(jnp.where(real, logits, 0.0), axis=-1) / settings.vocab_size
        loss += settings.label_smoothing * (log_z - mean - cross_entropy)
    correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    return Sums(loss, cross_entropy, z_loss, correct), log_z[..., None]


def _summed(places: Sums, weights: jax.Array) -> Sums:
    return Sums(*(jnp.sum(each * weights) for each in places))


def _batch_parts(batch: int) -> int:
    """Return the number of devices over which rows are spread; 1 where they do not divide."""
    (axes,) = nn.logical_to_mesh_axes(("batch",)) or (None,)
    mesh = jax.sharding.get_abstract_mesh()
    names = (axes,) if isinstance(axes, str) else axes or ()
    parts = math.prod(mesh.shape[name] for name in names if name in mesh.shape)
    return parts if batch % parts == 0 else 1

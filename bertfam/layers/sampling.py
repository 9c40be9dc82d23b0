"""Sampling of tokens from logits."""

import jax
import jax.numpy as jnp

_GENERATOR = "threefry2x32"  # gives the same numbers on every device, vmapped or not


def keys_of_rows(*features: jax.Array) -> jax.Array:
    """Return a random key for each row, keys[batch], as a pure function of the row's content.

    Samples drawn with these keys do not depend on the row's place in a batch, and so not on the mesh or the microbatches, and
    are the same in every evaluation.

    Args:
      *features: arrays int32[batch, count]. Different rows have different keys, except with a probability of about 2 ** -64.
    """
    words = jnp.concatenate(features, axis=1).astype(jnp.uint32)
    factors = jax.random.bits(jax.random.key(0, impl=_GENERATOR), (2, words.shape[1]), jnp.uint32) | jnp.uint32(1)
    # [batch, 1, count] * [2, count] -> [batch, 2], modulo 2^32
    data = jnp.sum(words[:, None] * factors, axis=-1, dtype=jnp.uint32)
    return jax.random.wrap_key_data(data, impl=_GENERATOR)


def sample(logits: jax.Array, keys: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Sample classes from softmax(logits / temperature) as argmax(logits / temperature + g), g standard Gumbel noise.

    Args:
      logits: float32[batch, count, classes].
      keys: keys[batch], one per row.
      temperature: a number above 0.

    Returns:
      The classes int32[batch, count], without gradient.
    """
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    return jnp.argmax(jax.lax.stop_gradient(logits) / temperature + noise, axis=-1).astype(jnp.int32)

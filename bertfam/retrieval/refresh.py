"""Refresh of the vectors of passages while a run trains, a pure part of its step.

Time is divided into periods of updates. In each period all passages are embedded, a block of them in each step, by the parameters
of the period's first update; the vectors are used from the next period on. This is what a builder beside the training would
give that takes a period for the index, but it is the same on every mesh, however fast the devices are, and a run that is resumed
within a period has lost nothing, because everything is in the carry of the checkpoint.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.retrieval.passages import put_vectors

Carry = dict[str, Any]


def start_refresh(vectors: nn.LogicallyPartitioned, snapshot: Any) -> Carry:
    """Return the carry of update 0.

    Args:
      vectors: boxed vectors float32[rows, width] of passages.
      snapshot: boxed parameters that embed passages.
    """
    vectors, following = (jax.tree.map(jnp.zeros_like, vectors) for _ in range(2))
    copied = jax.tree.map(jnp.copy, snapshot)
    return {"updates": jnp.zeros((), jnp.int32), "vectors": vectors, "next_vectors": following, "snapshot": copied}


def refresh(
    carry: Carry, initial: jax.Array, params: Any, passages: int, period: int, embed: Callable[[Any, jax.Array], jax.Array]
) -> tuple[jax.Array, Carry]:
    """Embed the next block of passages.

    Args:
      carry: the carry of the last update.
      initial: float32[rows, width], the vectors that the first period uses.
      params: parameters before this update.
      passages: number of passages.
      period: updates of a period.
      embed: embeds the passages of some numbers int32[count] by parameters: float32[count, width]. A number that is no passage's
        may have any vector.

    Returns:
      The vectors that this update uses, those of the parameters before the first update of the last period; and the carry.
    """
    carry, initial, params = jax.lax.stop_gradient((carry, initial, params))
    update = carry["updates"]
    place = update % period
    is_first = place == 0
    snapshot = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), params, carry["snapshot"])
    vectors = jnp.where(is_first, jnp.where(update == 0, initial, carry["next_vectors"]), carry["vectors"])
    size = -(-passages // period)
    begin = place * size
    block = embed(snapshot, begin + jnp.arange(size, dtype=jnp.int32))
    following = put_vectors(carry["next_vectors"], block, begin, jnp.minimum(begin + size, passages))
    return vectors, {"updates": update + 1, "vectors": vectors, "next_vectors": following, "snapshot": snapshot}


def current_vectors(carry: Carry, initial: jax.Array) -> jax.Array:
    """Return the vectors that the last update used, or the initial ones before the first."""
    return jnp.where(carry["updates"] == 0, initial, carry["vectors"])

"""Division of a batch into pieces that are computed one after another."""

from typing import Any

import jax


def interleaved(batch: Any, pieces: int) -> Any:
    """Reshape [batch, ...] to [pieces, batch / pieces, ...]; devices keep their rows, and each piece has rows of every device."""
    return jax.tree.map(lambda value: value.reshape(value.shape[0] // pieces, pieces, *value.shape[1:]).swapaxes(0, 1), batch)


def joined(pieces: jax.Array) -> jax.Array:
    """Reshape [pieces, batch / pieces, ...] to [batch, ...]; the inverse of `interleaved`."""
    return pieces.swapaxes(0, 1).reshape(-1, *pieces.shape[2:])

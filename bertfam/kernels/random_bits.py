"""Random bits from a hash of each value's place in its array, as a generator for JAX's keys.

A value's bits depend on its place and the key alone, so they are equal on every mesh and every platform. The hash is two rounds
of `lowbias32` (Wellons 2018, nullprogram.com/blog/2018/07/31), a few operations beside the twenty rounds of JAX's Threefry. Keys
are split and folded by Threefry. JAX's `rbg` (0.11.2) was considered: its bits depend on the platform and on vmap.
"""

import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
from jax import lax

THREEFRY = "threefry2x32"
_WORD = 2**32


def hash_bits(words: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """Return random bits of a shape, unsigned integers of 8, 16 or 32 bits, from the key's two words uint32[2]."""
    if bit_width > 32:
        raise NotImplementedError(f"{bit_width} bits")
    # The place in row-major order, modulo 2^32.
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % _WORD)
        stride *= shape[axis]
    bits = _placed(words[0], words[1], place)
    if math.prod(shape) > _WORD:  # values whose places are equal modulo 2^32 differ in their row
        bits += lax.broadcasted_iota(jnp.uint32, shape, 0) * jnp.uint32(0x9E3779B9)
    return (_mixed(bits) >> (32 - bit_width)).astype(jnp.dtype(f"uint{bit_width}"))


def bits_at(words: jax.Array, places: jax.Array) -> jax.Array:
    """Return random bits uint32[...] of places uint32[...], from the words uint32[..., 2] of a key for each; both broadcast."""
    return _mixed(_placed(words[..., 0], words[..., 1], places))


def _placed(first: jax.Array, second: jax.Array, place: jax.Array) -> jax.Array:
    return _mixed(place ^ first) + second


def _mixed(bits: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return bits ^ (bits >> 16)


def _fold_in(words: jax.Array, data: Any) -> jax.Array:
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(words, impl=THREEFRY), data))


def _split(words: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.key_data(jax.random.split(jax.random.wrap_key_data(words, impl=THREEFRY), shape))


def _seed(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(jax.random.key(seed, impl=THREEFRY))


_HASH: Any = jax.extend.random.define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=hash_bits, fold_in=_fold_in, name="bertfam_hash", tag="hash"
)


def hashed(key: jax.Array) -> jax.Array:
    """Return a Threefry key as a key whose random bits are those of `hash_bits`."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl=_HASH)

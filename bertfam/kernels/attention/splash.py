"""Attention by the splash kernel for TPUs that comes with JAX: blocks outside the pattern are skipped."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, beyond_self_attention
from bertfam.kernels.attention.patterns import FULL, Window
from bertfam.kernels.attention.per_device import Halo, length_shards, per_device, window_halo

_LANES = 128  # of a TPU's vector registers, of which a block of keys is a multiple
# Largest block of queries and of keys: the value that MaxText's configurations have (`sa_block_q: 512` and the like).
_MAX_BLOCK = 512
_MIN_LENGTH = 512


class Splash(Backend):
    """Attention on TPUs over all tokens or a window."""

    name = "splash"
    platforms = ("tpu",)

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        yield from beyond_self_attention(request)
        if not isinstance(request.pattern, Window):
            yield f"tokens attend to {request.pattern.describe()}"
        if request.length < _LANES:
            yield f"rows have {request.length} tokens, fewer than {_LANES}"

    @override
    def cost(self, request: Request) -> float:
        # Not measured on a TPU. It keeps no scores in memory, unlike all others there; in short rows these are small.
        return 0.1 if request.length >= _MIN_LENGTH else float("inf")

    @override
    def gathers_keys(self, request: Request) -> bool:
        return _halo(request, length_shards()) is None

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        assert isinstance(request.pattern, Window)
        shards, heads = length_shards(), inputs.query.shape[2]
        own, halo = _own_length(request, shards), _halo(request, shards)
        length, specs = own * shards, None

        def padded(array: jax.Array) -> jax.Array:
            return jnp.pad(array, [(0, 0), (0, length - request.length), *[(0, 0)] * (array.ndim - 2)])

        kernel_of = partial(_kernel, request.pattern, heads, interpret=request.platform != "tpu")
        if halo:
            kernel = kernel_of(own, own + halo.left + halo.right, offset=halo.left)
        elif request.pattern == FULL:
            kernel = kernel_of(own, length)
        else:
            kernel = kernel_of(length, length, shards=shards)
            if shards > 1:
                mesh = jax.sharding.get_abstract_mesh()
                specs = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(None, "sequence")))
        query, key, value = (padded(array) for array in (inputs.query * request.score_scale, inputs.key, inputs.value))
        segment_ids = padded(inputs.segment_ids)
        row_inputs = Inputs(query, key, value, segment_ids, segment_ids)
        mixed = per_device(_attend, row_inputs, kernel, specs, halo)
        return mixed[:, : request.length], None


def _own_length(request: Request, shards: int) -> int:
    """Return the tokens of a row that a device has, filled up to whole vector registers."""
    return -(-request.length // (_LANES * shards)) * _LANES


def _halo(request: Request, shards: int) -> Halo | None:
    return window_halo(request.pattern, _own_length(request, shards), _LANES)


def _attend(inputs: Inputs, kernel: Any) -> jax.Array:
    """Compute a device's attention, row by row."""
    from bertfam.kernels.attention.splash_kernels import SegmentIds

    assert inputs.key_segment_ids is not None

    def of_row(query: jax.Array, key: jax.Array, value: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
        # [length, heads, head_dim] -> [heads, length, head_dim], and back
        by_head = [jnp.swapaxes(array, 0, 1) for array in (query, key, value)]
        return jnp.swapaxes(kernel(*by_head, SegmentIds(queries, keys)), 0, 1)

    return jax.vmap(of_row)(inputs.query, inputs.key, inputs.value, inputs.segment_ids, inputs.key_segment_ids)


def _kernel(pattern: Window, heads: int, queries: int, keys: int, *, shards: int = 1, **options: Any) -> Any:
    """Return the kernel for a number of queries, which `shards` devices have parts of, and of keys."""
    from bertfam.kernels.attention.splash_kernels import splash_kernel

    blocks = _block(pattern, queries // shards), _block(pattern, keys)
    return splash_kernel(pattern, heads, (queries, keys), blocks, shards=shards, **options)


def _block(pattern: Window, length: int) -> int:
    """Return the size of blocks: the largest that divides the length and reaches no further than the window."""
    reach = max(length if side is None else side for side in (pattern.left, pattern.right))
    largest = max(_LANES, min(_MAX_BLOCK, reach))
    return next(size for size in range(largest // _LANES * _LANES, 0, -_LANES) if length % size == 0)

"""Attention by the kernels for Hopper GPUs of `bertfam.kernels.attention.hopper_kernels`."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request
from bertfam.kernels.attention.patterns import FULL, BlockSparse, ExtraTokens, GlobalTokens, Pattern, Window, first_global
from bertfam.kernels.attention.per_device import Halo, length_shards, per_device, window_halo
from bertfam.kernels.attention.tiles import (
    ROWS,
    Part,
    Visits,
    block_intervals,
    block_sparse_pairs,
    columns_of,
    interval_visits,
    intervals,
    listed_visits,
    rows_of,
)

if TYPE_CHECKING:
    from bertfam.kernels.attention.hopper_kernels import Settings

_HIDDEN = -1e30  # masked scores; a row without keys has a log-sum-exp of about -7e28
_HEAD_DIMS = (32, 64, 96, 128)
_COMPUTE_CAPABILITY = 9  # the products are `wgmma` instructions, which other generations do not have
# The interface that the kernels are written in changes between versions: the first that has what they use, and the first that
# they have not been compiled with.
_JAX_FROM, _JAX_BEFORE = (0, 11, 2), (0, 13)


class Hopper(Backend):
    """Attention of packed and unpacked rows: over all tokens, windows, windows with global tokens, BigBird's patterns."""

    name = "hopper"
    platforms = ("gpu",)

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if request.compute_capability is not None and int(request.compute_capability) != _COMPUTE_CAPABILITY:
            yield f"the GPU has compute capability {request.compute_capability}, not {_COMPUTE_CAPABILITY}.0"
            return  # nothing else would change it
        if not _JAX_FROM <= jax.__version_info__ < _JAX_BEFORE:
            first, last = (".".join(map(str, version)) for version in (_JAX_FROM, _JAX_BEFORE))
            yield f"jax is {jax.__version__}, not {first} or later before {last}"
        if request.dtype not in ("bfloat16", "float16"):
            yield f"the dtype is {request.dtype}, not bfloat16 or float16"
        if request.head_dim not in _HEAD_DIMS:
            yield f"heads are {request.head_dim} wide, not {', '.join(map(str, _HEAD_DIMS[:-1]))} or {_HEAD_DIMS[-1]}"
        if not _supports(request.pattern):
            yield f"tokens attend to {request.pattern.describe()}"
        elif request.key_length is not None and request.pattern != FULL:
            yield "keys come from a cache"
        if request.return_weights:
            yield "attention weights are requested"
        if request.bias:
            yield "scores have a bias"
        if request.split:
            yield from _refusals_of_parts(request)

    @override
    def cost(self, request: Request) -> float:
        # Measured: 0.35 ms for rows of 128, 0.62 for 512, 1.03 for 1,024, 3.89 for 4,096, 15.1 for 16,384; 0.37 within 64 tokens
        # on each side in rows of any length, 0.91 for BigBird's blocks in rows of 4,096; 1.53 for ETC's in rows of 4,352.
        keys = request.pattern.pairs(request.length) / request.length if request.key_length is None else request.key_length
        start = 0.8 if isinstance(request.pattern, ExtraTokens) else 0.25  # three times the kernels
        return (start + 0.00091 * keys) * (-(-request.length // ROWS) * ROWS / request.length)

    @override
    def gathers_keys(self, request: Request) -> bool:
        return _halo(request) is None

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        from bertfam.kernels.attention.hopper_kernels import Settings  # requires a jax that `refusals` accepts

        own_keys = inputs.key_segment_ids is None

        def compute(local: Inputs, arrays: Any) -> jax.Array:
            whole_rows = own_keys and local.offset is None
            local = local._replace(key_segment_ids=None if whole_rows else local.key_segment_ids, arrays=arrays)
            return attend(local, request.pattern, Settings(request.score_scale))

        given = inputs._replace(key_segment_ids=inputs.segment_ids if own_keys else inputs.key_segment_ids, offset=None)
        heads = "heads" if 1 < inputs.query.shape[2] == inputs.key.shape[2] else None
        axes = {"random_blocks": (heads, None, None), "global_tokens": ("batch", None)}
        arrays = {name: array for name, array in (inputs.arrays or {}).items() if name in axes}
        specs = {name: nn.logical_to_mesh_axes(axes[name]) for name in arrays}
        return per_device(compute, given, arrays, specs, _halo(request)), None


def attend(inputs: Inputs, pattern: Pattern, settings: "Settings") -> jax.Array:
    """Compute attention on one device; shapes as in `Inputs`. The output at padding is 0.

    With `Inputs.offset` the queries are consecutive places of the row of the keys.
    """
    match pattern:
        case BlockSparse():
            return _block_sparse(inputs, pattern, settings)
        case ExtraTokens():
            return _extra_tokens(inputs, pattern, settings)
        case GlobalTokens():
            return _global_tokens(inputs, pattern, settings)
        case Window():
            return _in_window(inputs, pattern, settings)[0]
    raise NotImplementedError(pattern.describe())


def _refusals_of_parts(request: Request) -> Iterator[str]:
    """Yield the reasons against rows whose tokens are sharded over devices."""
    shards = length_shards()
    if isinstance(request.pattern, ExtraTokens) or request.key_length is not None:
        yield "the tokens of a row are sharded over devices"
        return
    multiple = ROWS if isinstance(request.pattern, BlockSparse) else 1
    if request.length % (shards * multiple):
        yield f"rows of {request.length} tokens are sharded over {shards} devices, not into multiples of {multiple}"


def _halo(request: Request) -> Halo | None:
    return window_halo(request.pattern, request.length // length_shards())


def _supports(pattern: Pattern) -> bool:
    if isinstance(pattern, BlockSparse):
        return pattern.block == ROWS
    if isinstance(pattern, ExtraTokens):
        return True
    window = pattern.window if isinstance(pattern, GlobalTokens) else pattern
    return isinstance(window, Window) and window.dilation == 1


def _padded(array: jax.Array) -> jax.Array:
    return jnp.pad(array, [(0, 0), (0, -array.shape[1] % ROWS), *[(0, 0)] * (array.ndim - 2)])


def _run(inputs: Inputs, seen: Visits, seeing: Visits, settings: "Settings") -> tuple[jax.Array, jax.Array]:
    """Return the output, 0 at padding, and the base-2 log-sum-exp [batch, heads, length] of the scores."""
    from bertfam.kernels.attention import hopper_kernels

    length = inputs.query.shape[1]
    out, lse = hopper_kernels.attend(*map(_padded, inputs[:3]), seen, seeing, settings)
    return out[:, :length], lse[:, :, :length]


def _in_window(inputs: Inputs, window: Window, settings: "Settings") -> tuple[jax.Array, jax.Array]:
    keys = _padded(_key_segments(inputs))
    within_rows = inputs.key_segment_ids is None or inputs.offset is not None
    queries = keys if within_rows else _padded(inputs.segment_ids)
    low, high = intervals(queries, None if within_rows else keys, window.left, window.right)
    back = intervals(keys, None if within_rows else queries, window.right, window.left)
    if (part := _part(inputs)) is not None:
        low, high = rows_of(low, high, part)
        back = columns_of(*back, part)
    seen = interval_visits(low, high, keys.shape[1])
    return _run(inputs, seen, interval_visits(*back, low.shape[1]), settings)


def _part(inputs: Inputs) -> Part | None:
    """Return the places of the queries in the row of the keys; None: all of them, or those of another sequence."""
    return None if inputs.offset is None else Part(inputs.offset, inputs.query.shape[1])


def _key_segments(inputs: Inputs) -> jax.Array:
    return inputs.segment_ids if inputs.key_segment_ids is None else inputs.key_segment_ids


def _block_sparse(inputs: Inputs, pattern: BlockSparse, settings: "Settings") -> jax.Array:
    assert inputs.arrays is not None
    random_blocks = inputs.arrays["random_blocks"]
    heads, key_heads = inputs.query.shape[2], inputs.key.shape[2]
    if heads != key_heads:  # the random blocks of each query head are others
        key, value = (jnp.repeat(array, heads // key_heads, axis=2) for array in (inputs.key, inputs.value))
        inputs = inputs._replace(key=key, value=value)
    sides, part = intervals(_padded(_key_segments(inputs)), None, None, None), _part(inputs)
    queries, keys = block_sparse_pairs(pattern, random_blocks)
    seen = listed_visits(*sides, queries, keys, rows=part)
    return _run(inputs, seen, listed_visits(*sides, keys, queries, columns=part), settings)[0]


def _global_tokens(inputs: Inputs, pattern: GlobalTokens, settings: "Settings") -> jax.Array:
    """Join the window's output with that of the global tokens outside of it, by their sums of exponents."""
    assert inputs.arrays is not None
    out, lse = _in_window(inputs, pattern.window, settings)
    # [batch, most]: the first global tokens, and their places
    places, found = first_global(inputs.arrays["global_tokens"], pattern.most)
    gather = partial(jnp.take_along_axis, axis=1)
    keys, values = (gather(array, places[:, :, None, None]) for array in (inputs.key, inputs.value))
    group = inputs.query.shape[2] // keys.shape[2]
    keys, values = (jnp.repeat(array, group, axis=2) if group > 1 else array for array in (keys, values))
    segment_ids, global_ids = inputs.segment_ids, gather(_key_segments(inputs), places)
    # bool[batch, length, most]
    same = (segment_ids[:, :, None] == global_ids[:, None]) & (segment_ids > 0)[:, :, None] & found[:, None]
    query_places = jnp.arange(segment_ids.shape[1]) + (0 if inputs.offset is None else inputs.offset)
    visible = same & ~pattern.window.mask(query_places[None, :, None], places[:, None])
    scores = jnp.einsum("blhd,bmhd->bhlm", inputs.query, keys, preferred_element_type=jnp.float32) * settings.scale
    scores = jnp.where(visible[:, None], scores, _HIDDEN)
    lse = lse * math.log(2)
    total = jnp.logaddexp(lse, jax.nn.logsumexp(scores, axis=-1))
    weights = jnp.exp(scores - total[..., None]).astype(values.dtype)
    mixed = out * _share(lse, total) + jnp.einsum("bhlm,bmhd->blhd", weights, values, preferred_element_type=jnp.float32)
    return mixed.astype(out.dtype)


def _extra_tokens(inputs: Inputs, pattern: ExtraTokens, settings: "Settings") -> jax.Array:
    """Join the output within the blocks with that of the global tokens before them, which attend to all tokens themselves."""
    query, key, value, segment_ids = inputs[:4]
    first, others = (
        Inputs(query[:, part], key[:, part], value[:, part], segment_ids[:, part])
        for part in (slice(None, pattern.count), slice(pattern.count, None))
    )
    to_all = Inputs(first.query, key, value, first.segment_ids, segment_ids)
    to_first = Inputs(others.query, first.key, first.value, others.segment_ids, first.segment_ids)
    padded_ids = _padded(others.segment_ids)
    near = interval_visits(*block_intervals(padded_ids, pattern.block), padded_ids.shape[1])
    out, lse = _run(others, near, near, settings)
    global_out, global_lse = _in_window(to_first, FULL, settings)
    lse, global_lse = lse * math.log(2), global_lse * math.log(2)
    total = jnp.logaddexp(lse, global_lse)
    mixed = out * _share(lse, total) + global_out * _share(global_lse, total)
    return jnp.concatenate([_in_window(to_all, FULL, settings)[0], mixed.astype(out.dtype)], axis=1)


def _share(lse: jax.Array, total: jax.Array) -> jax.Array:
    """Return the share [batch, length, heads, 1] of exponents in their total, by logarithms [batch, heads, length]."""
    return jnp.swapaxes(jnp.exp(lse - total), 1, 2)[..., None]

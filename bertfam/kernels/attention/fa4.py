"""Attention by FlashAttention-4 (Dao 2023 has the algorithm): the kernels for Hopper GPUs of the package fa4-jax."""

import functools
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from packaging.specifiers import SpecifierSet
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request, beyond_unpacked_rows, computed_keys
from bertfam.kernels.attention.patterns import CAUSAL
from bertfam.kernels.attention.per_device import per_device

# The versions with the interface that `_attend` calls, and those that the kernels have been compiled with, as in setup.py.
_VERSIONS = {"fa4-jax": "==0.1.*", "nvidia-cutlass-dsl": ">=4.8.1,<4.9", "jax": ">=0.11.2,<0.13"}
_COMPUTE_CAPABILITY = 9  # the package has kernels for others too, which have not been measured
_HEAD_DIMS = (64, 96, 128)


class FlashAttention4(Backend):
    """Attention of unpacked rows, over all or all previous tokens."""

    name = "fa4"
    platforms = ("gpu",)
    reproducible = False  # the gradients of queries; with grouped heads those of keys and values too

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if request.compute_capability is not None and int(request.compute_capability) != _COMPUTE_CAPABILITY:
            yield f"the GPU has compute capability {request.compute_capability}, not {_COMPUTE_CAPABILITY}.0"
            return  # nothing else would change it
        reasons = [*_version_refusals(), *_refusals_of_kernels(request)]
        yield from reasons if reasons else _import_refusals()

    @override
    def cost(self, request: Request) -> float:
        # Measured: 0.66 ms for rows of 512, 0.96 for 1,024, 1.57 for 2,048, 2.95 for 4,096, 5.62 for 8,192; causal 1.02 for
        # 2,048, 1.72 for 4,096.
        return 0.4 + 0.00065 * computed_keys(request)

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        keys = inputs.segment_ids if inputs.key_segment_ids is None else inputs.key_segment_ids

        def compute(local: Inputs, _: Any) -> jax.Array:
            return _attend(local, request)

        return per_device(compute, inputs._replace(key_segment_ids=keys, offset=None)), None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_refusals() -> Iterator[str]:
    """Yield the first package that is missing or has another version."""
    for distribution, required in _VERSIONS.items():
        version = _version(distribution)
        if version is None:
            yield f"{distribution} is not installed (the extra bertfam[cuda])"
            return
        if not SpecifierSet(required).contains(version, prereleases=True):
            yield f"{distribution} is {version}, not {required}"
            return


def _refusals_of_kernels(request: Request) -> Iterator[str]:
    yield from beyond_unpacked_rows(request)
    if request.bias:
        yield "scores have a bias"
    if request.key_length is not None and request.pattern == CAUSAL:
        yield "keys come from a cache"
    if request.head_dim not in _HEAD_DIMS:
        yield f"heads are {request.head_dim} wide, not 64, 96 or 128"


@functools.cache
def _import_refusals() -> tuple[str, ...]:
    """Return why the kernels cannot be imported, if they cannot. Without a GPU they are not, since it takes seconds."""
    if jax.default_backend() != "gpu":
        return ()
    try:
        importlib.import_module("fa4_jax.kernels")
    except Exception as error:  # incomplete installations and native libraries raise many types
        return (f"fa4-jax cannot be imported ({type(error).__name__}: {str(error).partition(chr(10))[0]})",)
    return ()


def _attend(inputs: Inputs, request: Request) -> jax.Array:
    """Compute attention on one device: each row is a sequence whose tokens are the first places of its part of all places.

    The output at padding is 0, as are the gradients of padding.
    """
    import fa4_jax

    assert inputs.key_segment_ids is not None
    batch, length = inputs.segment_ids.shape
    query, key, value = (array.reshape(-1, *array.shape[2:]) for array in inputs[:3])
    starts, key_starts = (jnp.arange(batch + 1, dtype=jnp.int32) * width for width in (length, inputs.key.shape[1]))
    used, keys_used = (jnp.sum(ids > 0, axis=1, dtype=jnp.int32) for ids in (inputs.segment_ids, inputs.key_segment_ids))
    out = fa4_jax.flash_attn_varlen(
        query,
        key,
        value,
        starts,
        key_starts,
        seqused_q=used,
        seqused_k=keys_used,
        causal=request.pattern == CAUSAL,
        scale=request.score_scale,
        defined_padding=True,
    )
    return out.reshape(inputs.query.shape)

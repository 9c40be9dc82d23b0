"""Attention by the kernels for Hopper GPUs of `bertfam.kernels.attention.hopper_kernels`."""

from collections.abc import Iterator

import jax
from typing_extensions import override

from bertfam.kernels.attention.interface import Backend, Inputs, Request
from bertfam.kernels.attention.patterns import FULL, Window
from bertfam.kernels.attention.per_device import per_device
from bertfam.kernels.attention.tiles import ROWS

_HEAD_DIMS = (32, 64, 96, 128)
_COMPUTE_CAPABILITY = 9  # the products are `wgmma` instructions, which other generations do not have
# The interface that the kernels are written in changes between versions: the first that has what they use, and the first that
# they have not been compiled with.
_JAX_FROM, _JAX_BEFORE = (0, 11, 2), (0, 13)


class Hopper(Backend):
    """Attention of packed and unpacked rows, over all tokens or within a window."""

    name = "hopper"
    platforms = ("gpu",)

    @override
    def refusals(self, request: Request) -> Iterator[str]:
        if not _JAX_FROM <= jax.__version_info__ < _JAX_BEFORE:
            first, last = (".".join(map(str, version)) for version in (_JAX_FROM, _JAX_BEFORE))
            yield f"jax is {jax.__version__}, not {first} or later before {last}"
        if request.compute_capability is not None and int(request.compute_capability) != _COMPUTE_CAPABILITY:
            yield f"the GPU has compute capability {request.compute_capability}, not {_COMPUTE_CAPABILITY}.0"
        if request.dtype not in ("bfloat16", "float16"):
            yield f"the dtype is {request.dtype}, not bfloat16 or float16"
        if request.head_dim not in _HEAD_DIMS:
            yield f"heads are {request.head_dim} wide, not {', '.join(map(str, _HEAD_DIMS[:-1]))} or {_HEAD_DIMS[-1]}"
        if not isinstance(request.pattern, Window) or request.pattern.dilation > 1:
            yield f"tokens attend to {request.pattern.describe()}"
        elif request.key_length is not None and request.pattern != FULL:
            yield "keys come from a cache"
        if request.return_weights:
            yield "attention weights are requested"
        if request.bias:
            yield "scores have a bias"
        if request.split:
            yield "the tokens of a row are sharded over devices"

    @override
    def cost(self, request: Request) -> float:
        # Measured: 0.35 ms for rows of 128, 1.03 for 1,024; 0.37 within 64 tokens on each side, in rows of any length.
        pairs = request.pattern.pairs(request.length) / request.length
        keys = ROWS + (pairs if request.key_length is None else request.key_length)
        return (0.2 + 0.00076 * keys) * (-(-request.length // ROWS) * ROWS / request.length)

    @override
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, None]:
        from bertfam.kernels.attention.hopper_kernels import Settings, attend  # requires a jax that refusals() accepts

        assert isinstance(request.pattern, Window)
        pattern, settings = request.pattern, Settings(request.score_scale)
        own_keys = inputs.key_segment_ids is None

        def compute(local: Inputs, _: None) -> jax.Array:
            return attend(local._replace(key_segment_ids=None) if own_keys else local, pattern, settings)

        given = inputs._replace(key_segment_ids=inputs.segment_ids) if own_keys else inputs
        return per_device(compute, given), None

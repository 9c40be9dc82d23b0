"""Attention: one table of backends, the choice among them with its reason, and the call.

A backend is a `Backend` in a file of its own, `attention_NAME.py`; the tests hold each against "reference".
"""

import jax

from bertfam.errors import UserError
from bertfam.kernels.attention_backend import Backend, Request
from bertfam.kernels.attention_cudnn import CUDNN
from bertfam.kernels.attention_reference import REFERENCE
from bertfam.kernels.attention_xla import XLA

__all__ = ["BACKENDS", "Backend", "Request", "attend", "backend_names", "choose"]

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (REFERENCE, XLA, CUDNN)}

# Forward and backward of 12 heads of 64 on 32,768 tokens in bfloat16, on an H200: at length 128 cuDNN takes 0.44 ms and XLA
# 1.00 ms, at 512 0.55 ms and 2.89 ms. Shorter rows have not been measured.
CUDNN_FROM_LENGTH = 128


def backend_names() -> tuple[str, ...]:
    """Names that a config may give, besides "auto"."""
    return tuple(BACKENDS)


def choose(request: Request, name: str = "auto") -> tuple[Backend, str]:
    """The backend for a request, and why, in words for the run's plan.

    "auto" takes the fastest that can. Attention dropout does not hold it back: a fast backend without it runs with
    attention dropout 0, and the reason says so.

    Raises:
      UserError: when the backend named cannot do what is asked, dropout included.
    """
    if name != "auto":
        backend = BACKENDS[name]
        clashes = backend.clashes(request)
        if request.dropout_rate and not backend.dropout:
            clashes.append(f"attention_dropout_rate is {request.dropout_rate}, which only 'reference' applies")
        if clashes:
            raise UserError(f"Execution.attention = {name!r} cannot run: {'; '.join(clashes)}: set Execution.attention = 'auto'")
        return backend, f"{name}: named in Execution.attention"

    passed_over = []
    for backend in _fastest_first(request):
        clashes = backend.clashes(request)
        if clashes:
            passed_over.append(f"not {backend.name}, because {' and '.join(clashes)}")
            continue
        reasons = [f"the fastest that can for {request.dtype} rows of {request.length} on {request.platform}"]
        reasons += passed_over
        if request.dropout_rate and not backend.dropout:
            reasons.append(
                f"attention dropout {request.dropout_rate} is left out, since this backend has none "
                "(Execution.attention = 'reference' applies it)"
            )
        return backend, f"{backend.name}: {'; '.join(reasons)}"
    raise AssertionError("the reference backend can do everything")


def _fastest_first(request: Request) -> tuple[Backend, ...]:
    if request.platform == "gpu" and request.length >= CUDNN_FROM_LENGTH:
        return CUDNN, XLA, REFERENCE
    return XLA, REFERENCE


def attend(
    backend: Backend,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    segment_ids: jax.Array,
    request: Request,
    bias: jax.Array | None = None,
    dropout_key: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """softmax(q k^T / sqrt(head_dim) + bias) v, with softmax in float32, among tokens of the same segment.

    Args:
      backend: as chosen for `request`.
      query, key, value: [batch, length, heads, head_dim].
      segment_ids: int32[batch, length]; 0 = padding. What comes out at padding is finite and means nothing.
      request: what `backend` was chosen for.
      bias: [batch or 1, heads or 1, length, length] added to the scores, or None.
      dropout_key: None for no dropout.

    Returns:
      [batch, length, heads, head_dim] in the dtype of `value`; and with `request.maps` the probabilities before
      dropout, float32[batch, heads, length, length], else None.
    """
    return backend.run(query, key, value, segment_ids=segment_ids, request=request, bias=bias, dropout_key=dropout_key)

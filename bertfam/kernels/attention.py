"""Attention: one table of backends, and the choice among them with its reason.

A backend is a `Backend` in a file of its own, `attention_NAME.py`; the tests hold each against "reference".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bertfam.errors import UserError
from bertfam.kernels.attention_backend import Backend, Request
from bertfam.kernels.attention_cudnn import CUDNN
from bertfam.kernels.attention_reference import REFERENCE
from bertfam.kernels.attention_xla import XLA

__all__ = ["BACKENDS", "Backend", "Request", "backend_names", "choices", "choose"]

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (REFERENCE, XLA, CUDNN)}

# Forward and backward of 12 heads of 64 on 32,768 tokens in bfloat16, on an H200: at length 128 cuDNN takes 0.44 ms and XLA
# 1.00 ms, at 512 0.55 ms and 2.89 ms. On 2026-11-28, there: causal rows of 1,024 take 0.44 ms and 2.77 ms (16,384 tokens), rows
# of 512 with T5's bias 1.24 ms and 3.49 ms. Shorter rows have not been measured.
CUDNN_FROM_LENGTH = 128


_CHOICES: ContextVar[dict[Request, str] | None] = ContextVar("choices", default=None)


def backend_names() -> tuple[str, ...]:
    """Return the names that a config may give, besides "auto"."""
    return tuple(BACKENDS)


@contextmanager
def choices() -> Iterator[dict[Request, str]]:
    """Record the choices, with their reasons by request, while a program is traced inside."""
    token = _CHOICES.set({})
    try:
        found = _CHOICES.get()
        assert found is not None
        yield found
    finally:
        _CHOICES.reset(token)


def choose(request: Request, name: str = "auto") -> tuple[Backend, str]:
    """Choose the backend for a request, and give the reason for the run's plan.

    "auto" takes the fastest that can. Attention dropout does not hold it back: a fast backend without it runs with
    attention dropout 0, and the reason says so.

    Raises:
      UserError: when the backend named cannot do what is asked, dropout included.
    """
    backend, reason = _choose(request, name)
    if (found := _CHOICES.get()) is not None:
        found[request] = reason
    return backend, reason


def _choose(request: Request, name: str) -> tuple[Backend, str]:
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

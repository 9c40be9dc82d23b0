"""Table of attention backends, and the choice among them with its reason.

Each backend is a `Backend` in its own file, `attention_NAME.py`. The tests compare each with "reference".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bertfam.errors import UserError
from bertfam.kernels.attention_cudnn import CUDNN
from bertfam.kernels.attention_interface import Backend, Request
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
    """Return the backend names that a config may use, besides "auto"."""
    return tuple(BACKENDS)


@contextmanager
def choices() -> Iterator[dict[Request, str]]:
    """Record the reason for each choice, by request, while a program is traced in this context."""
    recorded: dict[Request, str] = {}
    token = _CHOICES.set(recorded)
    try:
        yield recorded
    finally:
        _CHOICES.reset(token)


def choose(request: Request, name: str = "auto") -> tuple[Backend, str]:
    """Choose the backend for a request, and return it with the reason that the run's plan prints.

    "auto" chooses the fastest backend that supports the request. Attention dropout does not count: a fast backend without
    dropout runs with attention dropout 0, and the reason says so.

    Raises:
      UserError: when the named backend does not support the request, including its dropout.
    """
    backend, reason = _choose(request, name)
    if (recorded := _CHOICES.get()) is not None:
        recorded[request] = reason
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
        reasons = [f"the fastest backend for {request.dtype} rows of {request.length} tokens on {request.platform}"]
        reasons += passed_over
        if request.dropout_rate and not backend.dropout:
            reasons.append(
                f"attention dropout {request.dropout_rate} is not applied, because this backend does not support it "
                "(Execution.attention = 'reference' applies it)"
            )
        return backend, f"{backend.name}: {'; '.join(reasons)}"
    raise AssertionError("the reference backend supports every request")


def _fastest_first(request: Request) -> tuple[Backend, ...]:
    if request.platform == "gpu" and request.length >= CUDNN_FROM_LENGTH:
        return CUDNN, XLA, REFERENCE
    return XLA, REFERENCE

"""Table of attention backends, and the choice among them with its reason.

Each backend is a `Backend` in its own file. The tests compare each with "reference".
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bertfam.errors import UserError
from bertfam.kernels.attention.block_sparse import BlockSparseProducts
from bertfam.kernels.attention.blocks import Blocks
from bertfam.kernels.attention.cudnn import Cudnn
from bertfam.kernels.attention.fa4 import FlashAttention4
from bertfam.kernels.attention.hopper import Hopper
from bertfam.kernels.attention.interface import Backend, Request
from bertfam.kernels.attention.reference import Reference
from bertfam.kernels.attention.splash import Splash
from bertfam.kernels.attention.xla import Xla

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (Reference(), Xla(), Blocks(), BlockSparseProducts(), Splash(), Cudnn(), Hopper(), FlashAttention4())
}

_REPRODUCIBLE = 1.15  # how much slower a reproducible backend may be and still be preferred
_NOTABLE = 1.1  # ratio of costs from which a plan says what a faster backend would save
_CHOICES: ContextVar[list[tuple[Request, str]] | None] = ContextVar("choices", default=None)


def backend_names() -> tuple[str, ...]:
    """Return the backend names that a config may use, besides "auto"."""
    return tuple(BACKENDS)


@contextmanager
def choices() -> Iterator[list[tuple[Request, str]]]:
    """Record each choice, a request and the reason, while a program is traced in this context."""
    recorded: list[tuple[Request, str]] = []
    token = _CHOICES.set(recorded)
    try:
        yield recorded
    finally:
        _CHOICES.reset(token)


def choose(request: Request, name: str = "auto") -> tuple[Backend, str]:
    """Choose the backend for a request, and return it with the reason that the run's plan prints.

    "auto" chooses the fastest backend that supports the request, or a reproducible one that is at most 15 % slower. Attention
    dropout does not count: a fast backend without dropout runs with attention dropout 0, and the reason says so.

    Raises:
      UserError: when the named backend does not support the request, including its dropout.
    """
    backend, reason = _fastest(request) if name == "auto" else _named(request, name)
    if (recorded := _CHOICES.get()) is not None:
        recorded.append((request, reason))
    return backend, reason


def _named(request: Request, name: str) -> tuple[Backend, str]:
    backend = BACKENDS[name]
    clashes = backend.clashes(request)
    if request.dropout_rate and not backend.applies_dropout:
        clashes.append(f"attention_dropout_rate is {request.dropout_rate}, which only 'reference' applies")
    if clashes:
        raise UserError(f"Execution.attention = {name!r} cannot run: {'; '.join(clashes)}: set Execution.attention = 'auto'")
    return backend, f"{name}: named in Execution.attention"


def _fastest(request: Request) -> tuple[Backend, str]:
    backends = sorted(
        (backend for backend in BACKENDS.values() if request.platform in backend.platforms),
        key=lambda backend: backend.cost(request) * (1 if backend.reproducible else _REPRODUCIBLE),
    )
    refused = {}
    for chosen in backends:  # the reference supports every request; those after the chosen one need not import their packages
        if not (clashes := chosen.clashes(request)):
            break
        refused[chosen] = clashes
    reasons = [f"the fastest backend that supports {request.dtype} rows of {request.length} tokens on {request.platform}"]
    for backend, clashes in refused.items():
        ratio = chosen.cost(request) / backend.cost(request)
        saving = f", which takes 1/{ratio:.1f} of its time on an H200" if ratio >= _NOTABLE and request.platform == "gpu" else ""
        reasons.append(f"not {backend.name}{saving}, because {' and '.join(clashes)}")
    if request.dropout_rate and not chosen.applies_dropout:
        reasons.append(
            f"attention dropout {request.dropout_rate} is not applied, because this backend does not support it "
            "(Execution.attention = 'reference' applies it)"
        )
    return chosen, f"{chosen.name}: {'; '.join(reasons)}"

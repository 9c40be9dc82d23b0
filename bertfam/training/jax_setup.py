"""JAX setup of a run: the check of jaxlib's version, and the cache of compiled programs."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from bertfam.errors import UserError

# The first jaxlib that adds float32 scatters on GPUs at full speed; the ones before are hundreds of times slower.
_GPU_JAXLIB = (0, 11, 1)
_LEAST_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"  # that a program took to compile, to be kept


def check_jaxlib(platform: str, version: str) -> None:
    """Raise UserError if jaxlib is too old for the platform ("cpu", "gpu", "tpu") of the devices."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if platform == "gpu" and found < _GPU_JAXLIB:
        raise UserError(
            f"jaxlib {version} on a GPU is hundreds of times too slow for training; install bertfam[cuda] on Python >= 3.12"
        )


def enable_compilation_cache() -> None:
    """Keep programs compiled for an accelerator in the user's cache folder, so that a later process need not compile them again.

    They are not kept in MODEL_DIR: a folder from somebody else would bring programs that run. Programs for CPUs are not kept,
    because another CPU may lack their instructions. JAX_COMPILATION_CACHE_DIR takes precedence if it is set, on all devices.

    Programs are kept however fast they compiled. JAX leaves out those of less than a second, of which a small model has many;
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS changes that.
    """
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        if jax.default_backend() == "cpu":
            return
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertfam" / "compilations"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return  # a home that cannot be written to costs compiling again
        _cache_in(str(folder))
    if _LEAST_SECONDS not in os.environ:
        jax.config.update(_LEAST_SECONDS.lower(), 0.0)


@contextmanager
def shared_programs() -> Iterator[None]:
    """Keep the programs that several runs of this process compile on CPUs until the context ends, in a temporary folder.

    A run finds those of the runs before, which may differ in the seed and in the data.
    """
    if jax.default_backend() != "cpu" or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        yield
        return
    with TemporaryDirectory(prefix="bertfam-programs-") as folder:
        _cache_in(folder)
        try:
            yield
        finally:
            _cache_in(None)


def _cache_in(folder: str | None) -> None:
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()  # an earlier compilation has made JAX decide whether there is a cache

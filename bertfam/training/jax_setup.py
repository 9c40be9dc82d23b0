"""JAX setup of a run: the check of jaxlib's version, and the cache of compiled programs."""

import os
import re
from pathlib import Path

import jax

from bertfam.errors import UserError

# The first jaxlib that adds float32 scatters on GPUs at full speed; the ones before are hundreds of times slower.
_GPU_JAXLIB = (0, 11, 1)


def check_jaxlib(platform: str, version: str) -> None:
    """Raise UserError if jaxlib is too old for the platform ("cpu", "gpu", "tpu") of the devices."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if platform == "gpu" and found < _GPU_JAXLIB:
        raise UserError(
            f"jaxlib {version} on a GPU is hundreds of times too slow for training; install bertfam[cuda] on Python >= 3.12"
        )


def enable_compilation_cache() -> None:
    """Keep programs compiled for an accelerator in the user's cache folder, so that a resumed run need not compile them again.

    They are not kept in MODEL_DIR: a folder from somebody else would bring programs that run. Programs for CPUs are not kept,
    because another CPU may lack their instructions. JAX_COMPILATION_CACHE_DIR takes precedence if it is set, on all devices.
    """
    if jax.default_backend() == "cpu" or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    from jax.experimental.compilation_cache import compilation_cache

    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertfam" / "compilations"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written to costs compiling again
    jax.config.update("jax_compilation_cache_dir", str(folder))
    compilation_cache.reset_cache()  # an earlier compilation has made JAX decide that there is no cache

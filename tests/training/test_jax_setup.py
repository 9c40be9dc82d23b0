"""Minimum version of jaxlib on GPUs, and the cache of compiled programs."""

import os
import subprocess
import sys

import pytest
from time_limits import FAR_SECONDS

from bertfam.errors import UserError
from bertfam.training.jax_setup import check_jaxlib


def test_old_jaxlib_is_refused_on_gpus_only():
    with pytest.raises(UserError) as caught:
        check_jaxlib("gpu", "0.10.2")
    assert str(caught.value) == (
        "jaxlib 0.10.2 on a GPU is hundreds of times too slow for training; install bertfam[cuda] on Python >= 3.12"
    )
    for version in ("0.11.0", "0.11", "0.9.10"):
        with pytest.raises(UserError):
            check_jaxlib("gpu", version)
    for version in ("0.11.1", "0.11.2.dev20261101", "0.12.0", "1.0.0"):
        check_jaxlib("gpu", version)
    for platform in ("cpu", "tpu"):
        check_jaxlib(platform, "0.10.2")


COMPILES = """
import sys
from pathlib import Path
import jax
from bertfam.training.jax_setup import enable_compilation_cache
jax.jit(lambda x: x + 1)(1)  # before it is known where
for platform in sys.argv[2:]:
    jax.default_backend = lambda: platform
    enable_compilation_cache()
    jax.jit(lambda x: 2 * x)(1)
    print(platform, Path(sys.argv[1], "bertfam").is_dir())
"""


def test_programs_for_accelerators_are_cached_for_the_user(tmp_path):
    """A folder that the environment names takes precedence; a home that cannot be written to is none."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}

    def compile(home, *platforms, **variables):
        """Return a line for each platform, which says whether there is a folder for compiled programs then."""
        command, variables = [sys.executable, "-c", COMPILES, str(home), *platforms], variables | {"XDG_CACHE_HOME": str(home)}
        done = subprocess.run(
            command, check=True, env=environment | variables, timeout=FAR_SECONDS, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.splitlines()

    assert compile(tmp_path / "user", "cpu", "gpu") == ["cpu False", "gpu True"]
    assert any((tmp_path / "user/bertfam/compilations").iterdir())
    compile(tmp_path / "other", "gpu", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "named"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["named", "user"]
    (tmp_path / "file").write_text("")
    compile(tmp_path / "file", "gpu")

"""Minimum version of jaxlib on GPUs, and the cache of compiled programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from time_limits import FAR_SECONDS

from bertfam import commands
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


SHARES = """
import os
import jax
from bertfam.training.jax_setup import shared_programs
jax.jit(lambda x: x + 1)(1)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
with shared_programs():
    folder = jax.config.jax_compilation_cache_dir
    for _ in range(3):
        jax.jit(lambda x: 2 * x)(1)
    print(len(hits), os.path.isdir(folder))
print(jax.config.jax_compilation_cache_dir, os.path.exists(folder))
"""


def test_runs_of_a_process_share_programs_on_cpus():
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    done = subprocess.run(
        [sys.executable, "-c", SHARES], check=True, env=environment, timeout=FAR_SECONDS, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.splitlines() == ["2 True", "None False"]


KEEPS = """
import sys
from pathlib import Path
import jax
from bertfam.training.jax_setup import enable_compilation_cache
for platform in ("cpu", "gpu"):
    jax.default_backend = lambda: platform
    enable_compilation_cache()
    print(platform, jax.config.jax_persistent_cache_min_compile_time_secs)
jax.jit(lambda x: 2 * x)(1)
print(any(Path(sys.argv[1]).rglob("jit_*")))
"""


def test_programs_that_compile_fast_are_cached(tmp_path):
    """Of a small model most programs are such; the environment variable of JAX takes precedence."""
    name = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    plain = {key: value for key, value in os.environ.items() if key not in (name, "JAX_COMPILATION_CACHE_DIR")}

    def keep(folder, **variables):
        variables = plain | {"XDG_CACHE_HOME": str(folder)} | variables
        command = [sys.executable, "-c", KEEPS, str(folder)]
        done = subprocess.run(command, check=True, env=variables, timeout=FAR_SECONDS, stdout=subprocess.PIPE, text=True)
        return done.stdout.splitlines()

    assert keep(tmp_path / "all") == ["cpu 1.0", "gpu 0.0", "True"]
    assert keep(tmp_path / "slow", **{name: "600"}) == ["cpu 600.0", "gpu 600.0", "False"]


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


def test_every_command_that_runs_a_model_keeps_its_programs():
    """Others run no model, or enable the cache once their processes are together."""
    folder = Path(str(commands.__file__)).parent
    texts = {path.stem: path.read_text() for path in folder.glob("*.py")}
    others = {name for name, text in texts.items() if "flags.import_modules(args)" in text}
    joined = {"pretrain_run", "replay_run"}
    assert others == joined | {"benchmark_flags", "export", "import_", "init_flags", "preview", "report"}
    assert {name for name, text in texts.items() if "enable_compilation_cache()" in text} == joined | {"flags"}

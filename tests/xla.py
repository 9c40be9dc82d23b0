"""Fast tracing by JAX and compilation by XLA for CPUs, which take much longer than running in the tests."""

import os
import threading

import flax
import jax
from jax._src import lru_cache
from jaxlib import xla_client

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if jax.__version_info__ < (0, 11):  # newer versions exit because of this flag
    FLAGS += " --xla_cpu_use_fusion_emitters=false"


def set_fast_tracing():
    """Leave the names of modules and the lines of Python out of programs, in this process and those that it starts.

    They are a sixth of the time of tracing and lowering.
    """
    flax.config.update("flax_profile", False)
    jax.config.update("jax_traceback_in_locations_limit", 0)
    os.environ |= {"FLAX_PROFILE": "false", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}


def set_fast_compilation():
    """Have XLA read the flags in this process, once and for all, unless the environment has some.

    The flags do not stay in the environment: libtpu reads them too, does not know all of them, and exits.
    """
    write_whole_programs()
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = FLAGS
        xla_client.CompileOptions()
        del os.environ["XLA_FLAGS"]


def share_cache():
    """Have XLA read the flags of `device_environment` now, and remove them from the environment.

    The key of JAX's persistent compilation cache includes the flags of the environment. Without them a launched process finds the
    programs that the process of the tests, which read the same flags in `set_fast_compilation`, has compiled, and vice versa.
    """
    write_whole_programs()
    flags = os.environ.get("XLA_FLAGS", "").split()
    if set(FLAGS.split()) <= set(flags):
        xla_client.CompileOptions()
        os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if flag not in FLAGS.split())


def write_whole_programs():
    """Have JAX write each program of its persistent cache under another name first.

    Otherwise another process may read a part of it, or for ever if the writer is killed; JAX then prints a warning.
    """
    put = lru_cache.LRUCache.put

    def put_whole(cache, key, value):
        path = cache.path / f"{key}{lru_cache._CACHE_SUFFIX}"
        if cache.eviction_enabled or path.exists():
            return put(cache, key, value)
        new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        new.write_bytes(value)
        os.replace(new, path)

    lru_cache.LRUCache.put = put_whole


def device_environment(count=1):
    """Return the environment variables of a process with `count` devices, all of them on the CPU."""
    flags = f"{os.environ.get('XLA_FLAGS', FLAGS)} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}

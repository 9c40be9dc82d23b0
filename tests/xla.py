"""How XLA compiles for CPUs in the tests: at once. Compiling takes much longer than running here, and most of it optimises."""

import os

import jax
from jaxlib import xla_client

FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# For `jax.jit(..., compiler_options=OPTIMISED)`: as a user's, where the order in which a sum is added up matters.
OPTIMISED = {"xla_backend_optimization_level": 3}
if jax.__version_info__ < (0, 11):  # newer ones end the process at this flag
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
    OPTIMISED["xla_cpu_use_fusion_emitters"] = True


def hurry():
    """Has XLA read the flags in this process, once for all, unless the environment has some.

    They do not stay there: libtpu reads them too, which knows not all of them and ends the process.
    """
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = FLAGS
        xla_client.CompileOptions()
        del os.environ["XLA_FLAGS"]


def share_cache():
    """Have XLA read the flags of `devices` now, and take them out of the environment.

    The key of JAX's persistent compilation cache has the environment's flags in it. Without them a launched process finds the
    programs that the process of the tests, which read the same flags in `hurry`, has compiled, and the other way round.
    """
    words = os.environ.get("XLA_FLAGS", "").split()
    if set(FLAGS.split()) <= set(words):
        xla_client.CompileOptions()
        os.environ["XLA_FLAGS"] = " ".join(word for word in words if word not in FLAGS.split())


def devices(count=1):
    """The environment of a process that has so many devices, all of them the CPU's."""
    flags = f"{os.environ.get('XLA_FLAGS', FLAGS)} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}

"""Environment variables of JAX, XLA and bertfam: values without a meaning and unsupported ones are refused before any work."""

import functools
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bertfam.errors import UserError, warn
from bertfam.storage.files import nearest_existing
from bertfam.storage.paths import unreplaced

_FOLDERS = ("JAX_COMPILATION_CACHE_DIR", "BERTFAM_CACHE")
_ALLOCATORS = ("default", "platform", "bfc", "cuda_async", "vmm")
_MOST_DEVICES = 4096  # that JAX makes of a CPU in some seconds
_MOST_MEMORY = 10  # times the GPU's, for unified memory; a larger number is a percentage
_MEMORY = "write a share of the GPU's memory above 0, such as 0.9"
# variable -> whether a value has a meaning, and what to write. JAX and XLA take these at their word, or refuse them once devices
# are started, in words that do not name the variable.
_VALUES: dict[str, tuple[Callable[[str], bool], str]] = {
    "BERTFAM_CACHE_GIB": (
        lambda text: text == "" or 0 < float(text) < float("inf"),
        "write how many GiB of a token cache in a bucket to keep on the disk, such as 100",
    ),
    "JAX_NUM_CPU_DEVICES": (
        lambda text: 1 <= int(text) <= _MOST_DEVICES or int(text) == -1,
        f"write how many devices the CPU stands for, 1 to {_MOST_DEVICES:,}",
    ),
    "XLA_CLIENT_MEM_FRACTION": (lambda text: 0 < float(text) <= _MOST_MEMORY, _MEMORY),
    "XLA_PYTHON_CLIENT_MEM_FRACTION": (lambda text: 0 < float(text) <= _MOST_MEMORY, _MEMORY),
    "XLA_PYTHON_CLIENT_ALLOCATOR": (lambda text: text.lower() in _ALLOCATORS, f"write one of {', '.join(_ALLOCATORS)}"),
}
# Flags that every version of XLA knows, which tests and launchers set.
_EVERY_XLA = re.compile(
    r"--xla_(force_host_platform_device_count|backend_optimization_level|cpu_parallel_codegen_split_count)=\d{1,6}"
)
_XLA_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_REFUSED_BY_XLA = re.compile(r"Unknown flag.*|Couldn't interpret value .* for flag \w+")
_TRUE, _FALSE = ("1", "true", "yes", "on", "y", "t"), ("0", "false", "no", "off", "n", "f")
# variable -> values of JAX with which bertfam's programs fail or compute something else, and why.
_UNSUPPORTED: dict[str, tuple[tuple[str, ...], str]] = {
    "JAX_DISABLE_JIT": (_TRUE, "bertfam compiles its steps"),
    "JAX_NUMPY_DTYPE_PROMOTION": (("strict",), "bertfam mixes bfloat16 and float32"),
    "JAX_NUMPY_RANK_PROMOTION": (("raise",), "bertfam adds arrays of different ranks"),
    "JAX_THREEFRY_PARTITIONABLE": (_FALSE, "initial weights and dropout would be others, and would depend on the mesh"),
}


def check() -> None:
    """Raise UserError for a variable whose value has no meaning or is not supported; it does not import JAX."""
    for name, (values, reason) in _UNSUPPORTED.items():
        if (text := os.environ.get(name, "")).lower() in values:
            raise UserError(f"{name}={text}: this value is not supported, since {reason}; unset it")
    for name, (has_meaning, fix) in _VALUES.items():
        if (value := os.environ.get(name)) is None:
            continue
        is_sound = False
        with suppress(ValueError):
            is_sound = has_meaning(value)
        if not is_sound:
            raise UserError(f"{name}={value}: this environment variable has no such value; {fix}, or unset it")
    _check_xla_flags(os.environ.get("XLA_FLAGS", ""))
    for name in _FOLDERS:
        text = os.environ.get(name, "")
        if fault := unreplaced(text):
            raise UserError(f"{name}={text}: {fault} in this environment variable, or unset it")
        if text.startswith("~"):
            os.environ[name] = os.path.expanduser(text)  # JAX would make a folder of this name
        if text and "://" not in text and not os.path.isdir(nearest := nearest_existing(os.path.expanduser(text))):
            raise UserError(f"{name}={text}: {nearest} is not a folder; name a folder in this environment variable, or unset it")
    _check_compilation_cache(os.environ.get("JAX_COMPILATION_CACHE_DIR", ""))


@functools.cache
def _check_xla_flags(text: str) -> None:
    """Raise UserError for flags and values that XLA does not know, and for a missing file of flags: XLA would end the process.

    Only XLA knows its flags, so a process of its own reads them; that takes 0.15 s on a laptop.
    """
    words = text.split()
    if any(len(match[1]) > 9 or int(match[1]) > _MOST_DEVICES for match in map(_XLA_DEVICES.fullmatch, words) if match):
        raise UserError(f"XLA_FLAGS={text}: a CPU stands for {_MOST_DEVICES:,} devices at most; write fewer, or unset it")
    if all(map(_EVERY_XLA.fullmatch, words)):
        return
    if not words[0].startswith("--") and not os.path.isfile(text):
        raise UserError(
            f"XLA_FLAGS={text}: a flag of XLA begins with --, and there is no file of flags {text}; correct this environment "
            "variable, or unset it"
        )
    reader = [sys.executable, "-P", "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
    whole_log = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(reader, env=whole_log, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode and (refused := _REFUSED_BY_XLA.search(done.stderr)):
        raise UserError(f"XLA_FLAGS={text}: XLA refuses it ({refused[0]}); correct this environment variable, or unset it")


def _check_compilation_cache(text: str) -> None:
    """Warn once about a cache of programs that cannot be written, where JAX warns for each program."""
    if text and "://" not in text and not os.access(nearest_existing(text), os.W_OK | os.X_OK):
        warn(
            [
                f"JAX_COMPILATION_CACHE_DIR={text} cannot be written, so programs that are compiled now are not kept; name "
                "another folder, or unset this environment variable"
            ]
        )
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1e9"  # JAX keeps no program that compiled faster


def mistake(error: ValueError) -> UserError | None:
    """Return the mistake in an environment variable that JAX refuses when it is imported; None for any other error."""
    refused = re.search(r"for (?:JAX flag|environment) '?(jax_\w+)", str(error), re.IGNORECASE)
    name = refused[1].upper() if refused else ""
    frames = traceback.extract_tb(error.__traceback__)
    if not refused and frames and Path(frames[-1].filename).parts[-3:] == ("jax", "_src", "config.py"):
        # A number that Python cannot read; the message quotes its text alone.
        name = next((key for key, text in os.environ.items() if key.startswith("JAX_") and str(error).endswith(repr(text))), "")
    if name not in os.environ:
        return None
    return UserError(f"{name}={os.environ[name]}: JAX knows no such value of this environment variable; unset it, or correct it")

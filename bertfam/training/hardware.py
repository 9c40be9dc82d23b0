"""What is known of devices: peak speeds, for model-FLOPs utilisation; a jaxlib that is too slow for them; compiling once."""

import re
from pathlib import Path

import jax

from bertfam.errors import UserError

# The first jaxlib that adds float32 scatters on GPUs at full speed; the ones before are hundreds of times slower.
_GPU_JAXLIB = (0, 11, 1)

# Dense bf16 matrix-product peaks of one JAX device by a part of its `device_kind`, FLOP/s, from the vendors' datasheets.
_PEAKS = {
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(device: jax.Device) -> float | None:
    """The device's peak in FLOP/s; None where it is not known (a CPU)."""
    return next((peak for kind, peak in _PEAKS.items() if kind in device.device_kind), None)


def check_jaxlib(platform: str, version: str) -> None:
    """Raises UserError where jaxlib is too old for the platform ("cpu", "gpu", "tpu") of the devices."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if platform == "gpu" and found < _GPU_JAXLIB:
        raise UserError(
            f"jaxlib {version} on a GPU is hundreds of times too slow for this: install bertfam[cuda] on Python >= 3.12"
        )


def keep_compilations(model_dir: Path) -> None:
    """What is compiled for an accelerator from here on is kept in MODEL_DIR, so that a run which goes on need not compile again.

    Not for CPUs: the program may use instructions that those lack to which the folder is moved. JAX_COMPILATION_CACHE_DIR, if it
    is set, is used instead, on all devices.
    """
    if jax.default_backend() == "cpu" or jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_compilation_cache_dir", str(model_dir / "compilations"))
    compilation_cache.reset_cache()  # what was compiled before has made it decide that there is none

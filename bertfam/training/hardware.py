"""Peak speeds, for model-FLOPs utilisation."""

import jax

# Dense bf16 matrix-product peaks of one JAX device by a part of its `device_kind`, FLOP/s, from the vendors' datasheets.
_PEAKS = {
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

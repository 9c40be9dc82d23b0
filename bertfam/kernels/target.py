"""The devices that a program is traced for."""

import jax


def target() -> tuple[str, float | None]:
    """Return the platform ("cpu", "gpu", "tpu") of the current mesh or else of this machine, and a GPU's compute capability."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    platform = jax.default_backend() if device is None else device.platform
    capability = getattr(jax.local_devices()[0], "compute_capability", None) if platform == "gpu" else None
    return platform, float(capability) if capability is not None else None

"""Speed, memory and links of each kind of chip, in one table with sources."""

from dataclasses import dataclass

import jax

_GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """A kind of chip.

    All figures are for one chip. JAX may count a chip as several devices, which share it evenly.

    Attributes:
      name: prefix of Google's slice names ("v5e" for v5e-16), or the vendor's name.
      kind: substring of the `device_kind` of its devices.
      flops: peak of dense bfloat16 matrix products, FLOP/s.
      hbm_bytes: memory that a program may fill. For the TPUs that can be planned for, this is the compiler's limit, read from its
        own message (libtpu 0.0.52, 2026-11); for the others it is the nominal size.
      hbm_bandwidth: bandwidth between memory and cores, bytes/s.
      source: page with these figures.
      ici_bandwidth: outgoing bandwidth over all links to other chips of a slice or host (half of the figure that vendors call
        bidirectional), bytes/s; None: unknown.
      dcn_bandwidth: share of the chip in its host's network to other slices, bytes/s; None: unknown.
      devices: number of JAX devices per chip.
      tensor_cores: number of TensorCores per chip, which the names of some slices count.
    """

    name: str
    kind: str
    flops: float
    hbm_bytes: int
    hbm_bandwidth: float
    source: str
    ici_bandwidth: float | None = None
    dcn_bandwidth: float | None = None
    devices: int = 1
    tensor_cores: int = 1


_TPU = "cloud.google.com/tpu/docs/"
# A kind that is a substring of another one comes after it. Google gives network speeds in Gbit/s per chip; for v5e, 2 x 100 for
# the 8 chips of a host.
CHIPS = (
    Chip("v5e", "TPU v5 lite", 197e12, int(15.75 * _GIB), 819e9, f"TPU v5e, {_TPU}v5e", 200e9, 3.125e9),
    Chip("v5p", "TPU v5", 459e12, int(95.73 * _GIB), 2765e9, f"TPU v5p, {_TPU}v5p", 600e9, 6.25e9, tensor_cores=2),
    Chip("v6e", "TPU v6 lite", 918e12, int(31.24 * _GIB), 1638e9, f"TPU v6e, {_TPU}v6e; network: {_TPU}tpu7x", 400e9, 12.5e9),
    Chip(
        "tpu7x",
        "TPU7x",
        2307e12,
        2 * int(94.74 * _GIB),
        7380e9,
        f"TPU7x (Ironwood), {_TPU}tpu7x",
        600e9,
        12.5e9,
        devices=2,
        tensor_cores=2,
    ),
    Chip("v4", "TPU v4", 275e12, 32 * _GIB, 1200e9, f"TPU v4, {_TPU}v4", tensor_cores=2),
    Chip("H100 PCIe", "H100 PCIe", 756e12, 80 * 10**9, 2000e9, "NVIDIA H100 datasheet", 300e9),
    Chip("H100", "H100", 989e12, 80 * 10**9, 3350e9, "NVIDIA H100 datasheet, SXM", 450e9),
    Chip("H200", "H200", 989e12, 141 * 10**9, 4800e9, "NVIDIA H200 datasheet, SXM", 450e9),
    Chip("A100", "A100", 312e12, 40 * 10**9, 1555e9, "NVIDIA A100 datasheet, 40 GB SXM", 300e9),
)


def chip_of(device: jax.Device) -> Chip | None:
    """Return the chip that a device is, or is part of; None if it is unknown, as for a CPU."""
    return chip_of_kind(device.device_kind)


def chip_of_kind(device_kind: str) -> Chip | None:
    """Return the chip of a name of a device, as JAX and PyTorch have it; None if it is unknown."""
    return next((chip for chip in CHIPS if chip.kind in device_kind), None)


def peak_flops(device: jax.Device) -> float | None:
    """Return the device's peak in bfloat16 FLOP/s; None if it is unknown, as for a CPU."""
    chip = chip_of(device)
    return None if chip is None else chip.flops / chip.devices


def memory_bytes(device: jax.Device) -> int | None:
    """Return the bytes of the device's memory that programs may fill; None if they are unknown, as for a CPU."""
    try:
        stats = device.memory_stats()
    except jax.errors.JaxRuntimeError:  # the device is described for the compiler only
        stats = None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    chip = chip_of(device)
    return None if chip is None else chip.hbm_bytes // chip.devices

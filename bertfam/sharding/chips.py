"""What is known of chips, in one table: speeds, memory and links, each with where it was read."""

from dataclasses import dataclass

import jax

_GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """A kind of chip. All is of one chip; a chip may be several of JAX's devices, which share it evenly.

    Attributes:
      name: what Google's names of slices begin with ("v5e" of v5e-16), or the vendor's.
      kind: a part of `device_kind` of its devices.
      flops: peak of dense bfloat16 matrix products, FLOP/s.
      hbm_bytes: memory that a program may fill. Of TPUs planned for it is what their compiler allows, which was seen in its own
        message (libtpu 0.0.52, 2026-11); of others the nominal size.
      hbm_bandwidth: between memory and cores, bytes/s.
      source: the page that says so.
      ici_bandwidth: out of the chip over all its links to the others of a slice or host (half of what is called
        bidirectional), bytes/s; None: not known.
      dcn_bandwidth: the chip's share of its host's network to other slices, bytes/s; None: not known.
      devices: how many devices JAX sees of it.
      tensor_cores: of it, which the names of some slices count.
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
# A kind that is part of another's stands below it. Networks are given in Gbit/s of a chip; of v5e, 2 x 100 for a host's 8 chips.
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
    """The chip that a device is, or is a part of; None where it is not known (a CPU)."""
    return next((chip for chip in CHIPS if chip.kind in device.device_kind), None)


def peak_flops(device: jax.Device) -> float | None:
    """The device's peak in bfloat16 FLOP/s; None where it is not known (a CPU)."""
    chip = chip_of(device)
    return None if chip is None else chip.flops / chip.devices


def memory_bytes(device: jax.Device) -> int | None:
    """What programs may fill of the device's memory; None where it is not known (a CPU)."""
    try:
        stats = device.memory_stats()
    except jax.errors.JaxRuntimeError:  # a device that is only compiled for
        stats = None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    chip = chip_of(device)
    return None if chip is None else chip.hbm_bytes // chip.devices

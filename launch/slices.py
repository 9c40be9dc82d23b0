"""TPU slices by their Google Cloud names, and the names of each kind of chip in Google's products."""

import argparse
import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of chip."""

    accelerator: str  # prefix of the accelerator type for Cloud TPU and XPK
    runtime: str  # software version of a Cloud TPU VM for JAX
    gke: str  # value of the node label cloud.google.com/gke-tpu-accelerator
    dimensions: int  # number of dimensions of a slice
    chips_counted: int  # units per chip in the accelerator type: 2 if it counts TensorCores
    alone: tuple[int, ...]  # chips of slices with a single machine; larger slices have 4 per machine
    largest: int  # number of chips of the largest slice


# https://docs.cloud.google.com/tpu/docs/runtimes, .../tpu/docs/v5e, v6e, v5p and v4 (accelerator types, machines, topologies),
# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (labels); read 2026-11
KINDS = {
    "v4": Kind("v4", "tpu-ubuntu2204-base", "tpu-v4-podslice", 3, 2, (4,), 4096),
    "v5e": Kind("v5litepod", "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", 2, 1, (1, 4, 8), 256),
    "v5p": Kind("v5p", "v2-alpha-tpuv5", "tpu-v5p-slice", 3, 2, (4,), 4096),
    "v6e": Kind("v6e", "v2-alpha-tpuv6e", "tpu-v6e-slice", 2, 1, (1, 4, 8), 256),
}


@dataclass(frozen=True)
class Slice:
    """One slice, or several of the same shape."""

    kind: str
    size: int  # number in the name
    count: int  # number of slices

    @property
    def accelerator_type(self) -> str:
        """Name for Cloud TPU and XPK, such as v5litepod-16."""
        return f"{KINDS[self.kind].accelerator}-{self.size}"

    @property
    def chips(self) -> int:
        """Number of chips per slice."""
        return self.size // KINDS[self.kind].chips_counted

    @property
    def hosts(self) -> int:
        """Number of machines per slice."""
        return 1 if self.chips in KINDS[self.kind].alone else self.chips // 4

    @property
    def topology(self) -> str:
        """Default topology of a slice, such as 4x4 or 2x2x4."""
        dimensions = KINDS[self.kind].dimensions
        if self.chips == 4 and dimensions == 3:
            return "2x2x1"
        doublings = int(math.log2(self.chips))
        return "x".join(str(2 ** ((doublings + axis) // dimensions)) for axis in range(dimensions))


def alone(parser: argparse.ArgumentParser, given: Slice) -> str | None:
    """Return the advice for commands that run in one process; None on one machine."""
    if given.count * given.hosts == 1:
        return None
    return f"run it without {parser.prog}, or on a --slice of one machine, such as v5e-8"


def slice_name(text: str) -> Slice:
    """Parse the name of slices: v5e-16, 2xv5p-128 or v5litepod-16 (v4 and v5p count TensorCores, two per chip)."""
    match = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+)-(\d+)", text)
    names = {kind.accelerator: name for name, kind in KINDS.items()} | {name: name for name in KINDS}
    if not match or match[2] not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is not a slice; write v5e-16, 2xv6e-256, v5p-128 ({', '.join(KINDS)})")
    slice = Slice(names[match[2]], int(match[3]), int(match[1] or 1))
    kind = KINDS[slice.kind]
    sizes = [chips for chips in (2**power for power in range(13)) if min(kind.alone) <= chips <= kind.largest and chips != 2]
    if slice.size % kind.chips_counted or slice.chips not in sizes:
        known = ", ".join(f"{slice.kind}-{chips * kind.chips_counted}" for chips in sizes)
        raise argparse.ArgumentTypeError(f"{text!r}: {slice.kind}-{slice.size} does not exist; use {known}")
    return slice

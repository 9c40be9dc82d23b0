"""TPU slices by the names that Google Cloud gives them, and what each kind of chip is called where."""

import argparse
import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of chip."""

    accelerator: str  # its slices' accelerator type for Cloud TPU and XPK, up to the -
    runtime: str  # software of a Cloud TPU VM for JAX
    gke: str  # value of the node label cloud.google.com/gke-tpu-accelerator
    dimensions: int  # of a slice
    chips_counted: int  # what one chip counts in the accelerator type: 2 where TensorCores are counted
    alone: tuple[int, ...]  # chips of a slice that is a single machine; larger slices have 4 a machine
    largest: int  # chips of the largest slice


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
    """One slice, or several of one shape."""

    kind: str
    size: int  # as in its name
    count: int  # of slices

    @property
    def accelerator_type(self) -> str:
        """Its name for Cloud TPU and XPK, v5litepod-16."""
        return f"{KINDS[self.kind].accelerator}-{self.size}"

    @property
    def chips(self) -> int:
        """Chips of one slice."""
        return self.size // KINDS[self.kind].chips_counted

    @property
    def hosts(self) -> int:
        """Machines of one slice."""
        return 1 if self.chips in KINDS[self.kind].alone else self.chips // 4

    @property
    def topology(self) -> str:
        """How the chips of one slice are laid out by default, 4x4 or 2x2x4."""
        dimensions = KINDS[self.kind].dimensions
        if self.chips == 4 and dimensions == 3:
            return "2x2x1"
        doublings = int(math.log2(self.chips))
        return "x".join(str(2 ** ((doublings + axis) // dimensions)) for axis in range(dimensions))


def slice_name(text: str) -> Slice:
    """A flag's value that names slices: v5e-16, 2xv5p-128 or v5litepod-16 (v4 and v5p count TensorCores, two a chip)."""
    found = re.fullmatch(r"(?:([1-9]\d*)x)?(\w+)-(\d+)", text)
    names = {kind.accelerator: name for name, kind in KINDS.items()} | {name: name for name in KINDS}
    if not found or found[2] not in names:
        raise argparse.ArgumentTypeError(f"{text!r} is no slice; write v5e-16, 2xv6e-256, v5p-128 ({', '.join(KINDS)})")
    made = Slice(names[found[2]], int(found[3]), int(found[1] or 1))
    kind = KINDS[made.kind]
    sizes = [chips for chips in (2**power for power in range(13)) if min(kind.alone) <= chips <= kind.largest and chips != 2]
    if made.size % kind.chips_counted or made.chips not in sizes:
        known = ", ".join(f"{made.kind}-{chips * kind.chips_counted}" for chips in sizes)
        raise argparse.ArgumentTypeError(f"{text!r}: there is no {made.kind}-{made.size}; there are {known}")
    return made

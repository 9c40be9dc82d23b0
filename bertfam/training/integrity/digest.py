"""Digests of a step's gradient and parameters on every device, which reveal a chip that computes or stores wrong values.

A digest is the sum modulo 2^32 of a hash of each element's bits and position. It is exact, whatever the order of the sum. One
flipped bit always changes it; several flipped bits go unnoticed once in 2^32. Devices that hold the same shard must have the
same digest.
"""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertfam.objectives.frozen import at_trained
from bertfam.objectives.objective import Batch
from bertfam.plurals import listed
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

DIGEST = "digest"  # split of the digests in metrics.jsonl
# (leaf, number of its shard) -> device -> digest of the shard as the device holds it.
Copies = Mapping[tuple[str, int], Mapping[str, int]]


def hashed(leaf: jax.Array) -> jax.Array:
    """Hash each element by a bijection of its bits that depends on its position: uint32 of the leaf's shape."""
    bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}").astype(jnp.uint32)
    strides = np.cumprod([1, *leaf.shape[:0:-1]])[::-1] if leaf.ndim else ()
    for axis, stride in enumerate(strides):
        bits ^= jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis) * np.uint32(stride * 0x9E3779B9 % 2**32)
    # The finalizer of MurmurHash3.
    bits = (bits ^ bits >> 16) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> 13) * np.uint32(0xC2B2AE35)
    return bits ^ bits >> 16


def local_digests(leaves: list[jax.Array], shardings: list[NamedSharding]) -> jax.Array:
    """Compute the digest of each leaf on each device: uint32[devices, leaves], the devices in the mesh's order."""
    mesh = shardings[0].mesh

    def sums(*terms: jax.Array) -> jax.Array:
        return jnp.stack([jnp.sum(term, dtype=jnp.uint32) for term in terms])[None]

    specs = tuple(sharding.spec for sharding in shardings)
    own = jax.shard_map(sums, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(mesh.axis_names), check_vma=False)
    return own(*map(hashed, leaves))


@dataclass(frozen=True)
class Digest:
    """Digests of one update: those of its gradient, and of the parameters before it.

    Attributes:
      loss: loss of the update, an exact float32.
      program: number that identifies the program, the kind and number of devices, and the compiler. Digests with equal numbers
        must be equal.
      copies: digests by shard and device.
    """

    loss: float
    program: int
    copies: Copies

    def leaves(self) -> dict[str, int]:
        """Return the digest by leaf, "gradient/..." or "parameter/...": the same on every mesh.

        Where devices disagree, the majority is used.
        """
        digests: dict[str, int] = defaultdict(int)
        for (leaf, _), by_device in self.copies.items():
            digests[leaf] = (digests[leaf] + Counter(by_device.values()).most_common(1)[0][0]) % 2**32
        return dict(digests)

    def line(self) -> dict[str, float]:
        """Return the values to log."""
        return {"loss": self.loss, "program": self.program, **self.leaves()}


def mismatches(copies: Iterable[Copies]) -> dict[str, list[str]]:
    """Return the leaves on which each device disagrees with the majority of its shard; without a majority, all disagree."""
    shards: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for by_shard in copies:
        for shard, by_device in by_shard.items():
            shards[shard] += by_device.items()
    wrong: dict[str, set[str]] = defaultdict(set)
    for (leaf, _), pairs in shards.items():
        (most, count), *others = Counter(value for _, value in pairs).most_common()
        for device, value in pairs if others else ():
            if value != most or count == others[0][1]:
                wrong[device].add(leaf)
    return {device: sorted(leaves) for device, leaves in sorted(wrong.items())}


def disagreement(devices: Mapping[str, list[str]]) -> str:
    """Describe the result of `mismatches`."""
    leaves = sorted({leaf for wrong in devices.values() for leaf in wrong})
    return f"silent data corruption: {listed(leaves, 1)} on {' or '.join(devices)} differs from other devices"


class Digester:
    """Separate program for digests, so that the training step is the same program whether digests are recorded or not."""

    def __init__(self, phase: Phase, shardings: Any, trained: Any, *, seed: np.ndarray, microbatches: int) -> None:
        """Build the program.

        Args:
          phase: what is trained.
          shardings: shardings of the parameters of the run.
          trained: shapes of the trained parameters.
          seed: `seed_words` of the run.
          microbatches: number of microbatches of the run.
        """
        gradient_of = make_gradient(phase, microbatches=microbatches)
        self._seed, self._trained = seed, trained
        self._shardings = {"gradient": at_trained(shardings, trained), "parameter": shardings}
        self._mesh: Mesh = jax.tree.leaves(shardings)[0].mesh
        self._compiled: dict[Any, tuple[Callable[..., Any], int]] = {}

        def digest(state: TrainState, batch: Batch, seed: Any) -> tuple[jax.Array, jax.Array]:
            gradient, _, metrics = gradient_of(state, batch, seed)
            leaves = jax.tree.leaves({"gradient": gradient, "parameter": state.params})
            return metrics["loss"].total, local_digests(leaves, jax.tree.leaves(self._shardings))

        self._digest = jax.jit(digest, out_shardings=NamedSharding(self._mesh, PartitionSpec()))

    def __call__(self, state: TrainState, batch: Batch) -> Digest:
        """Compute the digest of the update of `state` by `batch`."""
        shapes = tuple(value.shape for value in batch.values())
        if shapes not in self._compiled:
            lowered = self._digest.lower(state, batch, self._seed)
            self._compiled[shapes] = lowered.compile(), _program_number(lowered.as_text(), self._seed, self._mesh)
        compute, program = self._compiled[shapes]
        loss, values = jax.device_get(compute(state, batch, self._seed))
        return Digest(float(loss), program, self._copies(state.params, values))

    def _copies(self, params: Any, values: np.ndarray) -> Copies:
        devices = list(self._mesh.devices.flat)
        shapes = jax.tree_util.tree_leaves_with_path({"gradient": self._trained, "parameter": params})
        copies: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for (path, leaf), sharding, column in zip(shapes, jax.tree.leaves(self._shardings), values.T, strict=True):
            places = sharding.devices_indices_map(leaf.shape)
            numbers = {place: number for number, place in enumerate(dict.fromkeys(str(places[device]) for device in devices))}
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            for device, value in zip(devices, column, strict=True):
                copies[name, numbers[str(places[device])]][str(device)] = int(value)
        return copies


def _program_number(text: str, seed: np.ndarray, mesh: Mesh) -> int:
    """Hash everything known to determine a program's result to 48 bits, which JSON keeps exactly."""
    device = mesh.devices.flat[0]
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    parts = (text, str(seed.tolist()), device.device_kind, device.client.platform_version, jax.lib.__version__, *flags)
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:6])

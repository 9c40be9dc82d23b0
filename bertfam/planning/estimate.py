"""What a training step needs on each device of a mesh, in milliseconds and roughly: tells what is worth compiling."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractMesh

from bertfam.planning.bounds import Bound, bound
from bertfam.planning.tracing import SUMMED, Array, Traced, trace
from bertfam.sharding.chips import Chip
from bertfam.sharding.placement import batch_shardings, check_batch, partition_spec
from bertfam.sharding.rules import AXES, Rules, as_tuple
from bertfam.training.run import Run
from bertfam.training.state import TrainState, new_state, shardings_of


@dataclass(frozen=True)
class Estimate:
    """Of one device: bytes that it holds, and what a step is made of. The bytes of the state are exact, all else is estimated.

    Attributes:
      parameters: bytes, with what is read and not trained.
      optimizer: bytes, with the moving average.
      gradients: bytes, with their sum over microbatches.
      activations: bytes that the forward pass of a microbatch leaves to the backward pass.
      temporaries: bytes of what lives shortly, and of the batch.
      flops: of matrix products, with what is computed twice.
      sent: bytes that go to other devices of the slice.
      sent_between: bytes that go to other slices.
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    temporaries: int
    flops: float
    sent: float
    sent_between: float

    @property
    def total(self) -> int:
        """Bytes that it holds."""
        return self.parameters + self.optimizer + self.gradients + self.activations + self.temporaries

    def bound(self, chip: Chip) -> Bound:
        """How long a step takes at the least, by this estimate."""
        moved = 2 * (self.parameters + self.optimizer + self.gradients)
        return bound(chip, flops=self.flops, moved=moved, sent=(self.sent, self.sent_between))


def estimate(run: Run, devices: int, *, slices: int = 1, stage: int = -1) -> Estimate:
    """Estimates a training step of a sized run; the first call for a model and its options takes seconds.

    Args:
      run: the run on its mesh.
      devices: how many.
      slices: how many they are of.
      stage: of the run, whose rows it is; by default the last, which in most recipes has the longest.

    Raises:
      UserError: where sizes do not divide over the mesh.
    """
    stage %= len(run.stages)
    rules, batch_size, shape = run.mesh.rules, run.stages[stage].batch_size, run.shape(stage)
    mesh = AbstractMesh(run.mesh.sizes(devices, slices), AXES)
    check_batch(batch_size, run.microbatches, mesh, rules)
    features = run.objective.features(shape)
    batch = sum(
        math.prod(sharding.shard_shape((batch_size, *features[name].shape))) * jnp.dtype(features[name].dtype).itemsize
        for name, sharding in batch_shardings(features, mesh, rules).items()
    )
    boxed = _boxed_state(run)
    shardings = shardings_of(boxed, mesh, run.mesh)
    parameters = _bytes(boxed.params, shardings.params)
    optimizer = _bytes((boxed.opt_state, boxed.average), (shardings.opt_state, shardings.average))
    read = _bytes((boxed.carry, boxed.aux), (shardings.carry, shardings.aux))

    device = _Device(dict(mesh.shape), slices, rules, batch_size / run.microbatches)
    traced = _once(
        ("gradient", run.objective, shape), lambda: trace(run.objective, shape, (boxed.params, boxed.carry, boxed.aux))
    )
    itemsize = jnp.dtype(run.objective.execution.compute_dtype).itemsize
    leaves = [leaf for leaf in jax.tree.leaves(boxed.params, is_leaf=_is_box) if _is_box(leaf)]
    sent, sent_between = device.sent(leaves, traced, itemsize, zero1=run.mesh.zero1)
    return Estimate(
        parameters=parameters + read,
        optimizer=optimizer,
        gradients=parameters * (1 if run.microbatches == 1 else 2),
        activations=round(sum(map(device.bytes, traced.kept))),
        # The largest array and its gradient; the largest parameter that is gathered, and the gradient of that, float32.
        temporaries=round(batch + 2 * device.bytes(traced.largest) + 2 * 4 * max(map(device.gathered_at_once, leaves))),
        flops=traced.flops * batch_size / mesh.size,
        sent=run.microbatches * sent,
        sent_between=run.microbatches * sent_between,
    )


@dataclass(frozen=True)
class _Device:
    """A device of a mesh.

    Attributes:
      sizes: of the mesh by axis.
      slices: which the axis replica is of.
      rules: what is split over what.
      rows: of a microbatch, on all devices.
    """

    sizes: dict[str, int]
    slices: int
    rules: Rules
    rows: float

    def bytes(self, array: Array) -> float:
        """Of its part of an array."""
        whole = array.numbers * array.itemsize * (self.rows if array.by_row else 1)
        return whole / self._parts(*self._split(array.names))

    def gathered(self, leaf: Any) -> float:
        """How many numbers of a parameter it has where that is used, with what others keep."""
        return leaf.value.size / self._parts(*(axis for axis in self._split(leaf.names) if axis not in self._rows_axes))

    def gathered_at_once(self, leaf: Any) -> float:
        """The same of one layer; 0 where nothing of it is kept by others."""
        split = self._parts(*self._split(leaf.names)) * self.gathered(leaf) > leaf.value.size
        layers = leaf.value.shape[0] if "layers" in leaf.names else 1
        return self.gathered(leaf) / layers if split else 0

    def sent(self, leaves: list[Any], traced: Traced, itemsize: int, *, zero1: bool) -> tuple[float, float]:
        """Bytes that it sends to others of its slice, and to other slices, for a microbatch."""
        within = between = 0.0
        for leaf in leaves:
            split = [axis for axis in self._split(leaf.names) if axis in self._rows_axes]
            whole, parts = self.gathered(leaf), self._parts(*split)
            # Gathered for the forward and the backward pass; gradients, float32, are summed in parts, then over what is whole.
            within += (2 * itemsize + 4) * whole * (1 - 1 / parts)
            over = [axis for axis in self._rows_axes if axis not in split]
            slices = self.slices if "replica" in over else 1
            alike = self._parts(*over) // slices
            within += (3 if zero1 else 2) * 4 * whole / parts * (1 - 1 / alike)
            between += 2 * 4 * whole / parts / alike * (1 - 1 / slices)
        for array, times in traced.summed:
            # Partial sums over heads and feed-forward; keys and values of a row's other parts are about as much.
            among, length = (self._parts(*set().union(*map(self.rules.axes, names))) for names in (SUMMED, ("length",)))
            within += times * self.bytes(array) * (2 * (1 - 1 / among) + length - 1)
        return within, between

    @property
    def _rows_axes(self) -> tuple[str, ...]:
        return (*self.rules.axes("batch"), *self.rules.axes("length"))

    def _split(self, names: tuple[str | None, ...]) -> list[str]:
        return [axis for axes in partition_spec(names, self.rules) for axis in as_tuple(axes)]

    def _parts(self, *axes: str) -> int:
        return math.prod(self.sizes[axis] for axis in axes)


_FOUND: dict[Any, Any] = {}


def _once(key: Any, make: Callable[[], Any]) -> Any:
    """What is the same on all meshes and takes seconds."""
    if key not in _FOUND:
        _FOUND[key] = make()
    return _FOUND[key]


def _boxed_state(run: Run) -> TrainState:
    def make() -> TrainState:
        optimizer = run.optimizer.build(run.total_steps, run.boxed_params())
        averaged = run.average_decay is not None
        return jax.eval_shape(
            lambda key: new_state(run.objective, optimizer, key, run.shape(0), averaged=averaged), jax.random.key(0)
        )

    found: TrainState = _once(("state", run.objective, run.optimizer, run.shape(0), run.average_decay is None), make)
    return found


def _bytes(boxed: Any, shardings: Any) -> int:
    """Of one device's part of a tree."""
    leaves = zip(jax.tree.leaves(nn.meta.unbox(boxed)), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in leaves)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)

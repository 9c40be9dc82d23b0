"""Fast, rough estimate of the memory and time of a training step on a mesh, to choose the layouts to compile."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AbstractMesh

from bertfam.features import RowShape
from bertfam.objectives.objective import Objective
from bertfam.planning.bounds import Bound, bound
from bertfam.planning.changes import with_execution
from bertfam.planning.tracing import SUMMED_AXES, Array, GradientTrace, trace, trace_forward_flops, traced_platform
from bertfam.sharding.chips import Chip
from bertfam.sharding.named_shardings import batch_shardings, check_batch, padded_decoder_rows, partition_spec
from bertfam.sharding.rules import AXES, Rules, as_tuple
from bertfam.training.run import Run
from bertfam.training.state import TrainState, shardings_of


@dataclass(frozen=True)
class Estimate:
    """Estimate for one device. The bytes of the state are exact, everything else is approximate.

    Attributes:
      parameters: bytes of the parameters, and of the carry and aux, which are not trained.
      optimizer: bytes of the optimizer state and the moving average.
      gradients: bytes of the gradients, of each network's where networks share parameters, and of their sum over microbatches.
      activations: bytes that the forward pass of a microbatch saves for the backward pass.
      temporaries: bytes of short-lived arrays, and of the batch.
      flops: matrix-product FLOPs, including recomputation.
      sent: bytes sent to other devices of the slice.
      sent_between: bytes sent to other slices.
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
        """Total bytes on the device."""
        return self.parameters + self.optimizer + self.gradients + self.activations + self.temporaries

    def bound(self, chip: Chip) -> Bound:
        """Return the lower bound on the time of a step by this estimate."""
        moved = 2 * (self.parameters + self.optimizer + self.gradients)
        return bound(chip, flops=self.flops, moved=moved, sent=(self.sent, self.sent_between))


def estimate(run: Run, devices: int, *, slices: int = 1, stage: int = -1) -> Estimate:
    """Estimate a training step of a sized run; the first call for a model and its options takes seconds, later ones milliseconds.

    Args:
      run: sized run with its mesh.
      devices: number of devices.
      slices: number of slices that they belong to.
      stage: stage of the run; by default the last one, which has the longest rows in most recipes.

    Raises:
      UserError: if sizes do not divide over the mesh.
    """
    stage %= len(run.stages)
    rules, batch_size, shape = run.mesh.rules, run.stages[stage].batch_size, run.shape(stage)
    mesh = AbstractMesh(run.mesh.sizes(devices, slices), AXES)
    check_batch(batch_size, run.microbatch_count, mesh, rules)
    objective = run.objective_of(stage)
    features = padded_decoder_rows(objective.features(shape), mesh, rules)
    batch = sum(
        math.prod(sharding.shard_shape((batch_size, *features[name].shape))) * jnp.dtype(features[name].dtype).itemsize
        for name, sharding in batch_shardings(features, mesh, rules).items()
    )
    boxed = boxed_state(run)
    shardings = shardings_of(boxed, mesh, run.mesh)
    parameter_bytes = _leaf_bytes(boxed.params, shardings.params)
    parameters = sum(parameter_bytes)
    optimizer = _bytes((boxed.opt_state, boxed.average), (shardings.opt_state, shardings.average))
    constant = _bytes((boxed.carry, boxed.aux), (shardings.carry, shardings.aux))

    device = _Device(dict(mesh.shape), slices, rules, batch_size / run.microbatch_count)
    traced = gradient_trace(objective, shape, boxed)
    # Pieces are computed again in the backward pass, and so the whole forward pass is.
    is_in_pieces = run.microbatch_count > 1 and objective.in_pieces(run.microbatch_count) is not None
    flops = traced.flops + (_forward_flops(objective, shape, boxed) if is_in_pieces else 0)
    itemsize = jnp.dtype(objective.execution.compute_dtype).itemsize
    leaves = [leaf for leaf in jax.tree.leaves(boxed.params, is_leaf=_is_box) if _is_box(leaf)]
    sent, sent_between = device.sent(leaves, traced, itemsize, zero1=run.mesh.zero1)
    return Estimate(
        parameters=parameters + constant,
        optimizer=optimizer,
        gradients=sum(map(operator.mul, parameter_bytes, traced.summands)) + (parameters if run.microbatch_count > 1 else 0),
        activations=round(sum(map(device.bytes, traced.residuals))),
        # The largest array and its gradient; the largest parameter that is gathered, and its gradient, both float32.
        temporaries=round(batch + 2 * device.bytes(traced.largest) + 2 * 4 * max(map(device.gathered_at_once, leaves))),
        flops=flops * batch_size / mesh.size,
        sent=run.microbatch_count * sent,
        sent_between=run.microbatch_count * sent_between,
    )


@dataclass(frozen=True)
class _Device:
    """Device of a mesh.

    Attributes:
      sizes: size of each mesh axis.
      slices: number of slices along the axis replica.
      rules: logical axis rules.
      rows: rows of a microbatch, on all devices together.
    """

    sizes: dict[str, int]
    slices: int
    rules: Rules
    rows: float

    def bytes(self, array: Array) -> float:
        """Return the bytes of its part of an array."""
        unsharded = array.size * array.itemsize * (self.rows if array.is_per_row else 1)
        return unsharded / self._parts(*self._split(array.names))

    def gathered(self, leaf: Any) -> float:
        """Return the number of elements of a parameter that it has where the parameter is used, after gathering."""
        return leaf.value.size / self._parts(*(axis for axis in self._split(leaf.names) if axis not in self._rows_axes))

    def gathered_at_once(self, leaf: Any) -> float:
        """Return the number of elements of one layer of a parameter that it gathers; 0 if the parameter is not gathered."""
        is_gathered = self._parts(*self._split(leaf.names)) * self.gathered(leaf) > leaf.value.size
        layers = leaf.value.shape[0] if "layers" in leaf.names else 1
        return self.gathered(leaf) / layers if is_gathered else 0

    def sent(self, leaves: list[Any], traced: GradientTrace, itemsize: int, *, zero1: bool) -> tuple[float, float]:
        """Return the bytes that it sends for a microbatch, within its slice and to other slices."""
        within = between = 0.0
        for leaf in leaves:
            split = [axis for axis in self._split(leaf.names) if axis in self._rows_axes]
            size, parts = self.gathered(leaf), self._parts(*split)
            # Parameters are gathered for the forward and the backward pass. Gradients (float32) are reduce-scattered over the
            # axes that shard the parameter, then all-reduced over the axes that replicate it.
            within += (2 * itemsize + 4) * size * (1 - 1 / parts)
            over = [axis for axis in self._rows_axes if axis not in split]
            slices = self.slices if "replica" in over else 1
            replicas = self._parts(*over) // slices
            within += (3 if zero1 else 2) * 4 * size / parts * (1 - 1 / replicas)
            between += 2 * 4 * size / parts / replicas * (1 - 1 / slices)
        for array, times in traced.partial_sums:
            # Partial sums over heads and feed-forward; keys and values of the other parts of a row are about as large.
            summed, length = (self._parts(*set().union(*map(self.rules.axes, names))) for names in (SUMMED_AXES, ("length",)))
            within += times * self.bytes(array) * (2 * (1 - 1 / summed) + length - 1)
        return within, between

    @property
    def _rows_axes(self) -> tuple[str, ...]:
        return (*self.rules.axes("batch"), *self.rules.axes("length"))

    def _split(self, names: tuple[str | None, ...]) -> list[str]:
        return [axis for axes in partition_spec(names, self.rules) for axis in as_tuple(axes)]

    def _parts(self, *axes: str) -> int:
        return math.prod(self.sizes[axis] for axis in axes)


_CACHE: dict[Any, Any] = {}


def cached(key: Any, make: Callable[[], Any]) -> Any:
    """Return a result that takes seconds and is the same on all meshes; compute it in the first call only."""
    if key not in _CACHE:
        _CACHE[key] = make()
    return _CACHE[key]


def boxed_state(run: Run) -> TrainState:
    """Return the shapes of the state of a sized run, boxed with logical axis names; the first call for a model takes seconds."""
    plain = with_execution(run, remat="none", layers="scan")  # neither changes the state
    stages = tuple((plain.objective_of(index), stage.frozen_parts) for index, stage in enumerate(run.stages))
    key = ("state", plain.objective, frozenset(stages), run.optimizer, run.shape(0), run.average_decay is None)
    state: TrainState = cached(key, lambda: run.boxed_state)
    return state


def gradient_trace(objective: Objective, shape: RowShape, boxed: TrainState) -> GradientTrace:
    """Trace the gradient of a batch for `traced_platform()`; the first call for an objective and its options takes seconds."""
    objective = objective.of_equal_rows
    key = ("gradient", objective, shape._replace(rows=1), traced_platform())  # the trace is per row
    traced: GradientTrace = cached(key, lambda: trace(objective, shape, (boxed.params, boxed.carry, boxed.aux)))
    return traced


def _forward_flops(objective: Objective, shape: RowShape, boxed: TrainState) -> int:
    """Return the matrix-product FLOPs of a forward pass per row, for `traced_platform()`."""
    key = ("forward", objective, shape._replace(rows=1), traced_platform())
    flops: int = cached(key, lambda: trace_forward_flops(objective, shape, (boxed.params, boxed.carry, boxed.aux)))
    return flops


def _bytes(boxed: Any, shardings: Any) -> int:
    """Return the bytes of one device's part of a tree."""
    return sum(_leaf_bytes(boxed, shardings))


def _leaf_bytes(boxed: Any, shardings: Any) -> list[int]:
    """Return the bytes of one device's part of each leaf of a tree."""
    leaves = zip(jax.tree.leaves(nn.meta.unbox(boxed)), jax.tree.leaves(shardings), strict=True)
    return [math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in leaves]


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)

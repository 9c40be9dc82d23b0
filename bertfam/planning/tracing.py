"""Residuals and matrix products of a gradient, from its trace: for any objective, without compiling, once for all meshes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractDevice, AbstractMesh

from bertfam.features import RowShape
from bertfam.objectives.objective import Objective
from bertfam.training.step import total_loss

# Number of rows that are traced: a prime, so that only sizes that count rows are multiples of it.
_ROWS = 8191
# Logical axes that are contracted in matrix products; if one is sharded, the devices have partial sums.
SUMMED_AXES = ("vocab", "mlp", "heads")
# Operations that the compiler does not repeat to save memory.
_LOOPS = ("scan", "while")
_PRODUCTS = ("dot_general", "conv_general_dilated")
_PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


@dataclass(frozen=True)
class Array:
    """Array of a trace.

    Attributes:
      names: logical axes, guessed from the sizes; an axis None is never sharded.
      size: number of elements, per row of the batch if "batch" is among the names.
      itemsize: bytes per element.
    """

    names: tuple[str | None, ...]
    size: int
    itemsize: int

    @property
    def is_per_row(self) -> bool:
        """True if the array has a part for each row of the batch."""
        return "batch" in self.names


@dataclass(frozen=True)
class Product:
    """Matrix product of activations with weights, or of activations with each other for a gradient of weights.

    Attributes:
      flops: FLOPs per row of the batch.
      row_bytes: bytes of operands and result per row, without weights and their gradients.
      weight_bytes: bytes of weights, or of their gradient.
      float32_bytes: bytes of a float32 result per row, such as logits; 0 for another result.
      times: number of runs, more than one in a loop.
    """

    flops: int
    row_bytes: int
    weight_bytes: int
    float32_bytes: int
    times: int


@dataclass(frozen=True)
class GradientTrace:
    """Trace of the gradient of a batch.

    Attributes:
      residuals: arrays that the forward pass saves for the backward pass, except parameters.
      largest: largest array of one layer that depends on the batch.
      partial_sums: results of matrix products that contract one of `SUMMED_AXES`, with their number; if the axis is sharded, they
        are summed over devices.
      flops: matrix-product FLOPs per row, including recomputation.
      products: matrix products without batch axes, thus not those of attention; including recomputation.
      summands: number of arrays whose sum is the gradient of each parameter, in the order of the tree's leaves: several where
        networks share the parameter, such as the towers of a dual encoder.
    """

    residuals: tuple[Array, ...]
    largest: Array
    partial_sums: tuple[tuple[Array, int], ...]
    flops: int
    products: tuple[Product, ...]
    summands: tuple[int, ...]


@contextmanager
def traces_for(platform: str | None) -> Iterator[None]:
    """Trace programs for this platform, "cpu", "gpu" or "tpu", in this context: attention then has the platform's backend.

    None traces for the devices of this process.
    """
    token = _PLATFORM.set(platform)
    try:
        yield
    finally:
        _PLATFORM.reset(token)


def traced_platform() -> str | None:
    """Return the platform that programs are traced for; None: that of this process."""
    return _PLATFORM.get()


def abstract_device(platform: str | None) -> AbstractContextManager[Any]:
    """Return a context in which programs are traced for one device of the platform; for None, for the current devices."""
    if platform is None:
        return nullcontext()
    device = AbstractDevice(device_kind=platform, num_cores=None, platform=platform)
    return jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device))


def trace(objective: Objective, shape: RowShape, boxed: Any) -> GradientTrace:
    """Trace the gradient of a batch.

    Args:
      objective: sized objective.
      shape: shape of the rows.
      boxed: shapes of its parameters, carry and aux, boxed with logical axis names.
    """
    names = _Names(objective, shape, (boxed[0], boxed[2]))

    def gradient(params: Any, carry: Any, aux: Any, batch: Any, key: jax.Array) -> Any:
        denominators = objective.denominators(batch)

        def loss(params: Any) -> jax.Array:
            out = objective.loss(params, carry, aux, batch, key=key, train=True)
            return total_loss(out.terms, denominators, objective.coefficients)

        value, backward = jax.vjp(loss, params)
        return jax.tree.leaves(backward), backward(value)

    with abstract_device(traced_platform()):
        traced, out = jax.make_jaxpr(gradient, return_shape=True)(*_arguments(objective, shape, boxed))
    saved = _products_behind(traced.jaxpr, traced.jaxpr.outvars[: len(out[0])])
    residuals = {var for var in saved if not names.is_parameter(var)}
    products = list(_products(traced.jaxpr, 1))
    made = (var for eqn, _ in _equations(traced.jaxpr, 1) for var in eqn.outvars)
    arrays = [names.array(var) for var in made if not names.is_stacked(var) and not _compares_rows(var.aval)]
    partial_sums = Counter[Array]()
    for eqn, times in products:
        if names.contracts_summed_axis(eqn) and (array := names.array(eqn.outvars[0])).is_per_row:
            partial_sums[array] += times
    gradients = [(var, _products_behind(traced.jaxpr, [var])) for var in traced.jaxpr.outvars[len(out[0]) :]]
    return GradientTrace(
        tuple(names.array(var) for var in residuals),
        max((array for array in arrays if array.is_per_row), key=lambda array: array.size * array.itemsize),
        tuple(partial_sums.items()),
        sum(times * _flops(eqn) for eqn, times in products) // _ROWS,
        tuple(_product(eqn, times) for eqn, times in products if not _is_attention(eqn)),
        # A gradient that is scattered, such as that of a table, is one array.
        tuple(max(1, sum(_size(one) == _size(var) for one in behind)) for var, behind in gradients),
    )


def trace_forward_flops(objective: Objective, shape: RowShape, boxed: Any) -> int:
    """Return the matrix-product FLOPs of a forward pass per row; see `trace` for the arguments."""

    def loss(params: Any, carry: Any, aux: Any, batch: Any, key: jax.Array) -> Any:
        return objective.loss(params, carry, aux, batch, key=key, train=True).terms

    with abstract_device(traced_platform()):
        traced = jax.make_jaxpr(loss)(*_arguments(objective, shape, boxed))
    return sum(times * _flops(eqn) for eqn, times in _products(traced.jaxpr, 1)) // _ROWS


def _arguments(objective: Objective, shape: RowShape, boxed: Any) -> tuple[Any, ...]:
    """Return the shapes of parameters, carry, aux, batch and key that are traced."""
    params, _, aux = nn.meta.unbox(boxed)
    of_rows = jax.eval_shape(lambda: objective.init(jax.random.key(0), shape._replace(rows=_ROWS))[1])
    features = objective.features(shape)
    batch = {name: jax.ShapeDtypeStruct((_ROWS, *spec.shape), spec.dtype) for name, spec in features.items()}
    return params, nn.meta.unbox(of_rows), aux, batch, jax.eval_shape(lambda: jax.random.key(0))


class _Names:
    """Guesses logical axes by size: an axis as large as an axis of a parameter or of a row gets its name."""

    def __init__(self, objective: Objective, shape: RowShape, boxed: Any) -> None:
        leaves = [leaf for leaf in jax.tree.leaves(boxed, is_leaf=_is_box) if _is_box(leaf)]
        self._parameters = {(leaf.value.size, leaf.value.dtype) for leaf in leaves}
        self._by_shape = {leaf.value.shape: leaf.names for leaf in leaves}
        # Features of masked tokens are not sharded, but their logits are, by the rule for "length".
        self._by_size: dict[int, str] = {shape.predictions: "length"}
        for name in SUMMED_AXES:
            sizes = {size for leaf in leaves for size, axis in zip(leaf.value.shape, leaf.names, strict=True) if axis == name}
            self._by_size |= dict.fromkeys(sizes, name)
        for spec in objective.features(shape).values():
            self._by_size |= {size: axis for size, axis in zip(spec.shape, spec.axes, strict=True) if axis is not None}

    def is_parameter(self, var: Var) -> bool:
        """Return whether a variable is a stored parameter, possibly in another shape."""
        shape, dtype = var.aval.shape, var.aval.dtype  # type: ignore[attr-defined]
        return (math.prod(shape), dtype) in self._parameters

    def is_stacked(self, var: Any) -> bool:
        """Return whether a variable has a leading axis over the iterations of a loop."""
        shape = var.aval.shape
        axes = self._axes(shape)
        return "batch" in axes and math.prod(shape[: axes.index("batch")]) > 1

    def array(self, var: Any) -> Array:
        """Return the array of a variable."""
        shape, dtype = var.aval.shape, var.aval.dtype
        elements = math.prod(shape)
        if elements % _ROWS == 0 and elements:
            elements //= _ROWS
        return Array(self._axes(shape), elements, 4 if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else dtype.itemsize)

    def _axes(self, shape: tuple[int, ...]) -> tuple[str | None, ...]:
        if shape in self._by_shape:
            return self._by_shape[shape]
        names = ["batch" if size and size % _ROWS == 0 else self._by_size.get(size) for size in shape]
        loop_axes = names.index("batch") if "batch" in names else 0  # before the batch, axes are over iterations of loops
        return (*[None] * loop_axes, *names[loop_axes:])

    def contracts_summed_axis(self, eqn: JaxprEqn) -> bool:
        """Return whether a matrix product contracts heads, feed-forward or vocabulary."""
        (contracted, _), _ = eqn.params["dimension_numbers"]
        axes = self._axes(eqn.invars[0].aval.shape)  # type: ignore[attr-defined]
        # If several axes have one name, the first of them is sharded.
        return any(axes[place] in SUMMED_AXES and axes.index(axes[place]) == place for place in contracted)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)


def _products_behind(jaxpr: Jaxpr, variables: Iterable[Any]) -> set[Var]:
    """Return the results of products and loops from which cheap operations, which XLA fuses, compute the variables."""
    producers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    results: set[Var] = set()
    seen: set[Var] = set()
    waiting = [var for var in variables if not isinstance(var, Literal)]
    while waiting:
        var = waiting.pop()
        if var in seen or var not in producers:
            continue
        seen.add(var)
        eqn = producers[var]
        if any(inner.primitive.name in (*_LOOPS, *_PRODUCTS) for inner, _ in _equations_of(eqn, 1)):
            results.add(var)
        else:
            waiting += [operand for operand in eqn.invars if not isinstance(operand, Literal)]
    return results


def _equations(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    """Yield all equations of a program that runs `times` times, also those in loops and calls, with their number of runs."""
    for eqn in jaxpr.eqns:
        yield from _equations_of(eqn, times)


def _equations_of(eqn: JaxprEqn, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    yield eqn, times
    inner_times = times
    if eqn.primitive.name == "scan":
        inner_times *= eqn.params["length"]
    elif eqn.primitive.name == "pallas_call":
        inner_times *= math.prod(eqn.params["grid_mapping"].grid)
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, inner_times)


def _products(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    return ((eqn, runs) for eqn, runs in _equations(jaxpr, times) if eqn.primitive.name == "dot_general")


def _compares_rows(aval: Any) -> bool:
    """Return whether an array has an element for each two rows of the batch, whose traced number says nothing of its size."""
    return sum(bool(size) and size % _ROWS == 0 for size in aval.shape) > 1


def _flops(eqn: JaxprEqn) -> int:
    """Return the FLOPs of a matrix product, without those that compare rows, which are few beside those of networks."""
    if any(_compares_rows(var.aval) for var in (*eqn.invars, *eqn.outvars)):
        return 0
    (contracted, _), _ = eqn.params["dimension_numbers"]
    contracted_size = math.prod(eqn.invars[0].aval.shape[place] for place in contracted)  # type: ignore[attr-defined]
    return 2 * contracted_size * math.prod(eqn.outvars[0].aval.shape)  # type: ignore[attr-defined]


def _size(var: Any) -> int:
    return math.prod(var.aval.shape)


def _is_attention(eqn: JaxprEqn) -> bool:
    """Return whether a matrix product has batch axes, as those of attention have, for each row and head."""
    _, (axes, _) = eqn.params["dimension_numbers"]
    return bool(axes)


def _is_per_row(aval: Any) -> bool:
    """Return whether an array grows with the rows of the batch, whose traced number divides one of its sizes then."""
    return any(size and size % _ROWS == 0 for size in aval.shape)


def _product(eqn: JaxprEqn, times: int) -> Product:
    row_sizes, weight_sizes = [0], [0]
    for var in (*eqn.invars, *eqn.outvars):
        aval: Any = var.aval
        (row_sizes if _is_per_row(aval) else weight_sizes).append(math.prod(aval.shape) * aval.dtype.itemsize)
    result: Any = eqn.outvars[0].aval
    is_float32 = result.dtype == "float32" and _is_per_row(result)
    return Product(
        flops=_flops(eqn) // _ROWS,
        row_bytes=sum(row_sizes) // _ROWS,
        weight_bytes=sum(weight_sizes),
        float32_bytes=row_sizes[-1] // _ROWS if is_float32 else 0,
        times=times,
    )

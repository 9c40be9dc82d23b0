"""What a gradient keeps and multiplies, read from its trace: for any objective, without compiling, and once for all meshes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from bertfam.features import RowShape
from bertfam.objectives.objective import Objective
from bertfam.training.step import total_loss

# How many rows are traced: a prime, so that what is a multiple of it counts rows, and nothing else does.
_ROWS = 8191
# What a product over which is a sum of parts that devices have, where it is split.
SUMMED = ("vocab", "mlp", "heads")
# What the compiler does not do twice to save memory.
_LOOPS = ("scan", "while")
_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True)
class Array:
    """An array of a trace.

    Attributes:
      names: the logical axes that its axes seem to be; None is never split.
      numbers: how many values, by row of the batch where "batch" is among the names.
      itemsize: bytes of each.
    """

    names: tuple[str | None, ...]
    numbers: int
    itemsize: int

    @property
    def by_row(self) -> bool:
        """Whether there is one of each row."""
        return "batch" in self.names


@dataclass(frozen=True)
class Traced:
    """The gradient of a batch.

    Attributes:
      kept: what the forward pass leaves to the backward pass, beside the parameters.
      largest: the largest array of one layer that has rows.
      summed: results of matrix products over a split axis, and how many of each: their parts are summed over devices.
      flops: of matrix products for each row, with what is computed twice.
    """

    kept: tuple[Array, ...]
    largest: Array
    summed: tuple[tuple[Array, int], ...]
    flops: int


def trace(objective: Objective, shape: RowShape, boxed: Any) -> Traced:
    """Traces the gradient of rows of a shape.

    Args:
      objective: sized.
      shape: of the rows.
      boxed: the shapes of its parameters, carry and aux, boxed with logical axis names.
    """
    names = _Names(objective, shape, boxed)
    params, carry, aux = nn.meta.unbox(boxed)
    features = objective.features(shape)
    batch = {name: jax.ShapeDtypeStruct((_ROWS, *spec.shape), spec.dtype) for name, spec in features.items()}
    key = jax.eval_shape(lambda: jax.random.key(0))

    def gradient(params: Any, carry: Any, aux: Any, batch: Any, key: jax.Array) -> Any:
        denominators = objective.denominators(batch)

        def loss(params: Any) -> jax.Array:
            out = objective.loss(params, carry, aux, batch, key=key, train=True)
            return total_loss(out.terms, denominators, objective.coefficients)

        value, backward = jax.vjp(loss, params)
        return jax.tree.leaves(backward), backward(value)

    traced, out = jax.make_jaxpr(gradient, return_shape=True)(params, carry, aux, batch, key)
    kept = {var for var in _computed(traced.jaxpr, traced.jaxpr.outvars[: len(out[0])]) if not names.is_parameter(var)}
    products = list(_products(traced.jaxpr, 1))
    arrays = [names.array(var) for eqn, _ in _equations(traced.jaxpr, 1) for var in eqn.outvars if not names.is_stacked(var)]
    summed = Counter[Array]()
    for eqn, times in products:
        if names.sums_a_split_axis(eqn) and (array := names.array(eqn.outvars[0])).by_row:
            summed[array] += times
    return Traced(
        tuple(names.array(var) for var in kept),
        max((array for array in arrays if array.by_row), key=lambda array: array.numbers * array.itemsize),
        tuple(summed.items()),
        sum(times * _flops(eqn) for eqn, times in products) // _ROWS,
    )


class _Names:
    """Guesses logical axes from sizes: what is as large as the axis of a parameter, or as a row, is taken for it."""

    def __init__(self, objective: Objective, shape: RowShape, boxed: Any) -> None:
        leaves = [leaf for leaf in jax.tree.leaves(boxed, is_leaf=_is_box) if _is_box(leaf)]
        self._parameters = {(leaf.value.size, leaf.value.dtype) for leaf in leaves}
        self._by_shape = {leaf.value.shape: leaf.names for leaf in leaves}
        self._by_size: dict[int, str] = {}
        for name in SUMMED:
            found = {size for leaf in leaves for size, axis in zip(leaf.value.shape, leaf.names, strict=True) if axis == name}
            self._by_size |= dict.fromkeys(found, name)
        for spec in objective.features(shape).values():
            self._by_size |= {size: axis for size, axis in zip(spec.shape, spec.axes, strict=True) if axis is not None}

    def is_parameter(self, var: Var) -> bool:
        """Whether it is a parameter as it is stored, in another shape at most."""
        shape, dtype = var.aval.shape, var.aval.dtype  # type: ignore[attr-defined]
        return (math.prod(shape), dtype) in self._parameters

    def is_stacked(self, var: Any) -> bool:
        """Whether it is what a loop reads or gives at all of its turns."""
        shape = var.aval.shape
        axes = self._axes(shape)
        return "batch" in axes and math.prod(shape[: axes.index("batch")]) > 1

    def array(self, var: Any) -> Array:
        """What is known of a variable."""
        shape, dtype = var.aval.shape, var.aval.dtype
        numbers = math.prod(shape)
        if numbers % _ROWS == 0 and numbers:
            numbers //= _ROWS
        return Array(self._axes(shape), numbers, 4 if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else dtype.itemsize)

    def _axes(self, shape: tuple[int, ...]) -> tuple[str | None, ...]:
        if shape in self._by_shape:
            return self._by_shape[shape]
        names = ["batch" if size and size % _ROWS == 0 else self._by_size.get(size) for size in shape]
        before = names.index("batch") if "batch" in names else 0  # of loops
        return (*[None] * before, *names[before:])

    def sums_a_split_axis(self, eqn: JaxprEqn) -> bool:
        """Whether a product is a sum over heads, feed-forward or vocabulary."""
        (contracted, _), _ = eqn.params["dimension_numbers"]
        axes = self._axes(eqn.invars[0].aval.shape)  # type: ignore[attr-defined]
        # The first axis of a name is the one that is split.
        return any(axes[place] in SUMMED and axes.index(axes[place]) == place for place in contracted)


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)


def _computed(jaxpr: Jaxpr, variables: Iterable[Any]) -> set[Var]:
    """What variables are computed from by anything cheap, which is fused with what reads it: results of products and loops."""
    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    found: set[Var] = set()
    seen: set[Var] = set()
    waiting = [var for var in variables if not isinstance(var, Literal)]
    while waiting:
        var = waiting.pop()
        if var in seen or var not in makers:
            continue
        seen.add(var)
        eqn = makers[var]
        if any(inner.primitive.name in (*_LOOPS, *_PRODUCTS) for inner, _ in _equations_of(eqn, 1)):
            found.add(var)
        else:
            waiting += [each for each in eqn.invars if not isinstance(each, Literal)]
    return found


def _equations(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    """All equations of a program that runs so often, with those of loops and calls, and how often each runs."""
    for eqn in jaxpr.eqns:
        yield from _equations_of(eqn, times)


def _equations_of(eqn: JaxprEqn, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    yield eqn, times
    inside = times * eqn.params["length"] if eqn.primitive.name == "scan" else times
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from _equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner, inside)


def _products(jaxpr: Jaxpr, times: int) -> Iterator[tuple[JaxprEqn, int]]:
    return ((eqn, often) for eqn, often in _equations(jaxpr, times) if eqn.primitive.name == "dot_general")


def _flops(eqn: JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    summed = math.prod(eqn.invars[0].aval.shape[place] for place in contracted)  # type: ignore[attr-defined]
    return 2 * summed * math.prod(eqn.outvars[0].aval.shape)  # type: ignore[attr-defined]

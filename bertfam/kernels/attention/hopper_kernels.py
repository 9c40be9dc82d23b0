"""Attention kernels for Hopper GPUs in Pallas (Mosaic GPU): forward, gradient of queries, and gradients of keys and values.

In each kernel a warpgroup owns 64 rows: queries, or keys in the kernel of their gradients. It visits blocks of 64 columns (see
`bertfam.kernels.attention.tiles`), which are copied to shared memory while it computes the blocks before them. Several thread
blocks share a multiprocessor, so that one computes a softmax while another uses the tensor cores. Sums are made in a fixed
order, without atomic operations, so results are bitwise reproducible.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mosaic
from jax.experimental.pallas import mosaic_gpu

from bertfam.kernels.attention.tiles import ROWS, Visits

plgpu: Any = mosaic_gpu  # types are checked with a jax that is older than the kernels require

# Measured on an H200, forward and each gradient: blocks of 128 columns or three stages are slower, in long rows too.
_STAGES = 2  # steps whose columns are in shared memory at a time
_DUMP_NAME = "mosaic_gpu.dump_basename"  # attribute of a kernel's module
LOG2_E = math.log2(math.e)
# Masked scores, and the least maximum of a row: exp2(_MASKED - _LEAST) is 0, so a row without columns has weights of 0.
_MASKED, _LEAST = -1e30, -1e29


def _name_by_kernel() -> None:
    """Have JAX name the dumps of a kernel after the kernel alone.

    The name is a part of the program, and so of its key in the cache of compiled programs. JAX appends the number of kernels that
    the process has lowered before (jaxlib 0.11.2, mosaic/gpu/dump.cc), so that a process that lowers others first, such as a
    resumed run, would find no program again.
    """
    if any(name.startswith("MOSAIC_GPU_DUMP") for name in os.environ):  # dumps of one name would replace each other
        return
    dialect: Any = mosaic.dialect
    get_options = dialect.get_or_set_dump_options

    def named_options(module: Any) -> Any:
        attributes = module.operation.attributes
        if _DUMP_NAME not in attributes:
            attributes[_DUMP_NAME] = attributes["sym_name"]
        return get_options(module)

    dialect.get_or_set_dump_options = named_options


if hasattr(mosaic.dialect, "get_or_set_dump_options"):
    _name_by_kernel()


@dataclass(frozen=True)
class Settings:
    """Static settings of the kernels.

    Attributes:
      scale: factor of the scores.
      interpret: True to interpret the kernels on a CPU, for tests.
    """

    scale: float
    interpret: bool = False


class _Kernel:
    """Parts that the three kernels share, for one call.

    Attributes:
      settings: static settings.
      dtype: dtype of the products' operands.
      head_dim: width of a head.
      group: query heads of each key head.
      listed: True if tiles visit the columns that `Visits.columns` lists.
      per_head: True if heads have steps of their own.
      vector: layout of one number a row.
    """

    def __init__(self, settings: Settings, query: jax.Array, key: jax.Array, visits: Visits) -> None:
        self.settings, self.dtype, self.head_dim = settings, query.dtype, query.shape[-1]
        self.group = query.shape[2] // key.shape[2]
        self.listed, self.per_head = visits.columns is not None, visits.steps.shape[1] > 1
        self.vector = plgpu.Layout.WGMMA.reduce(1)

    def call(
        self, body: Callable[..., None], grid: tuple[int, ...], outputs: Sequence[Any], scratch: Sequence[Any], *inputs: jax.Array
    ) -> Any:
        """Run a kernel on a grid of (heads, tiles, batch)."""
        return plgpu.kernel(
            partial(body, self),
            out_type=tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs),
            scratch_types=tuple(scratch),
            compiler_params=plgpu.CompilerParams(approx_math=True),
            grid=grid,
            grid_names=("head", "tile", "batch"),
            num_threads=1,
            thread_name="warpgroup",
            kernel_name=f"attention{body.__name__}",
            interpret=plgpu.InterpretGPUParams() if self.settings.interpret else None,
        )(*inputs)

    def tokens(self, *shape: int) -> Any:
        """Return shared memory for vectors of tokens, [..., head_dim], in the layout that the tensor cores read."""
        swizzle = 128 if self.head_dim % 64 == 0 else 64
        transforms = plgpu.TilingTransform((8, swizzle // 2)), plgpu.SwizzleTransform(swizzle)
        return plgpu.SMEM((*shape, self.head_dim), self.dtype, transforms=transforms)

    def blocks(self) -> Any:
        """Return shared memory for the columns' vectors of all stages."""
        return self.tokens(_STAGES, ROWS)

    def barriers(self, copies: int = 1) -> Any:
        """Return a barrier for each stage, which is passed after a number of copies."""
        return plgpu.Barrier(num_arrivals=copies, num_barriers=_STAGES)

    def zeros(self, columns: int) -> jax.Array:
        """Return zeros for an accumulator."""
        return plgpu.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), plgpu.Layout.WGMMA)

    def fill(self, value: float) -> jax.Array:
        """Return one number for all rows."""
        return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), self.vector)

    def _interpreted(self, a: Any, b: Any) -> jax.Array:
        return jnp.dot(a if isinstance(a, jax.Array) else a[...], b, preferred_element_type=jnp.float32)

    def scores(self, *operands: tuple[Any, Any], then: Callable[[jax.Array], jax.Array] = lambda x: x) -> list[jax.Array]:
        """Return the products a b^T of matrices [64, head_dim]; `then` maps the first while the others run."""
        if self.settings.interpret:
            first, *others = (self._interpreted(a, b[...].T) for a, b in operands)
            return [then(first), *others]

        def body(*accumulators: Any) -> list[jax.Array]:
            for accumulator, (a, b) in zip(accumulators, operands, strict=True):
                plgpu.wgmma(accumulator, a, b.transpose((1, 0)))
            first, *others = accumulators
            result = then(plgpu.wgmma_accumulator_load(first, wait_n=len(others)))
            return [result, *(accumulator[...] for accumulator in others)]

        return pl.run_scoped(body, *[plgpu.ACC((ROWS, ROWS), jnp.float32) for _ in operands])

    def add(self, *products: tuple[jax.Array, Any, Any]) -> list[jax.Array]:
        """Return the sums of accumulators [64, head_dim] and products of [64, 64] and [64, head_dim]."""
        if self.settings.interpret:
            return [accumulator + self._interpreted(a, b[...]) for accumulator, a, b in products]

        def body(refs: Any) -> None:
            for ref, (_, a, b) in zip(refs, products, strict=True):
                plgpu.wgmma(ref, a, b)

        return pl.run_state(body)([plgpu.ACC.init(accumulator) for accumulator, _, _ in products])

    def along(self, vector: jax.Array, axis: int = 0, columns: int | None = None) -> jax.Array:
        """Repeat a number of each row (axis 0) or of each column (axis 1)."""
        return lax.broadcast_in_dim(vector, (ROWS, columns or ROWS), [axis])

    def masked(self, scores: jax.Array, low: jax.Array, high: jax.Array, start: jax.Array, bounds: Any) -> jax.Array:
        """Mask scores of the columns from `start` that are not in a row's interval."""

        def mask(scores: jax.Array) -> jax.Array:
            columns = plgpu.broadcasted_iota(jnp.int32, scores.shape, 1, layout=plgpu.Layout.WGMMA)
            visible = (columns >= self.along(low - start)) & (columns < self.along(high - start))
            return jnp.where(visible, scores, _MASKED)

        inside = (start >= bounds[0]) & (start + ROWS <= bounds[1])
        return lax.cond(inside, lambda scores: scores, mask, scores)

    def exponent(self, scores: jax.Array, lse: jax.Array) -> jax.Array:
        """Return exp2 of scaled scores minus a logarithm."""
        return jnp.exp2(scores * (self.settings.scale * LOG2_E) - lse)

    def columns(self, start: jax.Array) -> Any:
        """Return the slice of a step's columns."""
        return pl.ds(pl.multiple_of(start, 8), ROWS)

    def visits(self, steps: Any, listed: Any, row: jax.Array, head: jax.Array) -> tuple[Any, jax.Array, list[jax.Array]]:
        """Return the function from a step to its first column, the number of steps, and the interval that all rows see."""
        of_head, tile = head if self.per_head else 0, lax.axis_index("tile")
        first, count, *bounds = (steps[row, of_head, tile, i] for i in range(4))

        def start(step: jax.Array) -> jax.Array:
            return listed[head, first + step] if self.listed else first + step * ROWS

        return start, count, bounds

    def pipeline(self, count: jax.Array, issue: Any, visit: Any, free: Any, carry: Any) -> Any:
        """Run carry = visit(step, stage, carry) for each step; issue(step, stage) copies the columns of a later one."""
        for stage in range(_STAGES):
            pl.when(stage < count)(partial(issue, jnp.int32(stage), stage))

        def iteration(step: jax.Array, carry: Any) -> Any:
            ahead = step - 1 + _STAGES

            @pl.when((step > 0) & (ahead < count))
            def _() -> None:
                stage = lax.rem(ahead, jnp.int32(_STAGES))
                plgpu.barrier_wait(free.at[stage])  # all warps have read the columns that were there
                issue(ahead, stage)

            stage = lax.rem(step, jnp.int32(_STAGES))
            carry = visit(step, stage, carry)
            plgpu.barrier_arrive(free.at[stage])
            return carry

        return lax.fori_loop(jnp.int32(0), count, iteration, carry)


def _place() -> tuple[jax.Array, jax.Array, Any]:
    """Return the row of the batch, the head and the slice of rows of this thread block."""
    start = pl.multiple_of(lax.axis_index("tile") * ROWS, ROWS)
    return lax.axis_index("batch"), lax.axis_index("head"), pl.ds(start, ROWS)


def _copy(barrier: Any, *copies: tuple[Any, Any]) -> None:
    for source, target in copies:
        plgpu.copy_gmem_to_smem(source, target, barrier)


def _write(*copies: tuple[Any, Any]) -> None:
    plgpu.commit_smem()
    for source, target in copies:
        plgpu.copy_smem_to_gmem(source, target)
    plgpu.wait_smem_to_gmem(0)


def _group_head(head: jax.Array, group: int) -> jax.Array:
    return lax.div(head, jnp.int32(group)) if group > 1 else head


def _inputs(visits: Visits) -> tuple[jax.Array, ...]:
    """Return the arrays of the visits that a kernel reads."""
    columns = jnp.zeros((1, 1), jnp.int32) if visits.columns is None else visits.columns
    return visits.steps, columns, visits.low, visits.high


@partial(jax.jit, static_argnames="settings")
def forward(query: jax.Array, key: jax.Array, value: jax.Array, seen: Visits, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """Return the output [batch, length, heads, head_dim], and the base-2 log-sum-exp float32[batch, heads, length].

    Args:
      query: [batch, length, heads, head_dim]; all lengths are multiples of 64.
      key: [batch, keys, key_heads, head_dim].
      value: [batch, keys, key_heads, head_dim].
      seen: the keys that the queries see.
      settings: static settings.
    """
    batch, length, heads, _ = query.shape
    kernel = _Kernel(settings, query, key, seen)
    scratch = [
        *(
            kernel.tokens(ROWS),
            plgpu.SMEM((2, ROWS), jnp.int32),
            plgpu.SMEM((ROWS,), jnp.float32),
            kernel.blocks(),
            kernel.blocks(),
        ),
        *(plgpu.Barrier(num_arrivals=3), kernel.barriers(), kernel.barriers(), kernel.barriers()),
    ]
    outputs = [(query.shape, query.dtype), ((batch, heads, length), jnp.float32)]
    grid = heads, length // ROWS, batch
    return kernel.call(_forward, grid, outputs, scratch, *_inputs(seen), query, key, value)


def _forward(kernel: _Kernel, *refs: Any) -> None:
    steps, listed, low_ref, high_ref, q_ref, k_ref, v_ref, out_ref, lse_ref, *scratch = refs
    q_smem, interval, lse_smem, k_smem, v_smem, ready, k_ready, v_ready, free = scratch
    row, head, rows = _place()
    key_head = _group_head(head, kernel.group)
    sides = [(ref.at[row, rows], interval.at[i]) for i, ref in enumerate((low_ref, high_ref))]
    _copy(ready, (q_ref.at[row, rows, head], q_smem), *sides)
    start, count, bounds = kernel.visits(steps, listed, row, head)
    scale = kernel.settings.scale * LOG2_E

    def issue(step: jax.Array, stage: Any) -> None:
        columns = kernel.columns(start(step))
        _copy(k_ready.at[stage], (k_ref.at[row, columns, key_head], k_smem.at[stage]))
        _copy(v_ready.at[stage], (v_ref.at[row, columns, key_head], v_smem.at[stage]))

    def visit(step: jax.Array, stage: jax.Array, carry: Any) -> Any:
        low, high, out, largest, total = carry
        plgpu.barrier_wait(k_ready.at[stage])
        [scores] = kernel.scores((q_smem, k_smem.at[stage]))
        scores = kernel.masked(scores, low, high, start(step), bounds)
        previous, largest = largest, jnp.maximum(largest, scores.max(axis=1) * scale)
        shrink = jnp.exp2(previous - largest)
        weights = kernel.exponent(scores, kernel.along(largest))
        total = total * shrink + weights.sum(axis=1)
        plgpu.barrier_wait(v_ready.at[stage])
        out = out * kernel.along(shrink, columns=kernel.head_dim)
        [out] = kernel.add((out, weights.astype(kernel.dtype), v_smem.at[stage]))
        return low, high, out, largest, total

    plgpu.barrier_wait(ready)
    low, high = (plgpu.load(interval.at[i], layout=kernel.vector) for i in range(2))
    carry = low, high, kernel.zeros(kernel.head_dim), kernel.fill(_LEAST), kernel.fill(0.0)
    *_, out, largest, total = kernel.pipeline(count, issue, visit, free, carry)
    total = jnp.maximum(total, 1e-30)
    q_smem[...] = (out * kernel.along(1 / total, columns=kernel.head_dim)).astype(kernel.dtype)
    lse_smem[...] = largest + jnp.log2(total)
    _write((q_smem, out_ref.at[row, rows, head]), (lse_smem, lse_ref.at[row, head, rows]))


@partial(jax.jit, static_argnames="settings")
def query_gradient(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    gradient: jax.Array,
    statistics: tuple[jax.Array, jax.Array],
    seen: Visits,
    settings: Settings,
) -> jax.Array:
    """Return the gradient of the queries.

    The arguments are those of `forward`, the gradient of its output, and float32[batch, heads, length] each its log-sum-exp and
    the sum of its output times the gradient.
    """
    batch, length, heads, _ = query.shape
    kernel = _Kernel(settings, query, key, seen)
    scratch = [
        *(kernel.tokens(ROWS), kernel.tokens(ROWS), plgpu.SMEM((2, ROWS), jnp.int32), plgpu.SMEM((2, ROWS), jnp.float32)),
        *(kernel.blocks(), kernel.blocks(), plgpu.Barrier(num_arrivals=6), kernel.barriers(2), kernel.barriers()),
    ]
    inputs = *_inputs(seen), *statistics, query, gradient, key, value
    grid = heads, length // ROWS, batch
    return kernel.call(_query_gradient, grid, [(query.shape, query.dtype)], scratch, *inputs)[0]


def _query_gradient(kernel: _Kernel, *refs: Any) -> None:
    steps, listed, low_ref, high_ref, lse_ref, delta_ref, q_ref, do_ref, k_ref, v_ref, dq_ref, *scratch = refs
    q_smem, do_smem, interval, numbers, k_smem, v_smem, ready, kv_ready, free = scratch
    row, head, rows = _place()
    key_head = _group_head(head, kernel.group)
    _copy(
        ready,
        *((ref.at[row, rows, head], smem) for ref, smem in ((q_ref, q_smem), (do_ref, do_smem))),
        *((ref.at[row, rows], interval.at[i]) for i, ref in enumerate((low_ref, high_ref))),
        *((ref.at[row, head, rows], numbers.at[i]) for i, ref in enumerate((lse_ref, delta_ref))),
    )
    start, count, bounds = kernel.visits(steps, listed, row, head)

    def issue(step: jax.Array, stage: Any) -> None:
        columns = kernel.columns(start(step))
        pairs = (k_ref, k_smem), (v_ref, v_smem)
        _copy(kv_ready.at[stage], *((ref.at[row, columns, key_head], smem.at[stage]) for ref, smem in pairs))

    def visit(step: jax.Array, stage: jax.Array, carry: Any) -> Any:
        low, high, lse, delta, dq = carry
        plgpu.barrier_wait(kv_ready.at[stage])

        def weigh(scores: jax.Array) -> jax.Array:
            return kernel.exponent(kernel.masked(scores, low, high, start(step), bounds), kernel.along(lse))

        weights, slopes = kernel.scores((q_smem, k_smem.at[stage]), (do_smem, v_smem.at[stage]), then=weigh)
        slopes = (weights * (slopes - kernel.along(delta))).astype(kernel.dtype)
        [dq] = kernel.add((dq, slopes, k_smem.at[stage]))
        return low, high, lse, delta, dq

    plgpu.barrier_wait(ready)
    low, high = (plgpu.load(interval.at[i], layout=kernel.vector) for i in range(2))
    lse, delta = (plgpu.load(numbers.at[i], layout=kernel.vector) for i in range(2))
    carry = low, high, lse, delta, kernel.zeros(kernel.head_dim)
    *_, dq = kernel.pipeline(count, issue, visit, free, carry)
    q_smem[...] = (dq * kernel.settings.scale).astype(kernel.dtype)
    _write((q_smem, dq_ref.at[row, rows, head]))


@partial(jax.jit, static_argnames="settings")
def key_gradient(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    gradient: jax.Array,
    statistics: tuple[jax.Array, jax.Array],
    seeing: Visits,
    settings: Settings,
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of keys and values.

    The arguments are those of `query_gradient`, but for the queries that see the keys.
    """
    batch, keys, key_heads, _ = key.shape
    kernel = _Kernel(settings, query, key, seeing)
    scratch = [
        *(kernel.tokens(ROWS), kernel.tokens(ROWS), plgpu.SMEM((2, ROWS), jnp.int32), kernel.blocks(), kernel.blocks()),
        *(plgpu.SMEM((_STAGES, ROWS), jnp.float32), plgpu.SMEM((_STAGES, ROWS), jnp.float32)),
        *(plgpu.Barrier(num_arrivals=4), kernel.barriers(4), kernel.barriers()),
    ]
    outputs = [(key.shape, key.dtype), (value.shape, value.dtype)]
    inputs = *_inputs(seeing), *statistics, query, gradient, key, value
    grid = key_heads, keys // ROWS, batch
    return kernel.call(_key_gradient, grid, outputs, scratch, *inputs)


def _key_gradient(kernel: _Kernel, *refs: Any) -> None:
    steps, listed, low_ref, high_ref, lse_ref, delta_ref, q_ref, do_ref, k_ref, v_ref, dk_ref, dv_ref, *scratch = refs
    k_smem, v_smem, interval, q_smem, do_smem, lse_smem, delta_smem, ready, q_ready, free = scratch
    row, key_head, rows = _place()
    _copy(
        ready,
        *((ref.at[row, rows, key_head], smem) for ref, smem in ((k_ref, k_smem), (v_ref, v_smem))),
        *((ref.at[row, rows], interval.at[i]) for i, ref in enumerate((low_ref, high_ref))),
    )
    start, count, bounds = kernel.visits(steps, listed, row, key_head)

    def position(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the head and the first query of a step: all steps of one head of the group, then those of the next."""
        if kernel.group == 1:
            return key_head, start(step)
        return key_head * kernel.group + lax.div(step, count), start(lax.rem(step, count))

    def issue(step: jax.Array, stage: Any) -> None:
        head, first = position(step)
        columns = kernel.columns(first)
        _copy(
            q_ready.at[stage],
            *((ref.at[row, columns, head], smem.at[stage]) for ref, smem in ((q_ref, q_smem), (do_ref, do_smem))),
            *((ref.at[row, head, columns], smem.at[stage]) for ref, smem in ((lse_ref, lse_smem), (delta_ref, delta_smem))),
        )

    def visit(step: jax.Array, stage: jax.Array, carry: Any) -> Any:
        low, high, dk, dv = carry
        plgpu.barrier_wait(q_ready.at[stage])
        lse, delta = (plgpu.load(smem.at[stage], layout=plgpu.Layout.WGMMA.reduce(0)) for smem in (lse_smem, delta_smem))

        def weigh(scores: jax.Array) -> jax.Array:
            return kernel.exponent(kernel.masked(scores, low, high, position(step)[1], bounds), kernel.along(lse, 1))

        weights, slopes = kernel.scores((k_smem, q_smem.at[stage]), (v_smem, do_smem.at[stage]), then=weigh)
        slopes = (weights * (slopes - kernel.along(delta, 1))).astype(kernel.dtype)
        dv, dk = kernel.add((dv, weights.astype(kernel.dtype), do_smem.at[stage]), (dk, slopes, q_smem.at[stage]))
        return low, high, dk, dv

    plgpu.barrier_wait(ready)
    low, high = (plgpu.load(interval.at[i], layout=kernel.vector) for i in range(2))
    carry = low, high, kernel.zeros(kernel.head_dim), kernel.zeros(kernel.head_dim)
    *_, dk, dv = kernel.pipeline(count * kernel.group, issue, visit, free, carry)
    k_smem[...] = (dk * kernel.settings.scale).astype(kernel.dtype)
    v_smem[...] = dv.astype(kernel.dtype)
    _write((k_smem, dk_ref.at[row, rows, key_head]), (v_smem, dv_ref.at[row, rows, key_head]))


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def attend(
    query: jax.Array, key: jax.Array, value: jax.Array, seen: Visits, seeing: Visits, settings: Settings
) -> tuple[jax.Array, jax.Array]:
    """Compute attention, and the base-2 log-sum-exp of the scores, as `forward` does.

    Args:
      query: [batch, length, heads, head_dim]; all lengths are multiples of 64.
      key: [batch, keys, key_heads, head_dim].
      value: [batch, keys, key_heads, head_dim].
      seen: the keys that the queries see.
      seeing: the queries that see the keys.
      settings: static settings.
    """
    return forward(query, key, value, seen, settings)


def _attend_forward(
    query: jax.Array, key: jax.Array, value: jax.Array, seen: Visits, seeing: Visits, settings: Settings
) -> tuple[tuple[jax.Array, jax.Array], Any]:
    out, lse = forward(query, key, value, seen, settings)
    return (out, lse), (query, key, value, out, lse, seen, seeing)


def _attend_backward(settings: Settings, saved: Any, gradients: tuple[jax.Array, jax.Array]) -> Any:
    query, key, value, out, lse, seen, seeing = saved
    gradient, lse_gradient = gradients
    # float32[batch, heads, length]; the derivative of a log-sum-exp by a score is its weight
    delta = jnp.einsum("blhd,blhd->bhl", out.astype(jnp.float32), gradient.astype(jnp.float32)) - lse_gradient * LOG2_E
    arrays = query, key, value, gradient, (lse, delta)
    dq = query_gradient(*arrays, seen, settings)
    dk, dv = key_gradient(*arrays, seeing, settings)
    return dq, dk, dv, None, None


attend.defvjp(_attend_forward, _attend_backward)

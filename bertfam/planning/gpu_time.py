"""Prediction of the time of a training step on one GPU, from measured rates; nothing is compiled.

The lower bound of `bertfam.planning.bounds` counts what must be computed and moved. This counts what the programs do: products
below their peak, attention by the cost of its backend, passes over activations between the products, the update of parameters,
and the gaps between kernels. `docs/planning.md` compares it with measured steps.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen as nn

from bertfam.features import RowShape
from bertfam.kernels.attention.choice import BACKENDS, choose
from bertfam.kernels.attention.interface import COST_SIZE, Request
from bertfam.objectives.objective import Objective
from bertfam.planning.estimate import boxed_state, cached, gradient_trace
from bertfam.planning.tracing import Product, abstract_device, traces_for
from bertfam.sharding.chips import Chip, chip_of
from bertfam.training.run import Run
from bertfam.training.run_plan import attention_requests


@dataclass(frozen=True)
class Rates:
    """Rates of a kind of GPU in bfloat16.

    Attributes:
      compute_capability: compute capability, on which the backends of attention depend.
      products: share of the peak that matrix products reach.
      bandwidth: share of the published bandwidth that a copy in memory reaches.
      passes: bytes that the operations between the products read and write, per byte of the products' operands and results.
      float32_passes: further passes over float32 results of products, which are logits.
      dropout: share by which dropout increases the passes.
      gap_seconds: time between kernels, per product.
    """

    compute_capability: float
    products: float
    bandwidth: float
    passes: float
    float32_passes: float
    dropout: float
    gap_seconds: float


# By the name of the chip. Measured on NVIDIA H200s on 2026-11-29 (jax 0.11.2). `products` and `gap_seconds` are from profiles of
# BERT-base (256 x 128: 24.1 ms of products, 1.4 of gaps) and ModernBERT-base (32 x 1,024, packed: 34 and 2.4 ms). A copy reaches
# 4.3 of 4.8 TB/s. `passes` and `float32_passes` are fitted to the steps of BERT-base (256 x 128), ModernBERT-base (32 x 1,024,
# unpacked) and GPT-2 small (32 x 1,024); `dropout` to that of `runs/bert_base.gin`. Other steps are compared in docs/planning.md.
RATES: Mapping[str, Rates] = {
    "H200": Rates(
        compute_capability=9.0,
        products=0.72,
        bandwidth=0.9,
        passes=1.66,
        float32_passes=6.4,
        dropout=0.27,
        gap_seconds=9e-6,
    )
}
# Time of scanned layers relative to unrolled ones: BERT-base, 256 x 128, 491k against 649k tokens/s on a Hopper GPU.
_SCANNED = 1.32
# Share of the forward pass in the time of attention and of the operations between products; recomputation adds it.
_FORWARD = 1 / 3


@dataclass(frozen=True)
class GpuTime:
    """Predicted seconds of a training step by what they are spent on.

    Attributes:
      products: matrix products, without those of attention.
      attention: attention, forward and backward.
      memory_passes: operations between the products, which read and write activations.
      update: optimizer, and gradients that are summed over microbatches.
      gaps: time between kernels.
    """

    products: float
    attention: float
    memory_passes: float
    update: float
    gaps: float

    @property
    def seconds(self) -> float:
        """Time of the step."""
        return sum(vars(self).values())


def predict(run: Run, stage: int, device: jax.Device) -> GpuTime | None:
    """Predict the time of a training step of a sized run on one device; this takes seconds and compiles nothing.

    Args:
      run: sized run without "auto".
      stage: stage of the run, whose batch and row length count.
      device: the device. Packed rows are counted as one example each.

    Returns:
      The time; None for a device without `RATES`, or a run that does not compute in bfloat16.
    """
    objective = run.objective_of(stage)
    chip, options = chip_of(device), getattr(objective, "execution", None)
    if chip is None or chip.name not in RATES or options is None or options.concrete.dtype != "bfloat16":
        return None
    rates, execution = RATES[chip.name], options.concrete
    shape, boxed = run.shape(stage), boxed_state(run)
    # Attention is traced for CPUs, which support every pattern everywhere, and its backend is chosen for the GPU afterwards.
    with traces_for("cpu"):
        traced = gradient_trace(_traceable(objective, layers="scan"), shape, boxed)
    requests = _requests(_traceable(objective, layers="unroll", remat="none"), shape)
    count = run.microbatch_count
    products, passes, runs = _activations(traced.products, shape.rows / count, chip, rates)
    attention = shape.rows * sum(_attention_seconds(request, execution.attention, rates) for request in requests)
    if _drops_out(objective):
        passes *= 1 + rates.dropout
    if execution.remat != "none":
        attention *= 1 + _FORWARD
    if execution.remat == "dots":  # with "full" the recomputed products count their passes
        passes *= 1 + _FORWARD
    if execution.layers == "scan":
        passes += (_SCANNED - 1) * (products + passes + attention / count)
    return GpuTime(
        products=count * products,
        attention=attention,
        memory_passes=count * passes,
        update=_updated_bytes(boxed, count) / (chip.hbm_bandwidth * rates.bandwidth),
        gaps=count * runs * rates.gap_seconds,
    )


def _requests(objective: Objective, shape: RowShape) -> list[Request]:
    """Return the attention request of each layer."""

    def make() -> list[Request]:
        with abstract_device("cpu"):
            return [request for request, _ in attention_requests(objective, shape)]

    requests: list[Request] = cached(("attention", objective, shape._replace(rows=1)), make)
    return requests


def _traceable(objective: Any, **changed: str) -> Any:
    """Return the objective with other options of execution, and with attention that every platform supports."""
    return dataclasses.replace(objective, execution=dataclasses.replace(objective.execution, attention="auto", **changed))


def _activations(products: Iterable[Product], rows: float, chip: Chip, rates: Rates) -> tuple[float, float, int]:
    """Return the seconds of the products of a microbatch, those of the passes between them, and the number of products."""
    peak, bandwidth = chip.flops * rates.products, chip.hbm_bandwidth * rates.bandwidth
    computing = moved = 0.0
    for product in products:
        size = rows * product.row_bytes + product.weight_bytes
        computing += product.times * max(rows * product.flops / peak, size / bandwidth)
        moved += product.times * (rates.passes * size + rates.float32_passes * rows * product.float32_bytes)
    return computing, moved / bandwidth, sum(product.times for product in products)


def _attention_seconds(request: Request, name: str, rates: Rates) -> float:
    """Return the seconds of a layer's attention in one row on the GPU, by the backend of this name or the fastest."""
    request = dataclasses.replace(request, platform="gpu", compute_capability=rates.compute_capability)
    backend = choose(request)[0] if name == "auto" else BACKENDS[name]
    return backend.cost(request) / 1e3 * request.length * request.heads * request.head_dim / COST_SIZE


def _drops_out(objective: Objective) -> bool:
    """Return whether a network drops activations out; attention weights do not count."""
    return any(
        rate
        for config in objective.networks.values()
        for name, rate in vars(config).items()
        if name.endswith("dropout_rate") and name != "attention_dropout_rate"
    )


def _updated_bytes(boxed: Any, microbatches: int) -> int:
    """Return the bytes that the update reads and writes: parameters, optimizer state and gradients once each.

    Each microbatch also reads the parameters, writes its gradients, and adds them to the sum.
    """
    parameters, state = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(nn.meta.unbox(tree)))
        for tree in (boxed.params, (boxed.opt_state, boxed.average))
    )
    summed = 5 * parameters * microbatches if microbatches > 1 else 0
    return 2 * (2 * parameters + state) + summed

"""Base class of all optimizers: theta -= rate(step) * layer_rate * direction, after clipping by the global norm."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import jax
import optax

from bertfam.training.optimizers.layer_rates import Count, scale_by_layer
from bertfam.training.optimizers.sparsity import Sparsity
from bertfam.training.optimizers.tensors import Tree, describe
from bertfam.training.schedules import LinearDecay, Schedule

MomentDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Optimizer(ABC):
    """Frozen config of an optax transformation.

    Attributes:
      schedule: learning-rate schedule.
      clip_norm: largest global norm of the gradient; None does not clip.
      layer_decay: factor between the rates of a layer and the layer above, as in fine-tuning (see `layer_rates`).
      layer_count: "plain", or "electra" to count one more layer below the heads, as ELECTRA's published code does.
      sparsity: zeros among the weights, which are made or kept; None: zeros are weights like any other.
    """

    schedule: Schedule = LinearDecay()
    _: KW_ONLY
    clip_norm: float | None = 1.0
    layer_decay: float = 1.0
    layer_count: Count = "plain"
    sparsity: Sparsity | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm {self.clip_norm} is not above 0; None does not clip")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay {self.layer_decay} is not in (0, 1]; 1 gives all layers the same rate")

    def build(
        self, total_steps: int, params: Tree, schedule: optax.Schedule | None = None
    ) -> optax.GradientTransformationExtraArgs:
        """Build the optax transformation of a run.

        Its `update(gradient, state, params, step=step)` uses the rate of that step, so that skipped updates do not delay the
        schedule, as they would with the counter of `optax.scale_by_schedule` (optax 0.2.8). `rate=rate` replaces that rate, and
        keeps the schedule out of the program.

        Args:
          total_steps: number of updates of the run.
          params: parameters or their shapes, boxed with logical axis names, by which stacked layers are recognised.
          schedule: rates of all updates; None: those of the optimizer's schedule.
        """
        tensors = describe(params)
        parts = [] if self.clip_norm is None else [optax.clip_by_global_norm(self.clip_norm)]
        parts += [self.direction(tensors), scale_by_rate(schedule or self.schedule.build(total_steps))]
        if self.layer_decay != 1:
            parts.append(scale_by_layer(self.layer_decay, tensors, self.layer_count))
        if self.sparsity is not None:
            parts.append(self.sparsity.build(total_steps, tensors))
        return optax.with_extra_args_support(optax.chain(*parts))

    @property
    def largest_rate(self) -> float:
        """Rate above which an update is larger than the weights are: 1 where it is in proportion to them."""
        return 1.0

    @abstractmethod
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        """Build the transformation from the (clipped) gradient to the update before the rate is applied."""

    def _check_decays(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1)")

    def _check_not_negative(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} is not at least 0")

    def _check_above_zero(self, *names: str) -> None:
        """Check constants that keep a quotient finite where a gradient is 0."""
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} must be above 0: without it a gradient of 0 gives nan")

    def _check_dtypes(self, moments: Sequence[tuple[str, str]]) -> None:
        for decay, dtype in moments:
            # bfloat16 has 8 bits of mantissa: an average that changes by less than 1/256 per step would not change at all.
            if getattr(self, dtype) == "bfloat16" and 1 - getattr(self, decay) < 0.0099:
                raise ValueError(
                    f"{dtype} bfloat16 cannot follow a moment with {decay} {getattr(self, decay)}, whose changes it rounds away; "
                    f"use float32, or a {decay} of at most 0.99"
                )


def scale_by_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by minus the `rate` passed to `update`, or without it by that of the `step`."""

    def update(updates: Tree, state: Any, params: Tree = None, *, step: Any, rate: Any = None, **_: Any) -> tuple[Tree, Any]:
        rate = schedule(step) if rate is None else rate
        return jax.tree.map(lambda update: -rate * update, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)

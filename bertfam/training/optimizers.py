"""Optimizers: frozen configs that give optax transformations."""

from dataclasses import dataclass
from typing import Any

import jax
import optax

from bertfam.training.schedules import LinearDecay

# Parameters that are never decayed, by the last name of their path: biases and the scales of norms.
_NOT_DECAYED = ("bias", "scale")


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), after clipping by the global norm.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  theta -= rate (m^ / (sqrt(v^) + epsilon) + weight_decay theta)

    Attributes:
      schedule: the learning rate.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      weight_decay: of everything but biases and norm scales.
      clip_norm: the gradient's largest global norm; None does not clip.
    """

    schedule: LinearDecay = LinearDecay()
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1)")
        for name in ("epsilon", "weight_decay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm {self.clip_norm} is not above 0; None does not clip")

    def build(self, total_steps: int) -> optax.GradientTransformation:
        """The optax transformation of a run of `total_steps` updates."""
        adamw = optax.adamw(
            self.schedule.build(total_steps),
            self.b1,
            self.b2,
            self.epsilon,
            weight_decay=self.weight_decay,
            mask=weight_decay_mask,
        )
        return adamw if self.clip_norm is None else optax.chain(optax.clip_by_global_norm(self.clip_norm), adamw)


def weight_decay_mask(params: Any) -> Any:
    """True where a parameter is decayed; by name, since a stacked norm scale has two axes like a matrix."""

    def decayed(path: tuple[Any, ...], _: Any) -> bool:
        names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
        return names[-1] not in _NOT_DECAYED

    return jax.tree_util.tree_map_with_path(decayed, params)

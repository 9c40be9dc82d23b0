"""AdamW with Adafactor's update clipping.

`optax.clip_by_block_rms` (optax 0.2.8) was considered. It clips by the root mean square of the update, and StableAdamW by that of
g / sqrt(v), which the update does not show; its block is a whole leaf, which holds all layers of a stack.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from bertfam.training.optimizers.adam import AdamW
from bertfam.training.optimizers.moments import Moments, one_minus_power
from bertfam.training.optimizers.tensors import Tensor, Tree, map_tensors, rms


@dataclass(frozen=True)
class StableAdamW(AdamW):
    """StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2), which ModernBERT was trained with.

    theta -= rate / max(1, r) (m^ / (sqrt(v^) + epsilon) + weight_decay theta),  r = sqrt(mean(g^2 / max(v^, epsilon^2)))

    The rate of a tensor falls where its gradient is larger than the second moment has been, as at the start of a loss spike.
    Each layer is a tensor of its own. The global norm is not clipped: the clipping of the update takes its place.
    """

    b2: float = 0.99
    clip_norm: float | None = None

    @override
    def direction(self, tensors: Tree) -> optax.GradientTransformation:
        adam = super().direction(tensors)

        def update(gradient: Tree, state: Any, params: Tree = None) -> tuple[Tree, Any]:
            updates, state = adam.update(gradient, state, params)
            return map_tensors(self._clipped, tensors, updates, gradient, self._second_moment(state[0])), state

        return optax.GradientTransformation(adam.init, update)

    def _second_moment(self, moments: Moments) -> Tree:
        """Compute v^ = v / (1 - b2^t), float32."""
        correction = one_minus_power(self.b2, moments.updates)
        return jax.tree.map(lambda v: v.astype(jnp.float32) / correction, moments.nu)

    def _clipped(self, tensor: Tensor, update: jax.Array, gradient: jax.Array, second_moment: jax.Array) -> jax.Array:
        ratio = gradient * jax.lax.rsqrt(jnp.maximum(second_moment, self.epsilon**2))
        return update / jnp.maximum(1.0, rms(tensor, ratio))

"""Hard-concrete gates of attention heads, which close those that a task does not need (Voita et al. 2019, section 6).

The distribution is that of Louizos et al. (2018, arXiv 1712.01312, section 2.2).
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.layers.gates import GATE, with_gates
from bertfam.layers.initializers import named_key
from bertfam.layers.stack import AXIS
from bertfam.models.pruning import HEADS, Site, sites
from bertfam.objectives.objective import Tree

GATES = "gates"


@dataclass(frozen=True)
class HeadGates:
    """Gates z of all heads, one sample an update, and the loss penalty * sum over heads of P(z != 0) (Voita et al., equation 9).

    With u uniform in (0, 1) a gate is (Louizos et al., equations 10 and 11)

        s = sigmoid((log u - log(1 - u) + log alpha) / temperature)
        z = min(1, max(0, s (high - low) + low))

    so that P(z != 0) = sigmoid(log alpha - temperature log(-low / high)) (equation 12). Without dropout, as in evaluation, it is
    min(1, max(0, sigmoid(log alpha) (high - low) + low)) (equation 13), and `bertfam prune --gates` removes the heads where this
    is 0. The part "gates" of the parameters stores (log alpha - initial) / speed, as an optimizer such as Adam moves every number
    by about its rate, and log alpha has to move by several units.

    Attributes:
      penalty: Coefficient of the number of open heads.
      initial: log alpha at first; of 2 a gate is open with a probability of 0.97.
      speed: Number by which the rate of log alpha is higher than that of the other parameters.
      temperature: Temperature of the concrete distribution.
      low: Lower end of the stretched distribution, below 0.
      high: Upper end, above 1.
    """

    penalty: float = 0.005
    initial: float = 2.0
    speed: float = 2000.0
    temperature: float = 2 / 3
    low: float = -0.1
    high: float = 1.1

    def __post_init__(self) -> None:
        for name in ("penalty", "speed", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"HeadGates.{name} is {getattr(self, name):g}: it must be a number above 0")
        if not math.isfinite(self.initial):
            raise UserError(f"HeadGates.initial is {self.initial:g}: it must be a number")
        if not (-math.inf < self.low < 0 and 1 < self.high < math.inf):
            raise UserError(f"HeadGates.low is {self.low:g} and high {self.high:g}: they must be numbers below 0 and above 1")

    def init(self, params: Tree) -> Tree:
        """Initialize the gates of boxed parameters; return them boxed, by the paths of their modules."""
        gates = {(*site, GATE): jnp.zeros(shape) for site, shape in sites(params, HEADS).items()}
        if not gates:
            raise UserError("FineTuning.gates are of attention heads, and this model has none: leave them out")
        return traverse_util.unflatten_dict({path: nn.LogicallyPartitioned(own, (AXIS, HEADS)) for path, own in gates.items()})

    def log_alpha(self, params: Tree) -> dict[Site, jax.Array]:
        """Return log alpha float32[layers, heads] of each site.

        Its gradient is passed on as that of the stored number, so that `speed` does not change the norm of the whole gradient.
        """
        stored = {path[:-1]: own for path, own in traverse_util.flatten_dict(params[GATES]).items()}
        return {site: self.initial + own + jax.lax.stop_gradient((self.speed - 1) * own) for site, own in stored.items()}

    def values(self, params: Tree, key: jax.Array | None = None) -> dict[Site, jax.Array]:
        """Return the gates float32[layers, heads] of each site: a sample, or without a key those of evaluation."""
        found = {}
        for site, log_alpha in self.log_alpha(params).items():
            logits = log_alpha
            if key is not None:
                noise = jax.random.logistic(named_key(key, "/".join(site)), log_alpha.shape)  # log u - log(1 - u)
                logits = (noise + log_alpha) / self.temperature
            found[site] = jnp.clip(jax.nn.sigmoid(logits) * (self.high - self.low) + self.low, 0.0, 1.0)
        return found

    def open_heads(self, params: Tree) -> jax.Array:
        """Return the expected number of open heads, the sum of P(z != 0): float32[]."""
        shift = self.temperature * math.log(-self.low / self.high)
        return sum((jnp.sum(jax.nn.sigmoid(own - shift)) for own in self.log_alpha(params).values()), jnp.zeros(()))

    def placed(self, params: Tree, key: jax.Array | None) -> Tree:
        """Return the parameters with the gates in the modules whose heads they multiply."""
        return with_gates(without_gates(params), self.values(params, key))

    def merged(self, params: Tree) -> Tree:
        """Return the parameters with the gates of evaluation multiplied into the kernels behind the heads."""
        flat = traverse_util.flatten_dict(without_gates(params))
        for site, gate in self.values(params).items():
            path = (*site, "output", "kernel")  # [layers, heads, ..., embed]
            flat[path] = flat[path] * gate.reshape(*gate.shape, *(1,) * (flat[path].ndim - 2))
        return traverse_util.unflatten_dict(flat)


def without_gates(params: Tree) -> Tree:
    """Return the parameters of the network and its head alone."""
    return {name: part for name, part in params.items() if name != GATES}

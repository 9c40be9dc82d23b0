"""Layer-wise decay of the rate (Clark et al. 2020, appendix B; Yang et al. 2019, appendix A.4).

With L layers and a decay d, heads have the whole rate, layer L has d of it, layer 1 has d ** L and the embeddings have
d ** (L + 1). All that is neither in a stack of layers nor in a module called `embeddings` is a head: the pooler too. (ELECTRA's
own code counts one more: there layer L has d ** 2.) Where an encoder and a decoder have stacks of their own, each counts from
its own end, and the embeddings lie under the longer one.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertfam.training.optimizers.tensors import Tensor, Tree, on_each

EMBEDDINGS = "embeddings"


def scale_by_layer(decay: float, tensors: Tree) -> optax.GradientTransformation:
    """Multiplies updates by their layer's share of the rate."""
    layers = _most_layers(tensors)

    def scaled(tensor: Tensor, update: jax.Array, _: jax.Array) -> jax.Array:
        if tensor.stacked:
            # [layers] -> [layers, 1, ...]
            shares = np.reshape(_shares(decay, tensor.shape[0]), (-1,) + (1,) * len(tensor.own))
            return update * jnp.asarray(shares, update.dtype)
        return update * decay ** (layers + 1) if EMBEDDINGS in tensor.path else update

    return on_each(scaled, tensors)


def layer_rates(decay: float, tensors: Tree) -> dict[str, float]:
    """The shares of the rate by name, from the heads down, for people; the longest stack's where there are several."""
    layers = _most_layers(tensors)
    shares = _shares(decay, layers)
    below = {f"layer {layer}": float(shares[layer - 1]) for layer in range(layers, 0, -1)}
    return {"heads": 1.0} | below | {EMBEDDINGS: decay ** (layers + 1)}


def _shares(decay: float, layers: int) -> np.ndarray:
    """float64[layers], from layer 1 up."""
    return decay ** np.arange(layers, 0, -1.0)


def _most_layers(tensors: Tree) -> int:
    return max((tensor.shape[0] for tensor in jax.tree.leaves(tensors) if tensor.stacked), default=0)

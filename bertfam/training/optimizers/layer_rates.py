"""Layer-wise decay of the rate (Clark et al. 2020, appendix B; Yang et al. 2019, appendix A.4).

With L layers and a decay d, heads have the full rate, layer L has d times the rate, layer 1 d ** L and the embeddings
d ** (L + 1). Everything outside of stacks of layers and of modules called `embeddings` is a head, the pooler included. ELECTRA's
published code counts one more layer below the heads: layer L has d ** 2, layer 1 d ** (L + 1) and the embeddings d ** (L + 2).
The stacks of an encoder and a decoder each count from their own end, and the embeddings are below the longer one.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertfam.training.optimizers.tensors import Tensor, Tree, transform_tensors

EMBEDDINGS = "embeddings"
Count = Literal["plain", "electra"]


def scale_by_layer(decay: float, tensors: Tree, count: Count = "plain") -> optax.GradientTransformation:
    """Multiply updates by their layer's share of the rate."""
    below = layer_rates(decay, tensors, count)[EMBEDDINGS]

    def scaled(tensor: Tensor, update: jax.Array, _: jax.Array) -> jax.Array:
        if tensor.stacked:
            # [layers] -> [layers, 1, ...]
            shares = _shares(decay, _layers(tensor), count)[tensor.before : tensor.before + tensor.shape[0]]
            shares = np.reshape(shares, (-1,) + (1,) * len(tensor.own))
            return update * jnp.asarray(shares, update.dtype)
        return update * below if EMBEDDINGS in tensor.path else update

    return transform_tensors(scaled, tensors)


def layer_rates(decay: float, tensors: Tree, count: Count = "plain") -> dict[str, float]:
    """Return the shares of the rate by name, from the heads down, for display; the longest stack's where there are several."""
    layers = _most_layers(tensors)
    *shares, last = _shares(decay, layers + 1, count)[::-1]  # the embeddings lie where one more layer would
    below = {f"layer {layer}": float(share) for layer, share in zip(range(layers, 0, -1), shares, strict=True)}
    return {"heads": 1.0} | below | {EMBEDDINGS: float(last)}


def _shares(decay: float, layers: int, count: Count) -> np.ndarray:
    """Compute the shares of the rate, from layer 1 up: float64[layers]."""
    return decay ** (np.arange(layers, 0, -1.0) + (count == "electra"))


def _layers(tensor: Tensor) -> int:
    """Return the number of layers of the tensor's network."""
    return tensor.before + tensor.shape[0] + tensor.after


def _most_layers(tensors: Tree) -> int:
    return max((_layers(tensor) for tensor in jax.tree.leaves(tensors) if tensor.stacked), default=0)

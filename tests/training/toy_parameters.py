"""A small tree of parameters with every kind of tensor, boxed as modules box them, and gradients for it."""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

# Name -> logical axes, shape, and the shape of one layer's matrix or vector.
TENSORS = {
    "encoder/embeddings/word/table": (("vocab", "embed"), (6, 4), (6, 4)),
    "encoder/embeddings/norm/scale": (("embed",), (4,), (4,)),
    "encoder/layers/attention/query/kernel": (("layers", "embed", "heads", "head_dim"), (3, 4, 2, 3), (4, 6)),
    "encoder/layers/attention/query/bias": (("layers", "heads", "head_dim"), (3, 2, 3), (6,)),
    "encoder/layers/attention/output/kernel": (("layers", "heads", "head_dim", "embed"), (3, 2, 3, 4), (6, 4)),
    "encoder/layers/feed_forward/intermediate/kernel": (("layers", "embed", "mlp"), (3, 4, 8), (4, 8)),
    "encoder/layers/norm/scale": (("layers", "embed"), (3, 4), (4,)),
    "head/dense/kernel": (("embed", "classes"), (4, 2), (4, 2)),
    "head/dense/bias": (("classes",), (2,), (2,)),
}
DECAYED = {name for name, (_, _, layer_shape) in TENSORS.items() if len(layer_shape) == 2}


def tree(values):
    """Return nested dictionaries of {"a/b": value}."""
    return traverse_util.unflatten_dict(values, sep="/")


def flat(nested):
    """Return {"a/b": array} of nested dictionaries."""
    return {name: np.asarray(value) for name, value in traverse_util.flatten_dict(nested, sep="/").items()}


def random_values(seed, scale=1.0):
    """Return a random float32 array for each name."""
    generator = np.random.default_rng(seed)
    return {name: scale * generator.standard_normal(shape, np.float32) for name, (_, shape, _) in TENSORS.items()}


def boxed(values):
    """Return the tree, boxed with its logical axis names."""
    return tree({name: nn.LogicallyPartitioned(jnp.asarray(value), TENSORS[name][0]) for name, value in values.items()})


def layers(name, value):
    """Return one float64 array per layer, with the shape of the layer's matrix or vector."""
    axes, _, layer_shape = TENSORS[name]
    return np.reshape(np.float64(value), (-1, *layer_shape)) if axes[0] == "layers" else np.float64(value)[None]

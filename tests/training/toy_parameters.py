"""A small tree of parameters with every kind of tensor, boxed as modules box them, and gradients for it."""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

# Name -> logical axes, shape, and the matrix or vector that one layer of it is.
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
DECAYED = {name for name, (_, _, own) in TENSORS.items() if len(own) == 2}


def tree(values):
    """Nested dictionaries of {"a/b": value}."""
    return traverse_util.unflatten_dict(values, sep="/")


def flat(nested):
    """{"a/b": array} of nested dictionaries."""
    return {name: np.asarray(value) for name, value in traverse_util.flatten_dict(nested, sep="/").items()}


def random_values(seed, scale=1.0):
    """{name: float32 array}."""
    generator = np.random.default_rng(seed)
    return {name: scale * generator.standard_normal(shape, np.float32) for name, (_, shape, _) in TENSORS.items()}


def boxed(values):
    """The tree with its logical axis names."""
    return tree({name: nn.LogicallyPartitioned(jnp.asarray(value), TENSORS[name][0]) for name, value in values.items()})


def layers(name, value):
    """One array for each layer, flattened to the matrix or vector that it is, in float64."""
    axes, _, own = TENSORS[name]
    return np.reshape(np.float64(value), (-1, *own)) if axes[0] == "layers" else np.float64(value)[None]

"""Small BERT-like models and batches for several tests."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.layers.execution import Execution
from bertfam.models import bert

CONFIG = bert.BertConfig(
    vocab_size=99, num_layers=3, hidden_size=48, num_heads=4, feed_forward_size=80, max_length=24, type_vocab_size=3
)
LENGTHS = (20, 1, 7, 13)


def without_dropout(config: bert.BertConfig = CONFIG) -> bert.BertConfig:
    return dataclasses.replace(config, dropout_rate=0.0, attention_dropout_rate=0.0)


def batch(config: Any = CONFIG, lengths: tuple[int, ...] = LENGTHS, length: int = 20) -> dict[str, np.ndarray]:
    """Return random tokens and token types with ragged padding."""
    generator = np.random.default_rng(0)
    shape = (len(lengths), length)
    return {
        "tokens": generator.integers(0, config.vocab_size, shape, dtype=np.int32),
        "segment_ids": (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32),
        "token_type_ids": generator.integers(0, getattr(config, "type_vocab_size", 1), shape, dtype=np.int32),
    }


def init(config: Any = CONFIG, execution: Execution = Execution()):  # noqa: B008
    """Return the initial, boxed parameters of the encoder."""
    inputs = batch(config)
    module = config.encoder(execution)
    return jax.jit(lambda key: module.init(key, **inputs, train=False)["params"])(jax.random.key(0))


def random_params(config: Any = CONFIG):
    """Return random parameters of the encoder at scale 0.3, with norm scales around 1."""
    module, tokens = config.encoder(), np.zeros((1, 1), np.int32)
    shapes = jax.eval_shape(
        lambda key: module.init(key, tokens, segment_ids=tokens, token_type_ids=tokens, train=False)["params"],
        jax.random.key(0),
    )
    generator = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.3 * generator.standard_normal(leaf.shape) + (path[-1].key == "scale")),
        nn.unbox(shapes),
    )


def apply(params, inputs, config=CONFIG, execution=Execution(), key=None, compiler_options=None, **options):  # noqa: B008
    """Return (hidden, collected) of the jitted encoder; dropout is on if there is a key."""
    module = config.encoder(execution)
    rngs = None if key is None else {"dropout": key}

    def run(params, inputs):
        return module.apply({"params": params}, **inputs, train=key is not None, rngs=rngs, **options)

    return jax.jit(run, compiler_options=compiler_options)(params, {name: jnp.asarray(value) for name, value in inputs.items()})

"""Small BERT-like models and batches for several tests."""

import dataclasses
import functools
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


@functools.cache
def init(config: Any = CONFIG, execution: Execution = Execution()):  # noqa: B008
    """Return the initial, boxed parameters of the encoder."""
    inputs = batch(config)
    module = config.encoder(execution)
    return jax.device_get(jax.jit(lambda key: module.init(key, **inputs, train=False)["params"])(jax.random.key(0)))


@functools.cache
def boxed_shapes(config: Any = CONFIG):
    """Return the boxed shapes of the encoder's parameters."""
    module, tokens = config.encoder(), np.zeros((1, 1), np.int32)
    return jax.eval_shape(
        lambda key: module.init(key, tokens, segment_ids=tokens, token_type_ids=tokens, train=False)["params"],
        jax.random.key(0),
    )


@functools.cache
def random_params(config: Any = CONFIG):
    """Return random parameters of the encoder at scale 0.3, with norm scales around 1."""
    generator = np.random.default_rng(1)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(0.3 * generator.standard_normal(leaf.shape) + (path[-1].key == "scale")),
        nn.unbox(boxed_shapes(config)),
    )


@functools.cache
def _compiled(config, execution, is_trained, options):
    module = config.encoder(execution)

    def run(params, inputs, key):
        rngs = {"dropout": key} if is_trained else None
        return module.apply({"params": params}, **inputs, train=is_trained, rngs=rngs, **dict(options))

    return jax.jit(run)


def apply(params, inputs, config=CONFIG, execution=Execution(), key=None, **options):  # noqa: B008
    """Return (hidden, collected) of the jitted encoder; dropout is on if there is a key."""
    run = _compiled(config, execution, key is not None, tuple(options.items()))
    return jax.device_get(run(params, inputs, key))


@functools.cache
def _compiled_gradient(config, execution, is_trained):
    module, inputs = config.encoder(execution), batch(config)

    def loss(params, weights, key):
        rngs = {"dropout": key} if is_trained else None
        hidden, _ = module.apply({"params": params}, **inputs, train=is_trained, rngs=rngs)
        return jnp.sum(hidden * weights) / 100, hidden

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def loss_and_gradient(params, config=CONFIG, execution=Execution(), key=None):  # noqa: B008
    """Return ((loss, hidden states), gradient) of a weighted sum of hidden states; dropout is on if there is a key."""
    weights = np.random.default_rng(5).standard_normal((4, 20, config.hidden_size), np.float32)
    weights *= batch(config)["segment_ids"][..., None]
    run = _compiled_gradient(config, execution, key is not None)
    return jax.device_get(run(params, weights, key))


def assert_padding_changes_nothing(params, config=CONFIG, execution=Execution()):  # noqa: B008
    """Compare rows of 1, 7 and 13 tokens, padded to 20, with the same rows cut to 13 tokens."""
    inputs = batch(config)
    hidden, _ = apply(params, inputs, config, execution)
    actual, _ = apply(params, {name: value[1:, :13] for name, value in inputs.items()}, config, execution)
    for row, length in enumerate(LENGTHS[1:]):
        np.testing.assert_allclose(actual[row, :length], hidden[row + 1, :length], atol=1e-5)

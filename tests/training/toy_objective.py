"""Small objective that compiles quickly: two layers and a head that learn a function of the tokens."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertfam.data.rows.batches import BatchSource
from bertfam.features import encoder_features
from bertfam.layers.execution import Execution
from bertfam.objectives.objective import LossOut, Objective, Predictions, Sum

# Rows with this token have a loss of NaN.
POISON, WIDTH, LENGTH = 99, 4, 8


@dataclass(frozen=True)
class Toy(Objective):
    execution = Execution()
    model = None
    terms = ("toy",)

    def sized(self, vocabulary_size):
        return self

    def features(self, shape):
        return {name: encoder_features(shape)[name] for name in ("encoder_input_tokens", "encoder_segment_ids")}

    def init(self, key, shape):
        kernel = jax.random.normal(key, (2, WIDTH, WIDTH), jnp.float32)
        return (
            {
                "layers": {"kernel": nn.LogicallyPartitioned(kernel, ("layers", "embed", None))},
                "head": {"bias": nn.LogicallyPartitioned(jnp.zeros(WIDTH), ("embed",))},
            },
            {"seen": jnp.zeros(())},
            {},
        )

    def denominators(self, batch):
        return {"toy": jnp.sum(batch["encoder_segment_ids"] > 0).astype(jnp.float32)}

    def hidden(self, params, batch):
        states = [jax.nn.one_hot(batch["encoder_input_tokens"] % WIDTH, WIDTH)]
        for layer in range(2):
            states.append(jnp.tanh(states[-1] @ params["layers"]["kernel"][layer]))
        return jnp.stack(states)

    def loss(self, params, carry, aux, batch, *, key, train):
        tokens, real = batch["encoder_input_tokens"], (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
        difference = self.hidden(params, batch)[-1] + params["head"]["bias"] - jax.nn.one_hot((tokens + 1) % WIDTH, WIDTH)
        poison = jnp.where(tokens == POISON, jnp.nan, 0.0)
        total = jnp.sum((jnp.sum(difference**2, axis=-1) + poison) * real)
        carry = {"seen": carry["seen"] + jnp.sum(real) + jnp.sum(poison)} if carry else carry
        return LossOut({"toy": total}, carry, {"toy_loss": Sum(total, jnp.sum(real))})

    def predictions(self, params, batch):
        tokens, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
        probabilities = jax.nn.softmax(self.hidden(params, batch)[-1] + params["head"]["bias"])
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        weights = (segments > 0).astype(jnp.float32)
        best = jnp.argmax(probabilities, axis=-1), jnp.max(probabilities, axis=-1)
        return Predictions(tokens, segments, places, (tokens + 1) % WIDTH, weights, *best)

    def activations(self, params, batch):
        return {"toy": (self.hidden(params, batch), batch["encoder_segment_ids"] > 0)}

    def flops(self, shape):
        return 1


class Rows(BatchSource):
    """Random rows, which have the token POISON at some steps."""

    def __init__(self, poisoned=(), batch_size=lambda step: 4):
        self.poisoned, self.batch_size = poisoned, batch_size

    def rows(self, step, start, stop):
        tokens = np.random.default_rng(step).integers(5, 20, (self.batch_size(step), LENGTH)).astype(np.int32)
        if step in self.poisoned:
            tokens[0, 0] = POISON
        segments = np.ones_like(tokens)
        segments[:, 6:] = 0
        return {"encoder_input_tokens": tokens[start:stop], "encoder_segment_ids": segments[start:stop]}

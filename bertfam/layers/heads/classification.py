"""Heads that predict labels of texts or of their words, as the families' published classifiers have them."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import Pooler
from bertfam.layers.heads.scalar_mix import ScalarMix
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm

Pooling = Literal["cls", "mean", "last"]  # of a text
DenseActivation = Activation | Literal["tanh"]
_ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {"tanh": jnp.tanh, **dict(ACTIVATIONS.items())}


class OutputLayer(nn.Module):
    """Outputs of pooled hidden states: dropout, then a linear layer (BERT, ALBERT).

    Attributes:
      outputs: number of outputs.
      dropout_rate: dropout rate of the hidden states.
      use_bias: True if the linear layer has a bias.
      initializer_range: standard deviation of the kernel's truncated normal initial values.
      execution: dtype of the product; outputs are float32.
    """

    outputs: int
    dropout_rate: float = 0.1
    initializer_range: float = 0.02
    execution: Execution = Execution()
    use_bias: bool = True

    @nn.compact
    def __call__(self, hidden: jax.Array, *, train: bool) -> jax.Array:
        """Return the outputs float32[..., outputs] of hidden states [..., embed]."""
        hidden = Dropout(self.dropout_rate, name="dropout")(hidden, train=train)
        return _linear(self, "output", self.outputs, ("embed", "classes"), self.use_bias)(hidden).astype(jnp.float32)


class DenseOutputLayer(nn.Module):
    """Outputs of hidden states by a dense layer: [dropout,] dense, activation [, LayerNorm], dropout, then a linear layer.

    Attributes:
      outputs: number of outputs.
      activation: "tanh", or a name of `ACTIVATIONS`.
      input_dropout_rate: dropout rate before the dense layer.
      dropout_rate: dropout rate before the linear layer.
      layer_norm_epsilon: epsilon of a LayerNorm without bias after the activation; None: there is no LayerNorm.
      use_bias: True if the dense layer has a bias.
      initializer_range: standard deviation of the kernels' truncated normal initial values.
      execution: dtype of the products; outputs are float32.
    """

    outputs: int
    activation: DenseActivation = "tanh"
    input_dropout_rate: float = 0.0
    dropout_rate: float = 0.1
    layer_norm_epsilon: float | None = None
    use_bias: bool = True
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, hidden: jax.Array, *, train: bool) -> jax.Array:
        """Return the outputs float32[..., outputs] of hidden states [..., embed]."""
        hidden = Dropout(self.input_dropout_rate, name="input_dropout")(hidden, train=train)
        hidden = _linear(self, "dense", hidden.shape[-1], ("embed", None), self.use_bias)(hidden)
        hidden = _ACTIVATIONS[self.activation](hidden)
        if self.layer_norm_epsilon is not None:
            hidden = LayerNorm(self.layer_norm_epsilon, self.execution.compute_dtype, use_bias=False, name="norm")(hidden)
        hidden = Dropout(self.dropout_rate, name="dropout")(hidden, train=train)
        return _linear(self, "output", self.outputs, ("embed", "classes"))(hidden).astype(jnp.float32)


def _linear(
    layer: OutputLayer | DenseOutputLayer, name: str, size: int, axes: tuple[str | None, ...], use_bias: bool = True
) -> Dense:
    kernel_init = truncated_normal(layer.initializer_range)
    return Dense((size,), axes, layer.execution.compute_dtype, use_bias, kernel_init, name=name)


class Classifier(NamedTuple):
    """Published head of a family that predicts labels of a text, or of each token.

    Attributes:
      pooling: hidden state that it reads: that of [CLS], the mean of all tokens', or that of the last token; None: each token's
        own.
      output: the layers from there to the outputs.
      pooler: the pooler before them, whose parameters are the part "pooler"; None: there is none.
      encoder: the encoder that it belongs to, where that is not the one of pretraining; None: it is.
      layer: the layer whose hidden states it reads, 0 for the embeddings; None: the encoder's output.
      mix: the mix of the hidden states of all layers that it reads, whose parameters are the part "scalar_mix"; None: none.
    """

    pooling: Pooling | None
    output: OutputLayer | DenseOutputLayer
    pooler: Pooler | None = None
    encoder: nn.Module | None = None
    layer: int | None = None
    mix: ScalarMix | None = None

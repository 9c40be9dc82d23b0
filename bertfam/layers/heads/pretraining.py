"""Pretraining heads: pooling, classification and token prediction."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertfam.kernels.chunked_cross_entropy import NO_TOKEN_LOGIT
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.dense import Dense
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import Initializer, logical, param, truncated_normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.unsharded import replicated, unshard

# Logical axes of the table that hidden states are multiplied by.
_TABLE_AXES = ("vocab", "embed")


class Pooler(nn.Module):
    """Pooler: tanh(W h + b) of the hidden state h of a sequence's first token.

    Attributes:
      initializer_range: standard deviation of the kernel's truncated normal initial values.
      execution: dtype of the product.
    """

    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, first: jax.Array) -> jax.Array:
        """Pool hidden states [..., embed] at [CLS]; return dtype[..., embed]."""
        kernel_init = truncated_normal(self.initializer_range)
        dtype = self.execution.compute_dtype
        dense = Dense((first.shape[-1],), ("embed", None), dtype, kernel_init=kernel_init, name="dense")
        return jnp.tanh(dense(first))


class ClassificationHead(nn.Module):
    """Linear classification head.

    Attributes:
      num_classes: number of logits.
      initializer_range: standard deviation of the kernel's truncated normal initial values.
      execution: dtype of the product; logits are float32.
    """

    num_classes: int
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, pooled: jax.Array) -> jax.Array:
        """Return the logits float32[..., classes] of pooled hidden states [..., embed]."""
        kernel_init = truncated_normal(self.initializer_range)
        dtype = self.execution.compute_dtype
        dense = Dense((self.num_classes,), ("embed", "classes"), dtype, kernel_init=kernel_init, name="dense")
        return dense(pooled).astype(jnp.float32)


class TokenHead(nn.Module):
    """Token classification head: dense, activation, and a projection to one logit per token.

    This is the discriminator's head of ELECTRA (Clark et al. 2020, section 3.1).

    Attributes:
      activation: a name of `ACTIVATIONS`.
      initializer_range: standard deviation of the truncated normal initial values of kernels.
      execution: dtype of the products; logits are float32.
    """

    activation: Activation = "gelu"
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return the logits float32[...] of hidden states [..., embed]."""
        dtype = self.execution.compute_dtype
        normal = truncated_normal(self.initializer_range)
        hidden = Dense((hidden.shape[-1],), ("embed", None), dtype, kernel_init=normal, name="dense")(hidden)
        hidden = ACTIVATIONS[self.activation](hidden)
        # [..., embed] -> [..., 1] -> [...]
        logits = Dense((1,), ("embed", "classes"), dtype, kernel_init=normal, name="prediction")(hidden)
        return jnp.squeeze(logits, -1).astype(jnp.float32)


class MaskedLmHead(nn.Module):
    """Masked-token head: dense, activation, LayerNorm, product with the word table, and a bias per word.

    Without `transforms` it is the product and the bias alone (XLNet).

    Attributes:
      vocab_size: number of real tokens; the table's further rows have no probability and no gradient.
      activation: a name of `ACTIVATIONS`.
      layer_norm_epsilon: epsilon of the LayerNorm.
      initializer_range: standard deviation of the truncated normal initial values of kernels.
      tied: True if the product uses the encoder's word table; otherwise the head has the parameter `decoder` [vocab, embed].
      execution: dtype of activations and products; logits are summed and kept in float32.
      use_bias: True if dense and LayerNorm have biases.
      decoder_bias: True if each word has a bias.
      transforms: True if dense, activation and LayerNorm precede the product.
    """

    vocab_size: int
    activation: Activation = "gelu"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    tied: bool = True
    execution: Execution = Execution()
    use_bias: bool = True
    decoder_bias: bool = True
    transforms: bool = True

    def __call__(self, hidden: jax.Array, word_table: jax.Array) -> jax.Array:
        """Return the logits of masked tokens.

        Args:
          hidden: hidden states [batch, predictions, embed] at the masked positions.
          word_table: float32[rows, embed].

        Returns:
          The logits float32[batch, predictions, rows].
        """
        return token_logits(*self.factors(hidden, word_table), self.vocab_size)

    @nn.compact
    def factors(self, hidden: jax.Array, word_table: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Return what the logits are computed from: transformed hidden states, the table, and the bias of each word or None.

        The arguments are those of a call.
        """
        dtype = self.execution.compute_dtype
        rows, embed = word_table.shape
        normal = truncated_normal(self.initializer_range)
        if self.transforms:
            hidden = Dense((embed,), ("embed", None), dtype, self.use_bias, normal, name="dense")(hidden)
            hidden = ACTIVATIONS[self.activation](hidden)
            hidden = LayerNorm(self.layer_norm_epsilon, dtype, self.use_bias, name="norm")(hidden)
        if not self.tied:
            word_table = param(self, "decoder", logical(normal, _TABLE_AXES), (rows, embed))
        bias = None
        if self.decoder_bias:
            bias = param(self, "bias", logical(nn.initializers.zeros_init(), ("vocab",)), (rows,))
        return hidden, word_table, bias


def token_logits(hidden: jax.Array, word_table: jax.Array, bias: jax.Array | None, vocab_size: int) -> jax.Array:
    """Multiply hidden states by a word table and add a bias per word, if any; sums are float32.

    Args:
      hidden: dtype[batch, predictions, embed].
      word_table: float32[rows, embed].
      bias: float32[rows], or None.
      vocab_size: number of real tokens; further rows have no probability and no gradient.

    Returns:
      The logits float32[batch, predictions, rows].
    """
    product = _product_bfloat16 if hidden.dtype == jnp.bfloat16 else _product
    logits = product(hidden, word_table)
    if bias is not None:
        logits += bias
    logits = nn.with_logical_constraint(logits, ("batch", "length", "vocab"))
    return jnp.where(jnp.arange(len(word_table)) < vocab_size, logits, NO_TOKEN_LOGIT)


def _product(hidden: jax.Array, word_table: jax.Array) -> jax.Array:
    table = unshard(_cast(word_table, hidden.dtype), _TABLE_AXES)
    return jnp.einsum("bpe,ve->bpv", hidden, table, preferred_element_type=jnp.float32)


def _cast(word_table: jax.Array, dtype: DTypeLike) -> jax.Array:
    # The constraint keeps the compiler from gathering the table before the cast, which would be twice as many bytes.
    return nn.with_logical_constraint(word_table.astype(dtype), _TABLE_AXES)


@jax.custom_vjp
def _product_bfloat16(hidden: jax.Array, word_table: jax.Array) -> jax.Array:
    """Multiply as `_product` does; the products of the gradients are in bfloat16 too, with sums in float32."""
    return _product(hidden, word_table)


def _product_forward(hidden: jax.Array, word_table: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(hidden, word_table), (hidden, word_table)


def _product_backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden, word_table = saved
    gradient = gradient.astype(hidden.dtype)
    of_hidden = jnp.einsum("bpv,ve->bpe", gradient, replicated(_cast(word_table, hidden.dtype), _TABLE_AXES))
    of_table = jnp.einsum("bpv,bpe->ve", gradient, hidden, preferred_element_type=jnp.float32)
    return of_hidden, nn.with_logical_constraint(of_table, _TABLE_AXES)


_product_bfloat16.defvjp(_product_forward, _product_backward)


class Head(NamedTuple):
    """Weights of the projection from hidden states to words, logits = (scale hidden) kernel^T + bias.

    Attributes:
      kernel: float32[rows, embed].
      scale: float32[] or a number.
      bias: float32[rows] or None.
    """

    kernel: jax.Array
    scale: jax.Array | float
    bias: jax.Array | None


class LmHead(nn.Module):
    """Language-model head: a projection of hidden states to one logit per word.

    Attributes:
      vocab_size: number of real tokens; the table's further rows have no probability and no gradient.
      tied: True if it uses the word table; otherwise the head has the parameter `kernel` [vocab, embed].
      scale: factor of the hidden states before the projection.
      use_bias: True if each word has a bias, which is stored in files and never trained (BART's `final_logits_bias`).
      kernel_init: initializer of `kernel`.
      execution: dtype of the product; logits are summed and kept in float32.
    """

    vocab_size: int
    tied: bool = True
    scale: float = 1.0
    use_bias: bool = False
    kernel_init: Initializer = truncated_normal(0.02)
    execution: Execution = Execution()

    @nn.compact
    def weights(self, table: jax.Array) -> Head:
        """Return the weights of the projection, given the word table float32[rows, embed]."""
        if not self.tied:
            table = param(self, "kernel", logical(self.kernel_init, _TABLE_AXES), table.shape)
        bias = None
        if self.use_bias:
            zeros = logical(nn.initializers.zeros_init(), ("vocab",))
            bias = jax.lax.stop_gradient(param(self, "bias", zeros, table.shape[:1]))
        return Head(table, self.scale, bias)

    def __call__(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        """Return the logits float32[batch, length, rows] of hidden states [batch, length, embed].

        Args:
          hidden: [batch, length, embed].
          table: word table float32[rows, embed].
        """
        head = self.weights(table)
        hidden = (hidden * head.scale).astype(self.execution.compute_dtype)
        return token_logits(hidden, head.kernel, head.bias, self.vocab_size)

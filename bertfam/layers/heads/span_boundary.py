"""SpanBERT's span boundary head: predicts a span's tokens from the tokens around it (Joshi et al. 2020, section 3.2)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.layers.activations import ACTIVATIONS
from bertfam.layers.dense import Dense
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import token_logits
from bertfam.layers.initializers import logical, param, truncated_normal
from bertfam.layers.lookup import lookup_few
from bertfam.layers.norm import LayerNorm


class SpanBoundaryHead(nn.Module):
    """Span boundary head.

    It computes y = LN(gelu(W2 LN(gelu(W1 [left; right; place])))), multiplies y by the word table and adds a bias per word.

    Attributes:
      vocab_size: number of real tokens; the table's further rows have no probability and no gradient.
      places: rows of the table of positions in a span.
      place_size: width of that table.
      initializer_range: standard deviation of the truncated normal initial values of kernels.
      execution: dtype of activations and products; logits are summed and kept in float32.
    """

    vocab_size: int
    places: int = 20
    place_size: int = 200
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, left: jax.Array, right: jax.Array, offsets: jax.Array, word_table: jax.Array) -> jax.Array:
        """Compute the logits of tokens in spans.

        Args:
          left: hidden states [batch, predictions, embed] of the token before each span.
          right: hidden states [batch, predictions, embed] of the token after each span.
          offsets: int32[batch, predictions], number of tokens of the span before the predicted one.
          word_table: the encoder's word table float32[rows, width].

        Returns:
          The logits float32[batch, predictions, rows].
        """
        dtype, normal = self.execution.compute_dtype, truncated_normal(self.initializer_range)
        # Replicated, since few meshes divide the published width of 200.
        places = param(self, "places", logical(normal, (None, None)), (self.places, self.place_size))
        # [batch, predictions, 2 embed + place_size] -> [batch, predictions, embed] -> [batch, predictions, width]
        hidden = jnp.concatenate([left.astype(dtype), right.astype(dtype), lookup_few(places, offsets, dtype)], axis=-1)
        for name, width in (("first", left.shape[-1]), ("second", word_table.shape[1])):
            hidden = Dense((width,), (None, "embed"), dtype, kernel_init=normal, name=name)(hidden)
            hidden = LayerNorm(1e-5, dtype, name=f"{name}_norm")(ACTIVATIONS["gelu"](hidden))
        zeros = logical(nn.initializers.zeros_init(), ("vocab",))
        bias = param(self, "bias", zeros, (len(word_table),))
        return token_logits(hidden, word_table, bias, self.vocab_size)

"""One layer of an encoder that normalises what goes into each sublayer (pre-LN), without biases: ModernBERT."""

import flax.linen as nn
import jax

from bertfam.layers.activations import Activation
from bertfam.layers.attention import SelfAttention
from bertfam.layers.dropout import Dropout
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm


class PreNormBlock(nn.Module):
    """x = x + dropout(attention(LN(x))); x = x + feed_forward(LN(x)), the feed-forward network being gated.

    Attributes:
      num_heads, head_dim: of the attention.
      feed_forward_size: width of the feed-forward network's hidden layer.
      window: how far the attention sees: |i - j| <= window / 2; None: all tokens.
      rotary_theta: of the attention's rotary positions.
      attention_norm: whether there is a LayerNorm before the attention; the first layer's input has been through one.
      activation: a name of `ACTIVATIONS`.
      attention_dropout_rate: on what the attention adds, and on the attention probabilities by backends that can.
      feed_forward_dropout_rate: on the hidden layer of the feed-forward network.
      layer_norm_epsilon: of both LayerNorms.
      initializer_range: deviation of the truncated normal that kernels start from.
      output_initializer_range: the same of the two kernels whose products are added to x.
      execution: dtype and attention backend.
    """

    num_heads: int
    head_dim: int
    feed_forward_size: int
    window: int | None
    rotary_theta: float
    attention_norm: bool = True
    activation: Activation = "gelu"
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    output_initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None,
        packed: bool,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """One layer.

        Args:
          hidden: [batch, length, embed].
          segment_ids: int32[batch, length], which packed example; 0 = padding.
          positions: int32[batch, length], from 0 in each example; None: 0, 1, 2, ...
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end.
          train: whether dropout is on.
          collect: names among "hidden_states" and "attention_probs".

        Returns:
          dtype[batch, length, embed], and what `collect` names: that again, and float32[batch, heads, length, length].
        """
        dtype = self.execution.compute_dtype
        kernel_init, output_init = (truncated_normal(d) for d in (self.initializer_range, self.output_initializer_range))
        inputs = hidden
        if self.attention_norm:
            inputs = LayerNorm(self.layer_norm_epsilon, dtype, use_bias=False, name="attention_norm")(hidden)
        mixed, probabilities = SelfAttention(
            self.num_heads,
            self.head_dim,
            self.attention_dropout_rate,
            self.execution,
            kernel_init,
            output_init,
            use_bias=False,
            window=self.window,
            rotary_theta=self.rotary_theta,
            name="attention",
        )(inputs, segment_ids=segment_ids, positions=positions, packed=packed, train=train, maps="attention_probs" in collect)
        hidden = hidden + Dropout(self.attention_dropout_rate, name="attention_dropout")(mixed, train=train)
        inputs = LayerNorm(self.layer_norm_epsilon, dtype, use_bias=False, name="feed_forward_norm")(hidden)
        hidden = hidden + FeedForward(
            self.feed_forward_size,
            self.activation,
            dtype,
            kernel_init,
            output_init,
            gated=True,
            use_bias=False,
            dropout_rate=self.feed_forward_dropout_rate,
            name="feed_forward",
        )(inputs, train=train)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", None))

        outputs = {}
        if "hidden_states" in collect:
            outputs["hidden_states"] = hidden
        if probabilities is not None:
            outputs["attention_probs"] = probabilities
        return hidden, outputs

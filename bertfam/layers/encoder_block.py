"""One layer of an encoder that normalises after each residual sum (post-LN): BERT and its near relatives."""

import flax.linen as nn
import jax

from bertfam.layers.activations import Activation
from bertfam.layers.attention import SelfAttention
from bertfam.layers.dropout import Dropout
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm


class PostNormBlock(nn.Module):
    """x = LN(x + dropout(attention(x))); x = LN(x + dropout(feed_forward(x))).

    Attributes:
      num_heads, head_dim: of the attention.
      feed_forward_size: width of the feed-forward network's hidden layer.
      activation: a name of `ACTIVATIONS`.
      dropout_rate: on what each sublayer adds.
      attention_dropout_rate: on the attention probabilities, by backends that can.
      layer_norm_epsilon: of both LayerNorms.
      initializer_range: deviation of the truncated normal that kernels start from.
      execution: dtype and attention backend.
    """

    num_heads: int
    head_dim: int
    feed_forward_size: int
    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        *,
        segment_ids: jax.Array,
        packed: bool,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """One layer.

        Args:
          hidden: [batch, length, embed].
          segment_ids: int32[batch, length], which packed example; 0 = padding.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end.
          train: whether dropout is on.
          collect: names among "hidden_states" and "attention_probs".

        Returns:
          dtype[batch, length, embed], and what `collect` names: that again, and float32[batch, heads, length, length].
        """
        dtype = self.execution.compute_dtype
        kernel_init = truncated_normal(self.initializer_range)
        mixed, probabilities = SelfAttention(
            self.num_heads,
            self.head_dim,
            self.attention_dropout_rate,
            self.execution,
            kernel_init,
            name="attention",
        )(hidden, segment_ids=segment_ids, packed=packed, train=train, maps="attention_probs" in collect)
        mixed = Dropout(self.dropout_rate, name="attention_dropout")(mixed, train=train)
        hidden = LayerNorm(self.layer_norm_epsilon, dtype, name="attention_norm")(hidden + mixed)
        fed = FeedForward(self.feed_forward_size, self.activation, dtype, kernel_init, name="feed_forward")(hidden)
        fed = Dropout(self.dropout_rate, name="feed_forward_dropout")(fed, train=train)
        hidden = LayerNorm(self.layer_norm_epsilon, dtype, name="feed_forward_norm")(hidden + fed)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", None))

        outputs = {}
        if "hidden_states" in collect:
            outputs["hidden_states"] = hidden
        if probabilities is not None:
            outputs["attention_probs"] = probabilities
        return hidden, outputs

"""Multi-head self-attention (Vaswani et al. 2017, equation 1 and section 3.2.2)."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.kernels.attention import Request, choose
from bertfam.layers.dense import Dense, project
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import Initializer, truncated_normal
from bertfam.layers.rotary import rotated


class SelfAttention(nn.Module):
    """Queries, keys and values of one sequence.

    The three kernels are parameters of their own, [embed, heads, head_dim]; one product with their stack computes
    all three. They are stacked on a new axis, so that a sharding over heads stays as it is.

    Attributes:
      num_heads, head_dim: the heads.
      dropout_rate: of the attention probabilities, applied when training by backends that can.
      execution: dtype and backend.
      kernel_init: of all four kernels.
      output_init: of the kernel of `output`; None: `kernel_init`.
      use_bias: whether the four maps have biases.
      window: how far it sees: |i - j| <= window / 2; None: all tokens.
      rotary_theta: of the rotation of queries and keys by their positions (see `bertfam.layers.rotary`); None: there is none.
    """

    num_heads: int
    head_dim: int
    dropout_rate: float = 0.0
    execution: Execution = Execution()
    kernel_init: Initializer = truncated_normal(0.02)
    output_init: Initializer | None = None
    use_bias: bool = True
    window: int | None = None
    rotary_theta: float | None = None

    @nn.compact
    def __call__(
        self,
        inputs: jax.Array,
        *,
        segment_ids: jax.Array,
        packed: bool,
        train: bool,
        positions: jax.Array | None = None,
        maps: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Each token attends to the tokens of its own segment.

        Args:
          inputs: [batch, length, embed].
          segment_ids: int32[batch, length], which packed example; 0 = padding.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end.
          train: whether dropout is on.
          positions: int32[batch, length], for the rotation; None: 0, 1, 2, ...
          maps: whether to return the probabilities.

        Returns:
          dtype[batch, length, embed], and float32[batch, heads, length, length] probabilities before dropout or None.
        """
        embed = inputs.shape[-1]
        dtype = self.execution.compute_dtype
        heads = (self.num_heads, self.head_dim)
        kernels: list[Any] = []
        biases: list[Any] = []
        for name in ("query", "key", "value"):
            dense = Dense(heads, ("embed", "heads", "head_dim"), dtype, self.use_bias, self.kernel_init, name=name)
            kernel, bias = dense.parameters((embed,))
            kernels.append(kernel)
            biases.append(bias)
        # [batch, length, embed] -> [batch, length, 3, heads, head_dim]
        # with 3 x [embed, heads, head_dim] -> [embed, 3, heads, head_dim]; 3 x [heads, head_dim] -> [3, heads, head_dim]
        joint = project(inputs.astype(dtype), jnp.stack(kernels, axis=1), jnp.stack(biases) if self.use_bias else None)
        joint = nn.with_logical_constraint(joint, ("batch", "length", None, "heads", "head_dim"))
        query, key, value = joint[:, :, 0], joint[:, :, 1], joint[:, :, 2]
        if self.rotary_theta is not None:
            query, key = (rotated(which, positions, self.rotary_theta) for which in (query, key))

        dropout_rate = self.dropout_rate if train else 0.0
        request = Request.here(str(query.dtype), query.shape[1], self.head_dim, packed, dropout_rate, maps, window=self.window)
        backend, _ = choose(request, self.execution.attention)
        dropout_key = self.make_rng("dropout") if request.dropout_rate and backend.dropout else None
        # [batch, length, heads, head_dim]
        mixed, probabilities = backend.run(query, key, value, segment_ids=segment_ids, request=request, dropout_key=dropout_key)
        output_init = self.output_init or self.kernel_init
        output = Dense((embed,), ("heads", "head_dim", "embed"), dtype, self.use_bias, output_init, name="output")
        return output(mixed), probabilities

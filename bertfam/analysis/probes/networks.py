"""Networks of probes, from the hidden states of spans to labels."""

from abc import abstractmethod

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.layers.heads.scalar_mix import ScalarMix


class SpanProbe(nn.Module):
    """Base class of the probes of one span, or of a pair of spans.

    Attributes:
      outputs: number of labels.
      hidden: hidden units, of those probes that have them.
    """

    outputs: int
    hidden: int

    @abstractmethod
    def __call__(self, states: jax.Array, segments: jax.Array, sizes: jax.Array, layers: jax.Array) -> jax.Array:
        """Compute the logits of the labels.

        Args:
          states: float32[n, layers + 1, embed], hidden states of tokens, one span after another.
          segments: int32[n], the span of each token; a number beyond all spans for padding.
          sizes: float32[targets, spans], tokens of each span.
          layers: bool[layers + 1], the layers that the probe reads, mixed as by ELMo (Peters et al. 2018, equation 1).

        Returns:
          float32[targets, outputs].
        """


class LinearSpanProbe(SpanProbe):
    """Linear layer on the mean of each span's tokens."""

    @nn.compact
    @override
    def __call__(self, states: jax.Array, segments: jax.Array, sizes: jax.Array, layers: jax.Array) -> jax.Array:
        return nn.Dense(self.outputs)(_mixed_means(states, segments, sizes, layers))


class MlpSpanProbe(SpanProbe):
    """One hidden layer with ReLU on the mean of each span's tokens (MLP-1 of Hewitt and Liang 2019)."""

    @nn.compact
    @override
    def __call__(self, states: jax.Array, segments: jax.Array, sizes: jax.Array, layers: jax.Array) -> jax.Array:
        units = nn.relu(nn.Dense(self.hidden)(_mixed_means(states, segments, sizes, layers)))
        return nn.Dense(self.outputs)(units)


class EdgeProbe(SpanProbe):
    """Projection and self-attentive pooling of each span, and one hidden layer (Tenney et al. 2019a, section 3.1).

    The spans of a pair have a projection and a query of their own. A softmax over the labels takes the place of the paper's
    sigmoids, as every target has one label.
    """

    @nn.compact
    @override
    def __call__(self, states: jax.Array, segments: jax.Array, sizes: jax.Array, layers: jax.Array) -> jax.Array:
        targets, spans = sizes.shape
        mixed = ScalarMix(name="mix")(jnp.moveaxis(states, 1, 0), layers)  # [n, embed]
        pooled = []
        for span in range(spans):
            projected = nn.Dense(self.hidden, name=f"projection_{span}")(mixed)
            scores = nn.Dense(1, name=f"attention_{span}")(projected)[:, 0]
            # Tokens of the other span go to a number beyond all targets.
            owner = jnp.where(segments % spans == span, segments // spans, targets)
            pooled.append(_attended(projected, scores, owner, targets))
        units = nn.relu(nn.Dense(self.hidden, name="units")(jnp.concatenate(pooled, axis=-1)))
        return nn.Dense(self.outputs, name="labels")(units)


# Name of a probe -> its network.
PROBES: dict[str, type[SpanProbe]] = {"linear": LinearSpanProbe, "mlp": MlpSpanProbe, "edge": EdgeProbe}


def _mixed_means(states: jax.Array, segments: jax.Array, sizes: jax.Array, layers: jax.Array) -> jax.Array:
    """Return the means of spans, mixed over layers, those of a pair side by side: float32[targets, spans * embed]."""
    sums = jax.ops.segment_sum(states, segments, sizes.size, indices_are_sorted=True)
    means = sums / sizes.reshape(-1, 1, 1)  # [targets * spans, layers + 1, embed]
    return ScalarMix(name="mix")(jnp.moveaxis(means, 1, 0), layers).reshape(len(sizes), -1)


def _attended(values: jax.Array, scores: jax.Array, owner: jax.Array, count: int) -> jax.Array:
    """Return the mean of each owner's values, weighted by the softmax of its scores: float32[count, width]."""
    most = jax.lax.stop_gradient(jax.ops.segment_max(scores, owner, count + 1))
    weights = jnp.exp(scores - most[jnp.minimum(owner, count)])
    sums = jax.ops.segment_sum(weights[:, None] * values, owner, count + 1)[:count]
    return sums / jax.ops.segment_sum(weights, owner, count + 1)[:count, None]

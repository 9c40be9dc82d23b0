"""Interface between attention layers and backends: requests, inputs, backends, and the mask that backends apply."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.kernels.attention.patterns import CAUSAL, FULL, Pattern
from bertfam.kernels.target import target

COST_SIZE = 12 * 64 * 32_768  # width of all heads times tokens, for which backends state their costs


@dataclass(frozen=True)
class Request:
    """Attention that a program requests while it is traced, independently of the data.

    Attributes:
      dtype: dtype of queries, keys and values.
      length: tokens in a row.
      head_dim: width of a head.
      pattern: the places that a query may attend to, within its segment.
      packed: True if a row may hold several examples, which must not attend to each other, may begin with padding, or may
        continue an example whose beginning is in a cache. False promises segment ids of 1 for the tokens, then 0 for padding.
      dropout_rate: dropout rate of the attention weights; 0 outside training.
      return_weights: True to return the attention weights.
      bias: True if a term is added to the scores.
      key_length: keys in a row, if they come from another sequence or a cache; None: the row's own.
      scale: factor of the scores; None: 1 / sqrt(head_dim).
      platform: "cpu", "gpu" or "tpu".
      split: True if the tokens of a row are sharded over devices.
      compute_capability: compute capability of an NVIDIA GPU, such as 9.0; None elsewhere.
      heads: number of heads of the queries, which no choice depends on.
    """

    dtype: str
    length: int
    head_dim: int
    pattern: Pattern = FULL
    packed: bool = False
    dropout_rate: float = 0.0
    return_weights: bool = False
    bias: bool = False
    key_length: int | None = None
    scale: float | None = None
    platform: str = "cpu"
    split: bool = False
    compute_capability: float | None = None
    heads: int = 1

    def here(self) -> "Request":
        """Return the request for the devices of the current mesh, or of this process if no mesh is set.

        The devices of the mesh may be those of a program that is only compiled here. The pattern becomes the simplest one that
        is equal in rows of this length.
        """
        platform, compute_capability = target()
        return replace(
            self,
            pattern=self.pattern if self.key_length is not None else self.pattern.within(self.length),
            platform=platform,
            split=jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1,
            compute_capability=compute_capability,
        )

    @property
    def keys(self) -> int:
        """Keys in a row."""
        return self.length if self.key_length is None else self.key_length

    @property
    def score_scale(self) -> float:
        """Factor of the scores."""
        return self.head_dim**-0.5 if self.scale is None else self.scale


class Inputs(NamedTuple):
    """Arrays of attention: softmax(scale q k^T + bias) v with the mask of `attention_mask`; the softmax is in float32.

    Attributes:
      query: queries [batch, length, heads, head_dim].
      key: keys [batch, keys, key_heads, head_dim]; each key head belongs to heads / key_heads consecutive query heads.
      value: values [batch, keys, key_heads, head_dim], grouped like the keys.
      segment_ids: int32[batch, length]; 0 = padding. The output at padding is finite and has no meaning.
      key_segment_ids: int32[batch, keys]; None: `segment_ids`.
      offset: int32[], the place of the first query among the keys, for causal or windowed attention; None: 0.
      bias: [batch or 1, heads or 1, length, keys], added to the scores, or None.
      dropout_key: random key of the dropout; None: no dropout.
      arrays: the arrays that the pattern depends on, by name; None: none.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    segment_ids: jax.Array
    key_segment_ids: jax.Array | None = None
    offset: jax.Array | None = None
    bias: jax.Array | None = None
    dropout_key: jax.Array | None = None
    arrays: Mapping[str, jax.Array] | None = None


class Backend(ABC):
    """An implementation of attention.

    Attributes:
      name: name in configs.
      platforms: platforms that it runs on.
      applies_dropout: True if it applies dropout to the attention weights.
      reproducible: False if gradients may differ in their last bits from run to run.
    """

    name: ClassVar[str]
    platforms: ClassVar[tuple[str, ...]] = ("cpu", "gpu", "tpu")
    applies_dropout: ClassVar[bool] = False
    reproducible: ClassVar[bool] = True

    @abstractmethod
    def refusals(self, request: Request) -> Iterator[str]:
        """Yield the reasons why the backend does not support a request, apart from its platform and dropout."""

    @abstractmethod
    def cost(self, request: Request) -> float:
        """Return the expected milliseconds of a request that it supports, forward and backward.

        They are those of `COST_SIZE`, 12 heads of 64 on 32,768 tokens, in bfloat16 on an H200. On other devices only their order
        counts.
        """

    @abstractmethod
    def run(self, inputs: Inputs, request: Request) -> tuple[jax.Array, jax.Array | None]:
        """Compute attention for a request that it supports.

        Returns:
          The output [batch, length, heads, head_dim] in the dtype of the values, and with `request.return_weights` the attention
          weights before dropout, float32[batch, heads, length, keys], otherwise None.
        """

    def gathers_keys(self, request: Request) -> bool:
        """Return True if a device requires all keys of a row where the tokens of a row are sharded over devices."""
        return True

    def clashes(self, request: Request) -> list[str]:
        """Return the reasons why the backend does not support a request, apart from dropout."""
        if request.platform not in self.platforms:
            return [f"the platform is {request.platform}, not {' or '.join(self.platforms)}"]
        return list(self.refusals(request))


def beyond_self_attention(request: Request) -> Iterator[str]:
    """Yield reasons against a request for more than the output of self-attention without a bias."""
    if request.return_weights:
        yield "attention weights are requested"
    if request.bias:
        yield "scores have a bias"
    if request.key_length is not None:
        yield "keys come from another sequence or a cache"


def beyond_unpacked_rows(request: Request) -> Iterator[str]:
    """Yield reasons against a request for more than the output over all or all previous tokens of unpacked, whole rows."""
    if request.dtype not in ("bfloat16", "float16"):
        yield f"the dtype is {request.dtype}, not bfloat16 or float16"
    if request.packed:
        yield "rows are packed"
    if request.return_weights:
        yield "attention weights are requested"
    if request.split:
        yield "the tokens of a row are sharded over devices"
    if request.pattern not in (FULL, CAUSAL):
        yield f"tokens attend to {request.pattern.describe()}"


def computed_keys(request: Request) -> float:
    """Return the keys that kernels for all or all previous tokens compute for a query, on average."""
    causal = request.pattern == CAUSAL and request.key_length is None
    return request.pattern.pairs(request.length) / request.length if causal else request.keys


def attention_mask(inputs: Inputs, request: Request) -> jax.Array:
    """Return the attention mask bool[batch, heads or 1, length, keys]: same segment, and within the pattern.

    Padding (segment 0) attends to padding, at least to itself, so no query of self-attention is without keys. In cross-attention
    a query may have no keys; backends then return finite values.
    """
    queries, keys = inputs.segment_ids, inputs.segment_ids if inputs.key_segment_ids is None else inputs.key_segment_ids
    mask = jnp.equal(queries[:, None, :, None], keys[:, None, None, :])
    return mask & request.pattern.mask(*_places(inputs, request), inputs.arrays)


def attention_bias(inputs: Inputs, request: Request) -> jax.Array | None:
    """Return the bias of the scores, with that of keys which the pattern repeats: n times the same key adds log n."""
    times = request.pattern.repeats(*_places(inputs, request), inputs.arrays)
    if times is None:
        return inputs.bias
    repeated = jnp.log(jnp.maximum(times, 1).astype(jnp.float32))[None]
    return repeated if inputs.bias is None else repeated + inputs.bias


def _places(inputs: Inputs, request: Request) -> tuple[jax.Array, jax.Array]:
    """Return the places of queries [length, 1] and keys [1, keys] in a row."""
    query_places = jnp.arange(request.length)[:, None] + (0 if inputs.offset is None else inputs.offset)
    return query_places, jnp.arange(request.keys)[None]

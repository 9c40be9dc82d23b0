"""Interface between attention layers and backends: requests, backends, and the mask that backends apply."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Request:
    """Attention that a program requests while it is traced, independently of the data.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      dtype: dtype of queries, keys and values.
      length: tokens in a row.
      head_dim: width of a head.
      packed: True if a row may hold several examples, which must not attend to each other, may begin with padding, or may
        continue an example whose beginning is in a cache. False promises segment ids of 1 for the tokens, then 0 for padding.
      dropout_rate: dropout rate of the attention weights; 0 outside training.
      return_weights: True to return the attention weights.
      bias: True if a term is added to the scores.
      window: range of attention, |i - j| <= window / 2 for positions in the row; None: the whole row.
      causal: True if a token does not attend to later tokens.
      key_length: keys in a row, if they come from another sequence or a cache; None: the row's own.
      scale: factor of the scores; None: 1 / sqrt(head_dim).
      split: True if the tokens of a row are sharded over devices.
      compute_capability: compute capability of an NVIDIA GPU, such as 9.0; None elsewhere.
    """

    platform: str
    dtype: str
    length: int
    head_dim: int
    packed: bool = False
    dropout_rate: float = 0.0
    return_weights: bool = False
    bias: bool = False
    window: int | None = None
    causal: bool = False
    key_length: int | None = None
    scale: float | None = None
    split: bool = False
    compute_capability: float | None = None

    @classmethod
    def here(
        cls,
        dtype: str,
        length: int,
        head_dim: int,
        packed: bool,
        dropout_rate: float,
        return_weights: bool = False,
        bias: bool = False,
        window: int | None = None,
        causal: bool = False,
        key_length: int | None = None,
        scale: float | None = None,
    ) -> "Request":
        """Return the request for the devices of the current mesh, or of this process if no mesh is set.

        The devices of the mesh may be those of a program that is only compiled here. A window that covers the whole row
        becomes None.
        """
        device = jax.sharding.get_abstract_mesh().abstract_device
        platform = jax.default_backend() if device is None else device.platform
        capability = getattr(jax.local_devices()[0], "compute_capability", None) if platform == "gpu" else None
        return cls(
            platform=platform,
            dtype=dtype,
            length=length,
            head_dim=head_dim,
            packed=packed,
            dropout_rate=dropout_rate,
            return_weights=return_weights,
            bias=bias,
            window=window if window is not None and window // 2 < length - 1 else None,
            causal=causal,
            key_length=key_length,
            scale=scale,
            split=jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1,
            compute_capability=float(capability) if capability is not None else None,
        )


class Attend(Protocol):
    """Function that computes softmax(scale q k^T + bias) v with the mask of `attention_mask`; the softmax is in float32."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        segment_ids: jax.Array,
        request: Request,
        key_segment_ids: jax.Array | None = None,
        offset: jax.Array | None = None,
        bias: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Compute attention.

        Args:
          query: queries [batch, length, heads, head_dim].
          key: keys [batch, keys, key_heads, head_dim]; each key head belongs to heads / key_heads consecutive query heads.
          value: values [batch, keys, key_heads, head_dim], grouped like the keys.
          segment_ids: int32[batch, length]; 0 = padding. The output at padding is finite and has no meaning.
          request: the request that the backend was chosen for.
          key_segment_ids: int32[batch, keys]; None: `segment_ids`.
          offset: int32[], the index of the first query among the keys, for causal or windowed attention; None: 0.
          bias: [batch or 1, heads or 1, length, keys], added to the scores, or None.
          dropout_key: random key of the dropout; None: no dropout.

        Returns:
          The output [batch, length, heads, head_dim] in the dtype of `value`, and with `request.return_weights` the attention
          weights before dropout, float32[batch, heads, length, keys], otherwise None.
        """
        ...


@dataclass(frozen=True)
class Backend:
    """An implementation of attention.

    Attributes:
      name: name in configs.
      run: the computation; callers make sure that `clashes` is empty.
      platforms, dtypes: supported platforms and dtypes.
      dropout, return_weights, packed, bias, window, split: True if the backend supports the attribute of `Request` of that name.
      max_head_dim: largest width of a head, which must then be a multiple of 8; None: any.
      min_compute_capability: least compute capability of NVIDIA GPUs; None: any.
    """

    name: str
    run: Attend
    platforms: tuple[str, ...] = ("cpu", "gpu", "tpu")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    dropout: bool = False
    return_weights: bool = False
    packed: bool = False
    bias: bool = False
    window: bool = False
    split: bool = True
    max_head_dim: int | None = None
    min_compute_capability: float | None = None

    def clashes(self, request: Request) -> list[str]:
        """Return the reasons why the backend does not support a request, apart from dropout."""
        clashes = []
        if request.platform not in self.platforms:
            clashes.append(f"the platform is {request.platform}, not {' or '.join(self.platforms)}")
        if request.dtype not in self.dtypes:
            clashes.append(f"the dtype is {request.dtype}, not {' or '.join(self.dtypes)}")
        if request.packed and not self.packed:
            clashes.append("rows are packed")
        if request.return_weights and not self.return_weights:
            clashes.append("attention weights are requested")
        if request.bias and not self.bias:
            clashes.append("scores have a bias")
        if request.split and not self.split:
            clashes.append("the tokens of a row are sharded over devices")
        if request.window is not None and not self.window:
            clashes.append(f"tokens see no further than {request.window // 2} others on each side")
        if self.max_head_dim and (request.head_dim > self.max_head_dim or request.head_dim % 8):
            clashes.append(f"heads are {request.head_dim} wide, not a multiple of 8 up to {self.max_head_dim}")
        capability = request.compute_capability
        if self.min_compute_capability and capability is not None and capability < self.min_compute_capability:
            clashes.append(f"the GPU has compute capability {capability}, not {self.min_compute_capability} or more")
        return clashes


def attention_mask(
    segment_ids: jax.Array, request: Request, key_segment_ids: jax.Array | None = None, offset: jax.Array | None = None
) -> jax.Array:
    """Return the attention mask bool[batch, 1, length, keys]: same segment, within the window, causal.

    Padding (segment 0) attends to padding, at least to itself, so no query of self-attention is without keys. In cross-attention
    a query may have no keys; backends then return finite values.
    """
    keys = segment_ids if key_segment_ids is None else key_segment_ids
    mask = jnp.equal(segment_ids[:, None, :, None], keys[:, None, None, :])
    if request.window is None and not request.causal:
        return mask
    # [length, keys]: distance from the key forward to the query
    before = jnp.arange(request.length)[:, None] + (0 if offset is None else offset) - jnp.arange(keys.shape[1])
    if request.window is not None:
        mask &= jnp.abs(before) <= request.window // 2
    return mask & (before >= 0) if request.causal else mask

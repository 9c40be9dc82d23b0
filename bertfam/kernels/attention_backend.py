"""Requests for attention, and the backends that serve them."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Request:
    """Attention that a program asks for while it is traced; independent of data.

    Attributes:
      platform: "cpu", "gpu" or "tpu".
      dtype: of queries, keys and values.
      length: tokens in a row.
      head_dim: width of a head.
      packed: whether a row may hold several examples, which must not see each other, begin with padding, or be a part of one
        whose begin lies in a cache. False promises segment ids of 1 for the tokens and 0 for padding, all of it at the end.
      dropout_rate: on the probabilities; 0 outside training.
      return_weights: whether to return the probabilities.
      bias: whether a term is added to the scores.
      window: how far a token sees: |i - j| <= window / 2, places in the row; None: over all of it.
      causal: whether a token sees none behind it.
      key_length: keys in a row, where they are of another sequence or lie in a cache; None: the row's own.
      scale: factor of the scores; None: 1 / sqrt(head_dim).
      split: whether the tokens of a row are spread over devices.
      compute_capability: of an NVIDIA GPU, such as 9.0; None elsewhere.
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
        """The request on the devices of the mesh that is set, which may be those of a program that is only compiled here, or else
        on this process's; a window that reaches over the whole row is none."""
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
    """softmax(scale q k^T + bias) v, with softmax in float32, over what is `visible`: same segment, window, nothing behind."""

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
          query: [batch, length, heads, head_dim].
          key, value: [batch, keys, key_heads, head_dim]; each serves heads / key_heads heads of the queries, one after another.
          segment_ids: int32[batch, length]; 0 = padding. What comes out at padding is finite and means nothing.
          request: what the backend was chosen for.
          key_segment_ids: int32[batch, keys]; None: `segment_ids`.
          offset: int32[], the place of the first query among the keys, for what is causal or has a window; None: 0.
          bias: [batch or 1, heads or 1, length, keys] added to the scores, or None.
          dropout_key: None for no dropout.

        Returns:
          [batch, length, heads, head_dim] in the dtype of `value`; and with `request.return_weights` the probabilities before
          dropout, float32[batch, heads, length, keys], else None.
        """
        ...


@dataclass(frozen=True)
class Backend:
    """An implementation of attention.

    Attributes:
      name: what configs call it.
      run: the computation; callers see to it that `clashes` finds nothing.
      platforms, dtypes: where and on what it works.
      dropout, return_weights, packed, bias, window: whether it can do what the attributes of `Request` of these names ask for.
      split: whether it can do the rows of `Request.split`.
      max_head_dim: largest head, which must also be a multiple of 8; None: any.
      min_compute_capability: of NVIDIA GPUs; None: any.
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
        """Return the reasons why it cannot serve a request, dropout aside."""
        clashes = []
        if request.platform not in self.platforms:
            clashes.append(f"the platform is {request.platform}, not {' or '.join(self.platforms)}")
        if request.dtype not in self.dtypes:
            clashes.append(f"the dtype is {request.dtype}, not {' or '.join(self.dtypes)}")
        if request.packed and not self.packed:
            clashes.append("rows are packed")
        if request.return_weights and not self.return_weights:
            clashes.append("attention probabilities are asked for")
        if request.bias and not self.bias:
            clashes.append("scores have a bias")
        if request.split and not self.split:
            clashes.append("the tokens of a row are split over devices")
        if request.window is not None and not self.window:
            clashes.append(f"tokens see no further than {request.window // 2} others on each side")
        if self.max_head_dim and (request.head_dim > self.max_head_dim or request.head_dim % 8):
            clashes.append(f"heads are {request.head_dim} wide, not a multiple of 8 up to {self.max_head_dim}")
        capability = request.compute_capability
        if self.min_compute_capability and capability is not None and capability < self.min_compute_capability:
            clashes.append(f"the GPU has compute capability {capability}, not {self.min_compute_capability} or more")
        return clashes


def visible(
    segment_ids: jax.Array, request: Request, key_segment_ids: jax.Array | None = None, offset: jax.Array | None = None
) -> jax.Array:
    """Return the mask bool[batch, 1, length, keys]: same segment, within the window, causal.

    Padding (segment 0) sees padding, itself at least, so no row of scores of a sequence with itself is ever empty; where keys are
    of another sequence it may be, and backends give something finite then.
    """
    keys = segment_ids if key_segment_ids is None else key_segment_ids
    mask = jnp.equal(segment_ids[:, None, :, None], keys[:, None, None, :])
    if request.window is None and not request.causal:
        return mask
    # [length, keys]: how far the key is before the query
    before = jnp.arange(request.length)[:, None] + (0 if offset is None else offset) - jnp.arange(keys.shape[1])
    if request.window is not None:
        mask &= jnp.abs(before) <= request.window // 2
    return mask & (before >= 0) if request.causal else mask

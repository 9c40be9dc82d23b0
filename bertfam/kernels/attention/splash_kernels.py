"""JAX's splash kernel for a window, by its mask. Only runs on TPUs import it, which takes a tenth of a second."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from typing_extensions import override

from bertfam.kernels.attention.patterns import FULL, Pattern, Window

SegmentIds = splash_attention_kernel.SegmentIds


def splash_kernel(
    pattern: Window,
    heads: int,
    shape: tuple[int, int],
    blocks: tuple[int, int],
    *,
    offset: int = 0,
    shards: int = 1,
    interpret: bool = False,
) -> Any:
    """Return the kernel.

    Args:
      pattern: what a query may see.
      heads: number of heads.
      shape: number of queries and of keys.
      blocks: number of queries and of keys in a block.
      offset: place of the first query among the keys.
      shards: number of devices that have parts of the queries.
      interpret: whether to run it without a TPU.
    """
    rows, columns = blocks
    sizes = splash_attention_kernel.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_q_dq=rows,
        block_kv_dq=columns,
    )
    mask = splash_attention_mask.MultiHeadMask([_mask(pattern, shape, offset)] * heads)
    return splash_attention_kernel.make_splash_mha(
        mask, block_sizes=sizes, head_shards=1, q_seq_shards=shards, interpret=interpret
    )


def _mask(pattern: Window, shape: tuple[int, int], offset: int) -> splash_attention_mask.Mask:
    if pattern == FULL:
        return splash_attention_mask.FullMask(shape)
    if pattern.dilation == 1:
        return splash_attention_mask.LocalMask(shape, (pattern.left, pattern.right), offset)
    return _PatternMask(shape, pattern, offset)


@dataclass(frozen=True)
class _PatternMask(splash_attention_mask.Mask):
    """Mask of a pattern, evaluated block by block: a whole mask of 16,384 tokens would take gigabytes."""

    lengths: tuple[int, int]
    pattern: Pattern
    offset: int

    @property
    @override
    def shape(self) -> tuple[int, ...]:
        return self.lengths

    @override
    def __getitem__(self, index: Any) -> np.ndarray:
        queries, keys = (np.arange(size)[part] for size, part in zip(self.lengths, index, strict=True))
        return np.broadcast_to(self.pattern.mask(queries[:, None] + self.offset, keys[None]), (len(queries), len(keys)))

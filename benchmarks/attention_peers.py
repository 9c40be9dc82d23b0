"""Attention of other libraries for GPUs, for the comparison of `benchmarks.attention_backends`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.kernels.attention.interface import Inputs
from bertfam.kernels.attention.patterns import CAUSAL, FULL, Window

DISTRIBUTIONS = ("dew-flash-attn-cu13", "fa4-jax", "nvidia-cutlass-dsl", "tokamax")
Run = Callable[[Inputs], jax.Array]


def peers(window: Window, segment_ids: np.ndarray | None) -> dict[str, Run]:
    """Return the peers that are installed and can do a work.

    Args:
        window: tokens that each token attends to.
        segment_ids: int32[rows, length] of packed rows; None for rows of one segment.
    """
    makers = {
        "FlashAttention-3 (dew-flash-attn)": _flash_attention_3,
        "FlashAttention-4 (fa4-jax)": _flash_attention_4,
        "tokamax, Mosaic": lambda *args: _tokamax("mosaic", *args),
        "tokamax, Triton": lambda *args: _tokamax("triton", *args),
        "cuDNN, packed (private in jax)": _packed_cudnn,
    }
    runs = {}
    for name, make in makers.items():
        try:
            run = make(window, segment_ids)
        except (ImportError, OSError):
            continue
        if run:
            runs[name] = run
    return runs


def _flash_attention_3(window: Window, segment_ids: np.ndarray | None) -> Run:
    import dew_flash_attn

    sides = tuple(-1 if side is None else side for side in (window.left, window.right))
    options = {"window_size": (-1, -1) if window == CAUSAL else sides, "is_causal": window == CAUSAL}
    if segment_ids is None:
        return lambda inputs: dew_flash_attn.flash_mha(*inputs[:3], **options)
    starts = _starts(segment_ids)
    longest = int(np.max(np.diff(starts)))
    return _on_tokens(lambda *tokens: dew_flash_attn.flash_mha_varlen(*tokens, starts, longest, **options))


def _flash_attention_4(window: Window, segment_ids: np.ndarray | None) -> Run:
    import fa4_jax

    options = {"causal": True} if window == CAUSAL else {"window_size": (window.left, window.right)}
    if segment_ids is None:
        return lambda inputs: fa4_jax.flash_attn(*inputs[:3], **options, backend="cute")
    starts = jnp.asarray(_starts(segment_ids))
    return _on_tokens(lambda *tokens: fa4_jax.flash_attn_varlen(*tokens, starts, starts, **options, backend="cute"))


def _tokamax(implementation: str, window: Window, segment_ids: np.ndarray | None) -> Run:
    import tokamax

    options: dict[str, Any] = {"is_causal": window == CAUSAL, "implementation": implementation}
    if window not in (CAUSAL, FULL):
        options["local_window_size"] = (window.left, window.right)

    def run(inputs: Inputs) -> jax.Array:
        ids = inputs.segment_ids
        mask = None if segment_ids is None else ids[:, None, :, None] == ids[:, None, None, :]
        return tokamax.dot_product_attention(*inputs[:3], mask=mask, **options)

    return run


def _packed_cudnn(window: Window, segment_ids: np.ndarray | None) -> Run | None:
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    if segment_ids is None or window != FULL:
        return None
    lengths, offsets = _boundaries(segment_ids)
    sequences: dict[str, Any] = {"q_seqlen": lengths, "kv_seqlen": lengths, "q_offsets": offsets, "kv_offsets": offsets}

    def run(inputs: Inputs) -> jax.Array:
        scale = inputs.query.shape[-1] ** -0.5
        return cudnn.dot_product_attention(*inputs[:3], **sequences, scale=scale, mask_type=cudnn.MaskType.PADDING)

    return run


def _on_tokens(run: Callable[..., jax.Array]) -> Run:
    """Return attention of rows by a function of the tokens of all rows, [tokens, heads, width]."""
    return lambda inputs: run(*(array.reshape(-1, *array.shape[2:]) for array in inputs[:3])).reshape(inputs.query.shape)


def _starts(segment_ids: np.ndarray) -> np.ndarray:
    """Return the starts of all segments of the batch, int32[segments + 1]."""
    starts = [row[:-1] + number * segment_ids.shape[1] for number, row in enumerate(_row_boundaries(segment_ids))]
    return np.concatenate([*starts, [segment_ids.size]]).astype(np.int32)


def _boundaries(segment_ids: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Return the lengths of the segments of each row and their offsets.

    int32[rows, segments] and [rows, segments + 1], both filled up with -1.
    """
    rows = _row_boundaries(segment_ids)
    most = max(len(row) for row in rows)
    offsets = np.stack([np.pad(row, (0, most - len(row)), constant_values=-1) for row in rows]).astype(np.int32)
    lengths = np.stack([np.pad(np.diff(row), (0, most - len(row)), constant_values=-1) for row in rows]).astype(np.int32)
    return jnp.asarray(lengths), jnp.asarray(offsets)


def _row_boundaries(segment_ids: np.ndarray) -> list[np.ndarray]:
    return [np.concatenate([[0], np.flatnonzero(np.diff(row)) + 1, [row.size]]) for row in segment_ids]

"""Page of a model's attention on a text: one HTML file with its data and its script, without network.

The template, attention_page.html, shows text by `textContent` alone.
"""

import base64
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from bertfam.analysis.attention_parts import AttentionPart
from bertfam.errors import UserError
from bertfam.pages.document import html_text, script_json
from bertfam.pages.style import STYLE

MOST_BYTES = 20_000_000  # of a page
_LEVELS = 65_535  # steps of a weight
_INT16 = 32_767


def page(title: str, parts: Sequence[AttentionPart], layers: Sequence[int] | None = None) -> str:
    """Return the page of a model's attention.

    Args:
      title: heading of the page.
      parts: the attentions, of one row each.
      layers: numbers from 1 of the layers that are shown; None: all.

    Raises:
      UserError: there is no such layer, or the page would be larger than `MOST_BYTES`.
    """
    data = {"title": title, "parts": [_part_data(part, layers) for part in parts]}
    text = script_json(data)
    if len(text) > MOST_BYTES:
        raise UserError(_too_large(len(text), parts, layers))
    values = {"title": html_text(title), "style": STYLE, "data": text}
    template = files("bertfam.analysis").joinpath("attention_page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _too_large(size: int, parts: Sequence[AttentionPart], layers: Sequence[int] | None) -> str:
    length = max(len(part.query_tokens.pieces) for part in parts)
    # The size grows at most with the square of the length.
    fits = int(length * (MOST_BYTES / size) ** 0.5)
    count = max(len(part.weights) for part in parts) if layers is None else len(layers)
    fewer = max(int(count * MOST_BYTES / size), 1)
    choice = f", or show fewer layers, by --layers={','.join(str(one + 1) for one in range(fewer))}, say" if count > 1 else ""
    return (
        f"the page would take {size / 1e6:.0f} MB with {length:,} tokens, more than {MOST_BYTES / 1e6:.0f} MB: shorten the "
        f"text, by --length={fits}, say{choice}"
    )


def _part_data(part: AttentionPart, layers: Sequence[int] | None) -> dict[str, Any]:
    """Return the data of a part as JSON values, with arrays in base64.

    Only weights that the pattern of a layer allows are kept: the pairs of which any head has a weight above 0, as masked keys
    have exactly 0.
    """
    count = len(part.weights)
    chosen = list(range(1, count + 1)) if layers is None else list(layers)
    if wrong := [layer for layer in chosen if not 1 <= layer <= count]:
        raise UserError(f"--layers has {wrong[0]}, and the layers of the {part.name} are 1 to {count}")
    patterns: list[dict[str, str] | None] = []
    own_layers = []
    for layer in chosen:
        weights = part.weights[layer - 1]
        allowed = (weights > 0).any(axis=0)
        pattern = None if allowed.all() else _pattern(allowed)
        if pattern not in patterns:
            patterns.append(pattern)
        own_layers.append(
            {
                "number": layer,
                "pattern": patterns.index(pattern),
                "weights": _base64(np.rint(weights[:, allowed] * _LEVELS), "<u2"),
                "queries": _scaled(part.queries[layer - 1]),
                "keys": _scaled(part.keys[layer - 1]),
            }
        )
    return {
        "name": part.name,
        "heads": part.weights.shape[1],
        "width": part.queries.shape[-1],
        "queries": part.query_tokens._asdict(),
        "keys": part.key_tokens._asdict(),
        "patterns": patterns,
        "layers": own_layers,
    }


def _pattern(allowed: np.ndarray) -> dict[str, str]:
    """Return the keys of each query, one query after another, and where those of each begin."""
    counts = allowed.sum(axis=1)
    return {"starts": _base64(np.concatenate([[0], np.cumsum(counts)]), "<u4"), "keys": _base64(np.nonzero(allowed)[1], "<u2")}


def _scaled(values: np.ndarray) -> dict[str, Any]:
    """Return values as 16-bit integers, and the value of 1."""
    unit = float(np.abs(values).max()) / _INT16 or 1.0
    return {"unit": unit, "values": _base64(np.rint(values / unit), "<i2")}


def _base64(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")

"""Attention of a model on one text: weights, queries and keys of each of its attentions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from bertfam.analysis.subject import Subject, TokenRow, frame_texts
from bertfam.api import LanguageModel
from bertfam.corruption.token_ids import ControlToken, TextFrame
from bertfam.errors import UserError
from bertfam.pages.visible import visible

_SELF, _CROSS = "attention_", "cross_attention_"
_NAMES = ("probs", "queries", "keys")
_MOST_BYTES = 2 << 30  # of attention weights in memory


class Tokens(NamedTuple):
    """Tokens of a row as text.

    Attributes:
      pieces: the tokens.
      texts: number of the text of each, from 0; -1 for control tokens.
    """

    pieces: list[str]
    texts: list[int]


class AttentionPart(NamedTuple):
    """One kind of attention of a model, on one row.

    Attributes:
      name: "encoder", "decoder" or "cross-attention".
      query_tokens, key_tokens: the tokens that attend, and those that they attend to.
      weights: float32[layers, heads, queries, keys].
      queries: float32[layers, queries, heads, head_dim], whose products with the keys are the scores before scale and bias.
      keys: float32[layers, keys, heads, head_dim].
    """

    name: str
    query_tokens: Tokens
    key_tokens: Tokens
    weights: np.ndarray
    queries: np.ndarray
    keys: np.ndarray


def attention_parts(subject: Subject, *texts: str, target: str | None = None) -> list[AttentionPart]:
    """Run a model on one text or two, and return its attentions: that of an encoder-decoder has three.

    Args:
      subject: the model.
      texts: input of the encoder or of the causal LM.
      target: text of the decoder of an encoder-decoder, after its start token.

    Raises:
      UserError: the row is so long that its attention weights would not fit in memory, or the vocabulary has no start token.
    """
    row = subject.row(*texts)
    own = tokens_of(subject, row)
    batch = {
        "encoder_input_tokens": row.ids[None],
        "encoder_segment_ids": np.ones_like(row.ids)[None],
        "encoder_token_type_ids": row.types[None],
    }
    names = [f"{_SELF}{name}" for name in _NAMES]
    found = _run(lambda params: subject.intermediates(params, batch, names), subject.model.params)
    name = "decoder" if isinstance(subject.model, LanguageModel) else "encoder"
    parts = [_part(name, found, _SELF, own, own)]
    if subject.whole is not None and target is not None:
        parts += _decoder_parts(subject, subject.whole, row, target)
    return parts


def _decoder_parts(subject: Subject, model: LanguageModel, source: TokenRow, target: str) -> list[AttentionPart]:
    """Return the attention of the decoder, and that from the decoder to the encoder."""
    start = model.ends.start
    if start is None:
        raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
    frame = TextFrame((ControlToken(start, 0),), (), (), (), 0)
    target_row = frame_texts(model.vocabulary, frame, (target,), subject.length)
    own = tokens_of(subject, target_row)
    names = [f"{kind}{name}" for kind in (_SELF, _CROSS) for name in _NAMES]
    found = _run(lambda tokens: model.apply(tokens, encoder_tokens=source.ids[None], collect=names), target_row.ids[None])
    return [
        _part("decoder", found, _SELF, own, own),
        _part("cross-attention", found, _CROSS, own, tokens_of(subject, source)),
    ]


def tokens_of(subject: Subject, row: TokenRow) -> Tokens:
    """Return the tokens of a row as text, in which invisible characters are spelt out."""
    pieces = subject.vocabulary.pieces(row.ids.tolist())
    return Tokens([visible(piece) for piece in pieces], row.texts.tolist())


def _run(compute: Callable[[Any], Mapping[str, jax.Array]], argument: Any) -> dict[str, np.ndarray]:
    """Run a function of one argument, compiled, once its attention weights are known to fit in memory."""
    program = jax.jit(compute)
    shapes = jax.eval_shape(program, argument)
    size = sum(4 * shape.size for name, shape in shapes.items() if name.endswith("attention_probs"))
    if size > _MOST_BYTES:
        length = max(shape.shape[-1] for name, shape in shapes.items() if name.endswith("attention_probs"))
        raise UserError(
            f"the attention weights of {length:,} tokens take {size / 1e9:.1f} GB: shorten the text, by "
            f"--length={int(length * (_MOST_BYTES / size) ** 0.5)}, say"
        )
    with jax.default_matmul_precision("highest"):
        return {name: np.asarray(value, np.float32) for name, value in program(argument).items()}


def _part(name: str, found: Mapping[str, np.ndarray], prefix: str, query_tokens: Tokens, key_tokens: Tokens) -> AttentionPart:
    """Return a part of the intermediates [layers, 1, ...] of one row."""
    weights, queries, keys = (found[f"{prefix}{kind}"][:, 0] for kind in _NAMES)
    # Each key head belongs to several consecutive query heads.
    keys = np.repeat(keys, queries.shape[2] // keys.shape[2], axis=2)
    return AttentionPart(name, query_tokens, key_tokens, weights, queries, keys)

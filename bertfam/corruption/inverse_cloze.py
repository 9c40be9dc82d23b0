"""Inverse cloze task: a sentence of a block of text is the query for the rest of the block (Lee, Chang, Toutanova 2019)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.token_ids import TextFrame, TokenIds
from bertfam.errors import RowMistake, UserError
from bertfam.features import FeatureSpec, RowShape, text_features

_SENTENCE, _KEEP = range(2)  # words of a row's random stream
_CONTROLS = 2  # control tokens around a text


@dataclass(frozen=True)
class InverseCloze(TextCorruption):
    """Rows of a query and a block, `[CLS] sentence [SEP]` and `[CLS] block [SEP]`, each with padding of its own.

    A sentence of the block is drawn uniformly, and removed from the block with probability 1 - `keep` (section 4). A query that
    is too long is cut at its end. Clean rows are `ClozeBlocks`; one of a single sentence would make a row of padding, which has
    no part in the loss. The published code leaves such a block out only where its sentence is removed. Its blocks begin with the
    title of their article, which a token cache does not have.

    Attributes:
      query_length: positions of the query; the block has the others of the row.
      keep: probability that the sentence stays in the block (section 9.2: 0.1 is best).
    """

    form: ClassVar[RowForm] = RowForm(sentences=True)
    packs: ClassVar[bool] = False

    query_length: int = 64
    keep: float = 0.1

    def __post_init__(self) -> None:
        if self.query_length <= _CONTROLS:
            raise UserError(f"InverseCloze.query_length is {self.query_length}, too few for a text; use at least {_CONTROLS + 1}")
        if not 0 <= self.keep <= 1:
            raise UserError(f"InverseCloze.keep is {self.keep}: a probability is from 0 to 1")

    @override
    def raw_length(self, length: int) -> int:
        if length <= self.query_length + _CONTROLS:
            raise RowMistake(
                f"length {length} is too short for a query of InverseCloze.query_length {self.query_length} and a block; "
                f"use at least {self.query_length + _CONTROLS + 1}"
            )
        return length - self.query_length

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        super().check(length, tokens)
        _frame(tokens)

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return text_features(shape, 2)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        """Return finished rows; see `TextCorruption.corrupt`.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids` (1 in the query, 2 in the block), `encoder_token_type_ids`
          int32[n, length], and `sequence_start_positions` int32[n, 2], the positions of [CLS] in the query and in the block.
        """
        frame, inputs = _frame(tokens), rows["encoder_input_tokens"]
        place, size = np.arange(inputs.shape[1]), (rows["encoder_segment_ids"] > 0).sum(axis=1)[:, None]
        is_text = (place > 0) & (place < size - 1)
        # The rest of a sentence that was cut before the row counts as one, too.
        sentence = np.cumsum((rows["sentence_begins"] | (place == 1)) & is_text, axis=1)  # from 1
        count = sentence[:, -1]
        words = keys.bits(row_keys, 0, 2)
        drawn = 1 + keys.integers(words[:, _SENTENCE], np.maximum(count, 1))
        is_query = is_text & (sentence == drawn[:, None]) & (count > 1)[:, None]
        is_removed = is_query & (keys.uniform(words[:, _KEEP]) >= self.keep)[:, None]
        is_block = is_text & ~is_removed & (count > 1)[:, None]
        texts = ((is_query, self.query_length, 1), (is_block, inputs.shape[1], 2))
        parts = [_framed(inputs, mask, length, number, frame, tokens) for mask, length, number in texts]
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def _frame(tokens: TokenIds) -> TextFrame:
    """Return the control tokens around a text; raise UserError unless they are two."""
    frame = tokens.frame
    if frame is None or tokens.cls is None or len(frame.before) + len(frame.after_one) != _CONTROLS:
        raise UserError("the vocabulary does not put [CLS] and [SEP] around a text, as InverseCloze requires: use an encoder's")
    return frame


def _framed(
    inputs: np.ndarray, mask: np.ndarray, length: int, number: int, frame: TextFrame, tokens: TokenIds
) -> dict[str, np.ndarray]:
    """Return the features of one text of each row: the tokens under a mask, framed, cut at `length`; padding if there are none.

    Args:
      inputs: int32[n, positions].
      mask: bool[n, positions].
      length: positions of the text.
      number: its segment.
      frame: control tokens around it.
      tokens: ids of the vocabulary.
    """
    count = np.minimum(mask.sum(axis=1), length - _CONTROLS)[:, None]
    order = np.argsort(~mask, axis=1, kind="stable")[:, : length - _CONTROLS]
    place, begin = np.arange(length), len(frame.before)
    in_text = (place >= begin) & (place < begin + count)
    is_used = (place < count + _CONTROLS) & (count > 0)
    source = np.take_along_axis(order, np.broadcast_to((place - begin).clip(0, order.shape[1] - 1), in_text.shape), axis=1)
    result = np.where(in_text, np.take_along_axis(inputs, source, axis=1), tokens.pad).astype(np.int32)
    types, start = np.zeros_like(result), np.zeros((len(inputs), 1), np.int32)
    row = np.flatnonzero(count[:, 0])
    for first, controls in ((np.zeros_like(row), frame.before), (begin + count[row, 0], frame.after_one)):
        for offset, control in enumerate(controls):
            result[row, first + offset], types[row, first + offset] = control
            if control.id == tokens.cls:
                start[row, 0] = first + offset
    return {
        "encoder_input_tokens": result,
        "encoder_segment_ids": np.where(is_used, np.int32(number), np.int32(0)),
        "encoder_token_type_ids": types,
        "sequence_start_positions": start,
    }

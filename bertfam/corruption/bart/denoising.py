"""BART's denoising (Lewis et al. 2020, section 2): the encoder reads corrupted text, the decoder predicts the original."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys, streams
from bertfam.corruption.bart.infilling import TextInfilling
from bertfam.corruption.bart.token_noise import FramedRows, TokenNoise, insert_masks
from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.decoder_rows import sequence_features, sequence_rows, start_id
from bertfam.corruption.permutations import rotation, segment_shuffle
from bertfam.corruption.sampling import draw
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import find_words
from bertfam.features import FeatureSpec, RowShape, Start


@dataclass(frozen=True)
class Denoising(TextCorruption):
    """BART's noise: any combination of its five kinds, in the order of the published code.

    The kinds are sentence permutation; token masking, token deletion or text infilling; token insertion; document rotation.

    Rows are `<s> text </s>`, whose two control tokens keep their positions. The targets are the clean row, and the decoder reads
    `</s> <s> text`. No row grows beyond its length. The defaults are the settings of the published models.

    Attributes:
      permute: Share of a row's sentences, rounded up, that are permuted. Sentences are those of the documents, including the
        parts of sentences that were cut; the published code ends a sentence at every full stop.
      tokens: `TextInfilling`, `TokenMasking`, `TokenDeletion` or None.
      insert: Number of [MASK] to insert, per token of the text.
      rotate: Share of rows that are rotated to begin with a uniformly drawn token.
      start: Token that the decoder reads first: "eos" (BART), "pad" or "bos".
    """

    form: ClassVar[RowForm] = RowForm(sentences=True)
    packs: ClassVar[bool] = False

    permute: float = 1.0
    tokens: TokenNoise | None = TextInfilling()
    insert: float = 0.0
    rotate: float = 0.0
    start: Start = "eos"

    def __post_init__(self) -> None:
        for name in ("permute", "insert", "rotate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1]")
        if not (self.permute or self.tokens or self.insert or self.rotate):
            raise ValueError("permute, insert and rotate are 0 and tokens is None, so there is no noise: set at least one")

    @property
    @override
    def decoder_start(self) -> Start:
        return self.start

    @override
    def check(self, length: int, tokens: TokenIds) -> None:
        for name in ("cls", "sep", "mask"):
            tokens.require(name, "Denoising")
        start_id(self.start, tokens, "Denoising.start")

    @override
    def target_length(self, length: int) -> int:
        return length

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        return sequence_features(shape)

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        # `rows` has `encoder_input_tokens` and `encoder_segment_ids` int32[n, length], `maskable` and `sentence_begins`
        # bool[n, length]. The first and the last token of a row are control tokens.
        targets, real = rows["encoder_input_tokens"], rows["encoder_segment_ids"] > 0
        mask, pad = tokens.require("mask", "Denoising"), tokens.pad
        target_lengths = np.count_nonzero(real, axis=1)
        begins = _word_begins(rows, tokens)
        inputs, counts = targets, target_lengths
        if self.permute:
            source = self._permutation(rows["sentence_begins"], _inside(counts, targets.shape[1]), row_keys)
            inputs, begins = np.take_along_axis(inputs, source, axis=1), np.take_along_axis(begins, source, axis=1)
        if self.tokens:
            framed = FramedRows(inputs, _inside(counts, targets.shape[1]), begins, real)
            inputs, counts = self.tokens.apply(framed, row_keys, tokens)
        if self.insert:
            inputs, counts = insert_masks(inputs, counts, self.insert, row_keys, mask, pad)
        if self.rotate:
            inputs = np.take_along_axis(inputs, rotation(_inside(counts, targets.shape[1]), row_keys, self.rotate), axis=1)
        start = start_id(self.start, tokens, "Denoising.start")
        return sequence_rows(inputs, counts, targets, target_lengths, start, pad)

    def _permutation(self, begins: np.ndarray, inside: np.ndarray, row_keys: np.ndarray) -> np.ndarray:
        """Return the position that each position takes its token from: int64[n, length]."""
        begins = begins & inside
        begins[:, 1:2] |= inside[:, 1:2]
        if self.permute == 1:
            return segment_shuffle(begins, np.where(inside, 0, -1), row_keys)
        sentence = np.cumsum(begins, axis=1) - 1
        count = np.count_nonzero(begins, axis=1)
        there = np.arange(begins.shape[1]) < count[:, None]
        wanted = np.ceil(self.permute * count).astype(np.int64)
        chosen = draw(there, wanted, keys.bits(row_keys, streams.ORDER, begins.shape[1]))
        moves = inside & np.take_along_axis(chosen, np.maximum(sentence, 0), axis=1)
        return segment_shuffle(begins, np.where(moves, 0, -1), row_keys)


def _inside(counts: np.ndarray, length: int) -> np.ndarray:
    """Return a mask of the text between the first and the last token of each row: bool[n, length]."""
    place = np.arange(length)
    return (place > 0) & (place < counts[:, None] - 1)


def _word_begins(rows: dict[str, np.ndarray], tokens: TokenIds) -> np.ndarray:
    """Return True where words begin, and everywhere if the vocabulary does not mark word starts: bool[n, length]."""
    if len(tokens.starts_word) != tokens.size:
        return np.ones(rows["encoder_input_tokens"].shape, bool)
    return find_words(rows, tokens).begins()

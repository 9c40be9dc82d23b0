"""Labelled sentence pairs of BERT (Devlin et al. 2019, appendix A.2, as in the published code), ALBERT and StructBERT."""

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import PackableRows
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import SENTENCES, Relation

# Streams of a chunk's key (its plan) and of an example's key (new draws each epoch).
_SHORT, _TARGET, _PLANNED_SPLIT, _PLANNED_NEXT = range(4)
_SPLIT, _NEXT, _DOCUMENT, _SENTENCE, _TRIM_A, _TRIM_B = range(16, 22)
PairUnit = Literal["segment", "sentence"]
IS_NEXT, IS_RANDOM = 0, 1
# By relation: the shares of pairs with a random B and of swapped pairs (an option for BERT); labels of next, random, swapped.
_SHARES: dict[Relation, tuple[float, float]] = {"order": (0.0, 1 / 2), "structure": (1 / 3, 1 / 3)}
_LABELS: dict[Relation, tuple[int, ...]] = {"next": (IS_NEXT, IS_RANDOM), "order": (0, 1, 1), "structure": (1, 0, 2)}
_LEARNT: dict[Relation, str] = {
    "next": "next-sentence prediction",
    "order": "sentence-order prediction",
    "structure": "prediction of how sentences follow each other",
}
_MANY = 0.5
_STRETCH = 1 << 17  # tokens


@dataclass(frozen=True)
class SentencePairs(PackableRows):
    """`[CLS] A [SEP] B [SEP]` where B continues A, comes from another document, or precedes A.

    A document is cut into chunks of sentences with at least length-3 tokens. With probability `short_sequence_rate` a document
    has shorter chunks instead, of at least a number of tokens that is uniform in [2, length-3] and the same for all its chunks. A
    is the chunk's first a sentences, with a uniform. B is the rest of the chunk. If a random B is drawn, and always if the chunk
    has one sentence, B is instead as many sentences from a random place of a random other document as fill the target, and the
    next chunk begins where A ended. If a swap is drawn, A and B are exchanged. A pair that is too long loses tokens of the longer
    side, from the front or the back with equal probability. The chunks are fixed by the seed; splits, labels, negatives and cuts
    are drawn for each epoch.

    The draws and labels depend on the relation:

      next        (BERT)  B is next: 0, random: 1; the latter with `random_next_rate`
      order       (ALBERT, Lan et al. 2020, section 3.1)  in order: 0, swapped: 1; a half each
      structure   (StructBERT, Wang et al. 2020, section 2.2)  B is random: 0, next: 1, swapped, so the previous: 2; a third each

    With `unit` "sentence" a chunk is two sentences instead, however short: A is one, B is one (Liu et al. 2019, SENTENCE-PAIR;
    the chunks described above are its SEGMENT-PAIR).

    In all three relations a chunk of one sentence has no text to continue it or to be swapped with: its B is random, with that
    label. For "order" that label is 1, as in ALBERT's published script, so that in texts of short documents the label reflects
    topics rather than order; `PairExamples.warnings` reports it if such chunks are frequent.

    Attributes:
      short_sequence_rate: Share of documents that are cut into shorter chunks.
      random_next_rate: Share of pairs with a random B, where the chunk allows both; for the relation "next" only.
      relation: Meaning of the labels: "next", "order" or "structure".
      unit: Size of A and B: a "segment" of as many sentences as fit, or one "sentence" each, which ignores
        `short_sequence_rate`.
    """

    least_documents: ClassVar[int] = 2  # a random B comes from another document

    short_sequence_rate: float = 0.1
    random_next_rate: float = 0.5
    relation: Relation = "next"
    unit: PairUnit = "segment"

    def __post_init__(self) -> None:
        for name, allowed in (("relation", Relation), ("unit", PairUnit)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(get_args(allowed))}")
        for name in ("short_sequence_rate", "random_next_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1]")
        if self.relation in _SHARES and self.random_next_rate != SentencePairs.random_next_rate:
            raise ValueError(
                f"random_next_rate {self.random_next_rate} goes with relation next, not {self.relation}; leave it out"
            )

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of pairs with a random B and of swapped pairs, among chunks of more than one sentence."""
        return _SHARES.get(self.relation, (self.random_next_rate, 0.0))

    @override
    def check_length(self, length: int) -> None:
        if length < 5:
            raise UserError(f"length {length} is too short for a sentence pair; use at least 5")

    @override
    def packable_examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "PairExamples":
        return self.examples(documents, length, seed, tokens, form).with_fixed_lengths()

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "PairExamples":
        self.check_length(length)
        if len(documents) < self.least_documents:
            raise UserError(
                f"sentence pairs need at least two documents and {documents.name} has {len(documents)}; separate documents "
                "by blank lines, or choose another --input_format"
            )
        return PairExamples(self, documents, length, tokens, *_plan(self, documents, length, seed))


def _plan(config: SentencePairs, documents: Documents, length: int, seed: int) -> tuple[np.ndarray, ...]:
    """Plan the chunks of all documents in parallel, one chunk of each at a time, starting anew in each stretch of a document.

    Returns:
      The document, first sentence, number of sentences and target tokens of each chunk, by document: int64[chunks] each.
    """
    starts = documents.sentence_starts
    room = length - 3
    document, chunk, current, end = stretches(documents)
    key = keys.fold(seed, document)
    short = keys.uniform(keys.bits(key, _SHORT, 1)[:, 0]) < config.short_sequence_rate
    target = np.where(short, 2 + keys.integers(keys.bits(key, _TARGET, 1)[:, 0], room - 1), room)
    of_sentences = config.unit == "sentence"
    if of_sentences:
        target = np.ones_like(target)  # a random B is filled up to at least one token, thus one sentence
    stretch = np.arange(len(current))
    parts = []
    while stretch.size:
        count = np.minimum(2, end - current) if of_sentences else sentences_to(starts, current, target, end)
        parts.append((stretch, document, current, count, target))
        key = keys.fold(seed, document, chunk)
        split = 1 + keys.integers(keys.bits(key, _PLANNED_SPLIT, 1)[:, 0], np.maximum(count - 1, 1))
        put_back = keys.uniform(keys.bits(key, _PLANNED_NEXT, 1)[:, 0]) < config.shares[0]
        current = current + np.where(put_back & (count > 1), split, count)
        alive = current < end
        stretch, document, current, end, target = (values[alive] for values in (stretch, document, current, end, target))
        chunk = chunk[alive] + 1
    stretch, document, first, count, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    in_order = np.argsort(stretch, kind="stable")
    return document[in_order], first[in_order], count[in_order], target[in_order]


def stretches(documents: Documents) -> tuple[np.ndarray, ...]:
    """Return stretches of documents: whole ones, and those of more than about a hundred thousand tokens cut between sentences.

    Returns:
      The document, the number of the first chunk (distinct in each stretch of a document), the first sentence and the sentence
      after the last of each stretch: int64[stretches] each.
    """
    starts, bounds = documents.sentence_starts, documents.sentence_bounds.astype(np.int64)
    tokens = np.diff(starts[bounds])
    counts = -(-tokens // _STRETCH)
    document = np.repeat(np.arange(len(documents)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.searchsorted(starts, starts[bounds[document]] + number * _STRETCH)
    # Stretches that would begin within a sentence longer than a stretch are empty.
    first = np.minimum(first, bounds[document + 1])
    end = np.where(np.append(document[1:], -1) == document, np.append(first[1:], 0), bounds[document + 1])
    real = first < end
    return document[real], number[real] << 32, first[real], end[real]


def sentences_to(starts: np.ndarray, first: np.ndarray, tokens: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the number of sentences from `first` that hold at least `tokens` tokens; at least one, none past `end`: int64[n]."""
    last = np.searchsorted(starts, starts[first] + tokens, side="left")
    return np.clip(last - first, 1, end - first)


class PairExamples:
    """Sentence pairs of one corpus at one length."""

    def __init__(
        self,
        config: SentencePairs,
        documents: Documents,
        length: int,
        tokens: TokenIds,
        document: np.ndarray,
        first: np.ndarray,
        count: np.ndarray,
        target: np.ndarray,
    ) -> None:
        self._config, self._documents, self._length, self._tokens = config, documents, length, tokens
        self._document, self._first, self._count, self._target = document, first, count, target
        self._room = np.broadcast_to(np.int64(length - 3), len(first))
        self._is_fitted = False

    def __len__(self) -> int:
        return len(self._first)

    @property
    def lengths(self) -> np.ndarray:
        """Maximum number of tokens of each row, including [CLS] and [SEP]: int64[rows]."""
        return self._room + 3

    def with_fixed_lengths(self) -> "PairExamples":
        """Return the same pairs, each limited to the length of its chunk, so that rows can be packed.

        A random B fills the space of the text that it replaces, if its document has enough text.
        """
        starts = self._documents.sentence_starts
        fitted = copy.copy(self)
        chunk = starts[self._first + self._count] - starts[self._first]
        fitted._room = np.clip(chunk, 2, self._length - 3)  # a token for each of A and B
        fitted._target = fitted._room
        fitted._is_fitted = True
        return fitted

    @property
    def always_random(self) -> float:
        """Share of chunks of one sentence, whose B is always random."""
        return float(np.mean(self._count == 1))

    @property
    def warnings(self) -> list[str]:
        """Problems of the text, one line each."""
        if self._config.shares[0] == 1 or self.always_random <= _MANY:
            return []
        return [
            f"{self.always_random:.0%} of the sentence pairs of {self._documents.name} at length {self._length} have a random "
            f"second sentence in every epoch, because their text is a single sentence; {_LEARNT[self._config.relation]} learns "
            "little from that: give longer documents, or shorter sentences (see --input_format)"
        ]

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable`
          bool[n, length], `sequence_start_positions` int32[n, 1], the labels int32[n, 1] and weights float32[n, 1] of the
          relation, such as `next_sentence_labels` and `next_sentence_weights`, and `units` uint8[n, length] for marked text.
        """
        starts = self._documents.sentence_starts
        first, count = self._first[examples], self._count[examples]
        split = first + 1 + keys.integers(keys.bits(row_keys, _SPLIT, 1)[:, 0], np.maximum(count - 1, 1))
        drawn, (random_share, swapped_share) = keys.uniform(keys.bits(row_keys, _NEXT, 1)[:, 0]), self._config.shares
        is_random = (drawn < random_share) | (count == 1)
        is_swapped = (drawn < random_share + swapped_share) & ~is_random
        split = np.minimum(split, first + count)

        a_start, a_length = starts[first], starts[split] - starts[first]
        b_start, b_length = starts[split], starts[first + count] - starts[split]
        if is_random.any():
            where = np.flatnonzero(is_random)
            b_start[where], b_length[where] = self._negatives(
                row_keys[where], self._document[examples[where]], self._target[examples[where]] - a_length[where]
            )
        a_start, b_start = np.where(is_swapped, b_start, a_start), np.where(is_swapped, a_start, b_start)
        a_length, b_length = np.where(is_swapped, b_length, a_length), np.where(is_swapped, a_length, b_length)
        cut_a, cut_b = _excess(a_length, b_length, self._room[examples])
        a_start, a_length = a_start + keys.coin_sums(row_keys, _TRIM_A, cut_a), a_length - cut_a
        b_start, b_length = b_start + keys.coin_sums(row_keys, _TRIM_B, cut_b), b_length - cut_b

        sentences = SENTENCES[self._config.relation]
        rows = frame_segments(self._documents, self._length, self._tokens, (a_start, a_length), (b_start, b_length))
        return rows | {
            "sequence_start_positions": np.zeros((len(row_keys), 1), np.int32),
            sentences.labels: np.array(_LABELS[self._config.relation], np.int32)[is_random + 2 * is_swapped, None],
            sentences.weights: np.ones((len(row_keys), 1), np.float32),
        }

    def _negatives(self, row_keys: np.ndarray, own: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw B from another document, with about `wanted` tokens: first token int64[n] and length int64[n]."""
        starts, bounds = self._documents.sentence_starts, self._documents.sentence_bounds
        wanted = np.maximum(wanted, 1)
        if self._is_fitted:
            # Any sentence of the other documents, or the last one before it that is followed by enough text.
            size = bounds[own + 1] - bounds[own]
            sentence = keys.integers(keys.bits(row_keys, _SENTENCE, 1)[:, 0], bounds[-1] - size)
            sentence += np.where(sentence >= bounds[own], size, 0)
            other = np.searchsorted(bounds, sentence, side="right") - 1
            filling = np.searchsorted(starts, starts[bounds[other + 1]] - wanted, side="right") - 1
            sentence = np.maximum(bounds[other], np.minimum(sentence, filling))
        else:
            other = keys.integers(keys.bits(row_keys, _DOCUMENT, 1)[:, 0], len(self._documents) - 1)
            other += other >= own
            sentence = bounds[other] + keys.integers(keys.bits(row_keys, _SENTENCE, 1)[:, 0], bounds[other + 1] - bounds[other])
        count = sentences_to(starts, sentence, wanted, bounds[other + 1])
        return starts[sentence], starts[sentence + count] - starts[sentence]


def frame_segments(
    documents: Documents, length: int, ids: TokenIds, a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return rows `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` where B is empty.

    Args:
      documents: The text.
      length: Positions of a row.
      ids: Ids of the vocabulary.
      a: First token int64[n] and length int64[n] of A.
      b: First token int64[n] and length int64[n] of B.

    Returns:
      `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable` bool[n, length], and
      `units` uint8[n, length] if the text has marks.
    """
    (a_start, a_length), (b_start, b_length) = a, b
    # [n, length]: position in the row, and the part of [CLS] A [SEP] B [SEP] there. Control tokens and padding read any token,
    # replaced below: reading all positions and overwriting some is twice as fast as reading only the text.
    place = np.arange(length, dtype=np.int32)
    a_end, end = (a_length + 1).astype(np.int32), (a_length + b_length + 1 + (b_length > 0)).astype(np.int32)
    after_a, real = place > a_end[:, None], place <= end[:, None]
    source = np.where(after_a, (b_start - a_end - 1)[:, None], (a_start - 1)[:, None]) + place
    tokens = documents.tokens.take(source, mode="clip").astype(np.int32)
    np.copyto(tokens, ids.pad, where=~real)
    # Unknown tokens are not predicted: there is nothing to learn from them.
    maskable = real & (tokens != ids.unk)
    row = np.arange(len(tokens))
    cls, sep = (ids.require(name, "a row of two segments") for name in ("cls", "sep"))
    for at, control in ((np.zeros_like(end), cls), (a_end, sep), (end, sep)):
        tokens[row, at] = control
        maskable[row, at] = False
    units = {}
    if documents.units is not None:
        units["units"] = np.where(maskable, documents.units.take(source, mode="clip"), 0)
    return units | {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": real.astype(np.int32),
        "encoder_token_type_ids": (after_a & real).astype(np.int32),
        "maskable": maskable,
    }


def _excess(a: np.ndarray, b: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that A and B lose if the longer one (B if equal) loses one at a time until both fit into `room`."""
    excess = np.maximum(a + b - room, 0)
    uneven = np.minimum(excess, np.abs(a - b))
    even = excess - uneven
    return np.where(a > b, uneven, 0) + even // 2, np.where(a > b, 0, uneven) + (even + 1) // 2

"""Labelled pairs of sentences: BERT's (Devlin et al. 2019, appendix A.2, as published with the code), ALBERT's, StructBERT's."""

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

# Streams of a chunk's key (its plan) and of an example's key (drawn anew each epoch).
_SHORT, _TARGET, _PLANNED_SPLIT, _PLANNED_NEXT = range(4)
_SPLIT, _NEXT, _DOCUMENT, _SENTENCE, _TRIM_A, _TRIM_B = range(16, 22)
PairUnit = Literal["segment", "sentence"]
IS_NEXT, IS_RANDOM = 0, 1
# By relation: the shares of pairs whose B is random and of those that are swapped (BERT's are an option), and the labels of next,
# random and swapped.
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
    """`[CLS] A [SEP] B [SEP]` where B continues A, comes from another document, or is what A continues.

    A document is cut into chunks of sentences of at least length-3 tokens, or in a document that is drawn with
    `short_sequence_rate` of at least a number uniform in [2, length-3], the same for all its chunks. A is the chunk's first
    a sentences, a uniform; B is the rest of the chunk, or where a random one is drawn (and always where the chunk has one
    sentence) as many sentences from a random place of a random other document as fill the target; the next chunk then begins
    where A ended. Where a swap is drawn A and B change places. A pair that is too long loses tokens of the longer side, from the
    front or the back with equal chance. The chunks are fixed by the seed; splits, labels, negatives and cuts are drawn anew each
    epoch.

    What is drawn and how it is labelled depends on the relation that is asked for:

      next        (BERT)  B is next: 0, random: 1; the latter with `random_next_rate`
      order       (ALBERT, Lan et al. 2020, section 3.1)  in order: 0, swapped: 1; a half each
      structure   (StructBERT, Wang et al. 2020, section 2.2)  B is random: 0, next: 1, swapped, so the previous: 2; a third each

    With `unit` "sentence" a chunk is two sentences instead, however short: A is one, B is one (Liu et al. 2019, SENTENCE-PAIR;
    the chunks described above are its SEGMENT-PAIR).

    In all three relations a chunk of one sentence has nothing to continue it or to be swapped with: its B is random, with that
    label. For "order" that label is 1, as in ALBERT's published script, so that in texts of short documents the label tells
    topics apart rather than order; `PairExamples.warnings` says when that is often.

    Attributes:
      short_sequence_rate: the share of documents that are cut into shorter chunks.
      random_next_rate: the share of pairs whose B is random, where the chunk allows both; of the relation "next" alone.
      relation: what the labels say, "next", "order" or "structure".
      unit: what A and B are, a "segment" of as many sentences as fit or one "sentence" each; the latter needs no
        `short_sequence_rate`.
    """

    least_documents: ClassVar[int] = 2  # B comes from another one

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
        """The shares of pairs whose B is random and of pairs that are swapped, where the chunk allows all."""
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
    """Walks all documents side by side, one chunk of each at a time; long ones are cut into stretches that begin chunks anew.

    Returns:
      document int64[chunks], first sentence int64[chunks], sentences int64[chunks] and target int64[chunks], by document.
    """
    starts = documents.sentence_starts
    room = length - 3
    document, chunk, current, end = stretches(documents)
    key = keys.fold(seed, document)
    short = keys.uniform(keys.bits(key, _SHORT, 1)[:, 0]) < config.short_sequence_rate
    target = np.where(short, 2 + keys.integers(keys.bits(key, _TARGET, 1)[:, 0], room - 1), room)
    of_sentences = config.unit == "sentence"
    if of_sentences:
        target = np.ones_like(target)  # the least that a random B is filled up to: one sentence
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
    """Documents, those of more than about a hundred thousand tokens cut between sentences.

    Returns:
      document int64[stretches], number of the first chunk (apart in each stretch of a document) int64[stretches], first sentence
      int64[stretches] and the sentence after the last int64[stretches].
    """
    starts, bounds = documents.sentence_starts, documents.sentence_bounds.astype(np.int64)
    tokens = np.diff(starts[bounds])
    counts = -(-tokens // _STRETCH)
    document = np.repeat(np.arange(len(documents)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.searchsorted(starts, starts[bounds[document]] + number * _STRETCH)
    # A sentence that is longer than a stretch leaves nothing to those that would begin inside of it.
    first = np.minimum(first, bounds[document + 1])
    end = np.where(np.append(document[1:], -1) == document, np.append(first[1:], 0), bounds[document + 1])
    real = first < end
    return document[real], number[real] << 32, first[real], end[real]


def sentences_to(starts: np.ndarray, first: np.ndarray, tokens: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How many sentences from `first` on hold at least `tokens` tokens, at least one, none from `end` on: int64[n]."""
    last = np.searchsorted(starts, starts[first] + tokens, side="left")
    return np.clip(last - first, 1, end - first)


class PairExamples:
    """The examples of one corpus at one length: rows by index, a batch at a time."""

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
        """Tokens of each row at most, [CLS] and [SEP] included: int64[rows]."""
        return self._room + 3

    def with_fixed_lengths(self) -> "PairExamples":
        """The same pairs, none longer than its own chunk: a random B fills the room of the text that it replaces, if it can.

        So the length of each is known whatever is drawn, and rows can be packed.
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
        """The share of chunks of one sentence, whose B is random whatever is drawn."""
        return float(np.mean(self._count == 1))

    @property
    def warnings(self) -> list[str]:
        """What is amiss with the text, a line each."""
        if self._config.shares[0] == 1 or self.always_random <= _MANY:
            return []
        return [
            f"{self.always_random:.0%} of the sentence pairs of {self._documents.name} at length {self._length} have a random "
            f"second sentence whatever is drawn, as their text is a single sentence; {_LEARNT[self._config.relation]} learns "
            "little from that: give longer documents, or shorter sentences (see --input_format)"
        ]

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Builds uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], what is drawn anew.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable`
          bool[n, length], `sequence_start_positions` int32[n, 1], and of the relation the labels int32[n, 1] and their weights
          float32[n, 1], such as `next_sentence_labels` and `next_sentence_weights`; of marked text `units` uint8[n, length] too.
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
        """Draws B from another document: token start int64[n] and length int64[n], about `wanted` tokens."""
        starts, bounds = self._documents.sentence_starts, self._documents.sentence_bounds
        wanted = np.maximum(wanted, 1)
        if self._is_fitted:
            # Any sentence of the other documents, or the last before it from which there is so much text.
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
    """Rows `[CLS] A [SEP] B [SEP]`; `[CLS] A [SEP]` where B has no token.

    Args:
      documents: the text.
      length: places of a row.
      ids: the vocabulary's.
      a, b: where their text begins int64[n] and how long it is int64[n].

    Returns:
      `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable` bool[n, length]; of
      marked text `units` uint8[n, length] too.
    """
    (a_start, a_length), (b_start, b_length) = a, b
    # [n, length]: the place in the row, and what is there of [CLS] A [SEP] B [SEP]. Control tokens and padding read some
    # token too: taking everything and writing over it is twice as fast as taking the text alone.
    place = np.arange(length, dtype=np.int32)
    a_end, end = (a_length + 1).astype(np.int32), (a_length + b_length + 1 + (b_length > 0)).astype(np.int32)
    after_a, real = place > a_end[:, None], place <= end[:, None]
    source = np.where(after_a, (b_start - a_end - 1)[:, None], (a_start - 1)[:, None]) + place
    tokens = documents.tokens.take(source, mode="clip").astype(np.int32)
    np.copyto(tokens, ids.pad, where=~real)
    # Nothing can be learnt from predicting that a word is unknown.
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
    """How many tokens A and B lose when the longer one (B if equal) gives a token up until both fit into `room`."""
    excess = np.maximum(a + b - room, 0)
    uneven = np.minimum(excess, np.abs(a - b))
    even = excess - uneven
    return np.where(a > b, uneven, 0) + even // 2, np.where(a > b, 0, uneven) + (even + 1) // 2

"""Labelled sentence pairs of BERT (Devlin et al. 2019, appendix A.2, as in the published code), ALBERT and StructBERT."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

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
_SPLIT, NEXT, _DOCUMENT, _SENTENCE, _TRIM_A, _TRIM_B, _DIVIDED = range(16, 23)
PairUnit = Literal["segment", "sentence"]
IS_NEXT, IS_RANDOM = 0, 1
# By relation: the shares of pairs with a random B and of swapped pairs (an option for BERT); labels of next, random, swapped.
_SHARES: dict[Relation, tuple[float, float]] = {"order": (0.0, 1 / 2), "structure": (1 / 3, 1 / 3)}
_LABELS: dict[Relation, tuple[int, ...]] = {"next": (IS_NEXT, IS_RANDOM), "order": (0, 1, 1), "structure": (1, 0, 2)}
_FIX = "longer documents, longer rows (Stage.length) or shorter sentences (see --input_format)"
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
    rest of the chunk is the A of another pair with a random B. If a swap is drawn, A and B are exchanged. A pair that is too long
    loses tokens of the longer side, from the front or the back with equal probability. The chunks are fixed by the seed; splits,
    labels, negatives and cuts are drawn for each epoch.

    In the published script the rest of the chunk begins the next chunk, so that the chunks depend on the draws. Here the same
    number of chunks is divided in every epoch, one drawn in each group of neighbours. Pairs have the shares of the published
    script, every sentence (but for what is cut) is in A or in a B of the same text in every epoch, and any row can be read alone.

    The draws and labels depend on the relation:

      next        (BERT)  B is next: 0, random: 1; the latter with `random_next_rate`
      order       (ALBERT, Lan et al. 2020, section 3.1)  in order: 0, swapped: 1; a half each
      structure   (StructBERT, Wang et al. 2020, section 2.2)  B is random: 0, next: 1, swapped, so the previous: 2; a third each

    With `unit` "sentence" a chunk is two sentences instead, however short: A is one, B is one (Liu et al. 2019, SENTENCE-PAIR;
    the chunks described above are its SEGMENT-PAIR).

    A chunk of one sentence has no text to continue it or to be swapped with, so that its B is random. For "next" it has that
    label. For "order" and "structure" it has no label (weight 0), since it says nothing about order: ALBERT's published script
    labels it 1, as if it were swapped, so that in texts of short documents the label reflects topics.

    Attributes:
      short_sequence_rate: Share of documents that are cut into shorter chunks.
      random_next_rate: Share of pairs with a random B, where the chunk allows both; for the relation "next" only.
      relation: Meaning of the labels: "next", "order" or "structure".
      unit: Size of A and B: a "segment" of as many sentences as fit, or one "sentence" each, which ignores
        `short_sequence_rate`.
      label_single_sentences: True if the pair of a chunk of one sentence has a label: that of a random B, which for "order" is
        1, as published. None: True for "next", False otherwise.
    """

    least_documents: ClassVar[int] = 2  # a random B comes from another document

    short_sequence_rate: float = 0.1
    random_next_rate: float = 0.5
    relation: Relation = "next"
    unit: PairUnit = "segment"
    label_single_sentences: bool | None = None

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

    @property
    def labels_single_sentences(self) -> bool:
        """True if the pair of a chunk of one sentence has a label."""
        return self.relation == "next" if self.label_single_sentences is None else self.label_single_sentences

    @override
    def check_length(self, length: int) -> None:
        if length < 5:
            raise UserError(f"length {length} is too short for a sentence pair; use at least 5")

    @override
    def packable_examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "PairExamples":
        """Plan the rows as `examples` does, each limited to the length of its chunk.

        A random B fills the space of the text that it replaces, if its document has enough text.
        """
        return self._examples(documents, length, seed, tokens, is_fitted=True)

    @override
    def examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED) -> "PairExamples":
        return self._examples(documents, length, seed, tokens, is_fitted=False)

    def _examples(self, documents: Documents, length: int, seed: int, tokens: TokenIds, *, is_fitted: bool) -> "PairExamples":
        self.check_text(documents, length)
        plan = plan_chunks(self, documents, length, seed)
        is_single = plan.sentences == 1
        # With c chunks of which d are divided, 2 d of the c + d pairs have a random B.
        divisible, share = int(np.count_nonzero(~is_single)), self.shares[0]
        rests, rooms = round(divisible * share / (2 - share)), None
        if is_fitted:
            starts = documents.sentence_starts
            sizes = np.clip(
                starts[plan.first + plan.sentences] - starts[plan.first], 2, length - 3
            )  # a token for each of A and B
            # Chunks of a group have nearly equal sizes, so that the rest of any of them fits into as much as the last of it.
            order = np.lexsort((sizes, is_single))
            last = np.arange(1, rests + 1) * divisible // max(rests, 1) - 1
            rooms = sizes[np.concatenate([order, order[last]])]
        else:
            order = np.argsort(is_single, kind="stable")
        return PairExamples(self, documents, length, tokens, ChunkPlan(*(column[order] for column in plan)), rests, rooms)

    def check_text(self, documents: Documents, length: int) -> None:
        """Raise UserError if rows are too short for a pair, or if there are too few documents."""
        self.check_length(length)
        if len(documents) < self.least_documents:
            raise UserError(
                f"sentence pairs need at least two documents and {documents.name} has {len(documents)}; separate documents "
                "by blank lines, or choose another --input_format"
            )


class ChunkPlan(NamedTuple):
    """Chunks of documents: int64[chunks] each.

    Attributes:
      document: Document.
      first: First sentence.
      sentences: Number of sentences.
      target: Tokens that A and B should have together.
    """

    document: np.ndarray
    first: np.ndarray
    sentences: np.ndarray
    target: np.ndarray


def plan_chunks(config: SentencePairs, documents: Documents, length: int, seed: int, *, put_back_rate: float = 0.0) -> ChunkPlan:
    """Plan the chunks of all documents in parallel, one chunk of each at a time, starting anew in each stretch of a document.

    Args:
      config: Layout of the pairs.
      documents: The text.
      length: Positions of a row.
      seed: Seed of the plan.
      put_back_rate: Share of chunks in which the next chunk begins after A, as in the published script.

    Returns:
      The chunks, by document.
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
        if put_back_rate:
            key = keys.fold(seed, document, chunk)
            split = 1 + keys.integers(keys.bits(key, _PLANNED_SPLIT, 1)[:, 0], np.maximum(count - 1, 1))
            put_back = keys.uniform(keys.bits(key, _PLANNED_NEXT, 1)[:, 0]) < put_back_rate
            count = np.where(put_back & (count > 1), split, count)
        current = current + count
        alive = current < end
        stretch, document, current, end, target = (values[alive] for values in (stretch, document, current, end, target))
        chunk = chunk[alive] + 1
    stretch, document, first, count, target = (np.concatenate(column) for column in zip(*parts, strict=True))
    in_order = np.argsort(stretch, kind="stable")
    return ChunkPlan(document[in_order], first[in_order], count[in_order], target[in_order])


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


class Choice(NamedTuple):
    """Text and relation of pairs.

    Attributes:
      chunk: int64[n], chunk of A.
      is_rest: bool[n], True if A is the rest of the chunk.
      is_random: bool[n], True if B comes from another document.
      is_swapped: bool[n], True if A and B are exchanged.
    """

    chunk: np.ndarray
    is_rest: np.ndarray
    is_random: np.ndarray
    is_swapped: np.ndarray


class PairExamples:
    """Sentence pairs of one corpus at one length.

    Each chunk has an example, those of several sentences first. The remaining examples are the rests of divided chunks. The
    chunks of several sentences are cut into as many groups as there are rests, and in each epoch one of each group is divided.
    """

    def __init__(
        self,
        config: SentencePairs,
        documents: Documents,
        length: int,
        tokens: TokenIds,
        plan: ChunkPlan,
        rests: int = 0,
        rooms: np.ndarray | None = None,
    ) -> None:
        """Create the pairs of planned chunks, those of several sentences first if chunks are divided.

        Args:
          config: Layout of the pairs.
          documents: The text.
          length: Positions of a row.
          tokens: Ids of the vocabulary.
          plan: The chunks.
          rests: Number of chunks that are divided in an epoch.
          rooms: int64[chunks + rests], limit of the tokens of A and B of each pair; None: all that fit into a row.
        """
        self._config, self._documents, self._length, self._tokens = config, documents, length, tokens
        self.plan, self._rests, self._is_fitted = plan, rests, rooms is not None
        self._divisible = int(np.count_nonzero(plan.sentences > 1))
        self._room = np.broadcast_to(np.int64(length - 3), len(self)) if rooms is None else rooms

    def __len__(self) -> int:
        return len(self.plan.first) + self._rests

    @property
    def lengths(self) -> np.ndarray:
        """Maximum number of tokens of each row, including [CLS] and [SEP]: int64[rows]."""
        return self._room + 3

    def divided(self, share: float, key: int) -> "PairExamples":
        """Return the pairs, which have no pieces."""
        return self

    @property
    def always_random(self) -> float:
        """Share of pairs of a chunk of one sentence, whose B is always random."""
        return (len(self.plan.first) - self._divisible) / len(self)

    @property
    def warnings(self) -> list[str]:
        """Problems of the text, one line each."""
        single, learnt = len(self.plan.first) - self._divisible, _LEARNT[self._config.relation]
        if self._config.relation == "next":
            if self._config.shares[0] == 1 or self.always_random <= _MANY:
                return []
            what = "have a random second sentence in every epoch, because their text is a single sentence"
            return [
                f"{self.always_random:.0%} of the sentence pairs of {self._documents.name} at length {self._length} {what}; "
                f"{learnt} learns little from that: give {_FIX}"
            ]
        if not single:
            return []
        labelled, gain = (
            ("are labelled as published", "topics") if self._config.labels_single_sentences else ("have no label", "nothing")
        )
        fix = f": give {_FIX}" if self.always_random > _MANY else ""
        return [
            f"{single:,} of the {len(self):,} sentence pairs of {self._documents.name} at length {self._length} "
            f"({self.always_random:.0%}) have a random second sentence, because their text is a single sentence, and {labelled}; "
            f"{learnt} learns {gain} from them{fix}"
        ]

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws: those of the epochs, folded with `examples`.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` int32[n, length], `maskable`
          bool[n, length], `sequence_start_positions` int32[n, 1], the labels int32[n, 1] and weights float32[n, 1] of the
          relation, such as `next_sentence_labels` and `next_sentence_weights`, and `units` uint8[n, length] for marked text.
        """
        epoch_keys = keys.unfold(row_keys, examples)
        chunk, is_rest, is_random, is_swapped = self._choose(examples, epoch_keys, row_keys)
        starts, first, count = self._documents.sentence_starts, self.plan.first[chunk], self.plan.sentences[chunk]
        # The chunk and its rest have the same split, so it is drawn from the key of the chunk.
        split_words = keys.bits(keys.fold(epoch_keys, chunk), _SPLIT, 1)[:, 0]
        split = np.minimum(first + 1 + keys.integers(split_words, np.maximum(count - 1, 1)), first + count)

        b_start, b_length = starts[split], starts[first + count] - starts[split]
        a_start = np.where(is_rest, b_start, starts[first])
        a_length = np.where(is_rest, b_length, starts[split] - starts[first])
        if is_random.any():
            where = np.flatnonzero(is_random)
            target = self._room[examples] if self._is_fitted else self.plan.target[chunk]
            b_start[where], b_length[where] = self._negatives(
                row_keys[where], self.plan.document[chunk[where]], (target - a_length)[where]
            )
        a_start, b_start = np.where(is_swapped, b_start, a_start), np.where(is_swapped, a_start, b_start)
        a_length, b_length = np.where(is_swapped, b_length, a_length), np.where(is_swapped, a_length, b_length)
        cut_a, cut_b = excess(a_length, b_length, self._room[examples])
        a_start, a_length = a_start + keys.coin_sums(row_keys, _TRIM_A, cut_a), a_length - cut_a
        b_start, b_length = b_start + keys.coin_sums(row_keys, _TRIM_B, cut_b), b_length - cut_b

        sentences = SENTENCES[self._config.relation]
        labelled = (count > 1) | self._config.labels_single_sentences
        labels = np.array(_LABELS[self._config.relation], np.int32)[is_random + 2 * is_swapped]
        rows = frame_segments(self._documents, self._length, self._tokens, (a_start, a_length), (b_start, b_length))
        return rows | {
            "sequence_start_positions": np.zeros((len(examples), 1), np.int32),
            sentences.labels: np.where(labelled, labels, 0)[:, None],
            sentences.weights: labelled.astype(np.float32)[:, None],
        }

    def _choose(self, examples: np.ndarray, epoch_keys: np.ndarray, row_keys: np.ndarray) -> Choice:
        """Choose the text and the relation of pairs: the chunk that is divided in an epoch is drawn once for both its pairs."""
        chunks, groups = len(self.plan.first), self._rests
        chunk, is_rest, is_divided = examples.copy(), examples >= chunks, np.zeros(len(examples), bool)
        where = np.flatnonzero(is_rest | (examples < self._divisible)) if groups else np.zeros(0, np.int64)
        if len(where):
            number, of_rest = examples[where], is_rest[where]
            group = np.where(of_rest, number - chunks, -(-(number + 1) * groups // self._divisible) - 1)
            begin, end = group * self._divisible // groups, (group + 1) * self._divisible // groups
            words = keys.bits(keys.fold(epoch_keys[where], chunks + group), _DIVIDED, 1)[:, 0]
            divided = begin + keys.integers(words, end - begin)
            chunk[where] = np.where(of_rest, divided, number)
            is_divided[where] = divided == chunk[where]
        is_random = is_divided | (self.plan.sentences[chunk] == 1)
        random_share, swapped_share = self._config.shares
        swap_rate = swapped_share / (1 - random_share) if swapped_share else 0.0
        return Choice(chunk, is_rest, is_random, ~is_random & (keys.uniform(keys.bits(row_keys, NEXT, 1)[:, 0]) < swap_rate))

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
    source = np.where(after_a, (b_start - a_end - 1)[:, None], (a_start - 1)[:, None])
    source += place
    tokens = documents.tokens.take(source, mode="clip").astype(np.int32)
    np.copyto(tokens, ids.pad, where=~real)
    # Unknown tokens are not predicted: there is nothing to learn from them.
    maskable = tokens != ids.unk
    maskable &= real
    cls, sep = (ids.require(name, "a row of two segments") for name in ("cls", "sep"))
    tokens[:, 0], maskable[:, 0] = cls, False
    row_starts = np.arange(0, tokens.size, length)
    for at in (row_starts + a_end, row_starts + end):
        tokens.put(at, sep)
        maskable.put(at, False)
    units = {}
    if documents.units is not None:
        units["units"] = np.where(maskable, documents.units.take(source, mode="clip"), 0)
    return units | {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": real.astype(np.int32),
        "encoder_token_type_ids": (after_a & real).astype(np.int32),
        "maskable": maskable,
    }


def excess(a: np.ndarray, b: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that A and B lose if the longer one (B if equal) loses one at a time until both fit into `room`."""
    excess = np.maximum(a + b - room, 0)
    uneven = np.minimum(excess, np.abs(a - b))
    even = excess - uneven
    return np.where(a > b, uneven, 0) + even // 2, np.where(a > b, 0, uneven) + (even + 1) // 2

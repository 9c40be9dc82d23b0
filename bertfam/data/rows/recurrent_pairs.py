"""Rows of XLNet: running text that the model remembers, and two segments (Yang et al. 2019, section 2.5; published code)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.corruption.corruption import FRAMED, RowForm
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.running_text import document_begins
from bertfam.data.rows.sentence_pairs import excess
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

# Streams of an example's key.
_CUT, _NEXT, _PLACE = range(16, 19)
_CONTROLS, _SHORTEST = 3, 10


@dataclass(frozen=True)
class RecurrentPairs(RowLayout):
    """`text A [SEP] B [SEP] [CLS]`, where A continues the text, and the next row of a stream begins with the text of A.

    The corpus is one sequence of tokens, with an end-of-text token after each document. The text is half of a row; it is what a
    model with a memory keeps of the row, and each row begins where that of the one before ended. So every token of the corpus is
    in the first half of one row, and is read again in the second half of others. Rows are always full: after the last token the
    first one follows.

    A ends with a sentence, drawn from those that end within the row. B is the rest of the sentences, or, with probability
    `random_next_rate` and always if no sentence ends there, text from a random sentence of the corpus on. A pair that is too long
    loses tokens from the end of the longer side. A and B are drawn for each epoch. Their relation is no label: XLNet has no loss
    for it. The published script draws B from the same stream of the corpus, here it is from all of the corpus.

    Rows need TextData.order = "streams" for a model with a memory.

    Attributes:
      random_next_rate: Share of rows with a random B, where the row has the end of a sentence.
      bidirectional: True for as many rows again of the corpus read backwards, which then fill half of each batch. Their
        `encoder_reversed` is 1.
    """

    random_next_rate: float = 0.5
    bidirectional: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.random_next_rate <= 1:
            raise ValueError(f"random_next_rate {self.random_next_rate} is not in [0, 1]")

    @override
    def check_length(self, length: int) -> None:
        if length < _SHORTEST:
            raise UserError(f"length {length} is too short for a row of text and two segments; use at least {_SHORTEST}")

    @override
    def examples(
        self, documents: Documents, length: int, seed: int, tokens: TokenIds, form: RowForm = FRAMED
    ) -> "RecurrentExamples":
        self.check_length(length)
        return RecurrentExamples(self, documents, length, tokens)


class _Pairs(NamedTuple):
    """Slots of rows, counted in their direction of reading: int64[n] each.

    Attributes:
      begin: Slot of the first token.
      a_length: Tokens of A.
      b_begin: Slot of the first token of B.
      b_length: Tokens of B.
    """

    begin: np.ndarray
    a_length: np.ndarray
    b_begin: np.ndarray
    b_length: np.ndarray


class RecurrentExamples:
    """Rows of one corpus at one length: those that are read forwards, and then those that are read backwards."""

    warnings: ClassVar[list[str]] = []

    def __init__(self, config: RecurrentPairs, documents: Documents, length: int, tokens: TokenIds) -> None:
        """Plan the rows; nothing is drawn."""
        self._config, self._documents, self._length, self._tokens = config, documents, length, tokens
        self._kept = length // 2
        self._begins = document_begins(documents)
        self._slots = int(self._begins[-1])
        # An end-of-text token belongs to the last sentence of its document. Sentences of the text read backwards begin where
        # those of the text end.
        bounds = documents.sentence_bounds
        forwards = documents.sentence_starts[:-1] + np.repeat(np.arange(len(documents)), np.diff(bounds))
        self._sentences = forwards, np.sort(-forwards % self._slots)
        self._rows = -(-self._slots // self._kept)

    def __len__(self) -> int:
        return self._rows * (1 + self._config.bidirectional)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows.

        Args:
          examples: int64[n] in [0, len(self)).
          row_keys: uint64[n], keys of the random draws.

        Returns:
          `encoder_input_tokens`, `encoder_segment_ids`, `encoder_token_type_ids` (0 up to the end of A, 1 up to the end of B, 2
          at [CLS]) int32[n, length], `encoder_reversed` int32[n, 1], `maskable` bool[n, length].
        """
        ids, kept, length = self._tokens, self._kept, self._length
        is_reversed = examples >= self._rows
        pairs = _Pairs(*(np.empty(len(examples), np.int64) for _ in _Pairs._fields))
        for direction, sentences in enumerate(self._sentences):
            (here,) = np.nonzero(is_reversed == direction)
            for column, values in zip(pairs, self._drawn(sentences, examples[here] % self._rows, row_keys[here]), strict=True):
                column[here] = values
        # [n, length]: the slot at each place of the text, A and B
        place = np.arange(length)
        a_end = (kept + pairs.a_length)[:, None]  # the place of the first [SEP]
        slots = place + np.where(place > a_end, pairs.b_begin[:, None] - a_end - 1, pairs.begin[:, None])
        slots %= self._slots
        slots = np.where(is_reversed[:, None], self._slots - 1 - slots, slots)
        document = np.searchsorted(self._begins, slots, side="right") - 1
        ends_text = slots == self._begins[document + 1] - 1
        end_of_text = ids.end_of_text("a row of text and two segments")
        tokens = self._documents.tokens.take(slots - document, mode="clip").astype(np.int32)
        tokens[ends_text] = end_of_text
        cls, sep = (ids.require(name, "a row of text and two segments") for name in ("cls", "sep"))
        control = (place == a_end) | (place >= length - 2)
        tokens[control] = sep
        tokens[:, -1] = cls
        token_types = (place > a_end).astype(np.int32)
        token_types[:, -1] = 2
        return {
            "encoder_input_tokens": tokens,
            "encoder_segment_ids": np.ones_like(tokens),
            "encoder_token_type_ids": token_types,
            "encoder_reversed": is_reversed.astype(np.int32)[:, None],
            # Unknown tokens are not predicted: there is nothing to learn from them.
            "maskable": ~control & (tokens != ids.unk) & (tokens != sep),
        }

    def _drawn(self, sentences: np.ndarray, rows: np.ndarray, row_keys: np.ndarray) -> _Pairs:
        """Draw A and B of rows int64[n] of a text whose sentences begin at the given slots."""
        room = self._length - self._kept - _CONTROLS
        cut, is_random, place = (keys.bits(row_keys, stream, 1)[:, 0] for stream in (_CUT, _NEXT, _PLACE))
        begin = rows * self._kept
        a_begin = begin + self._kept
        # The sentence after that of the first token of A, the number of them that begin within the room, and the first after it.
        following = self._sentences_before(sentences, a_begin + 1)
        inside = self._sentences_before(sentences, a_begin + room) - following
        end = self._begin_of(sentences, following + inside)
        a_end = np.where(inside > 0, self._begin_of(sentences, following + keys.integers(cut, np.maximum(inside, 1))), end)
        is_random = (inside == 0) | (keys.uniform(is_random) < self._config.random_next_rate)
        # A random B: sentences that hold as many tokens from a random place on as there is room for.
        wanted = np.maximum(1, room - (a_end - a_begin))
        somewhere = keys.integers(place, self._slots)
        random_begin = self._begin_of(sentences, self._sentences_before(sentences, somewhere + 1) - 1)
        random_end = self._begin_of(sentences, self._sentences_before(sentences, somewhere + wanted))
        b_begin, b_end = np.where(is_random, random_begin, a_end), np.where(is_random, random_end, end)
        a_length, b_length = a_end - a_begin, b_end - b_begin
        cut_a, cut_b = excess(a_length, b_length, np.full_like(a_length, room))
        return _Pairs(begin, a_length - cut_a, b_begin, b_length - cut_b)

    def _sentences_before(self, sentences: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Return the number of sentences that begin before slots int64[n] of the text, which is repeated without end."""
        times, within = np.divmod(slots, self._slots)
        return times * len(sentences) + np.searchsorted(sentences, within, side="left")

    def _begin_of(self, sentences: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Return the slots at which the sentences of these numbers int64[n] begin."""
        times, within = np.divmod(numbers, len(sentences))
        return times * self._slots + sentences[within]

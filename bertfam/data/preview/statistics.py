"""Statistics of rows: shares, lengths, speed."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.preview.records import KINDS, kinds_of, originals, present_kinds, sentences_of
from bertfam.data.rows.batches import Rows

_AT_ONCE = 1000
_BINS = 10


@dataclass
class Statistics:
    """Counts over rows, from which the shares are computed.

    Attributes:
      length: Positions of a row.
      rows: Number of counted rows.
      epoch: Rows in an epoch of all corpora.
      tokens: Positions that are not padding, including control tokens.
      unknown: Unknown tokens among them, before the noise.
      kinds: Predictions by kind, see `records.KINDS`.
      bounded: Predictions of spans that have text on both sides; None if rows do not record it.
      labels: Label of sentence pairs, such as "next_sentence_random" -> examples.
      unlabelled: Sentence pairs without a label.
      lengths: Tokens of an example -> examples.
      corpora: Name of a corpus -> its rows.
      seconds: Time spent on making the rows.
    """

    length: int
    rows: int = 0
    epoch: int = 0
    tokens: int = 0
    unknown: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    bounded: int | None = None
    labels: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    corpora: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, rows: Mapping[str, np.ndarray], tokens: TokenIds) -> None:
        """Count rows, [n, ...] each."""
        segments = rows["encoder_segment_ids"]
        real = segments > 0
        self.rows += len(segments)
        self.tokens += int(real.sum())
        self.unknown += int((real & (originals(rows) == tokens.unk)).sum())
        kinds = kinds_of(rows, tokens)
        self.kinds.update({name: int((kinds == KINDS.index(name)).sum()) for name in present_kinds(rows)})
        if "span_loss_weights" in rows:
            self.bounded = (self.bounded or 0) + int(rows["span_loss_weights"].sum())
        if sentences := sentences_of(rows):
            labels = rows[sentences.labels][rows[sentences.weights] > 0]
            self.unlabelled += int(segments.max(axis=1, initial=0).sum()) - len(labels)
            self.labels.update(
                {f"{sentences.feature}_{name}": int((labels == label).sum()) for label, name in enumerate(sentences.classes)}
            )
        self._add_lengths(segments)

    def _add_lengths(self, segments: np.ndarray) -> None:
        """Count the tokens of each example."""
        # Each example of each row gets a distinct number.
        most = int(segments.max(initial=0)) + 1
        sizes = np.bincount((np.arange(len(segments))[:, None] * most + segments)[segments > 0])
        self.lengths.update(sizes[sizes > 0].tolist())

    @property
    def size(self) -> str:
        """Description of the row length."""
        return f"{self.length} tokens"

    @property
    def examples(self) -> int:
        """Examples in the rows."""
        return self.lengths.total()

    def shares(self) -> dict[str, float]:
        """Return shares of positions, of tokens (`unknown`, `predicted`), of predictions and of labelled examples."""
        predicted = self.kinds.total()
        shares = {
            "real_tokens": self.tokens / max(self.rows * self.length, 1),
            "unknown": self.unknown / max(self.tokens, 1),
            **({"predicted": predicted / max(self.tokens, 1)} if self.kinds else {}),
            **{kind: count / max(predicted, 1) for kind, count in self.kinds.items()},
        }
        if self.bounded is not None:
            shares["bounded"] = self.bounded / max(predicted, 1)
        # The share of label 0 is the remainder.
        labelled = self.labels.total()
        return shares | {name: count / labelled for name, count in list(self.labels.items())[1:] if labelled}

    def numbers(self) -> dict[str, str]:
        """Return the other figures, formatted."""
        unlabelled = {"pairs without a label": f"{self.unlabelled:,}"} if self.unlabelled else {}
        return {
            "examples a row": f"{self.examples / max(self.rows, 1):.2f}",
            "rows an epoch": f"{self.epoch:,}",
            "rows a second": f"{self.rows / max(self.seconds, 1e-9):,.0f}",
        } | unlabelled

    def of_corpora(self) -> dict[str, float]:
        """Return the share of each corpus in the rows."""
        return {name: count / self.rows for name, count in self.corpora.items()}

    def histogram(self) -> list[tuple[int, int, int]]:
        """Return (shortest, longest, count) of example lengths, in bins of equal width down from the length of a row."""
        width = -(-self.length // _BINS)
        counts = Counter[int]()
        for length, count in self.lengths.items():
            counts[(self.length - length) // width] += count
        longest = range(self.length, 0, -width)
        return [(max(high - width + 1, 1), high, counts[index]) for index, high in reversed(list(enumerate(longest)))]


def measure(
    statistics: Statistics, sequence: Rows, first: int, rows: int, tokens: TokenIds, names: tuple[str, ...]
) -> Statistics:
    """Make and count rows.

    Args:
      statistics: Statistics to update and return.
      sequence: The rows.
      first: Index of the first row to count.
      rows: Number of rows, limited to one epoch.
      tokens: Ids of the vocabulary.
      names: Names of the corpora.
    """
    statistics.epoch = sum(len(part.examples) for part in sequence.by_corpus())
    statistics.corpora.update(dict.fromkeys(names, 0))
    end = first + min(rows, statistics.epoch)
    for begin in range(first, end, _AT_ONCE):
        places = np.arange(begin, min(begin + _AT_ONCE, end), dtype=np.int64)
        start = time.perf_counter()
        made = sequence.at(places)
        statistics.seconds += time.perf_counter() - start
        statistics.add(made, tokens)
        statistics.corpora.update(names[part] for part in sequence.corpus_at(places))
    return statistics

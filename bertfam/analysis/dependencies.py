"""Heads of attention as predictors of syntactic dependencies (Clark et al. 2019, section 4.2; Voita et al. 2019, section 5.2)."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.analysis.subject import Subject, padded, row_features
from bertfam.analysis.words import word_attention, word_spans, words_of_tokens
from bertfam.data.corpora.text_lines import read_lines
from bertfam.errors import UserError

# Directions of attention: from the dependent to its head, or from the head to its dependent.
DIRECTIONS = ("dependent to head", "head to dependent")
ALL = "all but punct"
_COLUMNS, _ROOT, _PUNCT, _NO_RELATION = 10, 0, "punct", -1


class Sentence(NamedTuple):
    """Words of a sentence with their syntactic heads.

    Attributes:
      words: the words.
      heads: int64[words], index of each word's head; -1 for the root.
      relations: name of each word's relation to its head.
    """

    words: list[str]
    heads: np.ndarray
    relations: list[str]


def read_sentences(path: str | os.PathLike[str]) -> list[Sentence]:
    """Read the sentences of a CoNLL-U file, plain or compressed by gzip or zstd.

    Comments, words that stand for several (1-2) and empty nodes (1.1) are left out.

    Raises:
      UserError: the file is no such file, or a word has no head in its sentence.
    """
    sentences = list(_sentences(path))
    if not sentences:
        raise UserError(f"{path} has no sentences")
    return sentences


def _sentences(path: str | os.PathLike[str]) -> Iterator[Sentence]:
    words: list[tuple[str, int, str, str]] = []  # word, head, relation, place
    for number, line in enumerate(read_lines(path, strip=False), 1):
        if line.strip():
            words.extend(_word(line, f"{path}:{number}", len(words) + 1))
        elif words:
            yield _sentence(words)
            words = []
    if words:
        yield _sentence(words)


def _word(line: str, where: str, expected: int) -> list[tuple[str, int, str, str]]:
    """Return the word of a line, in a list that is empty for other lines."""
    cells = line.split("\t")
    if line.startswith("#"):
        return []
    if len(cells) != _COLUMNS:
        raise UserError(f"{where}: {len(cells)} columns, and CoNLL-U has {_COLUMNS}, separated by tabs; name another file")
    index, word, head, relation = cells[0], cells[1].strip(), cells[6], cells[7]
    if "-" in index or "." in index:
        return []
    if index != str(expected):
        raise UserError(f"{where}: word {index!r} follows word {expected - 1}; put a blank line between sentences")
    if not head.isdecimal():
        raise UserError(f"{where}: the head is {head!r}, and must be the number of a word, or 0 for the root")
    return [(word, int(head), relation, where)]


def _sentence(words: Sequence[tuple[str, int, str, str]]) -> Sentence:
    for word, head, _, where in words:
        if head > len(words):
            raise UserError(f"{where}: the head of {word!r} is word {head}, and the sentence has {len(words)} words")
    heads = np.array([head for _, head, _, _ in words]) - 1
    return Sentence([word for word, *_ in words], heads, [relation for _, _, relation, _ in words])


@dataclass(frozen=True)
class RelationScore:
    """Accuracy of the best head for one relation.

    Attributes:
      relation: name of the relation, or `ALL`.
      count: number of words with it.
      layer, head: the head, numbered from 1.
      direction: one of `DIRECTIONS`.
      accuracy: share of the words whose syntactic head the attention head predicts.
      offset: offset from a word to its head that is right most often.
      offset_accuracy: share of the words for which it is right.
    """

    relation: str
    count: int
    layer: int
    head: int
    direction: str
    accuracy: float
    offset: int
    offset_accuracy: float


class DependencyTask:
    """Sentences whose dependencies are predicted, for one network.

    Attributes:
      skipped: number of sentences that are left out, as they are too long for the network's rows.
    """

    def __init__(self, subject: Subject, sentences: Sequence[Sentence]) -> None:
        """Encode the sentences, words with one space between them."""
        rows = [subject.row(" ".join(sentence.words)) for sentence in sentences]
        kept = [(sentence, row) for sentence, row in zip(sentences, rows, strict=True) if not row.is_cut]
        if not kept:
            raise UserError(f"no sentence of --dependencies fits into rows of {subject.length} tokens")
        self.skipped = len(sentences) - len(kept)
        self.sentences = [sentence for sentence, _ in kept]
        self.relations = sorted({relation for sentence in self.sentences for relation in sentence.relations})
        number = {relation: place for place, relation in enumerate(self.relations)}
        self.features = row_features([row for _, row in kept], subject.vocabulary.token_ids.pad) | {
            "words": padded([words_of_tokens(row, word_spans(sentence.words)) for sentence, row in kept], -1)
        }
        # A row has at least as many tokens as words, so heads and relations have the shape of tokens.
        length = self.features["words"].shape[1]
        for name, values in (
            ("heads", [sentence.heads for sentence in self.sentences]),
            ("relations", [[number[relation] for relation in sentence.relations] for sentence in self.sentences]),
        ):
            table = padded([np.asarray(value) for value in values], _NO_RELATION)
            fill = ((0, 0), (0, max(length - table.shape[1], 0)))
            self.features[name] = np.pad(table, fill, constant_values=_NO_RELATION)[:, :length]

    def sums(self, weights: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Count the words whose syntactic head each attention head predicts, by relation.

        A head predicts, of the other words of the sentence, the one with the greatest weight.

        Args:
          weights: float32[layers, batch, heads, length, length].
          batch: features of the task, and `valid`.

        Returns:
          "correct" float32[2, layers, heads, relations], the directions first, and "count" float32[relations].
        """
        length = weights.shape[-1]
        attention = word_attention(weights, batch["words"], length)
        exists = (batch["words"][:, :, None] == jnp.arange(length)).any(axis=1)  # [batch, words]
        allowed = exists[:, None, :] & ~jnp.eye(length, dtype=bool)
        has_head = (batch["heads"] != _NO_RELATION) & exists
        relations = jax.nn.one_hot(batch["relations"], len(self.relations)) * (has_head * batch["valid"][:, None])[..., None]

        def correct(attention: jax.Array) -> jax.Array:
            predicted = jnp.argmax(jnp.where(allowed[None, :, None], attention, -1.0), axis=-1)
            hits = (predicted == batch["heads"][None, :, None]).astype(jnp.float32)
            return jnp.einsum("lbhw,bwr->lhr", hits, relations)

        both = jnp.stack([correct(attention), correct(jnp.swapaxes(attention, -1, -2))])
        return {"correct": both, "count": relations.sum(axis=(0, 1))}

    def scores(self, sums: Mapping[str, np.ndarray]) -> list[RelationScore]:
        """Return the best head of each relation, the commonest relation first, after that of all relations but punctuation."""
        offsets = {relation: Counter[int]() for relation in (ALL, *self.relations)}
        for sentence in self.sentences:
            for word, (head, relation) in enumerate(zip(sentence.heads.tolist(), sentence.relations, strict=True)):
                if head >= 0:
                    offsets[relation][head - word] += 1
                    offsets[ALL][head - word] += relation.partition(":")[0] != _PUNCT
        is_counted = np.array([relation.partition(":")[0] != _PUNCT for relation in self.relations])
        found = [_best(ALL, sums["correct"][..., is_counted].sum(-1), sums["count"][is_counted].sum(), offsets[ALL])]
        for place in np.argsort(-sums["count"], kind="stable").tolist():
            if sums["count"][place]:
                name = self.relations[place]
                found.append(_best(name, sums["correct"][..., place], sums["count"][place], offsets[name]))
        return found


def _best(relation: str, correct: np.ndarray, count: Any, offsets: Counter[int]) -> RelationScore:
    """Return the score of the best head, given the numbers of correct words [2, layers, heads]."""
    direction, layer, head = np.unravel_index(int(np.argmax(correct)), correct.shape)
    # The smaller offset of two that are as good.
    offset, hits = min(offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
    return RelationScore(
        relation,
        int(count),
        int(layer) + 1,
        int(head) + 1,
        DIRECTIONS[direction],
        float(correct[direction, layer, head] / count),
        offset,
        hits / offsets.total(),
    )

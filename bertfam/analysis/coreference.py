"""Heads of attention as resolvers of pronouns (Clark et al. 2019, section 4.3), on GAP (Webster et al. 2018)."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.analysis.subject import Subject, TokenRow, padded, row_features
from bertfam.data.corpora.labelled.records import check_columns, read_records
from bertfam.errors import UserError

# Directions of attention: from the pronoun to the names, or from the names to the pronoun.
DIRECTIONS = ("pronoun to name", "name to pronoun")
_COLUMNS = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")
_LABELS = {"TRUE": True, "FALSE": False}


class Mention(NamedTuple):
    """Start and end of a pronoun or a name in characters of the text."""

    start: int
    end: int


class Passage(NamedTuple):
    """Passage with a pronoun and two names.

    Attributes:
      text: the text.
      pronoun, name, other: the pronoun, the name that it stands for, and the name that it does not stand for.
    """

    text: str
    pronoun: Mention
    name: Mention
    other: Mention


@dataclass(frozen=True)
class CoreferenceScore:
    """Share of the pronouns for which a head gives more weight to the name that they stand for than to the other name.

    Attributes:
      layer, head: the head, numbered from 1.
      direction: one of `DIRECTIONS`.
      accuracy: the share.
    """

    layer: int
    head: int
    direction: str
    accuracy: float


def read_passages(path: str | os.PathLike[str]) -> list[Passage]:
    """Read the passages of a file of GAP's form in which the pronoun stands for exactly one of the two names.

    Raises:
      UserError: a column is missing, a mention is not where its offset says, or no passage is left.
    """
    passages = []
    for where, record in read_records(path, "tsv", "utf-8"):
        check_columns(record, _COLUMNS, where, "--coreference")
        text = str(record["Text"])
        pronoun, first, second = (_mention(record, name, text, where) for name in ("Pronoun", "A", "B"))
        is_first, is_second = (_label(record, name, where) for name in ("A-coref", "B-coref"))
        if is_first != is_second:
            name, other = (first, second) if is_first else (second, first)
            passages.append(Passage(text, pronoun, name, other))
    if not passages:
        raise UserError(f"{path} has no passage whose pronoun stands for one of its two names")
    return passages


def _mention(record: Mapping[str, Any], name: str, text: str, where: str) -> Mention:
    words, offset = str(record[name]), str(record[f"{name}-offset"])
    start = int(offset) if re.fullmatch("[0-9]{1,9}", offset) else -1
    if start < 0 or text[start : start + len(words)] != words or not words:
        raise UserError(f"{where}: {name}-offset is {offset!r}, and {words!r} is not there in the text")
    return Mention(start, start + len(words))


def _label(record: Mapping[str, Any], name: str, where: str) -> bool:
    label = str(record[name]).upper()
    if label not in _LABELS:
        raise UserError(f"{where}: {name} is {label!r}, and must be TRUE or FALSE")
    return _LABELS[label]


class CoreferenceTask:
    """Passages whose pronouns are resolved, for one network.

    Attributes:
      passages: passages that fit into the network's rows.
      skipped: number of passages whose mentions are beyond these rows.
    """

    def __init__(self, subject: Subject, passages: Sequence[Passage]) -> None:
        """Encode the passages; a passage whose end is cut off is kept if its mentions are not."""
        rows = [subject.row(passage.text) for passage in passages]
        marks = [[_tokens(row, mention) for mention in passage[1:]] for passage, row in zip(passages, rows, strict=True)]
        # The last character of a mention is in the row: then no piece of it is cut off.
        kept = [
            place
            for place, (row, passage) in enumerate(zip(rows, passages, strict=True))
            if not row.is_cut or max(mention.end for mention in passage[1:]) <= row.offsets[:, 1].max()
        ]
        kept = [place for place in kept if all(mark.any() for mark in marks[place])]
        if not kept:
            raise UserError(f"no passage of --coreference has its names within rows of {subject.length} tokens")
        self.passages, self.skipped = [passages[place] for place in kept], len(passages) - len(kept)
        self.features = row_features([rows[place] for place in kept], subject.vocabulary.token_ids.pad)
        for number, name in enumerate(("pronoun", "name", "other")):
            self.features[name] = padded([marks[place][number] for place in kept], 0)

    def sums(self, weights: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Count the passages that each head resolves.

        The attention to a mention is the sum over its tokens, the attention from it the mean.

        Args:
          weights: float32[layers, batch, heads, length, length].
          batch: features of the task, and `valid`.

        Returns:
          "correct" float32[2, layers, heads], the directions first, and "count" float32[].
        """
        pronoun, name, other = (batch[mark].astype(jnp.float32) for mark in ("pronoun", "name", "other"))

        def weight(queries: jax.Array, keys: jax.Array) -> jax.Array:
            mean = queries / queries.sum(axis=1, keepdims=True)
            return jnp.einsum("lbhqk,bq,bk->lbh", weights, mean, keys)

        is_right = jnp.stack(
            [
                weight(pronoun, name) > weight(pronoun, other),
                weight(name, pronoun) > weight(other, pronoun),
            ]
        )
        return {"correct": jnp.einsum("dlbh,b->dlh", is_right.astype(jnp.float32), batch["valid"]), "count": batch["valid"].sum()}

    def scores(self, sums: Mapping[str, np.ndarray]) -> list[CoreferenceScore]:
        """Return the scores of all heads in both directions, the best first."""
        shares = sums["correct"] / sums["count"]
        order = np.argsort(-shares, axis=None, kind="stable")
        places = (np.unravel_index(int(place), shares.shape) for place in order)
        return [
            CoreferenceScore(int(layer) + 1, int(head) + 1, DIRECTIONS[direction], float(shares[direction, layer, head]))
            for direction, layer, head in places
        ]

    def baselines(self) -> dict[str, float]:
        """Return the shares of the pronouns that stand for the nearer name, and for the name that comes first."""

        def distance(passage: Passage, mention: Mention) -> int:
            return abs(mention.start - passage.pronoun.start)

        return {
            "the nearer name": float(np.mean([distance(one, one.name) < distance(one, one.other) for one in self.passages])),
            "the first name": float(np.mean([one.name.start < one.other.start for one in self.passages])),
        }


def _tokens(row: TokenRow, mention: Mention) -> np.ndarray:
    """Return 1 for each token with a character of a mention, int32[length]."""
    starts, ends = row.offsets.T
    return ((row.texts >= 0) & (starts < mention.end) & (ends > mention.start) & (ends > starts)).astype(np.int32)

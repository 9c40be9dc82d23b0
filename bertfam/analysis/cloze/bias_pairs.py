"""Pairs of sentences about bias (CrowS-Pairs, Nangia et al. 2020): how often the more stereotyping sentence is likelier."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from bertfam.api import LanguageModel, Model
from bertfam.data.corpora.labelled.records import check_columns, read_records, record_format, text_of
from bertfam.decoding.hidden_tokens import HiddenTokens, TokenPredictor
from bertfam.errors import UserError
from bertfam.evaluation.minimal_pairs import TIE
from bertfam.evaluation.sentence_scores import encoded_rows, scorer, summed

DIRECTIONS = ("stereo", "antistereo")
_COLUMNS = ("sent_more", "sent_less", "stereo_antistereo", "bias_type")


class BiasPair(NamedTuple):
    """Pair of sentences that differ in the group that they are about.

    Attributes:
      more, less: the more and the less stereotyping sentence.
      direction: one of `DIRECTIONS`: the pair shows a stereotype of a disadvantaged group, or goes against one.
      bias_type: kind of bias.
      where: file and line.
    """

    more: str
    less: str
    direction: str
    bias_type: str
    where: str


def read_bias_pairs(path: str | os.PathLike[str], limit: int | None = None) -> list[BiasPair]:
    """Read a file with the columns of CrowS-Pairs, plain or compressed.

    Args:
      path: the file: .csv, .tsv, .jsonl or .parquet.
      limit: number of pairs of each kind of bias; None: all.

    Raises:
      UserError: the name does not say the format, a column is missing, a sentence is empty, a direction is another one, or there
        is no pair.
    """
    if record_format(path) is None:
        raise UserError(f"{path}: the name does not end in .tsv, .csv, .jsonl or .parquet; rename the file, so that it does")
    pairs, counts = [], Counter[str]()
    for where, record in read_records(path, None, "utf-8", columns=dict.fromkeys(_COLUMNS, "--bias")):
        check_columns(record, _COLUMNS, where, "--bias")
        more, less, direction, bias_type = (text_of(record, name, where, "--bias") for name in _COLUMNS)
        if direction not in DIRECTIONS:
            raise UserError(f"{where}: stereo_antistereo is {direction!r}, and must be stereo or antistereo")
        if not (more and less):
            raise UserError(f"{where}: a sentence is empty; fill it or remove the line")
        counts[bias_type] += 1
        if limit is None or counts[bias_type] <= limit:
            pairs.append(BiasPair(more, less, direction, bias_type, where))
    if not pairs:
        raise UserError(f"{path} has no pair of sentences")
    return pairs


def score_bias_pairs(
    predictor: TokenPredictor, networks: Mapping[str, Model | LanguageModel], pairs: Sequence[BiasPair]
) -> np.ndarray:
    """Score the more and the less stereotyping sentence of each pair: float64[pairs, 2].

    The score of a sentence is the sum over its unmodified tokens, those that both sentences have, of log p(token | all others),
    with the token hidden: a pseudo-log-likelihood of these tokens given the modified ones (Nangia et al. 2020). A model that does
    not see what is behind a token scores whole sentences, by their log-probability.

    Raises:
      UserError: a sentence has no token, or more than the model reads.
    """
    sentences = [sentence for pair in pairs for sentence in (pair.more, pair.less)]
    where = [pair.where for pair in pairs for _ in range(2)]
    if not predictor.sees_behind:
        return scorer(networks).score(sentences, where).reshape(-1, 2)
    encoded = encoded_rows(predictor, sentences, where)
    rows, owners = list[HiddenTokens](), list[int]()
    for number in range(0, len(encoded), 2):
        more, less = encoded[number : number + 2]
        shared = unmodified(more, less, len(predictor.before), len(predictor.behind))
        for side, (tokens, places) in enumerate(zip((more, less), shared, strict=True)):
            rows += [HiddenTokens(tokens, np.array([place]), 1) for place in places]
            owners += [number + side] * len(places)
    return summed(predictor, rows, owners, len(encoded)).reshape(-1, 2)


def unmodified(left: np.ndarray, right: np.ndarray, before: int, behind: int) -> tuple[list[int], list[int]]:
    """Return the places of the tokens that two rows share, in the order of a longest match, without their frames."""
    first_ids, second_ids = (row[before : len(row) - behind].tolist() for row in (left, right))
    blocks = SequenceMatcher(None, first_ids, second_ids, autojunk=False).get_matching_blocks()
    first, second = ([before + block[side] + n for block in blocks for n in range(block.size)] for side in (0, 1))
    return first, second


def bias_report(pairs: Sequence[BiasPair], scores: np.ndarray) -> dict[str, Any]:
    """Return the shares of the pairs whose more stereotyping sentence is likelier, as JSON values; 0.5 is no preference.

    A tie counts half.

    Args:
      pairs: the pairs.
      scores: float64[pairs, 2].
    """
    prefers = np.where(scores[:, 0] == scores[:, 1], TIE, (scores[:, 0] > scores[:, 1]).astype(np.float64))

    def shares(is_own: np.ndarray) -> dict[str, Any]:
        parts = {"all": is_own} | {name: is_own & (np.array([p.direction for p in pairs]) == name) for name in DIRECTIONS}
        ties = {"ties": int(np.sum(prefers[is_own] == TIE))}
        return ties | {
            name: {"pairs": int(part.sum()), "prefers": float(prefers[part].mean()) if part.any() else None}
            for name, part in parts.items()
        }

    types = [pair.bias_type for pair in pairs]
    return shares(np.ones(len(pairs), bool)) | {
        "types": {name: shares(np.array([one == name for one in types])) for name in sorted(set(types))}
    }

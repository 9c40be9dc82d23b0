"""Corrupted rows, decoded, as JSON values."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.vocabularies import Vocabulary
from bertfam.features import SENTENCES, Sentences

ROLES = ("query", "passage")  # of the first text of a row for retrieval, and of the others
KINDS = ("masked", "random", "kept", "shuffled", "permuted", "paired")


def records(
    rows: Mapping[str, np.ndarray], vocabulary: Vocabulary, corpora: Sequence[str], classes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Decode rows to one JSON object each.

    Args:
      rows: Finished features, [n, ...] each.
      vocabulary: Vocabulary of the ids.
      corpora: Name of the corpus of each of the n rows.
      classes: Names of the classes of labelled texts; none where their labels are numbers.

    Returns:
      For each row its `corpus`; its `pieces` as the model sees them and its `original` ones, both without `padding` (a number of
      positions); its `predictions` (`position`, `segment` of the example, `original`, `input`, `kind`: one of KINDS, `weight`,
      and of permuted ones `order`, from 1; of paired ones `original` is the other word of the pair); its `examples` (`segment`,
      `begin` and `end` in the row, `next_sentence`: the label of B, "next", "random" or "previous", or null, the `text` before
      the noise, and in rows for retrieval the `role`, one of ROLES); `next_sentence` of the only example, or null; of labelled
      texts the `label`; and `features`, every array as lists.
    """
    clean, kinds, orders = originals(rows), kinds_of(rows, vocabulary.token_ids), orders_of(rows)
    has_roles = "masked_positions" not in rows and "labels" not in rows
    result = []
    for index, segments in enumerate(rows["encoder_segment_ids"]):
        features = {name: value[index] for name, value in rows.items()}
        used = _used(segments)
        pieces = vocabulary.pieces(features["encoder_input_tokens"][:used])
        original = vocabulary.pieces(clean[index, :used])
        examples = [
            {
                "segment": segment,
                "begin": begin,
                "end": end,
                "next_sentence": _label(features, segment),
                "text": vocabulary.decode(_read(clean[index, begin:end], features), skip_special=True),
                **({"role": ROLES[min(segment, 2) - 1]} if has_roles else {}),
            }
            for segment, begin, end in _examples(segments)
        ]
        result.append(
            {
                "corpus": corpora[index],
                "pieces": pieces,
                "original": original,
                "padding": len(segments) - used,
                "predictions": _predictions(features, kinds[index], None if orders is None else orders[index], vocabulary),
                "examples": examples,
                "next_sentence": examples[0]["next_sentence"] if len(examples) == 1 else None,
                **({"label": _described(features, classes)} if "labels" in rows else {}),
                "features": {name: value.tolist() for name, value in features.items()},
            }
        )
    return result


def is_retrieval(record: Mapping[str, Any]) -> bool:
    """Return True for a record of a query and passages."""
    return any("role" in example for example in record["examples"])


def originals(rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the tokens before the noise: int32[n, length]."""
    tokens = rows["encoder_input_tokens"].copy()
    if "masked_positions" not in rows or "noise_tokens" in rows:
        return tokens
    row, slot = np.nonzero(rows["masked_loss_weights"] > 0)
    tokens[row, rows["masked_positions"][row, slot]] = rows["masked_target_tokens"][row, slot]
    return tokens


def kinds_of(rows: Mapping[str, np.ndarray], tokens: TokenIds) -> np.ndarray:
    """Return the kind of input at each target, an index of KINDS, or -1 in unused slots: int64[n, predictions].

    A random token that equals its target by chance counts as kept, since the two cannot be distinguished. Every shuffled token
    counts as shuffled, every one that is predicted in the order of a permutation as permuted, and every pair of words beside
    words drawn at random as paired. Labelled rows have no slots.
    """
    if "masked_positions" not in rows:
        return np.zeros((len(rows["encoder_input_tokens"]), 0), np.int64)
    seen = np.take_along_axis(rows["encoder_input_tokens"], rows["masked_positions"], axis=1)
    kinds = np.where(seen == rows["masked_target_tokens"], 2, np.where(seen == tokens.mask, 0, 1))
    if "shuffled_loss_weights" in rows:
        kinds = np.where(rows["shuffled_loss_weights"] > 0, 3, kinds)
    if "encoder_ranks" in rows:
        kinds = np.full_like(kinds, 4)
    if "noise_tokens" in rows:
        kinds = np.full_like(kinds, 5)
    return np.where(rows["masked_loss_weights"] > 0, kinds, -1)


def present_kinds(rows: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return the kinds that rows with these features may have."""
    if "encoder_ranks" in rows:
        return KINDS[4:5]
    if "noise_tokens" in rows:
        return KINDS[5:]
    if "masked_positions" not in rows:
        return ()
    return KINDS[:4] if "shuffled_loss_weights" in rows else KINDS[:3]


def orders_of(rows: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the place of each target in the order of a permutation, from 1: int64[n, predictions]; None for other rows."""
    if "encoder_ranks" not in rows:
        return None
    ranks = np.take_along_axis(rows["encoder_ranks"], rows["masked_positions"], axis=1)
    ranks = np.where(rows["masked_loss_weights"] > 0, ranks, ranks.max(initial=0) + 1)
    return np.argsort(np.argsort(ranks, axis=1, kind="stable"), axis=1) + 1


def _predictions(
    features: Mapping[str, np.ndarray],
    kinds: np.ndarray,
    orders: np.ndarray | None,
    vocabulary: Vocabulary,
) -> list[dict[str, Any]]:
    """Return the predictions of a row, one JSON object each.

    Args:
      features: The features of the row.
      kinds: int64[predictions], the kind of each, or -1 in unused slots.
      orders: int64[predictions], the place of each in the order of a permutation; None for other rows.
      vocabulary: Vocabulary of the ids.
    """
    values = []
    for slot in np.flatnonzero(kinds >= 0).tolist():
        position = int(features["masked_positions"][slot])
        original, seen = vocabulary.pieces([features["masked_target_tokens"][slot], features["encoder_input_tokens"][position]])
        values.append(
            {
                "position": position,
                "segment": int(features["encoder_segment_ids"][position]),
                "original": original,
                "input": seen,
                "kind": KINDS[kinds[slot]],
                "weight": float(features["masked_loss_weights"][slot]),
                **({} if orders is None else {"order": int(orders[slot])}),
            }
        )
    return values


def by_position(record: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the predictions of a record by position; of the pairs of a word one, whose `original` are all the other words."""
    predictions = sorted(record["predictions"], key=lambda prediction: prediction["position"])
    groups = {place: list(group) for place, group in groupby(predictions, lambda prediction: prediction["position"])}
    return {place: group[0] | {"original": " ".join(one["original"] for one in group)} for place, group in groups.items()}


def token_types(record: Mapping[str, Any]) -> list[int]:
    """Return the token type of each position of a record; 0 where the rows have none."""
    types: list[int] = record["features"].get("encoder_token_type_ids") or [0] * len(record["pieces"])
    return types


def _read(tokens: np.ndarray, features: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the tokens of an example in the order of its text."""
    return tokens[::-1] if np.any(features.get("encoder_reversed", 0)) else tokens


def sentences_of(rows: Mapping[str, np.ndarray]) -> Sentences | None:
    """Return the kind of sentence-pair labels in rows; None if rows have none."""
    return next((sentences for sentences in SENTENCES.values() if sentences.labels in rows), None)


def _described(features: Mapping[str, np.ndarray], classes: Sequence[str]) -> str | None:
    """Return the label of a text, or the tags of its words, in words; None if it is not known."""
    labels, weights = features["labels"], features["label_weights"]
    if len(labels) == len(features["encoder_input_tokens"]):
        tags = labels[weights > 0].astype(int)
        return " ".join(classes[tag] if classes else str(tag) for tag in tags)
    if not weights.all():
        return None
    if not classes:
        return f"{labels[0]:g}"
    if len(labels) == 1:
        return classes[int(labels[0])]
    return ", ".join(name for name, value in zip(classes, labels, strict=True) if value)


def _used(segments: np.ndarray) -> int:
    """Return the number of positions of a row up to the last that is not padding."""
    real = np.flatnonzero(segments)
    return int(real[-1]) + 1 if real.size else 0


def _examples(segments: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield segment, begin and end of each example in a row."""
    for segment in range(1, int(segments.max(initial=0)) + 1):
        places = np.flatnonzero(segments == segment)
        yield segment, int(places[0]), int(places[-1]) + 1


def _label(features: Mapping[str, np.ndarray], segment: int) -> str | None:
    sentences = sentences_of(features)
    if sentences is None or not features[sentences.weights][segment - 1]:
        return None
    return sentences.classes[features[sentences.labels][segment - 1]]

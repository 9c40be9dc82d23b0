"""Corrupted rows, decoded for people and as JSON."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertfam.data.vocabularies import Vocabulary

KINDS = ("masked", "random", "kept")


def records(rows: Mapping[str, np.ndarray], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """One JSON object a row.

    Args:
      rows: finished features, [n, ...] each.
      vocabulary: of their ids.

    Returns:
      for each row its `pieces` (padding left out), the `predictions` in it (`position`, `original`, `input` and `kind`: "masked",
      "random" or "kept"), `next_sentence` ("next" or "random"), and `features`, every array as lists.
    """
    mask = vocabulary.token_ids.mask
    result = []
    for index in range(len(rows["encoder_input_tokens"])):
        features = {name: value[index] for name, value in rows.items()}
        length = int(np.count_nonzero(features["encoder_segment_ids"]))
        tokens = features["encoder_input_tokens"]
        predictions = []
        for position, target, weight in zip(
            features["masked_positions"], features["masked_target_tokens"], features["masked_loss_weights"], strict=True
        ):
            if weight > 0:
                original, seen = vocabulary.pieces([target, tokens[position]])
                kind = "kept" if tokens[position] == target else "masked" if tokens[position] == mask else "random"
                predictions.append({"position": int(position), "original": original, "input": seen, "kind": kind})
        result.append(
            {
                "pieces": vocabulary.pieces(tokens[:length]),
                "predictions": predictions,
                "next_sentence": "random" if features["next_sentence_labels"][0] else "next",
                "features": {name: value.tolist() for name, value in features.items()},
            }
        )
    return result


def text(record: Mapping[str, Any]) -> str:
    """A record as one line: {word>[MASK]} masked, {word>other} replaced, {word} kept but predicted."""
    pieces = list(record["pieces"])
    for found in record["predictions"]:
        kept = found["kind"] == "kept"
        pieces[found["position"]] = f"{{{found['original']}}}" if kept else f"{{{found['original']}>{found['input']}}}"
    return " ".join(pieces)


def shares(found: list[dict[str, Any]]) -> dict[str, float]:
    """Statistics of records: of the row's places, of its tokens, of the predictions, of the rows."""
    places = sum(len(record["features"]["encoder_input_tokens"]) for record in found)
    tokens = sum(len(record["pieces"]) for record in found)
    kinds = Counter(prediction["kind"] for record in found for prediction in record["predictions"])
    unknown = sum(record["pieces"].count("[UNK]") for record in found)
    predicted = max(kinds.total(), 1)
    return {
        "real_tokens": tokens / places,
        "unknown": unknown / tokens,
        "predicted": kinds.total() / tokens,
        **{kind: kinds[kind] / predicted for kind in KINDS},
        "next_sentence_random": sum(record["next_sentence"] == "random" for record in found) / len(found),
    }

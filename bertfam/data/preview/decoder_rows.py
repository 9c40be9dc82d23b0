"""Records and statistics of rows for decoders: inputs and targets, decoded."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.preview.statistics import Statistics
from bertfam.data.vocabularies import Vocabulary

TARGETS = "decoder_target_tokens"


def decoder_records(rows: Mapping[str, np.ndarray], vocabulary: Vocabulary, corpora: Sequence[str]) -> list[dict[str, Any]]:
    """Decode rows to one JSON object each.

    Args:
      rows: Finished features, including those of a decoder, [n, ...] each.
      vocabulary: Vocabulary of the ids.
      corpora: Name of the corpus of each of the n rows.

    Returns:
      For each row its `corpus`; its `examples` (`segment`; the pieces of the encoder's `inputs`, or null without an encoder; the
      `decoder_inputs`, `targets` and their `weights`; `input_text` and `target_text` without control tokens); the number of
      positions of `padding` by part, "encoder" and "decoder"; and `features`, every array as lists.
    """
    result = []
    for index in range(len(rows[TARGETS])):
        features = {name: value[index] for name, value in rows.items()}
        parts = [part for part in ("encoder", "decoder") if f"{part}_segment_ids" in features]
        most = max(int(features[f"{part}_segment_ids"].max(initial=0)) for part in parts)
        examples = [_example(features, vocabulary, segment) for segment in range(1, most + 1)]
        padding = {part: int((features[f"{part}_segment_ids"] == 0).sum()) for part in parts}
        lists = {name: value.tolist() for name, value in features.items()}
        result.append({"corpus": corpora[index], "examples": examples, "padding": padding, "features": lists})
    return result


def _example(features: Mapping[str, np.ndarray], vocabulary: Vocabulary, segment: int) -> dict[str, Any]:
    read = None
    if "encoder_segment_ids" in features:
        read = features["encoder_input_tokens"][features["encoder_segment_ids"] == segment]
    here = features["decoder_segment_ids"] == segment
    targets = features[TARGETS][here]
    return {
        "segment": segment,
        "inputs": None if read is None else vocabulary.pieces(read),
        "decoder_inputs": vocabulary.pieces(features["decoder_input_tokens"][here]),
        "targets": vocabulary.pieces(targets),
        "weights": features["decoder_loss_weights"][here].tolist(),
        "input_text": None if read is None else vocabulary.decode(read, skip_special=True),
        "target_text": vocabulary.decode(targets, skip_special=True),
    }


@dataclass
class DecoderStatistics(Statistics):
    """Counts over rows for decoders.

    Attributes:
      targets: Positions of the decoder in a row.
      counts: Positions, tokens and unknown tokens of each part, targets with weight, marks of noise in the encoder's inputs, and
        rows with targets before the first sentinel.
    """

    targets: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @override
    def add(self, rows: Mapping[str, np.ndarray], tokens: TokenIds) -> None:
        self.rows += len(rows[TARGETS])
        self.targets = rows[TARGETS].shape[1]
        parts = [part for part in ("encoder", "decoder") if f"{part}_segment_ids" in rows]
        for part in parts:
            ids, real = rows[f"{part}_input_tokens"], rows[f"{part}_segment_ids"] > 0
            self.counts.update({f"{part}_places": real.size, f"{part}_real": int(real.sum())})
            if part == "encoder":
                marks = [*tokens.sentinels, *([] if tokens.mask is None else [tokens.mask])]
                self.counts["marks"] += int((real & np.isin(ids, marks)).sum())
        real = rows["decoder_segment_ids"] > 0
        if tokens.unk != tokens.pad:  # a vocabulary that can spell every text has no id of its own for unknown text
            self.counts["unknown"] += int((real & (rows[TARGETS] == tokens.unk)).sum())
        self.counts["weighted"] += int((rows["decoder_loss_weights"] > 0).sum())
        is_sentinel = real & np.isin(rows[TARGETS], tokens.sentinels)
        self.counts["ahead"] += int((is_sentinel.any(axis=1) & ~is_sentinel[:, 0]).sum())
        self.tokens = self.counts[f"{parts[0]}_real"]
        self._add_lengths(rows[f"{parts[0]}_segment_ids"])

    @property
    @override
    def size(self) -> str:
        return f"{self.length} inputs and {self.targets} targets" if self.counts["encoder_places"] else f"{self.length} tokens"

    @override
    def shares(self) -> dict[str, float]:
        # Shares of the positions, of the inputs (`noise_marks`), and of the targets (`unknown`, `weighted`).
        count = self.counts
        shares = {}
        if count["encoder_places"]:
            shares["real_inputs"] = count["encoder_real"] / count["encoder_places"]
            shares["noise_marks"] = count["marks"] / max(count["encoder_real"], 1)
        targets = max(count["decoder_real"], 1)
        shares["real_targets"] = count["decoder_real"] / max(count["decoder_places"], 1)
        return shares | {"unknown": count["unknown"] / targets, "weighted": count["weighted"] / targets}

    @override
    def numbers(self) -> dict[str, str]:
        ahead = {"rows with targets before the first sentinel": f"{self.counts['ahead']:,}"} if self.counts["ahead"] else {}
        return {"targets a row": f"{self.counts['decoder_real'] / max(self.rows, 1):.1f}"} | super().numbers() | ahead

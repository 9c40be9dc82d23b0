"""Boundaries of predicted spans, checked one row at a time, and SpanBERT's noise in real text."""

import math
from collections import Counter

import numpy as np
import pytest
from noise_rows import VOCABULARIES, noise_rows

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.span_selection import WordSpans
from bertfam.corruption.words import find_words
from bertfam.data.rows.running_text import DocSentences
from bertfam.data.text_data import TextData

NOISE = BertMasking(choice=WordSpans(), rounding="up", counted="maskable", drawn_by="unit", boundaries=True)
NAMES = ("left_positions", "right_positions", "offsets", "loss_weights")


def runs_of_positions(positions):
    """Return the runs of consecutive positions as lists."""
    runs = []
    for position in positions:
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs


@pytest.mark.parametrize("tokens", VOCABULARIES.values(), ids=VOCABULARIES)
def test_boundaries_equal_a_naive_implementation(tokens):
    rows = noise_rows(tokens, 300, 64)
    result = NOISE.corrupt(rows, fold(1, np.arange(300)), tokens)
    control = set(tokens.special) - {tokens.unk}
    kept = dropped = 0
    for row in range(300):
        used = result["masked_loss_weights"][row] > 0
        positions = result["masked_positions"][row][used].tolist()
        ids, segments = rows["encoder_input_tokens"][row].tolist(), rows["encoder_segment_ids"][row]
        expected = []
        for span in runs_of_positions(positions):
            left, right = span[0] - 1, span[-1] + 1
            inside = all(0 <= side < 64 and segments[side] and ids[side] not in control for side in (left, right))
            kept, dropped = kept + inside, dropped + (not inside)
            expected += [(left, right, offset, 1.0) if inside else (0, 0, 0, 0.0) for offset in range(len(span))]
        expected += [(0, 0, 0, 0.0)] * int((~used).sum())
        assert list(zip(*(result[f"span_{name}"][row].tolist() for name in NAMES), strict=True)) == expected
    assert kept > 100 and dropped > 100
    # Boundary tokens themselves are not predicted.
    weights = result["span_loss_weights"] > 0
    for side in ("left", "right"):
        boundary_tokens = np.take_along_axis(result["encoder_input_tokens"], result[f"span_{side}_positions"], axis=1)[weights]
        assert np.array_equal(
            boundary_tokens, np.take_along_axis(rows["encoder_input_tokens"], result[f"span_{side}_positions"], axis=1)[weights]
        )


def test_boundary_features_exist_only_if_set():
    tokens, rows = VOCABULARIES["wordpiece"], noise_rows(VOCABULARIES["wordpiece"], 20, 64)
    assert {f"span_{name}" for name in NAMES} == (
        NOISE.corrupt(rows, fold(1, np.arange(20)), tokens).keys()
        - BertMasking().corrupt(rows, fold(1, np.arange(20)), tokens).keys()
    )
    specs = TextData(rows=DocSentences(), corruption=NOISE).features(64)
    result = NOISE.corrupt(rows, fold(1, np.arange(20)), tokens)
    for name in (f"span_{name}" for name in NAMES):
        assert result[name].shape[1:] == specs[name].shape and result[name].dtype == specs[name].dtype
    assert not any(name.startswith("span") for name in TextData(rows=DocSentences()).features(64))


def test_budget_and_shares_of_spans_in_real_text(cache, tokens):
    """Budget ceil(0.15 n) of n text tokens, spans of whole words with a mean of 3.8 before merging, 80/10/10 per span."""
    examples = DocSentences().examples(cache.documents("train", "text"), 128, 1, tokens)
    chosen = np.resize(np.arange(len(examples)), 1000)
    rows = examples.rows(chosen, fold(3, np.arange(1000)))
    result = NOISE.corrupt(rows, fold(4, np.arange(1000)), tokens)
    used = result["masked_loss_weights"] > 0
    n = rows["maskable"].sum(axis=1)
    assert np.array_equal(used.sum(axis=1), np.ceil(0.15 * n).astype(int).clip(1))
    original, inputs = (
        np.take_along_axis(source["encoder_input_tokens"], result["masked_positions"], axis=1) for source in (rows, result)
    )
    assert np.take_along_axis(rows["maskable"], result["masked_positions"], axis=1)[used].all()
    words = find_words(rows, tokens)
    kinds, sizes, mixed = Counter(), [], 0
    for row in range(1000):
        slot = 0
        for span in runs_of_positions(result["masked_positions"][row][used[row]].tolist()):
            span_slots = slice(slot, slot + len(span))
            slot += len(span)
            masked, kept = inputs[row, span_slots] == tokens.mask, inputs[row, span_slots] == original[row, span_slots]
            mixed += 0 < masked.sum() < len(span)
            kinds["masked" if masked.all() else "kept" if kept.all() else "random"] += 1
            sizes.append(len(set(words.number[row, span].tolist())))
            # A span starts at the start of a word.
            assert words.begins()[row, span[0]] or not rows["maskable"][row, span[0] - 1]
    total = sum(kinds.values())
    assert not mixed and total > 2000
    for kind, share in (("masked", 0.8), ("kept", 0.1), ("random", 0.1)):
        assert abs(kinds[kind] / total - share) < 5 * math.sqrt(share * (1 - share) / total) + 0.005
    # The last span of a row is cut to the budget, and adjacent spans merge.
    assert 2.5 < np.mean(sizes) < 4.5
    share_with_boundaries = result["span_loss_weights"].sum() / used.sum()
    assert 0.85 < share_with_boundaries <= 1 and result["span_offsets"].max() >= 10

"""Packed rows: best-fit-decreasing packing, segments, labels and keys."""

import numpy as np
import pytest
from numbered_documents import BARE, FIRST, IDS, make_documents, random_documents

from bertfam.data.rows.earlier_rows import earlier_rows
from bertfam.data.rows.packing import Packed, pack
from bertfam.data.rows.running_text import DocSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.errors import UserError


def random_keys(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)


def best_fit_decreasing(lengths, capacity, max_examples):
    """Return how full the rows are when examples are packed one at a time."""
    rows = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row in rows if row[0] + length <= capacity and row[1] < max_examples]
        if fitting:
            row = max(fitting, key=lambda row: row[0])
            row[0] += length
            row[1] += 1
        else:
            rows.append([length, 1])
    return sorted(filled for filled, _ in rows)


@pytest.mark.parametrize("max_examples", [1, 3, 100])
@pytest.mark.parametrize("kind", ["uniform", "short", "long", "equal"])
def test_packing_is_best_fit_decreasing(kind, max_examples):
    generator = np.random.default_rng(max_examples)
    high = {"uniform": 64, "short": 9, "long": 64, "equal": 8}[kind]
    lengths = generator.integers({"long": 30, "equal": 7}.get(kind, 1), high + 1, 700)
    bounds, order = pack(lengths, 64, max_examples, key=3)
    assert sorted(order.tolist()) == list(range(700)) and bounds[0] == 0 and bounds[-1] == 700
    counts = np.diff(bounds)
    assert counts.min() >= 1 and counts.max() <= max_examples
    full = np.add.reduceat(lengths[order], bounds[:-1])
    assert full.max() <= 64
    expected = best_fit_decreasing(lengths.tolist(), 64, max_examples)
    if kind == "equal" or max_examples != 3:  # with a limit, which of equally full rows is closed first may differ
        assert sorted(full.tolist()) == expected
    assert len(full) <= len(expected) + 1


def test_key_breaks_ties_among_equal_lengths():
    lengths = np.full(100, 30)
    first, again, other = (pack(lengths, 64, 8, key)[1] for key in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_packing_of_one_example():
    bounds, order = pack(np.array([5]), 8, 2, 0)
    assert bounds.tolist() == [0, 1] and order.tolist() == [0]


@pytest.mark.parametrize("inner", [WholeDocuments(), DocSentences()])
def test_packed_rows_contain_whole_examples(inner):
    documents = random_documents(5, 80)
    length = 64
    plain = inner.examples(documents, length, 0, IDS)
    unpacked = plain.rows(np.arange(len(plain)), random_keys(len(plain)))
    texts = {tuple(tokens[segments > 0].tolist()) for tokens, segments in
             zip(unpacked["encoder_input_tokens"], unpacked["encoder_segment_ids"], strict=True)}  # fmt: skip
    packed = Packed(inner, divided=0.0).examples(documents, length, 7, IDS)
    rows = packed.rows(np.arange(len(packed)), random_keys(len(packed)))
    packed_texts = set()
    for row in range(len(packed)):
        segments = rows["encoder_segment_ids"][row]
        count = segments.max()
        assert 1 <= count <= length // 4
        assert (np.diff(np.concatenate([segments[segments > 0], [count]])) >= 0).all()  # 1 1 2 2 2 3 0 0
        for segment in range(1, count + 1):
            positions = np.flatnonzero(segments == segment)
            assert rows["encoder_positions"][row, positions].tolist() == list(range(len(positions)))
            assert rows["sequence_start_positions"][row, segment - 1] == positions[0]
            tokens = rows["encoder_input_tokens"][row, positions]
            assert tokens[0] == IDS.cls and tokens[-1] == IDS.sep
            packed_texts.add(tuple(tokens.tolist()))
        padding = segments == 0
        for name in ("encoder_input_tokens", "encoder_positions", "maskable"):
            assert not rows[name][row, padding].any()
        assert not rows["sequence_start_positions"][row, count:].any()
    assert packed_texts == texts
    assert sorted(rows["encoder_input_tokens"][rows["maskable"]].tolist()) == list(range(FIRST, FIRST + len(documents.tokens)))
    assert packed.fill == pytest.approx((rows["encoder_segment_ids"] > 0).mean())


def test_divided_examples_fill_rows_with_whole_sentences():
    documents = random_documents(5, 400, most_sentences=40, most_tokens=60)
    plain = DocSentences().examples(documents, 128, 0, IDS)
    divided = plain.divided(0.5, 7)
    assert len(plain) < len(divided) and plain.divided(0.0, 7).lengths.tolist() == plain.lengths.tolist()
    tokens = divided.rows(np.arange(len(divided)), random_keys(len(divided)))["encoder_input_tokens"]
    text = [row[1 : size - 1] for row, size in zip(tokens, divided.lengths.tolist(), strict=True)]
    assert np.array_equal(np.concatenate(text), np.arange(FIRST, FIRST + len(documents.tokens)))
    sentences = np.isin([row[0] - FIRST for row in text], documents.sentence_starts)
    assert sentences.all()
    # Each example is one of the rows of whole sentences, or one of their sentences.
    lengths = set(np.diff(documents.sentence_starts) + 2) | set(plain.lengths.tolist())
    assert set(divided.lengths.tolist()) <= lengths

    layouts = Packed(DocSentences()), earlier_rows(Packed(DocSentences()), 3)
    packed, earlier = (layout.examples(documents, 128, 7, IDS) for layout in layouts)
    assert earlier.fill < 0.93 and packed.fill > 0.98 and len(packed) < 0.95 * len(earlier)


def test_short_examples_fill_rows():
    documents = make_documents(*[[4]] * 1008)
    assert Packed().examples(documents, 48, 7, IDS).fill == 1 and Packed().most_examples(48) == 12
    earlier = earlier_rows(Packed(), 3)
    assert earlier.examples(documents, 48, 7, IDS).fill == 3 * 6 / 48 and earlier.most_examples(48) == 3


def test_packed_pairs_keep_their_labels():
    documents = random_documents(6, 200, most_sentences=6, most_tokens=12)
    inner, length = SentencePairs(short_sequence_rate=0.3), 64
    packed = Packed(inner, max_examples=5).examples(documents, length, 7, IDS)
    rows = packed.rows(np.arange(len(packed)), random_keys(len(packed), 1))
    assert rows["next_sentence_labels"].shape == rows["sequence_start_positions"].shape == (len(packed), 5)
    continued = 0
    for row in range(len(packed)):
        segments, tokens = rows["encoder_segment_ids"][row], rows["encoder_input_tokens"][row]
        count = segments.max()
        assert rows["next_sentence_weights"][row].tolist() == [1.0] * count + [0.0] * (5 - count)
        for segment in range(1, count + 1):
            positions = np.flatnonzero(segments == segment)
            types = rows["encoder_token_type_ids"][row, positions]
            a, b = (tokens[positions][types == kind].tolist() for kind in (0, 1))
            assert a[0] == IDS.cls and a[-1] == b[-1] == IDS.sep and len(a) > 2 and len(b) > 1
            continues = b[0] == a[-2] + 1
            label = rows["next_sentence_labels"][row, segment - 1]
            # Tokens are numbered: B continues A if and only if its first token follows A's last, unless A or B was cut.
            assert not (continues and label == 1)
            continued += continues
        assert not rows["next_sentence_labels"][row, count:].any()
    assert 0.3 < continued / rows["next_sentence_weights"].sum() < 0.6
    assert (rows["encoder_segment_ids"] > 0).mean() > 0.85  # a random B ends with its own short document


def test_row_depends_on_its_own_key_only():
    packed = Packed(SentencePairs()).examples(random_documents(8, 60), 48, 1, IDS)
    order = np.random.default_rng(1).permutation(len(packed))
    row_keys = random_keys(len(packed), 2)
    whole, mixed = packed.rows(np.arange(len(packed)), row_keys), packed.rows(order, row_keys[order])
    assert all(np.array_equal(value[order], mixed[name]) for name, value in whole.items())
    other = packed.rows(np.arange(len(packed)), random_keys(len(packed), 3))
    assert not np.array_equal(whole["next_sentence_labels"], other["next_sentence_labels"])
    empty = packed.rows(np.zeros(0, np.int64), row_keys[:0])
    assert empty["encoder_input_tokens"].shape == (0, 48)


def test_rows_of_real_text_are_nearly_full(cache, tokens):
    for rows in (WholeDocuments(), SentencePairs()):
        packed = Packed(rows, max_examples=64).examples(cache.documents("train", "text"), 512, 0, tokens)
        batch = packed.rows(np.arange(len(packed)), random_keys(len(packed)))
        assert (batch["encoder_segment_ids"] > 0).mean() > 0.95  # with only 75 documents


def test_bad_packing_settings_are_refused():
    with pytest.raises(UserError, match="no cls token, which Packed requires"):
        Packed().examples(make_documents([3]), 16, 0, BARE)
    with pytest.raises(ValueError, match="max_examples 1 is less than 2"):
        Packed(max_examples=1)

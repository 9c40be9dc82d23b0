"""Batches as a pure function of (seed, step)."""

import dataclasses
import math
import random
import sys

import numpy as np
import pytest
from numbered_documents import fake_cache

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import RareTokens, WithReplacement
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.masked_lm.span_selection import WordNgrams, WordSpans
from bertfam.corruption.masked_lm.units import Units
from bertfam.data.corpora.marked_text import MarkedText
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.mixture import Mixture
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.two_segments import TwoSegments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.errors import UserError

LENGTH, BATCH = 64, 32
LISTS = TextFiles(("unread.txt",))


@pytest.fixture(scope="module")
def data():
    return TextData()


@pytest.fixture(scope="module")
def source(data, cache, tokens):
    return data.training(cache, tokens, LENGTH, BATCH, seed=1)


def epoch_rows(source, epoch):
    """Return the rows of a whole epoch in the order of the examples."""
    rows = source.sequence
    examples = np.arange(len(rows.examples))
    return rows.rows_of(np.full(len(examples), epoch), examples)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_rows_have_the_declared_shapes_and_types(data, source):
    specs = data.features(LENGTH)
    rows = source.rows(3, 0, BATCH)
    assert {name: (value.shape, value.dtype.name) for name, value in rows.items()} == {
        name: ((BATCH, *spec.shape), spec.dtype) for name, spec in specs.items()
    }


def test_rows_of_a_step_are_slices_of_its_batch(source):
    choose = random.Random(0)
    for step in (0, 5, 10**6):
        whole = source.rows(step, 0, BATCH)
        for _ in range(10):
            start = choose.randrange(BATCH)
            stop = choose.randrange(start, BATCH + 1)
            assert equal(source.rows(step, start, stop), {name: value[start:stop] for name, value in whole.items()})


SPANS = BertMasking(choice=WordSpans(), rounding="up", counted="maskable", drawn_by="unit", random_tokens="text", boundaries=True)
SHUFFLED, UNITS = BertMasking(shuffling=ShuffledWindows()), BertMasking(choice=Units(), drawn_by="unit")
REPLACED = BertMasking(mask_share=0.85, random_share=0.0, choice=WithReplacement(), slot_margin=0.005)
ORDERED, STRUCTURED = SentencePairs(relation="order"), SentencePairs(relation="structure")
KINDS = {
    "albert": TextData(rows=ORDERED, corruption=BertMasking(choice=WordNgrams())),
    "albert packed": TextData(rows=Packed(ORDERED, max_examples=3), corruption=BertMasking(choice=WordNgrams())),
    "structbert": TextData(rows=STRUCTURED, corruption=SHUFFLED),
    "structbert packed": TextData(rows=Packed(STRUCTURED, max_examples=3), corruption=SHUFFLED),
    "spanbert": TextData(rows=DocSentences(), corruption=SPANS),
    "spanbert packed": TextData(rows=Packed(WholeDocuments()), corruption=SPANS),
    "roberta": TextData(rows=FullSentences(), corruption=BertMasking(rounding="random")),
    "electra": TextData(rows=TwoSegments(), corruption=REPLACED),
    "distilbert": TextData(rows=FullSentences(), corruption=BertMasking(choice=RareTokens(), rounding="up")),
    "modernbert": TextData(rows=Packed(WholeDocuments()), corruption=BertMasking(rate=0.3)),
    "ernie": TextData(corruption=UNITS),
    "ernie packed": TextData(rows=Packed(SentencePairs(), max_examples=3), corruption=UNITS),
}


@pytest.fixture(scope="module")
def marked_cache(corpus, vocabulary, tmp_path_factory):
    return build({"text": MarkedText(corpus, "names")}, vocabulary, tmp_path_factory.mktemp("marked") / "cache")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_depend_on_seed_and_step_only(marked_cache, tokens, kind):
    """Check the declared features, slices from a second source, and that corruption leaves control tokens and padding alone."""
    data = KINDS[kind]
    source, other = (data.training(marked_cache, tokens, LENGTH, BATCH, seed=5) for _ in range(2))
    for step in (0, 7, 10**6):
        whole = source.rows(step, 0, BATCH)
        assert {name: (value.shape, value.dtype.name) for name, value in whole.items()} == {
            name: ((BATCH, *spec.shape), spec.dtype) for name, spec in data.features(LENGTH).items()
        }
        for start, stop in ((0, 8), (8, 24), (31, 32)):
            assert equal(other.rows(step, start, stop), {name: value[start:stop] for name, value in whole.items()})
        row, slot = np.nonzero(whole["masked_loss_weights"])
        positions = whole["masked_positions"][row, slot]
        assert len(row) > BATCH and whole["encoder_segment_ids"][row, positions].all()
        assert not np.isin(whole["masked_target_tokens"][row, slot], tokens.special).any()
        clean = whole["encoder_input_tokens"].copy()
        clean[row, positions] = whole["masked_target_tokens"][row, slot]
        starts = np.unique(np.argwhere(clean == tokens.cls)[:, 0])
        assert len(starts) == BATCH and np.array_equal(clean == tokens.cls, whole["encoder_input_tokens"] == tokens.cls)
        assert np.array_equal(clean == tokens.sep, whole["encoder_input_tokens"] == tokens.sep)
    assert not equal(source.rows(0, 0, BATCH), data.training(marked_cache, tokens, LENGTH, BATCH, seed=6).rows(0, 0, BATCH))


def count_lines_run(function, *arguments):
    """Return the number of lines of Python that a call runs."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


def test_every_step_takes_the_same_work(source):
    """Count lines of Python instead of time: a late step runs no more than the first and reads only its own rows."""
    requested = []

    class CountedExamples:
        def rows(self, examples, keys):
            requested.append(len(examples))
            return source.sequence.examples.rows(examples, keys)

        def __len__(self):
            return len(source.sequence.examples)

    rows = dataclasses.replace(source.sequence, examples=CountedExamples())
    counted_batches = dataclasses.replace(source, sequence=rows)
    counted_batches.rows(0, 0, BATCH)  # work that is done once
    first, *later = (count_lines_run(counted_batches.rows, step, 0, BATCH) for step in (0, 10**6, 10**9))
    assert 0 < max(later) < 2 * first and requested == [BATCH] * 4


def test_same_seed_repeats_the_bits_and_another_seed_changes_them(data, cache, tokens, source):
    again, other, stage = (
        data.training(cache, tokens, LENGTH, BATCH, seed=seed, stage=stage) for seed, stage in ((1, 0), (2, 0), (1, 1))
    )
    assert equal(source.rows(7, 0, BATCH), again.rows(7, 0, BATCH))
    for another in (other, stage):
        rows, others = source.rows(7, 0, BATCH), another.rows(7, 0, BATCH)
        assert not any(np.array_equal(rows[name], others[name]) for name in ("encoder_input_tokens", "masked_positions"))


def test_every_example_occurs_once_an_epoch(source):
    count = len(source.sequence.examples)
    examples_by_epoch = {0: [], 1: [], 1000: []}
    for epoch, numbers in examples_by_epoch.items():
        for step in range(epoch * count // BATCH, (epoch + 1) * count // BATCH + 1):
            epochs, examples = source.sequence.order.index(step * BATCH + np.arange(BATCH))
            numbers += examples[epochs == epoch].tolist()
    assert all(sorted(numbers) == list(range(count)) for numbers in examples_by_epoch.values())
    assert len({tuple(numbers) for numbers in examples_by_epoch.values()}) == 3


def test_epochs_differ_in_masks_splits_labels_and_negatives(source):
    epochs = [epoch_rows(source, epoch) for epoch in (0, 1, 1000)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        first, second = epochs[a], epochs[b]
        assert np.mean((first["masked_positions"] == second["masked_positions"]).all(axis=1)) < 0.05
        assert 0.2 < np.mean(first["next_sentence_labels"] != second["next_sentence_labels"]) < 0.6
        clean = [restore_tokens(rows) for rows in (first, second)]
        is_next = np.flatnonzero(((first["next_sentence_labels"] == 0) & (second["next_sentence_labels"] == 0))[:, 0])
        types = [token_types(rows)[is_next] for rows in (first, second)]
        assert 0.2 < np.mean((types[0] != types[1]).any(axis=1)) < 1  # split elsewhere
        is_random = np.flatnonzero(((first["next_sentence_labels"] == 1) & (second["next_sentence_labels"] == 1))[:, 0])
        b_tokens = [
            [row[types == 1] for row, types in zip(rows[is_random], token_types(whole)[is_random], strict=True)]
            for rows, whole in zip(clean, (first, second), strict=True)
        ]
        assert np.mean([np.array_equal(*pair) for pair in zip(*b_tokens, strict=True)]) < 0.02


def token_types(rows):
    return rows["encoder_token_type_ids"]


def restore_tokens(rows):
    clean = rows["encoder_input_tokens"].copy()
    row, slot = np.nonzero(rows["masked_loss_weights"])
    clean[row, rows["masked_positions"][row, slot]] = rows["masked_target_tokens"][row, slot]
    return clean


def is_near(count, total, share):
    return abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)


def test_statistics_of_rows_of_real_text(source, tokens):
    parts = [epoch_rows(source, epoch) for epoch in range(3)]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert len(rows["masked_positions"]) >= 2000
    real, used = rows["encoder_segment_ids"] == 1, rows["masked_loss_weights"] == 1
    lengths, slots = real.sum(axis=1), rows["masked_positions"].shape[1]
    # Predictions: 15 % of each row's tokens, never a control token, never padding.
    assert used.sum(axis=1).tolist() == [min(slots, max(1, round(0.15 * int(n)))) for n in lengths]
    assert abs(used.sum() / real.sum() - 0.15) < 0.01  # 10 of 64 in most rows
    assert (rows["encoder_input_tokens"][~real] == tokens.pad).all()
    # With the targets put back, a row is [CLS] A [SEP] B [SEP] of real tokens.
    clean = restore_tokens(rows)
    control = np.isin(clean, [tokens.cls, tokens.sep])
    assert (control.sum(axis=1) == 3).all() and (clean[:, 0] == tokens.cls).all()
    assert not np.isin(clean[real], [tokens.pad, tokens.mask]).any()
    assert np.array_equal(clean[control], rows["encoder_input_tokens"][control])
    # 80/10/10.
    inputs = np.take_along_axis(rows["encoder_input_tokens"], rows["masked_positions"], axis=1)[used]
    targets = rows["masked_target_tokens"][used]
    assert is_near((inputs == tokens.mask).sum(), inputs.size, 0.8)
    assert is_near((inputs == targets).sum(), inputs.size, 0.1 + 0.1 / (tokens.size - 5))
    replaced = inputs[(inputs != tokens.mask) & (inputs != targets)]
    assert replaced.min() >= 0 and replaced.max() < tokens.size and not np.isin(replaced, tokens.special).any()
    assert len(np.unique(replaced)) > 0.5 * min(replaced.size, tokens.size)
    # Labels.
    assert 0.45 < rows["next_sentence_labels"].mean() < 0.8


def test_held_out_rows_occur_once_and_do_not_depend_on_the_batch_size(data, cache, tokens):
    held_out = data.held_out(cache, tokens, LENGTH, BATCH)
    count = len(held_out.source.sequence)
    assert held_out.steps == -(-count // BATCH) and count % BATCH
    batches = [held_out.source.rows(step, 0, BATCH) for step in range(held_out.steps)]
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert all(not value[count:].any() for value in rows.values())
    assert rows["encoder_segment_ids"][:count].any(axis=1).all() and rows["next_sentence_weights"].sum() == count
    assert equal(
        {name: value[:count] for name, value in rows.items()},
        held_out.source.sequence.parts[0].rows_of(np.zeros(count, int), np.arange(count)),
    )
    other_size = data.held_out(cache, tokens, LENGTH, 7)
    assert np.array_equal(other_size.source.rows(0, 0, 7)["encoder_input_tokens"], rows["encoder_input_tokens"][:7])
    assert data.held_out(cache, tokens, LENGTH, BATCH, at_most=2).steps == 2
    assert data.held_out(cache, tokens, LENGTH, BATCH, split="train").steps > held_out.steps


def test_streams_continue_from_batch_to_batch(cache, tokens):
    data = TextData(rows=Chunks(), order="streams")
    source = data.training(cache, tokens, LENGTH, 8, seed=1)
    text = cache.documents("train", "text").tokens
    streams = [[] for _ in range(8)]
    steps = -(-len(source.sequence.examples) // 8)
    for step in range(steps):
        rows = source.rows(step, 0, 8)
        for row, (ids, segments) in enumerate(zip(restore_tokens(rows), rows["encoder_segment_ids"], strict=True)):
            streams[row] += [id for id in ids[segments > 0].tolist() if id not in (tokens.cls, tokens.sep)]
    assert [id for stream in streams for id in stream] == text[:].tolist()
    next_epoch = source.rows(steps, 0, 8)  # the next epoch has the same text and other noise
    assert np.array_equal(restore_tokens(next_epoch), restore_tokens(source.rows(0, 0, 8)))
    assert not np.array_equal(next_epoch["masked_positions"], source.rows(0, 0, 8)["masked_positions"])
    with pytest.raises(UserError, match="requires consecutive rows, not packed ones"):
        TextData(rows=Packed(), order="streams")
    with pytest.raises(UserError, match="'strems': it must be one of shuffled, streams"):
        TextData(order="strems")
    documents = cache.documents("train", "text")
    two_corpora = fake_cache(a=documents, b=documents)
    for corpus in (None, Mixture((LISTS, LISTS), ("a", "b"))):
        with pytest.raises(UserError, match="requires a single corpus, but cache holds 2"):
            TextData(corpus, rows=Chunks(), order="streams").training(two_corpora, tokens, LENGTH, 8, seed=1)


def test_static_masking_repeats_its_draws(data, cache, tokens):
    """Draw an example in two ways with a dupe_factor of 2, in turn; its place in the order is new in each epoch."""
    static = dataclasses.replace(data, dupe_factor=2).training(cache, tokens, LENGTH, BATCH, seed=1)
    epochs = [epoch_rows(static, epoch) for epoch in range(5)]
    assert equal(epochs[0], epochs[2]) and equal(epochs[0], epochs[4]) and equal(epochs[1], epochs[3])
    assert not equal(epochs[0], epochs[1])
    dynamic = data.training(cache, tokens, LENGTH, BATCH, seed=1)
    assert all(equal(epochs[epoch], epoch_rows(dynamic, epoch)) for epoch in (0, 1))
    assert not equal(epochs[0], epoch_rows(dynamic, 2))
    places = [
        static.sequence.order.index(np.arange(len(static.sequence.examples)) + epoch * len(static.sequence.examples))[1]
        for epoch in (0, 2)
    ]
    assert not np.array_equal(*places)


def test_dupe_factor_below_one_is_refused():
    with pytest.raises(ValueError, match="dupe_factor 0 is less than 1; None draws anew in every epoch"):
        TextData(dupe_factor=0)

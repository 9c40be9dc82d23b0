"""Windows of documents: every token once an epoch, cuts at word starts, other cuts in each epoch."""

import dataclasses

import numpy as np
import pytest
from numbered_documents import BARE, FIRST, IDS, random_documents

from bertfam.corruption import keys
from bertfam.corruption.corruption import RowForm
from bertfam.data.rows.document_windows import DocumentWindows
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

EPOCHS = 6


def epoch_rows(examples, epoch, seed=5):
    numbers = np.arange(len(examples))
    return examples.rows(numbers, keys.fold(seed, epoch, numbers))


def texts(rows, frame):
    """Return the tokens of each row between [CLS] and [SEP]."""
    real = [row[segments > 0].tolist() for row, segments in zip(*map(rows.get, TOKENS), strict=True)]
    return [row[1:-1] if frame else row for row in real]


TOKENS = ("encoder_input_tokens", "encoder_segment_ids")


def check_windows(documents, ids, length, examples, reach):
    """Compare all windows of some epochs with the documents; return the begins of the windows in each epoch."""
    frame = 2 * (ids.cls is not None)
    bounds = documents.sentence_starts[documents.sentence_bounds]
    texts_of = [documents.tokens[first:last].tolist() for first, last in zip(bounds[:-1], bounds[1:], strict=True)]
    starts = ids.starts_word.take if len(ids.starts_word) else lambda tokens: np.ones(len(tokens), bool)
    cuts = []
    for epoch in range(EPOCHS):
        windows, begins = texts(epoch_rows(examples, epoch), frame), []
        assert all(0 < len(window) <= length - frame for window in windows)
        for text in texts_of:
            place, found = 0, []
            while place < len(text):  # the windows of a document follow each other
                window = windows.pop(0)
                assert window == text[place : place + len(window)]
                if place and reach:
                    is_start = starts(np.array(text[max(1, place - reach + 1) : place + 1]))
                    assert is_start[-1] or not is_start.any()
                found.append(place)
                place += len(window)
            assert len(found) == 1 or len(text) > length - frame
            begins.append(found)
        assert not windows
        cuts.append(begins)
    return cuts


@pytest.mark.parametrize("words", [0.0, 0.03, 0.5, 1.0, None])
@pytest.mark.parametrize("length", [3, 10, 33, 128])
def test_every_token_is_in_one_window(length, words):
    """`words` is the share of tokens that begin a word; None: the vocabulary does not mark them."""
    ids = IDS if words is not None else BARE
    documents = random_documents(length, 40)
    if words is not None:
        ids = dataclasses.replace(ids, starts_word=np.random.default_rng(length).random(ids.size) < words)
    examples = DocumentWindows().examples(documents, length, 0, ids)
    frame = 2 * (words is not None)
    cuts = check_windows(documents, ids, length, examples, min(32, (length - frame) // 8))
    long = [index for index, begins in enumerate(cuts[0]) if len(begins) > 1]
    assert length > 33 or len(long) > 20
    different = [index for index in long if len({tuple(epoch[index]) for epoch in cuts}) > 1]
    assert length < 10 or len(different) > 0.8 * len(long)


def test_rows_are_a_function_of_epoch_and_example():
    ids = dataclasses.replace(IDS, starts_word=np.random.default_rng(0).random(IDS.size) < 0.4)
    examples = DocumentWindows().examples(random_documents(3, 30), 40, 0, ids)
    whole, chosen = epoch_rows(examples, 2), np.array([17, 3, 40, 3])
    some = examples.rows(chosen, keys.fold(5, 2, chosen))
    assert some.keys() == whole.keys() and all(np.array_equal(value, whole[name][chosen]) for name, value in some.items())


def test_offsets_are_uniform():
    """The first cut of a document of 2.5 strides falls on each of the allowed places about equally often."""
    documents = Documents("one", np.arange(FIRST, FIRST + 50, dtype=np.uint32), np.array([0, 50]), np.array([0, 1]))
    examples = DocumentWindows().examples(documents, 20, 0, BARE)
    first = np.array([0])
    sizes = [(examples.rows(first, keys.fold(1, epoch, first))["encoder_segment_ids"] > 0).sum() for epoch in range(2000)]
    counts = np.bincount(sizes)[10:]
    assert sum(counts) == 2000 and len(counts) == 11 and counts.min() > 120


def test_continued_rows_predict_every_token_and_the_ends(tokens, cache):
    documents = cache.documents("train", "text")
    ids = dataclasses.replace(tokens, eos=tokens.sep)
    examples = DocumentWindows().examples(documents, 100, 0, ids, RowForm(framed=False, continued=True))
    rows = epoch_rows(examples, 1)
    real = rows["next_tokens"][rows["encoder_segment_ids"] > 0]
    assert len(real) == len(documents.tokens) + len(documents) and np.count_nonzero(real == ids.eos) == len(documents)


@pytest.mark.parametrize("length", [128, 1024, 16_384])
def test_real_text(cache, tokens, length):
    """Rows of up to 16,384 tokens, with the words of a WordPiece vocabulary."""
    documents = cache.documents("train", "text")
    examples = DocumentWindows().examples(documents, length, 0, tokens)
    cuts = check_windows(documents, tokens, length, examples, min(32, (length - 2) // 8))
    sizes = np.diff(documents.sentence_starts[documents.sentence_bounds])
    assert [len(begins) > 1 for begins in cuts[0]] == (sizes > length - 2).tolist()


def test_batches_use_every_document_once_an_epoch(cache, tokens):
    data = TextData(rows=DocumentWindows())
    batches = data.training(cache, tokens, 128, 8, seed=3)
    rows, steps = batches.sequence.epoch_rows, 0
    found = []
    while len(found) < rows:
        batch = batches.rows(steps, 0, 8)
        again = batches.rows(steps, 2, 5)
        assert all(np.array_equal(value, batch[name][2:5]) for name, value in again.items())
        clean = batch["encoder_input_tokens"].copy()
        row, slot = np.nonzero(batch["masked_loss_weights"])
        clean[row, batch["masked_positions"][row, slot]] = batch["masked_target_tokens"][row, slot]
        found += texts({"encoder_input_tokens": clean, "encoder_segment_ids": batch["encoder_segment_ids"]}, 2)
        steps += 1
    counts = np.bincount(np.concatenate(found[: int(rows)]), minlength=tokens.size)
    assert np.array_equal(counts, cache.documents("train", "text").token_counts(tokens.size))


def test_too_short_rows_are_refused(cache, tokens):
    with pytest.raises(UserError, match="length 2 is too short"):
        DocumentWindows().examples(cache.documents("train", "text"), 2, 0, tokens)

"""Batches of rows of similar length: each example once an epoch, rows as in any other order, little padding, any step at once."""

import dataclasses

import numpy as np
import pytest
from numbered_documents import IDS, fake_cache, make_documents

from bertfam.corruption.token_ids import ControlToken, TextFrame
from bertfam.data.rows.labelled import similar_lengths
from bertfam.data.rows.labelled.answer_windows import AnswerWindows
from bertfam.data.rows.labelled.choices import ChoiceLabels, ChoiceTexts
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts, Labels
from bertfam.data.rows.labelled.similar_lengths import LengthBatches, row_lengths
from bertfam.data.rows.labelled.tagged_words import TaggedWords, Tags
from bertfam.data.text_data import TextData
from bertfam.training.stages import Stage, StagedBatches, seen, stage_batches

CLS, SEP = ControlToken(IDS.cls, 0), ControlToken(IDS.sep, 0)
TOKENS = dataclasses.replace(IDS, frame=TextFrame((CLS,), (SEP,), (SEP,), (SEP,), 1))
TEXTS = TextData(rows=LabelledTexts(), corruption=Labels())


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch):
    """Let lengths differ that save few tokens, as the texts are few."""
    monkeypatch.setattr(similar_lengths, "_LEAST_TOKENS", 0)


def labelled(count, sentences=1, words=False, labels=1, seed=0):
    """Return documents of sentences of random lengths, most of them short, with their numbers as labels."""
    generator = np.random.default_rng(seed)
    lengths = np.minimum(generator.geometric(0.06, (count, sentences)), 90)
    documents = make_documents(*lengths.tolist())
    numbers = np.arange(count * (sentences if words else labels), dtype=np.float32)
    return dataclasses.replace(documents, labels=numbers, label_count=labels, labels_words=words)


def batches_of(data, documents, batch_size, length=64, steps=10):
    return stage_batches(data, (Stage(steps, length, batch_size),), 0, fake_cache(text=documents), TOKENS, 3)


def content(rows):
    """Return each row as bytes of its features at tokens, and of its labels."""
    is_token = rows["encoder_segment_ids"] > 0
    names = [name for name, value in rows.items() if value.shape == is_token.shape]
    others = [name for name in rows if name not in names]
    return [
        tuple(rows[name][row][is_token[row]].tobytes() for name in names) + tuple(rows[name][row].tobytes() for name in others)
        for row in range(len(is_token))
    ]


@pytest.mark.parametrize(("count", "batch_size"), [(1000, 32), (7, 32), (64, 16), (37, 5), (4500, 8)])
def test_each_example_is_used_once_in_each_epoch_and_all_steps_have_full_batches(count, batch_size):
    batches, epochs = batches_of(TEXTS, labelled(count), batch_size), 3 if count < 4000 else 1
    steps = -(-epochs * count // batch_size)
    rows = [batches.rows(step, 0, batch_size) for step in range(steps)]
    used = np.concatenate([part["labels"][:, 0] for part in rows]).astype(int)
    assert len(used) == steps * batch_size
    for epoch in range(epochs):
        assert np.bincount(used[epoch * count : (epoch + 1) * count], minlength=count).tolist() == [1] * count
    if epochs == 3 and count > batch_size:
        assert used[:count].tolist() != used[count : 2 * count].tolist()
    for step, part in enumerate(rows):
        assert part["encoder_input_tokens"].shape == (batch_size, batches.row_length(step))
        longest = (part["encoder_segment_ids"] > 0).sum(axis=1).max()
        assert longest <= batches.row_length(step) and batches.row_length(step) in batches.row_counts
    assert batches.tokens(steps, 64) == sum(part["encoder_input_tokens"].size for part in rows)
    stages = (Stage(steps, 64, batch_size),)
    assert seen(stages, [batches], steps) == {"tokens_seen": batches.tokens(steps, 64), "epoch": steps * batch_size / count}


def test_rows_of_similar_length_have_little_padding_and_long_batches_come_at_any_time():
    documents = labelled(4000)
    batches, shuffled = (
        batches_of(dataclasses.replace(TEXTS, similar_lengths=similar), documents, 32) for similar in (True, False)
    )
    assert isinstance(batches, LengthBatches) and not shuffled.row_counts
    tokens = np.minimum(np.diff(documents.sentence_starts), 62) + 2
    assert batches.tokens(125, 64) < 1.6 * tokens.sum() < 0.5 * shuffled.tokens(125, 64)
    ideal = row_lengths(tokens, 64).sum()
    assert batches.tokens(125, 64) < 1.05 * ideal  # few batches have rows of two lengths
    places = [np.flatnonzero([batches.row_length(step) == length for step in range(125)]) for length in batches.row_counts]
    assert all(part.min() < 25 and part.max() > 100 for part in places)
    other = batches_of(TEXTS, dataclasses.replace(documents), 32)
    assert [other.row_length(step) for step in range(9)] == [batches.row_length(step) for step in range(9)]
    # A run that resumes depends on these batches, in any version.
    assert [batches.row_length(step) for step in range(9)] == [32, 16, 64, 16, 16, 16, 16, 16, 16]
    assert batches.rows(124, 0, 3)["labels"][:, 0].tolist() == [1324, 3350, 1920]


def test_any_rows_of_any_step_are_found_without_those_before():
    """As another host, or a run that resumes, asks for them."""
    documents = labelled(3000)
    whole = batches_of(TEXTS, documents, 24)
    for step in (1_000_000, 5, 124, 125, 126, 4_999):
        fresh = batches_of(TEXTS, documents, 24)
        parts = [fresh.rows(step, start, stop) for start, stop in ((16, 24), (0, 16))]
        assert fresh.row_length(step) == whole.row_length(step)
        for name, value in whole.rows(step, 0, 24).items():
            np.testing.assert_array_equal(np.concatenate([parts[1][name], parts[0][name]]), value)


LAYOUTS = {
    "pairs": (TEXTS, labelled(300, 2), 64),
    "words": (TextData(rows=TaggedWords(), corruption=Tags()), labelled(300, 3, words=True), 64),
    "choices": (TextData(rows=ChoiceTexts(choices=3), corruption=ChoiceLabels(choices=3)), labelled(300, 4), 192),
    "windows": (
        TextData(rows=AnswerWindows(stride=8, max_question=16), corruption=Labels(2)),
        dataclasses.replace(labelled(300, 2, labels=2), labels=np.zeros(600, np.float32)),
        64,
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_those_of_the_whole_length_without_padding(name):
    data, documents, length = LAYOUTS[name]
    batches = batches_of(data, documents, 10, length)
    examples = batches.sequence.examples
    whole = examples.rows(np.arange(len(examples)), np.zeros(len(examples), np.uint64))
    steps = len(examples) // 10
    parts = [batches.rows(step, 0, 10) for step in range(steps)]
    assert len(batches.row_counts) > 1 and all(size % examples.parts == 0 for size in batches.row_counts)
    rows = [row for part in parts for row in content(part)]
    assert {*rows} <= {*content(whole)} and len({*rows}) == len(rows)
    assert all(part["encoder_input_tokens"].shape[1] == batches.row_length(step) for step, part in enumerate(parts))
    segments = whole["encoder_segment_ids"].reshape(len(examples), examples.parts, -1)
    assert (examples.row_sizes == examples.parts * (segments > 0).sum(axis=2).max(axis=1)).all()


def test_stages_with_other_batch_sizes_use_each_example_once_in_an_epoch():
    stages, documents = (Stage(20, 64, 20), Stage(25, 64, 32), Stage(40, 64, 20)), labelled(1000)
    opened = {}
    for index in range(3):
        opened[index] = stage_batches(TEXTS, stages, index, fake_cache(text=documents), TOKENS, 3, opened)
    batches = StagedBatches(stages, list(opened.values()))
    sizes = [stage.batch_size for stage in stages for _ in range(stage.steps)]
    rows = [batches.rows(step, 0, size) for step, size in enumerate(sizes)]
    used = np.concatenate([part["labels"][:, 0] for part in rows]).astype(int)
    assert np.bincount(used, minlength=1000).tolist() == [2] * 1000
    assert [part["encoder_input_tokens"].shape[1] for part in rows] == [batches.row_length(step) for step in range(len(sizes))]


@pytest.mark.parametrize("count", [100, 96])
def test_held_out_rows_are_used_once_followed_by_padding(count):
    cache = fake_cache(text=labelled(count))
    cache.counts = lambda split, name: {"documents": count}
    held_out = TEXTS.held_out(cache, TOKENS, 64, 8)
    rows = [held_out.source.rows(step, 0, 8) for step in range(held_out.steps)]
    used = np.concatenate([part["labels"][part["label_weights"] > 0] for part in rows])
    assert sorted(used) == list(range(count)) and len(rows) == 13 - (count == 96)
    assert len({held_out.source.row_length(step) for step in range(held_out.steps)}) > 1
    sample = TEXTS.held_out(cache, TOKENS, 64, 8, at_most=3)
    assert sample.source.row_length(0) is None and sample.rows == 24


def test_lengths_are_few_and_each_saves_a_tenth(monkeypatch):
    assert row_lengths(np.array([3, 16, 17, 40, 50]), 128).tolist() == [16, 16, 32, 64, 64]
    assert row_lengths(np.array([3] * 99 + [50]), 128).tolist() == [16] * 99 + [64]
    assert row_lengths(np.array([60] * 40 + [70] * 60), 100).tolist() == [80] * 100  # with 64 the mean would be 73.6
    assert row_lengths(np.array([30, 99, 100]), 100).tolist() == [32, 100, 100]
    assert row_lengths(np.array([40, 300]), 384, 48).tolist() == [48, 336]
    monkeypatch.undo()
    assert set(row_lengths(np.array([10] * 682 + [64]), 64)) == {64}  # 682 x 48 is less than 32,768
    assert set(row_lengths(np.array([10] * 683 + [64]), 64)) == {16, 64}


def test_running_text_has_rows_of_one_length():
    assert batches_of(TextData(), make_documents(*[[9, 9]] * 50), 4).row_length(0) is None

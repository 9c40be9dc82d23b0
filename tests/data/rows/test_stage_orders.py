"""Stages over the same rows continue one order and one count of epochs."""

import dataclasses
import hashlib
from collections import Counter

import numpy as np
import pytest
from numbered_documents import FIRST, IDS, fake_cache, make_documents, random_documents

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.mixture import Shares
from bertfam.data.rows.order import Streams
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.training.stages import Ramp, Stage, StagedBatches, expanded, stage_batches, total_steps

DOCUMENTS = make_documents(*[[5 + number % 7] for number in range(1000)])


def staged(data, stages, cache=None):
    """Return the batches of a run with these stages."""
    stages = expanded(stages)
    cache = cache or fake_cache(text=DOCUMENTS)
    opened = {}
    for index in range(len(stages)):
        opened[index] = stage_batches(data, stages, index, cache, IDS, 3, opened)
    return StagedBatches(stages, list(opened.values()))


def clean_tokens(batches, step, batch_size):
    rows = batches.rows(step, 0, batch_size)
    tokens = rows["encoder_input_tokens"].copy()
    row, slot = np.nonzero(rows["masked_loss_weights"])
    tokens[row, rows["masked_positions"][row, slot]] = rows["masked_target_tokens"][row, slot]
    return tokens[rows["encoder_segment_ids"] > 0]


def uses_of_documents(batches, documents=DOCUMENTS):
    """Count by brute force how often the run reads the first token of each document."""
    first = documents.sentence_starts[documents.sentence_bounds[:-1]]
    uses, step = np.zeros(len(documents.tokens), int), 0
    for stage in batches.stages:
        for _ in range(stage.steps):
            tokens = clean_tokens(batches, step, stage.batch_size)
            np.add.at(uses, tokens[tokens >= FIRST] - FIRST, 1)
            step += 1
    return Counter(uses[first].tolist())


SHUFFLED, PACKED = TextData(rows=WholeDocuments()), TextData(rows=Packed(WholeDocuments(), max_examples=4))


@pytest.mark.parametrize(
    "stages",
    [
        (Stage(25, 16, 20), Stage(25, 16, 20)),
        (Stage(5, 16, 20), Stage(15, 16, 60)),
        (Ramp(40, 16, 34, first_batch_size=16, sizes=4, multiple=2),),
    ],
    ids=["two equal stages", "two batch sizes", "a ramp"],
)
def test_each_document_is_used_once_in_an_epoch_of_several_stages(stages):
    batches = staged(SHUFFLED, stages)
    assert sum(stage.steps * stage.batch_size for stage in batches.stages) == 1000
    assert uses_of_documents(batches) == {1: 1000}
    earlier = uses_of_documents(staged(TextData(rows=WholeDocuments(), rows_version=1), stages))
    assert earlier[0] > 50 and earlier[2] > 50  # of runs begun earlier


def test_stages_of_another_length_have_rows_and_epochs_of_their_own():
    """Interleave two lengths: over two whole epochs of each, every document is used four times."""
    stages = (Stage(30, 16, 25), Stage(20, 24, 40), Stage(25, 16, 50), Stage(30, 24, 40))
    assert uses_of_documents(staged(SHUFFLED, stages)) == {4: 1000}


def test_packed_rows_continue_over_a_ramp():
    rows = len(staged(PACKED, (Stage(1, 64, 1),)).sources[0].sequence.examples)
    ramp = (Ramp(rows // 20, 64, 26, first_batch_size=10, sizes=3, multiple=1),)
    left = rows - sum(stage.steps * stage.batch_size for stage in expanded(ramp))
    assert left > 0
    assert uses_of_documents(staged(PACKED, (*ramp, Stage(left, 64, 1)))) == {1: 1000}


def test_noise_is_new_in_the_second_epoch_of_equal_stages():
    batches = staged(SHUFFLED, (Stage(50, 16, 20), Stage(50, 16, 20)))
    first, second = batches.sources
    assert second.sequence is first.sequence and second.place(0) == 1000
    epochs, examples = second.sequence.order.index(np.arange(1000, 2000))
    assert (epochs == 1).all() and sorted(examples) == list(range(1000))


def test_mixtures_continue_over_stages():
    cache = fake_cache(a=random_documents(1, 40), b=random_documents(2, 90))
    two = staged(SHUFFLED, (Stage(7, 32, 8), Stage(5, 32, 4), Stage(6, 32, 8)), cache)
    one = staged(SHUFFLED, (Stage(31, 32, 4),), cache)
    rows = [one.rows(step, 0, 4) for step in range(31)]
    for name, value in two.rows(12, 0, 8).items():
        assert np.array_equal(value, np.concatenate([rows[19][name], rows[20][name]]))


@pytest.mark.parametrize("examples", [64, 101])
@pytest.mark.parametrize("sizes", [[(3, 8), (5, 8)], [(2, 8), (3, 5), (1, 16), (4, 3)], [(9, 7), (40, 3), (2, 50)]])
def test_streams_read_each_example_once_an_epoch_with_any_batch_sizes(examples, sizes):
    order, before, read = Streams(examples, sizes[0][1]), 0, []
    for steps, size in [*sizes, (2 * examples, 4)]:
        order = order.after(before, size)
        epochs, numbers = order.index(np.arange(steps * size))
        read += [pair for pair in zip(epochs.tolist(), numbers.tolist(), strict=True) if pair[1] >= 0]
        before = steps
    for epoch in range(4):
        assert sorted(number for number_epoch, number in read if number_epoch == epoch) == list(range(examples))
    assert [epoch for epoch, _ in read] == sorted(epoch for epoch, _ in read)


def test_streams_continue_with_the_same_batch_size():
    data = TextData(rows=Chunks(), order="streams")
    two, one = staged(data, (Stage(7, 32, 8), Stage(9, 32, 8))), staged(data, (Stage(16, 32, 8),))
    for step in (6, 7, 15):
        assert all(np.array_equal(two.rows(step, 0, 8)[name], value) for name, value in one.rows(step, 0, 8).items())
    smaller = staged(data, (Stage(7, 32, 8), Stage(9, 32, 4)))
    assert np.array_equal(smaller.rows(0, 0, 8)["encoder_input_tokens"], one.rows(0, 0, 8)["encoder_input_tokens"])
    assert clean_tokens(smaller, 7, 4)[1] == clean_tokens(one, 7, 8)[1]  # the first stream continues


def digest(rows):
    result = hashlib.sha256()
    for name in sorted(rows):
        result.update(name.encode() + rows[name].tobytes())
    return result.hexdigest()[:16]


def test_runs_begun_earlier_keep_their_rows():
    """Compare with digests of rows that were made before rows had versions."""
    cache = fake_cache(text=random_documents(5, 60))
    data = TextData(rows=DocSentences(), corruption=BertMasking(), rows_version=1)
    stages = (Stage(20, 48, 16), Stage(20, 48, 16))
    batches = staged(data, stages, cache)
    assert [digest(batches.rows(step, 0, 16)) for step in (9, 29)] == ["59e06fd0ed5a0eba", "035f0c72b8636961"]
    pairs = [TextData(rows=SentencePairs(relation=name), rows_version=1) for name in ("next", "order", "structure")]
    digests = [[digest(staged(data, stages, cache).rows(step, 0, 16)) for step in (9, 29)] for data in pairs]
    assert digests == [
        ["5c9e110a37b7e06d", "fd50233682ff649e"],
        ["f9701dc37e07eb37", "23f8a159e41b83d1"],
        ["af1ddf8372bd78cc", "f465ce473f86c863"],
    ]
    with pytest.raises(UserError, match="TextData.rows_version is 1, but packed sentence pairs exist from version 2 on"):
        staged(TextData(rows=Packed(SentencePairs()), rows_version=1), stages, cache)
    # The first stage of a length is the same in both versions.
    assert digest(staged(TextData(rows=DocSentences()), stages, cache).rows(9, 0, 16)) == "59e06fd0ed5a0eba"
    assert total_steps(stages) == 40


def masks(batches, step, stage):
    rows = batches.rows(step, 0, batches.stages[stage].batch_size)
    return rows["masked_loss_weights"].sum(axis=1)


@pytest.mark.parametrize("data", [SHUFFLED, PACKED])
def test_a_stage_changes_the_noise_and_nothing_else(data):
    rates = (0.4, 0.2, 0.1)
    plain = staged(data, [Stage(10, 16, 20, corruption=BertMasking(rate=0.4))] * 3)
    batches = staged(data, [Stage(10, 16, 20, corruption=BertMasking(rate=rate)) for rate in rates])
    for step in range(30):
        assert np.array_equal(clean_tokens(batches, step, 20), clean_tokens(plain, step, 20))
    counts = [np.mean([masks(batches, step, stage).mean() for step in range(10 * stage, 10 * stage + 10)]) for stage in range(3)]
    assert counts[0] > 1.7 * counts[1] > 1.7 * 1.5 * counts[2]
    for step in (0, 10, 29):
        whole = batches.rows(step, 0, 20)
        parts = [batches.rows(step, start, stop) for start, stop in ((0, 7), (7, 13), (13, 20))]
        assert all(np.array_equal(np.concatenate([part[name] for part in parts]), value) for name, value in whole.items())


def test_a_stage_changes_the_shares_of_corpora_and_each_goes_on_in_its_order():
    apart = 10_000
    documents = make_documents(*[[5]] * 40)
    one, two, three = (dataclasses.replace(documents, tokens=documents.tokens + np.uint32(number * apart)) for number in range(3))
    stages = (
        Stage(6, 16, 10, shares=Shares(rates=(1.0, 1.0, 2.0))),
        Stage(6, 16, 10, shares=Shares(names=("three", "one"), rates=(1.0, 3.0))),
        Stage(6, 16, 5, shares=Shares(names=("three", "one"), rates=(1.0, 3.0))),
        Stage(6, 16, 10),
    )
    cache = fake_cache(one=one, two=two, three=three)
    batches = staged(SHUFFLED, stages, cache)
    read, step = [], 0
    for stage in stages:
        tokens = [clean_tokens(batches, step + number, stage.batch_size) for number in range(stage.steps)]
        read.append(np.concatenate(tokens))
        step += stage.steps
    counts = [[int(np.sum((tokens - FIRST) // apart == number) // 5) for number in range(3)] for tokens in read]
    assert counts == [[15, 15, 30], [45, 0, 15], [23, 0, 7], [20, 20, 20]]
    for number in range(3):
        # The rows of a corpus over all stages are those of whole epochs.
        own = np.concatenate([tokens[(tokens >= FIRST) & ((tokens - FIRST) // apart == number)] for tokens in read])
        rows = own.reshape(-1, 5)[:, 0]
        for epoch in range(len(rows) // 40):
            assert len(set(rows[40 * epoch : 40 * epoch + 40])) == 40
    for shares, message in (
        (Shares(names=("four",)), "Shares.names has four, which the text lacks: it has one, two, three"),
        (Shares(rates=(1.0,)), "Shares.rates has 1 entries for the corpora one, two, three: give one for each"),
    ):
        with pytest.raises(UserError, match=message):
            staged(SHUFFLED, [Stage(2, 16, 10, shares=shares)], cache)
    with pytest.raises(UserError, match="Stage.shares are those of several corpora, but .* holds one"):
        staged(SHUFFLED, [Stage(2, 16, 10, shares=Shares())])

"""Rows of large corpora, planned by blocks of documents; here blocks are small."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from numbered_documents import FIRST, IDS, fake_cache, make_documents, random_documents

from bertfam.corruption import keys
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.blocks import BlockExamples, Blocks
from bertfam.data.rows.document_windows import DocumentWindows
from bertfam.data.rows.order import Streams
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.two_segments import TwoSegments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.documents import JoinedRanges
from bertfam.errors import UserError

LENGTH = 32
BLOCKS = Blocks(above_documents=100, documents=32, piece_documents=8)  # blocks of four pieces
DOCUMENTS = random_documents(0, 400)
LAYOUTS = [
    FullSentences(), DocSentences(), Chunks(), Chunks(separated=False), WholeDocuments(), DocumentWindows(), SentencePairs(),
    SentencePairs(relation="structure"), TwoSegments(), Packed(), Packed(DocSentences()), Packed(SentencePairs()),
]  # fmt: skip


def batches(rows, documents=DOCUMENTS, batch_size=16, blocks=BLOCKS, **corpora):
    data = TextData(rows=rows, corruption=BertMasking(), blocks=blocks)
    return data.training(fake_cache(**(corpora or {"text": documents})), IDS, LENGTH, batch_size, 3)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def uses_of_tokens(examples, numbers, documents=DOCUMENTS):
    """Count how often clean rows hold each token of the corpus."""
    tokens = examples.rows(numbers, keys.fold(0, numbers))["encoder_input_tokens"]
    return np.bincount(tokens[tokens >= FIRST] - FIRST, minlength=len(documents.tokens))


@pytest.mark.parametrize("rows", [FullSentences(), Chunks(), WholeDocuments(), Packed(), Packed(DocSentences())], ids=repr)
def test_each_token_is_used_once_in_an_epoch_of_sampled_blocks(rows):
    part = batches(rows).sequence
    size = len(part.examples)
    assert len(part.examples.quotas) == 13  # no more than are sampled, and each sample is its block
    for epoch in (0, 7):
        own_epochs, numbers = part.order.index(epoch * size + np.arange(size))
        assert set(own_epochs) == {epoch}
        assert sorted(numbers) == list(range(size))
        assert set(uses_of_tokens(part.examples, numbers)) == {1}


@pytest.mark.parametrize("rows", LAYOUTS, ids=repr)
def test_rows_are_those_of_each_block_alone(rows):
    part = batches(rows).sequence
    examples = part.examples
    data = TextData(rows=rows, corruption=BertMasking())
    starts, bounds = DOCUMENTS.sentence_starts, DOCUMENTS.sentence_bounds
    first = 0
    for block, pieces in enumerate(examples._pieces):
        members = np.concatenate([np.arange(*piece) for piece in pieces])
        own = make_documents(*(np.diff(starts[bounds[d] : bounds[d + 1] + 1]).tolist() for d in members))
        tokens = np.concatenate([DOCUMENTS.tokens[starts[bounds[d]] : starts[bounds[d + 1]]] for d in members])
        alone = data.examples(dataclasses.replace(own, tokens=tokens), LENGTH, examples._block_seed(block), IDS)
        numbers = np.arange(len(alone))
        epoch_key = keys.fold(5, 0)
        expected = alone.rows(numbers, keys.fold(keys.fold(epoch_key, block), numbers))
        assert equal(examples.rows(first + numbers, keys.fold(epoch_key, first + numbers)), expected)
        first += len(alone)
    assert first == len(examples)


def test_a_block_whose_quota_is_estimated_uses_its_rows_equally_often():
    documents = random_documents(1, 800)
    part = batches(Packed(), documents, blocks=Blocks(above_documents=0, documents=8, piece_documents=4)).sequence
    examples, size, epochs = part.examples, len(part.examples), 8
    own_epochs, numbers = part.order.index(np.arange(epochs * size))
    rows_in = np.array([examples.rows_in(block) for block in range(len(examples.quotas))])
    assert (rows_in > examples.quotas).any() and (rows_in < examples.quotas).any()
    block, row = examples._locate(numbers)
    for number, rows in enumerate(rows_in):
        here = np.flatnonzero(block == number)
        assert len(here) == epochs * examples.quotas[number]
        uses = Counter(row[here].tolist())
        assert set(uses) == set(range(rows)) and max(uses.values()) - min(uses.values()) <= 1
        # With other noise each time.
        assert len(set(zip(own_epochs[here].tolist(), row[here].tolist(), strict=True))) == len(here)
    assert abs(rows_in.sum() / size - 1) < 0.05


@pytest.mark.parametrize("rows", LAYOUTS, ids=repr)
def test_rows_do_not_depend_on_hosts_or_on_the_steps_before(rows):
    whole = batches(rows)
    steps = (0, 40, 10**6)
    expected = {step: whole.rows(step, 0, 16) for step in steps}
    for hosts in (2, 4):
        sources = [batches(rows) for _ in range(hosts)]
        for step in reversed(steps):
            size = 16 // hosts
            parts = [source.rows(step, host * size, (host + 1) * size) for host, source in enumerate(sources)]
            assert equal({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, expected[step])


def test_batches_of_several_sizes_continue_one_order():
    data = TextData(rows=WholeDocuments(), corruption=BertMasking(), blocks=BLOCKS)
    first = batches(WholeDocuments())
    rest = data.continued(first, 5, 8)
    assert equal(rest.rows(0, 0, 8), first.rows(5, 0, 8)) and equal(rest.rows(1, 0, 8), first.rows(5, 8, 16))


def test_small_corpora_and_runs_without_blocks_are_planned_as_a_whole():
    small = random_documents(2, 100)
    expected = batches(Packed(), small, blocks=None)
    for blocks in (BLOCKS, Blocks(), Blocks(above_documents=99, above_tokens=10**6, documents=10**6, piece_documents=10**6)):
        given = batches(Packed(), small, blocks=blocks)
        assert isinstance(given.sequence.examples, BlockExamples) == (blocks.above_documents == 99)
        if blocks.above_documents != 99:
            assert all(equal(given.rows(step, 0, 16), expected.rows(step, 0, 16)) for step in (0, 1000))
    assert isinstance(batches(Packed(), small, blocks=Blocks(above_tokens=100)).sequence.examples, BlockExamples)
    earlier = TextData(rows=Packed(), corruption=BertMasking(), blocks=BLOCKS, rows_version=2)
    earlier_source = earlier.training(fake_cache(text=DOCUMENTS), IDS, LENGTH, 16, 3)
    whole = dataclasses.replace(earlier, blocks=None, rows_version=3).training(fake_cache(text=DOCUMENTS), IDS, LENGTH, 16, 3)
    assert equal(earlier_source.rows(7, 0, 16), whole.rows(7, 0, 16))


def test_corpora_of_a_mixture_share_the_limits():
    corpora = {f"c{number}": random_documents(number, 60) for number in range(4)}
    source = batches(Packed(), **corpora)
    blocks = [len(part.examples.quotas) for part in source.sequence.by_corpus()]
    assert blocks == [8] * 4  # of one piece each
    assert equal(source.rows(9, 0, 16), batches(Packed(), **corpora).rows(9, 0, 16))


def test_streams_read_the_corpus_in_order():
    data = TextData(rows=Chunks(), corruption=BertMasking(), order="streams", blocks=BLOCKS)
    part = data.training(fake_cache(text=DOCUMENTS), IDS, LENGTH, 16, 3).sequence
    assert isinstance(part.order, Streams) and not isinstance(part.examples, BlockExamples)


def test_the_next_block_is_planned_in_advance_and_few_are_held():
    source = batches(WholeDocuments())
    examples = source.sequence.examples
    order = source.sequence.order
    blocks, begins = order._visits(0)
    source.rows(0, 0, 16)
    assert list(examples._held) == blocks[:1]
    source.rows(1, 0, 16)
    assert set(examples._held) == set(blocks[:2])
    for step in range(2, 60):
        source.rows(step, 0, 16)
        assert len(examples._held) <= 3


def test_a_mistake_in_a_plan_is_raised_by_each_read():
    def plan(documents, seed):
        if documents.name == "toy":
            raise UserError("block")
        return WholeDocuments().examples(documents, LENGTH, seed, IDS)

    examples = BlockExamples(DOCUMENTS, plan, BLOCKS, 1, 0)
    for _ in range(2):
        with pytest.raises(UserError, match="block"):
            examples.rows_in(3)


def test_long_documents_make_small_pieces():
    documents = make_documents(*[[100] * 10] * 40)
    blocks = Blocks(above_documents=0, piece_tokens=4000).divide(documents, 1, 0)
    assert [piece for pieces in blocks for piece in (pieces[:, 1] - pieces[:, 0])] == [4] * 10


def test_impossible_sizes_are_refused():
    for name in ("documents", "piece_documents", "piece_tokens", "above_documents", "above_tokens"):
        with pytest.raises(UserError, match=f"Blocks.{name} is -1"):
            Blocks(**{name: -1})


def test_joined_ranges_are_the_values_one_after_another():
    values = np.arange(100)
    for ranges in ([(5, 9)], [(40, 45), (3, 3), (0, 7), (90, 100)]):
        joined, expected = JoinedRanges(values, ranges), np.concatenate([values[a:b] for a, b in ranges])
        assert len(joined) == len(expected)
        assert joined[:].tolist() == expected.tolist() and joined[1:3].tolist() == expected[1:3].tolist()
        places = np.array([[-5, 0], [len(expected) - 1, len(expected) + 7]])
        assert joined.take(places, mode="clip").tolist() == expected.take(places, mode="clip").tolist()
        with pytest.raises(IndexError):
            joined.take(places)

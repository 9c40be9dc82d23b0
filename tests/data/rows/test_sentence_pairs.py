"""Sentence pairs compared with the published script of BERT, ALBERT and StructBERT."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from published_pairs import create_instances_from_document, make_pair, truncate_seq_pair

from bertfam.corruption.keys import bits, coin_sums, fold, integers, unfold, uniform
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows import sentence_pairs
from bertfam.data.rows.earlier_rows import earlier_rows
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.sentence_pairs import SentencePairs, plan_chunks
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError
from bertfam.features import SENTENCES

IDS = TokenIds(size=100_000, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
LENGTH = 64


def make_documents(*documents):
    """Return documents of sentences of the given lengths, in which every token is distinct."""
    lengths = [length for document in documents for length in document]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    bounds = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    return Documents("the toy text", 5 + np.arange(starts[-1]).astype(np.uint32), starts, bounds)


def as_lists(documents):
    """Return documents as lists of sentences as lists of ids."""
    sentences = [documents.tokens[a:b].tolist() for a, b in pairwise(documents.sentence_starts)]
    return [sentences[a:b] for a, b in pairwise(documents.sentence_bounds)]


def split_row(rows, index):
    """Return A and B of a row."""
    tokens, segments, types = (rows[f"encoder_{name}"][index] for name in ("input_tokens", "segment_ids", "token_type_ids"))
    real = tokens[segments == 1]
    first = int((types[segments == 1] == 0).sum())
    assert real[0] == IDS.cls and real[first - 1] == IDS.sep and real[-1] == IDS.sep
    return real[1 : first - 1].tolist(), real[first:-1].tolist()


@pytest.fixture(scope="module")
def documents(cache):
    return cache.documents("train", "text")


@pytest.fixture(scope="module")
def examples(documents):
    return SentencePairs().examples(documents, LENGTH, 11, IDS)


class PlannedDraws:
    """Draws of `plan_chunks`."""

    def __init__(self, config, seed, document):
        self.config, self.seed, self.number, self.chunk = config, seed, document, 0

    def _word(self, stream):
        return bits(fold(self.seed, self.number, self.chunk), stream, 1)[:, 0]

    def target(self, room):
        key = fold(self.seed, self.number)
        if uniform(bits(key, sentence_pairs._SHORT, 1)[:, 0])[0] < self.config.short_sequence_rate:
            return 2 + int(integers(bits(key, sentence_pairs._TARGET, 1)[:, 0], room - 1)[0])  # randint(2, room)
        return room

    def split(self, last):
        return 1 + int(integers(self._word(sentence_pairs._PLANNED_SPLIT), last)[0])  # randint(1, last)

    def is_random(self):
        return uniform(self._word(sentence_pairs._PLANNED_NEXT))[0] < self.config.shares[0]

    def is_swapped(self):
        return False

    def document(self, own):
        return own - 1

    def start(self, sentences):
        return 0

    def cut_front(self, *cut):
        return True

    def next_chunk(self):
        self.chunk += 1


@pytest.mark.parametrize(
    ("config", "length"),
    [
        *((SentencePairs(), length) for length in (16, LENGTH, 512)),
        *((SentencePairs(*shares), LENGTH) for shares in ((0.9, 0.5), (0.0, 0.0), (0.5, 1.0))),
    ],
)
def test_chunks_equal_those_of_the_published_script(documents, config, length):
    lists = as_lists(documents)
    expected = [
        (number, documents.sentence_bounds[number] + first, count, target)
        for number in range(len(lists))
        for first, count, target, *_ in create_instances_from_document(lists, number, length, PlannedDraws(config, 7, number))
    ]
    plan = plan_chunks(config, documents, length, 7, put_back_rate=config.shares[0])
    assert list(zip(*(column.tolist() for column in plan), strict=True)) == expected


class RowDraws:
    """Draws of `PairExamples.rows` for one example."""

    def __init__(self, key, split_key, documents, *, is_rest, is_random, is_swapped):
        self.key, self.split_key, self.documents, self.fronts = key, split_key, documents, None
        self.is_rest, self.is_random, self.is_swapped = is_rest, lambda: is_random, lambda: is_swapped

    def _word(self, stream):
        return bits(self.key, stream, 1)[:, 0]

    def split(self, last):
        # All sentences of the rest of a chunk are A.
        return last + 1 if self.is_rest else 1 + int(integers(bits(self.split_key, sentence_pairs._SPLIT, 1)[:, 0], last)[0])

    def document(self, own):
        other = int(integers(self._word(sentence_pairs._DOCUMENT), self.documents - 1)[0])
        return other + (other >= own)

    def start(self, sentences):
        return int(integers(self._word(sentence_pairs._SENTENCE), sentences)[0])

    def cut_front(self, cuts_a, a, b, room):
        """Cut as many tokens at the front of A (B) as its coins say; the order of the cuts makes no difference."""
        if self.fronts is None:
            cuts = np.zeros(2, np.int64)
            while a + b > room:
                longer = 0 if a > b else 1
                cuts[longer] += 1
                a, b = a - (longer == 0), b - (longer == 1)
            streams = (sentence_pairs._TRIM_A, sentence_pairs._TRIM_B)
            self.fronts = [int(coin_sums(self.key, stream, cuts[i : i + 1])[0]) for i, stream in enumerate(streams)]
        side = 0 if cuts_a else 1
        self.fronts[side] -= 1
        return self.fronts[side] >= 0


@pytest.mark.parametrize(("relation", "length"), [("next", 16), ("next", LENGTH), ("order", LENGTH), ("structure", LENGTH)])
@pytest.mark.parametrize("is_earlier", [False, True], ids=["", "earlier"])
def test_pairs_equal_those_of_the_published_script(documents, relation, length, is_earlier):
    lists = as_lists(documents)
    config = SentencePairs(relation=relation, label_single_sentences=True)
    config = earlier_rows(config) if is_earlier else config
    sentences = SENTENCES[relation]
    examples = config.examples(documents, length, 11, IDS)
    chosen = np.random.default_rng(0).integers(0, len(examples), 600)
    epochs = fold(5, np.arange(600))
    keys = fold(epochs, chosen)
    rows, choice = examples.rows(chosen, keys), examples._choose(chosen, epochs, keys)
    assert choice.is_rest.any() == (config.shares[0] > 0 and not is_earlier)
    for index in range(600):
        place = choice.chunk[index]
        number, first, count, target = (int(column[place]) for column in examples.plan)
        begin = first - documents.sentence_bounds[number]
        chunk = lists[number][begin : begin + count]
        split_key = fold(epochs[index], place)
        draws = {name: bool(getattr(choice, name)[index]) for name in ("is_rest", "is_random", "is_swapped")}
        draw = RowDraws(keys[index : index + 1], split_key, len(lists), **draws)
        if draw.is_rest:
            split = RowDraws(keys[index : index + 1], split_key, len(lists), **draws | {"is_rest": False}).split(count - 1)
            chunk = chunk[split:]
        _, a, b, is_random = make_pair(lists, number, chunk, target, length - 3, draw)
        assert (a, b) == split_row(rows, index)
        name = "random" if is_random else "previous" if draw.is_swapped() else "next"
        if (relation, name) == ("order", "random"):
            name = "previous"  # ALBERT's script has one label for every pair that is not next
        assert sentences.classes[rows[sentences.labels][index, 0]] == name


def test_excess_equals_the_published_loop():
    lengths = [(a, b, room) for a in range(1, 14) for b in range(1, 14) for room in range(2, 16)]
    a, b, room = np.array(lengths).T
    cut_a, cut_b = sentence_pairs.excess(a, b, room)
    for index, (a, b, room) in enumerate(lengths):
        tokens_a, tokens_b = [0] * a, [0] * b
        truncate_seq_pair(tokens_a, tokens_b, room, lambda *_: True)
        assert (cut_a[index], cut_b[index]) == (a - len(tokens_a), b - len(tokens_b))


def test_layout_of_rows(documents, examples):
    rows = examples.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    assert len(examples) > 1000
    place = np.arange(LENGTH)
    for index in range(len(examples)):
        a, b = split_row(rows, index)
        assert a and b and len(a) + len(b) <= LENGTH - 3
        n = len(a) + len(b) + 3
        assert rows["encoder_input_tokens"][index].tolist() == [2, *a, 3, *b, 3] + [0] * (LENGTH - n)
        assert rows["encoder_segment_ids"][index].tolist() == [1] * n + [0] * (LENGTH - n)
        assert rows["encoder_token_type_ids"][index].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (LENGTH - n)
        assert np.array_equal(rows["maskable"][index], (place > 0) & (place != len(a) + 1) & (place < n - 1))
    assert not rows["sequence_start_positions"].any() and rows["sequence_start_positions"].shape == (len(examples), 1)
    assert (rows["next_sentence_weights"] == 1).all() and rows["next_sentence_weights"].dtype == np.float32


@pytest.fixture(scope="module")
def toy():
    """Documents of distinct tokens, so that the tokens of a row show their place in the text."""
    generator = np.random.default_rng(2)
    return make_documents(*[generator.integers(1, 30, generator.integers(1, 40)).tolist() for _ in range(30)])


def token_places(documents, tokens):
    """Return the document and the first and last position of consecutive tokens from `make_documents`."""
    at = np.array(tokens) - 5
    assert np.array_equal(at, np.arange(at[0], at[0] + len(at)))  # contiguous
    starts = documents.sentence_starts[documents.sentence_bounds]
    document = np.searchsorted(starts, at, side="right") - 1
    assert document[0] == document[-1]
    return document[0], at[0], at[-1]


def test_next_segment_follows_and_random_segment_is_from_another_document(toy):
    examples = SentencePairs().examples(toy, 48, 3, IDS)
    labels = []
    for epoch in range(6):
        rows = examples.rows(np.arange(len(examples)), fold(epoch, np.arange(len(examples))))
        for index in range(len(examples)):
            (a_document, _, a_last), (b_document, b_first, _) = (token_places(toy, part) for part in split_row(rows, index))
            label = rows["next_sentence_labels"][index, 0]
            assert (a_document != b_document) == (label == sentence_pairs.IS_RANDOM)
            if label == sentence_pairs.IS_NEXT:
                # Only trimmed tokens are between A's last and B's first token, since whole pairs are contiguous.
                gap = b_first - a_last - 1
                assert gap == 0 or (gap > 0 and len(sum(split_row(rows, index), [])) == 48 - 3)
            labels.append(label)
    assert 0.4 < np.mean(labels) < 0.7


@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_pairs_are_random_at_the_rate_where_the_chunk_allows_both(toy, rate):
    examples = SentencePairs(random_next_rate=rate).examples(toy, 64, 3, IDS)
    numbers, single = np.arange(len(examples)), np.count_nonzero(examples.plan.sentences == 1)
    labels = np.array([examples.rows(numbers, fold(epoch, numbers))["next_sentence_labels"][:, 0] for epoch in range(100)])
    random = labels.sum(axis=1) - single
    assert len(set(random)) == 1 and abs(random[0] / (len(numbers) - single) - rate) < 0.02
    # Every chunk of several sentences is divided now and then, and none always.
    divided = labels[:, : np.count_nonzero(examples.plan.sentences > 1)].mean(axis=0)
    assert 0 < divided.min() and divided.max() < 0.8 and abs(divided.mean() - rate / (2 - rate)) < 0.02


def test_all_or_no_pairs_may_be_random(toy):
    always, never = (SentencePairs(random_next_rate=rate).examples(toy, 64, 3, IDS) for rate in (1.0, 0.0))
    assert always.rows(np.arange(50), fold(0, np.arange(50)))["next_sentence_labels"].all()
    is_random = never.rows(np.arange(len(never)), fold(0, np.arange(len(never))))["next_sentence_labels"][:, 0] == 1
    assert np.array_equal(is_random, never.plan.sentences == 1)


def test_random_sentences_are_drawn_uniformly():
    documents = make_documents(*[[3] * 4] * 5)
    examples = SentencePairs(random_next_rate=1.0).examples(documents, 9, 0, IDS)
    rows = examples.rows(np.zeros(4000, int), fold(1, np.arange(4000)))
    firsts = [split_row(rows, index)[1][0] for index in range(4000)]
    sentences = np.bincount((np.array(firsts) - 5) // 3, minlength=20)
    assert not sentences[:4].any()  # no sentence of its own document
    assert np.all(np.abs(sentences[4:] - 250) < 4.5 * np.sqrt(250))


@pytest.mark.parametrize(("rate", "low", "high"), [(0.1, 0.07, 0.13), (0.0, 0.0, 0.0), (1.0, 0.95, 1.0)])
def test_share_of_documents_with_short_chunks(rate, low, high):
    documents = make_documents(*[[1] * 40] * 1500)
    document, _, _, target = sentence_pairs.plan_chunks(SentencePairs(short_sequence_rate=rate), documents, 43, 1)
    assert target.min() >= 2 and target.max() <= 40
    targets_of_document = {number: set(target[document == number].tolist()) for number in range(1500)}
    assert all(len(targets) == 1 for targets in targets_of_document.values())
    assert low <= np.mean([min(targets) < 40 for targets in targets_of_document.values()]) <= high
    if rate == 1:
        assert set().union(*targets_of_document.values()) == set(range(2, 41))


def test_chunks_cover_every_sentence(toy):
    document, first, count, _ = plan_chunks(SentencePairs(), toy, 32, 5)
    assert np.all(np.diff(document) >= 0)
    covered = np.zeros(len(toy.sentence_starts) - 1, int)
    for begin, number in zip(first, count, strict=True):
        covered[begin : begin + number] += 1
    assert set(covered) == {1}


def sentences_in_pairs(documents, rows, weights):
    """Count by brute force the pairs in which each sentence of distinct tokens stands in A, or in a B that is not random."""
    uses, labels = Counter(), rows["next_sentence_labels"].ravel()[weights.ravel() > 0]
    sentence_of = np.repeat(np.arange(len(documents.sentence_starts) - 1), np.diff(documents.sentence_starts))
    pairs = []
    for tokens, segments, types in zip(
        *(rows[f"encoder_{name}"] for name in ("input_tokens", "segment_ids", "token_type_ids")), strict=True
    ):
        for segment in range(1, segments.max() + 1):
            pairs.append([tokens[(segments == segment) & (types == kind)] for kind in (0, 1)])
    for (a, b), label in zip(pairs, labels, strict=True):
        own = a if label == sentence_pairs.IS_RANDOM else np.concatenate([a, b])
        uses.update(np.unique(sentence_of[own[own >= 5] - 5]).tolist())
    return uses


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("text", ["two sentences", "mixed"])
def test_every_sentence_appears_in_every_epoch(packed, text):
    generator = np.random.default_rng(7)
    # A row may lose fewer tokens than a sentence has.
    documents = make_documents(
        *([[3, 4]] * 500 if text == "two sentences" else [[5] * generator.integers(1, 40) for _ in range(150)])
    )
    layout = Packed(SentencePairs(), max_examples=9) if packed else SentencePairs()
    examples = layout.examples(documents, 64, 3, IDS)
    numbers, orders = np.arange(len(examples)), set()
    for epoch in range(5):
        rows = examples.rows(numbers, fold(epoch, numbers))
        uses = sentences_in_pairs(documents, rows, rows["next_sentence_weights"])
        assert set(uses) == set(range(len(documents.sentence_starts) - 1))
        if text == "two sentences":
            assert set(uses.values()) == {1}
        orders.add(rows["next_sentence_labels"].tobytes())
    assert len(orders) == 5
    earlier = earlier_rows(SentencePairs()).examples(documents, 64, 3, IDS)
    numbers = np.arange(len(earlier))
    rows = earlier.rows(numbers, fold(0, numbers))
    assert len(sentences_in_pairs(documents, rows, rows["next_sentence_weights"])) < 0.99 * (len(documents.sentence_starts) - 1)


def test_plan_depends_on_the_seed_only(toy):
    first, again, other = (plan_chunks(SentencePairs(), toy, 32, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(first[0]) != len(other[0]) or not np.array_equal(first[1], other[1])


def test_pairs_require_two_documents():
    with pytest.raises(UserError, match="^sentence pairs need at least two documents and the toy text has 1; separate"):
        SentencePairs().examples(make_documents([1, 2, 3]), 16, 0, IDS)
    documents = make_documents([3, 4, 5], [6, 7])
    examples = SentencePairs().examples(documents, 16, 0, IDS)
    for epoch in range(50):
        rows = examples.rows(np.arange(len(examples)), fold(epoch, np.arange(len(examples))))
        for index, label in enumerate(rows["next_sentence_labels"][:, 0]):
            a, b = split_row(rows, index)
            assert (token_places(documents, a)[0] != token_places(documents, b)[0]) == label


def test_documents_of_one_sentence_give_random_pairs_and_a_warning():
    documents = make_documents(*[[5]] * 100)
    examples = SentencePairs().examples(documents, 16, 0, IDS)
    assert examples.always_random == 1 and len(examples) == 100
    assert examples.rows(np.arange(100), fold(0, np.arange(100)))["next_sentence_labels"].all()
    (warning,) = examples.warnings
    assert warning.startswith("100% of the sentence pairs of the toy text at length 16 have a random second sentence")
    assert SentencePairs(random_next_rate=1.0).examples(documents, 16, 0, IDS).warnings == []
    assert SentencePairs().examples(make_documents(*[[5] * 9] * 20), 128, 0, IDS).warnings == []


def test_huge_sentence_fills_rows():
    documents = make_documents([3_000_000], [2, 2], [200_000, 1])
    examples = SentencePairs(short_sequence_rate=0.0).examples(documents, 32, 0, IDS)
    rows = examples.rows(np.repeat(np.arange(len(examples)), 20), fold(0, np.arange(20 * len(examples))))
    lengths = rows["encoder_segment_ids"].sum(axis=1)
    assert lengths.max() == 32 and lengths.min() >= 5
    first = split_row(rows, 20 * int(np.flatnonzero(examples.plan.document == 0)[0]))[0]
    assert abs(first[0] - 1_500_000) < 10_000  # cut at both ends by fair coins


def test_shortest_rows():
    with pytest.raises(UserError, match="^length 4 is too short for a sentence pair; use at least 5$"):
        SentencePairs().examples(make_documents([1], [1]), 4, 0, IDS)
    examples = SentencePairs().examples(make_documents([1, 9, 2], [4, 4]), 5, 0, IDS)
    rows = examples.rows(np.arange(len(examples)), fold(0, np.arange(len(examples))))
    assert (rows["encoder_segment_ids"] == 1).all()
    assert all(len(a) == len(b) == 1 for a, b in (split_row(rows, index) for index in range(len(examples))))


@pytest.mark.parametrize("settings", [{"short_sequence_rate": -0.1}, {"random_next_rate": 1.1}])
def test_rates_outside_0_and_1_are_refused(settings):
    with pytest.raises(ValueError, match=r"is not in \[0, 1\]$"):
        SentencePairs(**settings)


def test_planning_long_documents_in_stretches_covers_every_sentence(monkeypatch):
    lengths = np.random.default_rng(4).integers(1, 30, 4000).tolist()
    documents = make_documents(lengths, [700, 3, 4], [5] * 10)
    whole = plan_chunks(SentencePairs(), documents, 32, 1)
    monkeypatch.setattr(sentence_pairs, "_STRETCH", 500)
    stretched = plan_chunks(SentencePairs(), documents, 32, 1)
    # Every sentence is in one chunk: a chunk begins at the end of the previous one.
    for document, first, count, _ in (whole, stretched):
        ends = first + count
        assert np.array_equal(first[1:], ends[:-1]) and (first[0], ends[-1]) == (0, documents.sentence_bounds[-1])
        assert [first[document == number][0] for number in range(3)] == documents.sentence_bounds[:-1].tolist()
    assert len(whole.first) < len(stretched.first) < len(whole.first) + 2 * len(documents.tokens) / 500


@pytest.mark.parametrize("random_next_rate", [0.0, 0.5])
def test_pairs_of_single_sentences(documents, random_next_rate):
    """RoBERTa's SENTENCE-PAIR: A and B are one sentence each, and B is the next sentence or one of another document."""
    lists = as_lists(documents)
    config = SentencePairs(random_next_rate=random_next_rate, unit="sentence")
    examples = config.examples(documents, 512, 11, IDS)
    numbers = np.arange(len(examples))
    keys = fold(5, numbers)
    rows, chunks = examples.rows(numbers, keys), examples._choose(numbers, unfold(keys, numbers), keys).chunk
    next_sentences, documents_of_sentence = {}, {}
    for number, document in enumerate(lists):
        for sentence, following in zip(document, [*document[1:], None], strict=True):
            documents_of_sentence.setdefault(tuple(sentence), set()).add(number)
            next_sentences.setdefault(tuple(sentence), []).append(following)
    labels, cut = rows["next_sentence_labels"][:, 0], 0
    for index, label in enumerate(labels):
        a, b = map(tuple, split_row(rows, index))
        if len(a) + len(b) >= 500:
            cut += 1
        elif label == 0:
            assert list(b) in next_sentences[a]
        else:
            assert a in documents_of_sentence and documents_of_sentence[b] - {examples.plan.document[chunks[index]]}
    assert cut < 0.1 * len(labels)
    splittable = examples.plan.sentences[chunks] == 2
    assert (labels[~splittable] == 1).all() and set(examples.plan.sentences) == {1, 2}
    assert abs(labels[splittable].mean() - random_next_rate) < 0.01
    # Without random pairs, every sentence occurs once.
    if not random_next_rate:
        assert len(labels) == sum(-(-len(document) // 2) for document in lists)

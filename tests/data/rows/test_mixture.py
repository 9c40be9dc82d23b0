"""Mixtures of corpora: shares, orders and epochs."""

import numpy as np
import pytest
from numbered_documents import FIRST, IDS, random_documents

from bertfam.config import load
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.rows.batches import Batches, CorruptedRows
from bertfam.data.rows.mixture import ConcatenatedRows, MixedRows, Mixture, shares
from bertfam.data.rows.order import Contiguous, Shuffled
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, FullSentences, WholeDocuments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.documents import Documents
from bertfam.errors import UserError

APART = 100_000  # between the tokens of two corpora


def make_part(number, count, rows=WholeDocuments(), length=32):  # noqa: B008
    documents = random_documents(number, count)
    shifted = Documents("toy", documents.tokens + APART * number, documents.sentence_starts, documents.sentence_bounds)
    examples = rows.examples(shifted, length, 5, IDS)
    return CorruptedRows(Shuffled(len(examples), 10 + number), examples, BertMasking(), IDS, 20 + number)


@pytest.mark.parametrize("expected_shares", [(0.5, 0.3, 0.2), (1 / 3, 1 / 3, 1 / 3), (0.9, 0.09999, 0.00001)])
def test_every_window_has_the_requested_shares(expected_shares):
    mixed = MixedRows((make_part(0, 2), make_part(1, 2), make_part(2, 2)), expected_shares)
    corpora, _ = mixed.index(np.arange(40_000))
    for window in (100, 1000, 10_000):
        for start in (0, 137, 25_000):
            counts = np.bincount(corpora[start : start + window], minlength=3)
            assert np.abs(counts - window * np.array(expected_shares)).max() <= 2


def test_every_part_is_read_in_its_own_order():
    parts = (make_part(0, 9), make_part(1, 30), make_part(2, 4))
    mixed = MixedRows(parts, (0.2, 0.7, 0.1))
    part_indices, numbers = mixed.index(np.arange(30_000))
    for index in range(3):
        assert np.array_equal(numbers[part_indices == index], np.arange((part_indices == index).sum()))
    for place in (0, 10, 1234, 10**9, 10**12 + 7):
        row = mixed.at(np.array([place]))
        index, number_in_part = (value[0] for value in mixed.index(np.array([place])))
        alone = parts[index].at(np.array([number_in_part]))
        assert all(np.array_equal(row[name], alone[name]) for name in alone)


def test_epoch_of_a_mixture_ends_with_the_corpus_that_is_used_up_first():
    parts = (make_part(0, 9), make_part(1, 30))
    sizes = [len(part.examples) for part in parts]
    for expected_shares in ((0.5, 0.5), (0.1, 0.9)):
        mixed = MixedRows(parts, expected_shares)
        which, numbers = mixed.index(np.arange(10_000))
        ends = [np.flatnonzero((which == index) & (numbers == sizes[index] - 1))[0] + 1 for index in range(2)]
        assert mixed.epoch_rows == pytest.approx(min(ends), abs=2)


def test_rows_do_not_depend_on_the_requested_slice():
    batches = Batches(MixedRows((make_part(0, 9), make_part(1, 30)), (0.4, 0.6)), 16)
    for step in (0, 77, 10**6):
        whole = batches.rows(step, 0, 16)
        for start, stop in ((0, 3), (5, 16), (4, 4)):
            part_of_batch = batches.rows(step, start, stop)
            assert all(np.array_equal(part_of_batch[name], value[start:stop]) for name, value in whole.items())


def clean_tokens(rows):
    tokens = rows["encoder_input_tokens"].copy()
    row, slot = np.nonzero(rows["masked_loss_weights"])
    tokens[row, rows["masked_positions"][row, slot]] = rows["masked_target_tokens"][row, slot]
    return tokens[rows["encoder_segment_ids"] > 0]


@pytest.mark.parametrize("rows", [Packed(), WholeDocuments(), FullSentences(), Chunks()])
def test_every_token_of_every_document_occurs_once_an_epoch(rows):
    parts = (make_part(0, 9, rows), make_part(1, 30, rows), make_part(2, 20, rows))
    mixed = MixedRows(parts, (0.2, 0.5, 0.3))
    epochs = 3
    places = np.arange(max(10 * epochs * len(source.examples) for source in parts))
    part_indices, numbers = mixed.index(places)
    orders = []
    for index, source in enumerate(parts):
        size = len(source.examples)
        own_places = places[(part_indices == index) & (numbers < epochs * size)]
        assert len(own_places) == epochs * size
        for epoch in range(epochs):
            tokens = clean_tokens(mixed.at(own_places[epoch * size : (epoch + 1) * size]))
            text = tokens[tokens >= FIRST]
            documents = source.examples._inner._documents if isinstance(rows, Packed) else source.examples._documents
            assert sorted(text.tolist()) == sorted(documents.tokens.tolist())
            orders.append(tuple(text.tolist()))
    assert len(set(orders)) == len(orders)  # a new order in every epoch


def test_held_out_rows_of_corpora_are_concatenated():
    parts = tuple(CorruptedRows(Contiguous(len(one.examples)), *[getattr(one, name) for name in
                  ("examples", "corruption", "tokens", "key")]) for one in (make_part(0, 3), make_part(1, 5)))  # fmt: skip
    rows = ConcatenatedRows(parts)
    count = len(rows)
    batch = rows.at(np.arange(count + 4))
    tokens = clean_tokens(batch)
    text = tokens[tokens >= FIRST]
    assert np.array_equal(np.sort(text), np.sort(np.concatenate([one.examples._documents.tokens for one in parts])))
    assert (np.diff(text // APART) >= 0).all()
    assert all(not value[count:].any() for value in batch.values())


def test_shuffled_held_out_rows_mix_all_corpora():
    parts = tuple(CorruptedRows(Contiguous(len(one.examples)), *[getattr(one, name) for name in
                  ("examples", "corruption", "tokens", "key")]) for one in (make_part(0, 40), make_part(1, 40)))  # fmt: skip
    plain, shuffled = ConcatenatedRows(parts), ConcatenatedRows(parts, 0)
    count = len(plain)
    whole, mixed = plain.at(np.arange(count)), shuffled.at(np.arange(count + 3))
    assert all(not value[count:].any() for value in mixed.values())
    rows = [{tuple(row) for row in batch["encoder_input_tokens"][:count].tolist()} for batch in (whole, mixed)]
    assert rows[0] == rows[1]
    first = clean_tokens(shuffled.at(np.arange(20)))
    assert 0.2 < (first[first >= FIRST] >= APART).mean() < 0.8


def test_held_out_rows_by_corpus_are_those_of_the_whole(cache, corpus, vocabulary, tokens, tmp_path):
    two = build({"all": corpus, "again": corpus}, vocabulary, tmp_path / "cache")
    data = TextData(rows=Chunks())
    for at_most in (None, 2):
        whole = data.held_out(two, tokens, 48, 16, at_most=at_most)
        assert list(whole.corpora) == ["all", "again"] and sum(part.rows for part in whole.corpora.values()) == whole.rows
        read = [row for step in range(whole.steps) for row in whole.source.rows(step, 0, 16)["encoder_input_tokens"].tolist()]
        by_corpus = []
        for part in whole.corpora.values():
            batches = [part.source.rows(step, 0, 16) for step in range(part.steps)]
            rows = np.concatenate([batch["encoder_input_tokens"] for batch in batches])
            assert not any(batch["masked_loss_weights"][part.rows - 16 * step :].any() for step, batch in enumerate(batches))
            by_corpus += rows[: part.rows].tolist()
        assert sorted(by_corpus) == sorted(read[: whole.rows])
    assert not data.held_out(cache, tokens, 48, 16).corpora


def test_shares_follow_rates_or_temperature():
    assert shares([10, 1, 1], rates=(1, 2, 1)) == (0.25, 0.5, 0.25)
    assert shares([30, 10]) == (0.75, 0.25)
    mixed = shares([1000, 10], temperature=1 / 0.3)
    assert mixed == pytest.approx((1000**0.3 / (1000**0.3 + 10**0.3), 10**0.3 / (1000**0.3 + 10**0.3)))
    assert shares([10**12, 1], temperature=1e9) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpora": (), "names": ()}, "Mixture.corpora is empty"),
        ({"names": ("a",)}, "Mixture.names has 1 entries for 2 corpora"),
        ({"rates": (1.0,)}, "Mixture.rates has 1 entries for 2 corpora"),
        ({"names": ("a", "a")}, "two corpora have the same name"),
        ({"names": ("a", "../b")}, "'../b' cannot be the name of a corpus"),
        ({"rates": (1.0, 0.0)}, "every rate must be a number above 0"),
        ({"rates": (1.0, 1.0), "temperature": 2.0}, "give only one of them"),
        ({"temperature": 0.0}, "must be a number above 0"),
        ({"rates": (float("inf"), 1.0)}, "every rate must be a number above 0"),
        ({"names": ("a", "vocab")}, "'vocab' cannot be the name of a corpus"),
    ],
)
def test_bad_settings_are_refused(settings, message, corpus):
    with pytest.raises(UserError, match=message):
        Mixture(**{"corpora": (corpus, corpus), "names": ("a", "b")} | settings)


def test_examples_proportional_mixing_with_a_limit():
    """Raffel et al. 2020, section 3.5.2: r_m = min(e_m, K) / sum of min(e_n, K), to the power 1 / T and renormalised."""
    sizes = [400, 1_000, 50_000, 9_000_000]

    def published(limit, temperature):
        rates = np.minimum(sizes, limit) / np.minimum(sizes, limit).sum()
        rates = rates ** (1 / temperature)
        return rates / rates.sum()

    texts = tuple(PythonDocs() for _ in sizes)
    for limit, temperature in ((2**16, 1.0), (500, 1.0), (2**21, 2.0), (2**21, 8.0), (1, 3.0)):
        mixture = Mixture(texts, tuple("abcd"), temperature=temperature, limit=limit)
        np.testing.assert_allclose(mixture.shares(sizes), published(limit, temperature), rtol=1e-12)
    assert Mixture(texts, tuple("abcd"), limit=400).shares(sizes) == (0.25,) * 4
    for settings, message in (
        ({"limit": 0}, "must be at least 1"),
        ({"limit": 5, "rates": (1.0,) * 4}, "Mixture.rates and Mixture.limit"),
    ):
        with pytest.raises(UserError, match=message):
            Mixture(texts, tuple("abcd"), **settings)


def test_sampling_of_languages_equals_that_of_mt5():
    """Xue et al. 2021, section 3.1: p(L) is proportional to |L|^0.3, which raises the shares of small languages."""
    sizes = np.array([10**9, 10**7, 10**4])
    mixture = load(
        ["runs/mt5_base.gin"],
        ["Mixture.corpora = (@PythonDocs(), @PythonDocs(), @PythonDocs())", "Mixture.names = ('en', 'fi', 'yo')"],
    ).build("Mixture")
    expected = sizes**0.3 / (sizes**0.3).sum()
    np.testing.assert_allclose(mixture.shares(sizes.tolist()), expected, rtol=1e-12)
    # The share rises from 1 in 100,000 to about 1 in 40.
    assert expected[2] == pytest.approx(0.0240, abs=1e-3)

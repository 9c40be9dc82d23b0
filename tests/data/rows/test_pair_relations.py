"""Relations of labelled pairs in the objectives of ALBERT and StructBERT, next to those of BERT."""

import math
from collections import Counter

import numpy as np
import pytest
from test_sentence_pairs import IDS, make_documents, split_row, token_places

from bertfam.corruption.keys import fold
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.features import SENTENCES

SHARES = {
    "next": {"next": 1 / 2, "random": 1 / 2},
    "order": {"next": 1 / 2, "previous": 1 / 2},
    "structure": {"random": 1 / 3, "next": 1 / 3, "previous": 1 / 3},
}


def true_relation(documents, a, b):
    """Return the relation of B to A according to their places in the text."""
    (a_document, a_first, a_last), (b_document, b_first, b_last) = (token_places(documents, part) for part in (a, b))
    if a_document != b_document:
        return "random"
    assert a_last < b_first or b_last < a_first
    return "next" if a_last < b_first else "previous"


def gap_between(documents, a, b):
    """Return the number of tokens between A and B, in either order."""
    (_, a_first, a_last), (_, b_first, b_last) = (token_places(documents, part) for part in (a, b))
    return b_first - a_last - 1 if a_last < b_first else a_first - b_last - 1


@pytest.fixture(scope="module")
def toy():
    generator = np.random.default_rng(2)
    return make_documents(*[generator.integers(1, 30, generator.integers(1, 40)).tolist() for _ in range(30)])


@pytest.mark.parametrize("relation", SHARES)
@pytest.mark.parametrize("published", [False, True])
def test_labels_equal_the_true_relation(toy, relation, published):
    config, sentences = SentencePairs(relation=relation, label_single_sentences=published or None), SENTENCES[relation]
    examples, relations, unlabelled = config.examples(toy, 48, 3, IDS), Counter(), 0
    single = np.count_nonzero(examples.plan.sentences == 1)
    assert single
    for epoch in range(6):
        rows = examples.rows(np.arange(len(examples)), fold(epoch, np.arange(len(examples))))
        for index in range(len(examples)):
            a, b = split_row(rows, index)
            name, truth = sentences.classes[rows[sentences.labels][index, 0]], true_relation(toy, a, b)
            if truth != "random":
                # Tokens between A and B are missing only where a full row was trimmed.
                assert gap_between(toy, a, b) == 0 or len(a) + len(b) == 48 - 3
            if rows[sentences.weights][index, 0] == 0:
                assert truth == "random" and rows[sentences.labels][index, 0] == 0
                unlabelled += 1
            elif relation == "order" and truth == "random":
                assert name == "previous" and published
            else:
                assert name == truth
            relations[truth] += 1
    assert unlabelled == (0 if published or relation == "next" else 6 * single)
    assert set(relations) == {"next", "previous", "random"} - ({"previous"} if relation == "next" else set())


@pytest.mark.parametrize("relation", ["order", "structure"])
def test_labels_of_a_corpus_half_of_single_sentences(relation):
    """Half of the documents have no text to follow their sentence: their pairs have no label, and a warning counts them."""
    documents, sentences = make_documents(*[[7, 6, 5, 8], [9]] * 500), SENTENCES[relation]
    examples = SentencePairs(0.0, relation=relation).examples(documents, 32, 3, IDS)
    rows = examples.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    labels, weights = rows[sentences.labels][:, 0], rows[sentences.weights][:, 0]
    names = Counter()
    for index in range(len(examples)):
        truth = true_relation(documents, *split_row(rows, index))
        if weights[index]:
            assert sentences.classes[labels[index]] == truth
            names[truth] += 1
    assert (weights == 0).sum() == 500 and names.total() == len(examples) - 500
    for name, share in SHARES[relation].items():
        assert abs(names[name] / names.total() - share) < 5 * math.sqrt(share * (1 - share) / names.total())
    (warning,) = examples.warnings
    assert f"500 of the {len(examples):,} sentence pairs of the toy text at length 32" in warning and "have no label" in warning
    published = SentencePairs(0.0, relation=relation, label_single_sentences=True).examples(documents, 32, 3, IDS)
    again = published.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    assert (again[sentences.weights] == 1).all() and np.array_equal(again[sentences.labels][weights > 0, 0], labels[weights > 0])
    assert set(again[sentences.labels][weights == 0, 0]) == {1 if relation == "order" else 0}
    (warning,) = published.warnings
    assert "500 of the " in warning and "labelled as published" in warning
    assert SentencePairs(0.0, relation=relation).examples(make_documents([3, 4], [3, 4]), 32, 3, IDS).warnings == []


@pytest.mark.parametrize("relation", SHARES)
def test_shares_of_relations_in_real_text(cache, tokens, relation):
    """Count the labels of at least 2,000 rows whose chunks allow every relation."""
    documents, config, sentences = cache.documents("train", "text"), SentencePairs(relation=relation), SENTENCES[relation]
    examples = config.examples(documents, 64, 3, IDS)
    splittable = np.setdiff1d(np.arange(len(examples)), np.flatnonzero(examples.plan.sentences == 1))
    labels = [examples.rows(splittable, fold(epoch, splittable))[sentences.labels][:, 0] for epoch in range(2)]
    labels = np.concatenate(labels)
    assert len(labels) > 2000
    for name, share in SHARES[relation].items():
        count = (labels == sentences.classes.index(name)).sum()
        assert abs(count / len(labels) - share) < 4 * math.sqrt(share * (1 - share) / len(labels))


@pytest.mark.parametrize("relation", SHARES)
def test_packed_rows_have_the_labels_of_their_pairs(toy, relation):
    rows, sentences = Packed(SentencePairs(relation=relation, label_single_sentences=True), max_examples=4), SENTENCES[relation]
    assert rows.relation == relation
    data = TextData(rows=rows)
    examples = rows.examples(toy, 96, 3, IDS)
    batch = examples.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    specs = data.features(96)
    assert {sentences.labels, sentences.weights, "sequence_start_positions"} <= specs.keys()
    assert not any(other.labels in specs for other in SENTENCES.values() if other is not sentences)
    for name in (sentences.labels, sentences.weights):
        assert batch[name].shape[1:] == specs[name].shape == (4,) and batch[name].dtype == specs[name].dtype
    relations = Counter()
    for row in range(len(examples)):
        for slot in range(4):
            inside = batch["encoder_segment_ids"][row] == slot + 1
            assert batch[sentences.weights][row, slot] == inside.any()
            if inside.any():
                pair = {name: value[row : row + 1, inside] for name, value in batch.items() if name.startswith("encoder")}
                pair["encoder_segment_ids"] = np.ones_like(pair["encoder_segment_ids"])
                truth = true_relation(toy, *split_row(pair, 0))
                name = sentences.classes[batch[sentences.labels][row, slot]]
                assert name == truth or (relation, truth, name) == ("order", "random", "previous")
                relations[name] += 1
    assert set(relations) == set(sentences.classes)


@pytest.mark.parametrize("relation", ["order", "structure"])
def test_too_little_text_is_refused_or_warned_about(relation):
    config = SentencePairs(relation=relation)
    with pytest.raises(UserError, match="sentence pairs need at least two documents and the toy text has 1"):
        config.examples(make_documents([1, 2, 3]), 16, 0, IDS)
    examples = config.examples(make_documents(*[[5]] * 100), 16, 0, IDS)
    rows = examples.rows(np.arange(100), fold(0, np.arange(100)))
    assert not rows[SENTENCES[relation].weights].any()
    (warning,) = examples.warnings
    assert warning.startswith("100 of the 100 sentence pairs of the toy text at length 16 (100%) have a random second sentence")
    assert ("sentence-order prediction" in warning) == (relation == "order") and "next-sentence" not in warning


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relation": "random"}, "relation 'random' is not one of next, order, structure"),
        ({"relation": "structure", "random_next_rate": 0.8}, "random_next_rate 0.8 goes with relation next, not structure"),
    ],
)
def test_settings_that_conflict_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SentencePairs(**settings)

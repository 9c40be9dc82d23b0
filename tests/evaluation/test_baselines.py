"""Scores of predictors that ignore the context."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.batches import Batches
from bertfam.data.text_data import TextData
from bertfam.evaluation.baselines import baselines, unigram_counts


def test_unigram_counts_equal_those_of_the_text(cache, vocabulary):
    documents = cache.documents("train", "text")
    counts = unigram_counts([documents], vocabulary.size)
    text = documents.tokens[:]
    assert counts.sum() == len(text) and counts.shape == (vocabulary.size,)
    for token in (int(text[0]), int(text[-1]), 3):
        assert counts[token] == sum(int(text_token) == token for text_token in text)


def test_baselines_equal_hand_computed_ones():
    counts = np.array([0, 5, 2, 1])  # with one added to each count: 1, 6, 3, 2 of 12
    rows = {
        "masked_target_tokens": np.array([[1, 2], [3, 0]], np.int32),
        "masked_loss_weights": np.array([[1, 1], [1, 0]], np.float32),
        "next_sentence_labels": np.array([[1], [0]], np.int32),
        "next_sentence_weights": np.ones((2, 1), np.float32),
    }
    last = rows | {
        "masked_target_tokens": np.array([[1, 1], [0, 0]], np.int32),
        "masked_loss_weights": np.array([[1, 0], [0, 0]], np.float32),
        "next_sentence_labels": np.array([[1], [0]], np.int32),
        "next_sentence_weights": np.array([[1], [0]], np.float32),  # a row of padding
    }
    source = SimpleNamespace(rows=lambda step, start, stop: (rows, last)[step])
    assert baselines(source, 2, 2, counts) == {
        "unigram_loss": pytest.approx(-(np.log(6 / 12) * 2 + np.log(3 / 12) + np.log(2 / 12)) / 4),
        "most_frequent_accuracy": pytest.approx(2 / 4),
        "nsp_majority_accuracy": pytest.approx(2 / 3),
    }


def test_baselines_of_structure_labels_and_shuffled_tokens():
    counts = np.array([0, 5, 2, 1])
    rows = {
        "encoder_input_tokens": np.array([[9, 3, 2, 1, 3], [9, 9, 1, 2, 0]], np.int32),
        "masked_positions": np.array([[0, 1, 2, 3], [0, 2, 3, 0]], np.int32),
        "masked_target_tokens": np.array([[1, 2, 3, 1], [2, 1, 2, 0]], np.int32),
        "masked_loss_weights": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32),
        "shuffled_loss_weights": np.array([[0, 1, 1, 1], [0, 1, 1, 0]], np.float32),
        "sentence_structure_labels": np.array([[2], [2]], np.int32),
        "sentence_structure_weights": np.ones((2, 1), np.float32),
    }
    last = rows | {"sentence_structure_labels": np.array([[1], [0]], np.int32)}
    source = SimpleNamespace(rows=lambda step, start, stop: (rows, last)[step])
    assert baselines(source, 2, 2, counts) == {
        "unigram_loss": pytest.approx(-(np.log(6 / 12) + np.log(3 / 12)) / 2),  # masked tokens only
        "most_frequent_accuracy": pytest.approx(1 / 2),
        "shuffled_unigram_loss": pytest.approx(-(np.log(3 / 12) * 2 + np.log(2 / 12) + np.log(6 / 12) * 2) / 5),
        "shuffled_most_frequent_accuracy": pytest.approx(2 / 5),
        "shuffled_unmoved_accuracy": pytest.approx(3 / 5),
        "structure_majority_accuracy": pytest.approx(2 / 4),
    }


def test_baselines_of_spans():
    """Two of the three masked tokens in the first row are in a counted span, and the one in the second row is."""
    rows = {
        "masked_target_tokens": np.array([[1, 2, 3], [1, 0, 0]], np.int32),
        "masked_loss_weights": np.array([[1, 1, 1], [1, 0, 0]], np.float32),
        "span_loss_weights": np.array([[0, 1, 1], [1, 0, 0]], np.float32),
    }
    source = SimpleNamespace(rows=lambda step, start, stop: rows)
    assert baselines(source, 1, 2, np.array([0, 5, 2, 1])) == {
        "unigram_loss": pytest.approx(-(np.log(6 / 12) * 2 + np.log(3 / 12) + np.log(2 / 12)) / 4),
        "most_frequent_accuracy": pytest.approx(2 / 4),
        "sbo_unigram_loss": pytest.approx(-(np.log(6 / 12) + np.log(3 / 12) + np.log(2 / 12)) / 3),
        "sbo_most_frequent_accuracy": pytest.approx(1 / 3),
    }


def test_split_with_one_document_has_no_held_out_pairs(cache, tokens):
    empty = SimpleNamespace(
        corpora=("text",),
        counts=lambda split, corpus: {"documents": 1},
        documents=cache.documents,
        has_pairs=lambda corpus: False,
    )
    assert TextData().held_out(empty, tokens, 48, 5) is None
    assert isinstance(TextData(corruption=BertMasking()).held_out(cache, tokens, 48, 5).source, Batches)

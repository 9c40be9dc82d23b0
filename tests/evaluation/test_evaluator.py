"""Scores on held-out rows are exact weighted means, whatever the batches."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.batches import Batches
from bertfam.data.text_data import TextData
from bertfam.evaluation.baselines import baselines, unigram_counts
from bertfam.evaluation.evaluator import evaluate
from bertfam.objectives.objective import Sum


def test_means_over_batches_of_unequal_weight():
    weights = [3.0, 0.0, 5.0, 1.0]
    values = [2.0, 7.0, 1.0, 4.0]
    asked = []

    def batches(step):
        asked.append(step)
        return {"value": jnp.float32(values[step]), "weight": jnp.float32(weights[step])}

    def step(batch):
        return {"loss": Sum(batch["value"] * batch["weight"], batch["weight"]), "none": Sum(jnp.float32(0), jnp.float32(0))}

    assert evaluate(step, batches, 4) == {"loss": pytest.approx((6 + 0 + 5 + 4) / 9)}
    assert asked == [0, 1, 2, 3]
    assert evaluate(step, batches, 0) == {}


def test_fewer_rows_than_a_batch_score_as_they_do_alone(cache, tokens):
    """The score of every row, counted in NumPy, against batches of 5, 64 and more rows than there are."""
    data = TextData()

    def step(batch):
        used = batch["masked_loss_weights"]
        value = np.sum(batch["masked_target_tokens"] * used)
        return {"mean": Sum(jnp.float32(value), jnp.float32(used.sum())), "rows": Sum(jnp.float32(1), jnp.float32(1))}

    found = []
    for batch_size in (5, 64, 100_000):
        held_out = data.held_out(cache, tokens, 48, batch_size)
        scores = evaluate(
            step, lambda index, held_out=held_out: held_out.source.rows(index, 0, held_out.batch_size), held_out.steps
        )
        found.append(scores["mean"])
    assert held_out.steps == 1 and len(held_out.source.sequence) > 64
    rows = held_out.source.rows(0, 0, len(held_out.source.sequence))
    used = rows["masked_loss_weights"].astype(bool)
    assert found == pytest.approx([rows["masked_target_tokens"][used].mean()] * 3, rel=1e-6)


def test_unigram_counts(cache, vocabulary):
    documents = cache.documents("train", "text")
    counts = unigram_counts([documents], vocabulary.size)
    assert counts.sum() == len(documents.tokens) and counts.shape == (vocabulary.size,)
    for token in (int(documents.tokens[0]), int(documents.tokens[-1]), 3):
        assert counts[token] == sum(int(found) == token for found in documents.tokens)


def test_baselines_by_hand():
    counts = np.array([0, 5, 2, 1])  # one added: 1, 6, 3, 2 of 12
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


def test_baselines_of_other_labels_and_of_shuffled_tokens():
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
        "unigram_loss": pytest.approx(-(np.log(6 / 12) + np.log(3 / 12)) / 2),  # of the masked tokens alone
        "most_frequent_accuracy": pytest.approx(1 / 2),
        "shuffled_unigram_loss": pytest.approx(-(np.log(3 / 12) * 2 + np.log(2 / 12) + np.log(6 / 12) * 2) / 5),
        "shuffled_most_frequent_accuracy": pytest.approx(2 / 5),
        "shuffled_unmoved_accuracy": pytest.approx(3 / 5),
        "structure_majority_accuracy": pytest.approx(2 / 4),
    }


def test_baselines_of_spans():
    """Of three masked tokens in one row two lie in a span that counts, in the next row one."""
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


def test_a_split_without_documents_gives_nothing_to_score(cache, tokens):
    empty = SimpleNamespace(
        corpora=("text",),
        counts=lambda split, corpus: {"documents": 1},
        documents=cache.documents,
        has_pairs=lambda corpus: False,
    )
    assert TextData().held_out(empty, tokens, 48, 5) is None
    assert isinstance(TextData(corruption=BertMasking()).held_out(cache, tokens, 48, 5).source, Batches)

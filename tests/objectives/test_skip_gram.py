"""Skip-gram with negative sampling: the loss by hand, sums over microbatches, a baseline of words alone."""

import jax
import numpy as np
import pytest
from gradients import assert_sums_of_microbatches, compile_loss, random_params

from bertfam.corruption.skip_grams import SkipGrams
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError
from bertfam.evaluation.baselines import baselines
from bertfam.features import RowShape
from bertfam.models.word2vec import Word2VecConfig
from bertfam.objectives.representations.skip_gram import SkipGram

SHAPE = RowShape(length=12, predictions=12)
OBJECTIVE = SkipGram(Word2VecConfig(vocab_size=30, hidden_size=8), negatives=3)


def batch_of(rows=4, seed=0):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(2, 6, rows)
    real = np.arange(12) < sizes[:, None]
    weights = (np.arange(12) < generator.integers(1, 12, rows)[:, None]).astype(np.float32)
    return {
        "encoder_input_tokens": np.where(real, generator.integers(5, 30, (rows, 12)), 0).astype(np.int32),
        "encoder_segment_ids": real.astype(np.int32),
        "masked_positions": (generator.integers(0, 2, (rows, 12)) * (weights > 0)).astype(np.int32),
        "masked_target_tokens": generator.integers(5, 30, (rows, 12)).astype(np.int32),
        "masked_loss_weights": weights,
        "noise_tokens": generator.integers(5, 30, (rows, 12, 3)).astype(np.int32),
    }


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE, shape=SHAPE, scale=1.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_loss_by_hand(params):
    batch = batch_of()
    (loss, out), gradient = compile_loss(OBJECTIVE)(params, batch)
    centres, contexts = np.float64(params["encoder"]["embeddings"]["word"]["table"]), np.float64(params["contexts"]["table"])
    total, count, above = 0.0, 0, 0.0
    slope = np.zeros_like(contexts)
    for row, slot in np.argwhere(batch["masked_loss_weights"] > 0):
        centre = centres[batch["encoder_input_tokens"][row, batch["masked_positions"][row, slot]]]
        target, noise = batch["masked_target_tokens"][row, slot], batch["noise_tokens"][row, slot]
        total -= np.log(sigmoid(contexts[target] @ centre)) + np.log(sigmoid(-contexts[noise] @ centre)).sum()
        above += np.mean(contexts[target] @ centre > contexts[noise] @ centre)
        slope[target] += (sigmoid(contexts[target] @ centre) - 1) * centre
        for word in noise:
            slope[word] += sigmoid(contexts[word] @ centre) * centre
        count += 1
    assert loss == pytest.approx(total / count, rel=1e-5)
    assert out.metrics["skip_gram_accuracy"].total == pytest.approx(above, rel=1e-5)
    np.testing.assert_allclose(gradient["contexts"]["table"], slope / count, rtol=1e-4, atol=1e-6)


def test_sums_of_microbatches(params):
    run = jax.jit(lambda batch: OBJECTIVE.loss(params, {}, {}, batch, key=None, train=False))
    assert_sums_of_microbatches(run, batch_of(6))


def test_predictions_are_the_words_of_the_greatest_score(params):
    batch = batch_of()
    found = OBJECTIVE.predictions(params, batch)
    table = params["encoder"]["embeddings"]["word"]["table"]
    centres = table[np.take_along_axis(batch["encoder_input_tokens"], batch["masked_positions"], axis=1)]
    assert np.array_equal(found.tokens, np.argmax(centres @ params["contexts"]["table"][:30].T, axis=-1))


def test_vectors_of_contexts_start_at_zero_and_so_does_every_score():
    params = OBJECTIVE.init(jax.random.key(0), SHAPE)[0]
    loss = compile_loss(OBJECTIVE, gradient=False)(params, batch_of())[0]
    assert loss == pytest.approx(4 * np.log(2), rel=1e-6)


class Rows:
    """Source of one batch."""

    def rows(self, step, start, stop):
        return batch_of()


def test_the_baseline_is_the_loss_of_scores_of_words_alone():
    batch = batch_of()
    scores = np.random.default_rng(1).normal(size=30)
    found = baselines(Rows(), 1, 4, np.ones(30, np.int64), scores)["skip_gram_unigram_loss"]
    used = batch["masked_loss_weights"] > 0
    targets, noise = scores[batch["masked_target_tokens"][used]], scores[batch["noise_tokens"][used]]
    losses = -np.log(sigmoid(targets)) - np.log(sigmoid(-noise)).sum(axis=1)
    assert found == pytest.approx(np.mean(losses), rel=1e-6)


def test_another_model_is_refused():
    from tiny import objective

    with pytest.raises(UserError, match="SkipGram trains a Word2VecConfig, and BertConfig is none"):
        SkipGram(objective().model)


def test_scores_of_words_alone_have_the_least_expected_loss():
    tokens = TokenIds(size=30, pad=0, unk=1, special=(0, 1, 2, 3, 4), starts_word=np.ones(30, bool))
    counts = np.arange(30) ** 2
    fitted = SkipGrams(threshold=0.02, negatives=3).fit(lambda: counts)
    kept = counts[5:] * np.minimum(1, np.sqrt(0.02 * counts[5:].sum() / counts[5:]))
    pairs, noise = kept / kept.sum(), 3 * counts[5:] ** 0.75 / (counts[5:] ** 0.75).sum()
    best = fitted.word_scores(tokens)[5:]

    def loss(scores):
        return float(pairs @ np.logaddexp(0, -scores) + noise @ np.logaddexp(0, scores))

    generator = np.random.default_rng(1)
    assert all(loss(best + generator.normal(0, 0.3, 25)) > loss(best) for _ in range(20))

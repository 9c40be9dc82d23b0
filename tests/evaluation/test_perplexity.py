"""Perplexities of words and bytes: every token and every end of a text is a target once, whatever the rows."""

import json
import math

import numpy as np
import pytest

from bertfam.corruption.next_tokens import NextTokens
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, FullSentences, WholeDocuments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache
from bertfam.evaluation.baselines import baselines, training_counts
from bertfam.evaluation.perplexity import lacks_words, perplexities

ROWS = [Chunks(), WholeDocuments(), FullSentences(), Packed(WholeDocuments())]


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: type(rows).__name__)
def test_targets_equal_the_text_and_give_its_perplexities(cache, corpus, tokens, rows):
    data = TextData(rows=rows, corruption=NextTokens())
    held_out = data.held_out(cache, tokens, 32, 64)
    batches = [held_out.source.rows(step, 0, 64) for step in range(held_out.steps)]
    targets = np.concatenate([batch["decoder_target_tokens"][batch["decoder_loss_weights"] > 0] for batch in batches])
    text = cache.documents("validation", "text")
    end = tokens.end_of_text("this")
    expected = np.bincount(text.tokens, minlength=tokens.size)
    expected[end] += len(text)
    np.testing.assert_array_equal(np.bincount(targets, minlength=tokens.size), expected)

    # The expected nats are those of a model that predicts the frequencies.
    frequencies = expected / expected.sum()
    nats = -np.log(frequencies[targets]).sum()
    scores = perplexities({"lm_loss": nats / len(targets), "loss": 7.0}, data, cache, "validation")
    documents = [" ".join(sentences) for sentences in corpus.documents("validation")]
    words, size_bytes = (
        sum(len(document.split()) for document in documents),
        sum(len(document.encode()) for document in documents),
    )
    assert scores == {
        "perplexity": pytest.approx(math.exp(nats / len(targets))),
        "word_perplexity": pytest.approx(math.exp(nats / words)),
        "byte_perplexity": pytest.approx(math.exp(nats / size_bytes)),
        "bits_per_byte": pytest.approx(nats / size_bytes / math.log(2)),
    }
    assert scores["byte_perplexity"] < scores["perplexity"] < scores["word_perplexity"]


def test_baselines_of_next_tokens(cache, tokens):
    data = TextData(rows=Chunks(), corruption=NextTokens())
    counts = training_counts(data, cache, tokens, 32, 64)
    text = cache.documents("train", "text")
    assert counts.sum() == len(text.tokens) + len(text)
    assert counts[tokens.end_of_text("this")] == len(text)
    held_out = data.held_out(cache, tokens, 32, 1000)
    rows = held_out.source.rows(0, 0, 1000)
    targets = rows["decoder_target_tokens"][rows["decoder_loss_weights"] > 0]
    assert held_out.steps == 1 and baselines(held_out.source, 1, 1000, counts) == {
        "unigram_loss": pytest.approx(-np.log((counts[targets] + 1) / (counts + 1).sum()).mean()),
        "most_frequent_accuracy": pytest.approx((targets == counts.argmax()).mean()),
    }


def test_word_perplexity_requires_counts_and_all_tokens_as_targets(cache, tmp_path):
    """Masked tokens are only some of the text's tokens, and a cache of an earlier version has no word counts."""
    masked, next_tokens = TextData(), TextData(rows=Chunks(), corruption=NextTokens())
    assert perplexities({"mlm_loss": 2.0, "loss": 3.0}, masked, cache, "validation") == {"perplexity": pytest.approx(math.e**2)}
    assert perplexities({"rtd_loss": 2.0}, masked, cache, "validation") == {}
    assert perplexities({"lm_loss": 1e4}, next_tokens, cache, "validation")["perplexity"] == math.inf
    content = json.loads((cache.directory / "cache.json").read_text())
    for counts in (split["counts"] for splits in content["corpora"].values() for split in splits.values()):
        del counts["words"], counts["bytes"]
    del content["digests"]
    (tmp_path / "cache.json").write_text(json.dumps(content))
    old_cache = TokenCache(tmp_path)
    assert perplexities({"lm_loss": 2.0}, next_tokens, old_cache, "validation") == {"perplexity": pytest.approx(math.e**2)}
    assert [
        lacks_words(*data_and_cache, "validation")
        for data_and_cache in ((next_tokens, old_cache), (next_tokens, cache), (masked, old_cache))
    ] == [
        True,
        False,
        False,
    ]

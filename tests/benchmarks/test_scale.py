"""Synthetic corpora of the benchmark of large corpora."""

import numpy as np
import pytest

from benchmarks import scale


@pytest.fixture(scope="module")
def cache():
    return scale.SyntheticCache(110_000, ("text",))


def test_synthetic_starts_are_those_of_the_whole_corpus(cache):
    stored, whole = cache.stored_documents("train", "text"), cache.documents("train", "text")
    bounds, starts = whole.sentence_bounds, whole.sentence_starts
    assert len(whole) == 110_000 and (np.diff(bounds) > 0).all() and (np.diff(starts) > 0).all()
    assert 900 < len(stored.tokens) / len(whole) < 1100 and 24 < len(stored.tokens) / bounds[-1] < 26
    places = np.array([[0, 99_991], [99_992, 110_000]])
    assert np.array_equal(stored.sentence_bounds.take(places), bounds[places])
    part = stored.joined("part", [(99_980, 100_010)])
    assert np.array_equal(np.diff(part.sentence_bounds), np.diff(bounds[99_980:100_011]))
    assert np.array_equal(np.diff(part.sentence_starts), np.diff(starts[bounds[99_980] : bounds[100_010] + 1]))


def test_a_cache_of_holes_opens():
    figures = scale.measure_opening(10_000)
    assert figures["plan_seconds"] > 0 and figures["peak_bytes"] > 0


def test_batches_of_a_cache_are_made(cache_dir):
    figures = scale.read_cache(str(cache_dir), 1000, batches=2, batch_size=4, length=64)
    assert figures["first_batch_seconds"] > 0 and figures["rows_per_second"] > 0

"""Maximum inner product search equals a sort in NumPy, ties included, on one device and on eight."""

import json
from pathlib import Path

import device_search
import numpy as np
import pytest
import xla
from fork_server import run_program

import bertfam
from bertfam.errors import UserError
from bertfam.retrieval.passages import read_passages, row_count, search
from bertfam.retrieval.search import DeviceIndex


def sorted_passages(queries, passages, count):
    return np.argsort(-(queries @ passages.T), axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize(("passages", "chunk", "count"), [(101, 4, 20), (3, 64, 20), (64, 16, 1)])
def test_equals_a_sort(passages, chunk, count):
    queries, vectors = device_search.vectors(passages)
    expected = sorted_passages(queries, vectors, count)
    found = DeviceIndex(vectors, chunk=chunk).search(queries, count)
    np.testing.assert_array_equal(found.passages, expected)
    np.testing.assert_array_equal(found.scores, np.take_along_axis(queries @ vectors.T, expected, axis=1))
    # On CPUs the approximate search is exact but for the order of ties.
    approximate = DeviceIndex(vectors, chunk=chunk).search(queries, count, approximate=True)
    np.testing.assert_array_equal(approximate.scores, found.scores)


def test_no_queries():
    _, vectors = device_search.vectors(10)
    assert DeviceIndex(vectors).search(vectors[:0], 3).passages.shape == (0, 3)


@pytest.fixture(scope="module")
def result(random_model):
    """Return the results of device_search.py."""
    path = Path(__file__).parent / "device_search.py"
    return json.loads(run_program(path, random_model, environment=xla.device_environment(8))[0].splitlines()[-1])


@pytest.mark.parametrize(("name", "devices"), [("1", 1), ("2", 2), ("8", 8)])
def test_passages_within_a_step(result, name, devices):
    """The vectors and tokens of 1,003 passages are on 1, 2 and 8 devices, each of which has a part; see `row_count`."""
    queries, vectors = device_search.vectors(1003, queries=8)
    expected = sorted_passages(queries, vectors, 30)
    found = result["retrieved"][name]
    assert found["sizes"] == {"vectors": [1920 // devices], "tokens": [1920 // devices]}
    np.testing.assert_array_equal(found["passages"], expected)
    np.testing.assert_array_equal(found["scores"], np.take_along_axis(queries @ vectors.T, expected, axis=1))
    for passages, tokens, lengths in zip(expected, found["tokens"], found["lengths"], strict=True):
        texts = [device_search.text_of(passage)[:5] for passage in passages]
        assert ["".join(map(chr, row[:size])) for row, size in zip(tokens, lengths, strict=True)] == texts
        assert all(not any(row[size:]) for row, size in zip(tokens, lengths, strict=True))


def test_row_counts_divide_among_devices():
    for passages in (1, 960, 961, 30_000, 13_353_718):
        rows = row_count(passages)
        assert passages <= rows <= max(1.065 * passages, passages + 959)
        assert all(rows % devices == 0 for devices in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64))
    assert row_count(13_353_718) % 4096 == 0


def test_parts_of_an_index(tmp_path):
    """Rows are read across the borders of shards, and are 0 beyond the last passage."""
    _, vectors = device_search.vectors(1003)
    index = device_search.write_index(tmp_path, vectors)
    np.testing.assert_array_equal(index.vectors(299, 903), vectors[299:903])
    assert list(index.texts(250, 650)) == [device_search.text_of(number) for number in range(250, 650)]
    assert list(index.texts()) == [device_search.text_of(number) for number in range(1003)]
    arrays = read_passages(index, device_search.encode, 5, 300)
    assert arrays["tokens"].dtype == np.uint16
    np.testing.assert_array_equal(arrays["vectors"][950:1100, 1:3], np.pad(vectors[950:, 1:3], ((0, 97), (0, 0))))
    tokens = arrays["tokens"][1000:1100, :]
    assert tokens[:3, 0].tolist() == [1 + ord(device_search.text_of(number)[0]) for number in range(1000, 1003)]
    assert not tokens[3:].any()


def test_more_passages_than_there_are():
    queries, vectors = device_search.vectors(3)
    with pytest.raises(UserError, match="4 passages of each query are to be found, and the index has 3: lower the number"):
        search(queries, vectors, 3, 4)


def test_eight_devices(result, random_model):
    assert result["devices"] == 8
    np.testing.assert_array_equal(result["found"], sorted_passages(*device_search.vectors(101), 20))
    # Batches of 8 texts are divided among the devices, and those of 3 are not.
    expected = bertfam.load(random_model).embed(device_search.TEXTS)
    for vectors in result["embedded"].values():
        np.testing.assert_allclose(vectors, expected, atol=1e-5)

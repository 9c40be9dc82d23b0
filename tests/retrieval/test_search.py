"""Maximum inner product search equals a sort in NumPy, ties included, on one device and on eight."""

import json
from pathlib import Path

import device_search
import numpy as np
import pytest
import xla
from fork_server import run_program

import bertfam
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


def test_eight_devices(random_model):
    path = Path(__file__).parent / "device_search.py"
    result = json.loads(run_program(path, random_model, environment=xla.device_environment(8))[0].splitlines()[-1])
    assert result["devices"] == 8
    np.testing.assert_array_equal(result["found"], sorted_passages(*device_search.vectors(101), 20))
    # Batches of 8 texts are divided among the devices, and those of 3 are not.
    expected = bertfam.load(random_model).embed(device_search.TEXTS)
    for vectors in result["embedded"].values():
        np.testing.assert_allclose(vectors, expected, atol=1e-5)

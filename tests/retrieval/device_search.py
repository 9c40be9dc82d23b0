"""Run by test_search.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import json
import sys
from pathlib import Path

import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1])]
import xla  # noqa: E402

import bertfam  # noqa: E402
from bertfam.retrieval.search import DeviceIndex  # noqa: E402

TEXTS = [f"Return the {word} of the value." for word in ("name", "type", "size", "length", "list", "class", "key", "end")]


def vectors(passages, width=5, queries=3):
    """Return queries and passages of small whole numbers, with many ties."""
    generator = np.random.default_rng(0)
    return (generator.integers(-2, 3, (count, width)).astype(np.float32) for count in (queries, passages))


if __name__ == "__main__":
    xla.share_cache()
    queries, passages = vectors(101)
    found = DeviceIndex(passages, chunk=4).search(queries, 20)
    model = bertfam.load(sys.argv[1])
    embedded = {size: model.embed(TEXTS, batch_size=size).tolist() for size in (8, 3)}
    print(json.dumps({"devices": jax.device_count(), "found": found.passages.tolist(), "embedded": embedded}))

"""Run by test_search.py in a process of its own, with eight simulated devices: one JSON object on stdout."""

import json
import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1])]
import xla  # noqa: E402

import bertfam  # noqa: E402
from bertfam.retrieval.index import Index  # noqa: E402
from bertfam.retrieval.passages import read_passages, retrieve, zero_passages  # noqa: E402
from bertfam.retrieval.search import DeviceIndex  # noqa: E402
from bertfam.sharding.mesh import MeshShape  # noqa: E402
from bertfam.sharding.named_shardings import state_shardings  # noqa: E402

TEXTS = [f"Return the {word} of the value." for word in ("name", "type", "size", "length", "list", "class", "key", "end")]


def vectors(passages, width=5, queries=3):
    """Return queries and passages of small whole numbers, with many ties."""
    generator = np.random.default_rng(0)
    return (generator.integers(-2, 3, (count, width)).astype(np.float32) for count in (queries, passages))


def write_index(folder, passages):
    """Write the index of vectors [passages, width], in shards of 300 passages; passage n has the text that `text_of` returns."""
    index = Index(Path(folder), *passages.shape, 300, {})
    index.create()
    for shard in range(index.shards):
        begin = 300 * shard
        end = begin + index.size(shard)
        index.write_shard(shard, passages[begin:end], [text_of(number) for number in range(begin, end)])
    return index


def text_of(passage):
    """Return a text of 1 to 7 letters, each of which is a piece."""
    return chr(65 + passage % 26) * (1 + passage % 7)


def encode(texts):
    """Encode texts as the codes of their letters."""
    return [np.array([ord(letter) for letter in text], np.int32) for text in texts]


def retrieved(index, queries, count, length, shape, devices):
    """Retrieve within a program on a mesh: the result, and the number of rows of vectors and of tokens on each device."""
    arrays = read_passages(index, encode, length, 255)
    boxed = jax.eval_shape(lambda: zero_passages(index.passages, index.width, length, 255))
    assert {name: (leaf.value.shape, leaf.value.dtype) for name, leaf in boxed.items()} == {
        name: (stored.shape, stored.dtype) for name, stored in arrays.items()
    }
    mesh = shape.build(jax.devices()[:devices])
    shardings = state_shardings(boxed, mesh, shape.rules)
    placed = {
        name: jax.make_array_from_callback(stored.shape, shardings[name], lambda place, stored=stored: stored[place])
        for name, stored in arrays.items()
    }
    with jax.set_mesh(mesh), nn.logical_axis_rules(shape.rules.items()):
        search = jax.jit(retrieve, static_argnums=(2, 3))
        found = search(jax.device_put(queries, jax.NamedSharding(mesh, jax.P())), placed, index.passages, count)
    sizes = {name: sorted({shard.data.shape[0] for shard in value.addressable_shards}) for name, value in placed.items()}
    return {name: np.asarray(value).tolist() for name, value in found._asdict().items()} | {"sizes": sizes}


MESHES = {"1": (MeshShape(), 1), "2": (MeshShape(), 2), "8": (MeshShape(data=2, fsdp=2, tensor=2), 8)}

if __name__ == "__main__":
    xla.share_cache()
    queries, passages = vectors(101)
    found = DeviceIndex(passages, chunk=4).search(queries, 20)
    model = bertfam.load(sys.argv[1])
    embedded = {size: model.embed(TEXTS, batch_size=size).tolist() for size in (8, 3)}
    queries, passages = vectors(1003, queries=8)
    with tempfile.TemporaryDirectory() as directory:
        index = write_index(directory, passages)
        on_meshes = {name: retrieved(index, queries, 30, 5, *mesh) for name, mesh in MESHES.items()}
    print(
        json.dumps(
            {"devices": jax.device_count(), "found": found.passages.tolist(), "embedded": embedded, "retrieved": on_meshes}
        )
    )

"""A folder of entities for tests."""

import numpy as np

from bertfam.corruption.entity_folder import EntityFolder, with_no_entity, write_entities


def write_folder(path, pieces, vocabulary_size, *, vector_size=6):
    """Write a folder of entities with these pieces into an empty one, each with a random vector and 5 occurrences; return it."""
    vectors = np.random.default_rng(0).normal(size=(len(pieces), vector_size)).astype(np.float32)
    names = tuple(f"name {number}" for number in range(len(pieces)))
    counts = (5,) * len(pieces)
    write_entities(
        path, EntityFolder(str(path), vocabulary_size, "digest", names, tuple(pieces), counts, with_no_entity(vectors))
    )
    return path

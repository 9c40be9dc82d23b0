"""Digests of the batch shards of one process, run by test_host_batches.py in several processes.

  launch/local.py --processes=N -- python host_batches.py RUN_FILE CACHE_DIR FOLDER

Process I writes FOLDER/I.json: by mesh, step and feature, the digest of each span of rows ("FIRST:LAST") on its devices, the
spans that it requested from its source.
"""

import hashlib
import json
import sys

STEPS = (*range(101), 5_000, 1_000_000)
BATCH, LENGTH = 24, 64
MESHES = ((6, 1, 1), (3, 1, 2), (2, 1, 3), (1, 2, 3), (1, 1, 6))  # tensor axes of 2 and 6 of six devices span hosts


def digests_of_shards(array):
    """Return the digests of the rows on this process's devices by "FIRST:LAST", and check that they are whole rows."""
    import numpy as np

    digests = {}
    for shard in array.addressable_shards:
        rows, *rest = shard.index
        assert all(part.indices(size) == (0, size, 1) for part, size in zip(rest, array.shape[1:], strict=True))
        first, last, _ = rows.indices(array.shape[0])
        digest = hashlib.sha256(np.ascontiguousarray(shard.data).tobytes()).hexdigest()
        assert digests.setdefault(f"{first}:{last}", digest) == digest  # devices along the tensor axis have the same rows
    return digests


class RecordingSource:
    """Source that records the requested rows."""

    def __init__(self, source):
        self.source, self.spans = source, set()

    def rows(self, step, start, stop):
        self.spans.add((start, stop))
        return self.source.rows(step, start, stop)


def main(run_file, cache_dir, processes):
    import jax

    from bertfam.config import load
    from bertfam.data.token_cache.cache import TokenCache
    from bertfam.data.vocabularies import load as load_vocabulary
    from bertfam.sharding.mesh import MeshShape
    from bertfam.sharding.named_shardings import batch_shardings
    from bertfam.training.prefetch import global_batch

    data, cache = load([run_file]).build("TextData"), TokenCache(cache_dir)
    tokens, features = load_vocabulary(cache.vocabulary_directory).token_ids, data.features(LENGTH)
    source = data.training(cache, tokens, LENGTH, BATCH, seed=3)
    report = {"process": processes.index, "devices": jax.device_count(), "meshes": {}}
    for shape in MESHES:
        mesh, recording_source = MeshShape(*shape).build(), RecordingSource(source)
        shardings = batch_shardings(features, mesh)
        # The meshes after the first differ only in the placement of rows.
        steps = STEPS if shape == MESHES[0] else STEPS[::50]
        batches = {step: global_batch(recording_source, step, BATCH, features, shardings) for step in steps}
        digests = {step: {name: digests_of_shards(array) for name, array in batch.items()} for step, batch in batches.items()}
        report["meshes"]["x".join(map(str, shape))] = {"asked": sorted(recording_source.spans), "batches": digests}
    return report


if __name__ == "__main__":
    from bertfam.multihost.startup import join

    run_file, cache_dir, folder, *flags = sys.argv[1:]
    flag = dict(word[2:].split("=") for word in flags)
    with join(flag["coordinator"], int(flag["num_processes"]), int(flag["process_index"]), 60, folder) as processes:
        result = main(run_file, cache_dir, processes)
        with open(f"{folder}/{processes.index}.json", "w") as file:
            json.dump(result, file)

"""One of several processes that read a checkpoint: python broadcast_process.py FOLDER PORT COUNT INDEX.

The checkpoint is FOLDER/checkpoint. The process writes to FOLDER/INDEX.json how many bytes it has read from disk, once where
every process restores for itself and once with `broadcast`, and which arrays differ in a bit or in their sharding.
"""

import json
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from jax.sharding import AxisType, NamedSharding, PartitionSpec

ROWS = 600  # with fewer, TensorStore reads across the gap between two arrays instead of reading twice


def values():
    """Return arrays of random bits, which include negative zeros, infinities and every kind of NaN."""
    bits = np.random.default_rng(0)
    arrays = {
        "whole": bits.integers(0, 2**32, (ROWS, 1024), np.uint32).view(np.float32),
        "half": bits.integers(0, 2**16, (ROWS, 1024), np.uint16).view(ml_dtypes.bfloat16),
        "split": bits.integers(0, 2**32, (ROWS, 1024), np.uint32).view(np.float32),
        "more": bits.integers(0, 2**32, (ROWS // 2, 2048), np.uint32).view(np.float32),
        "numbers": bits.integers(-(2**31), 2**31, (ROWS, 512), np.int32),
        "double": bits.integers(0, 2**64, (ROWS, 512), np.uint64).view(np.float64),
        "flags": bits.integers(0, 2, (ROWS, 1024)).astype(bool),
        "small": np.float32(7),
    }
    arrays["whole"][0] = -0.0
    return arrays


def save_args():
    """Return Orbax's arguments of saving: each device's part of an array is a chunk on disk.

    Two devices of a process that need one chunk read it once if they ask within a millisecond, and twice on a busy machine.
    """
    chunks = {"split": 2, "more": 4}  # along the longest axis
    return {
        name: ocp.SaveArgs(chunk_byte_size=value.nbytes // chunks[name] if name in chunks else None)
        for name, value in values().items()
    }


def main(folder, port, count, index):
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", count, index, cluster_detection_method="deactivate")
    from bertfam.training.checkpoints import broadcast

    # Two devices per process: fsdp within a process, copies on all processes.
    mesh = jax.make_mesh((1, count, 2), ("replica", "data", "fsdp"), axis_types=(AxisType.Auto,) * 3)
    specs = {"split": PartitionSpec(None, "fsdp"), "more": PartitionSpec(None, ("data", "fsdp"))}
    expected = values()
    like = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, specs.get(name, PartitionSpec())))
        for name, value in expected.items()
    }
    # A broadcast is worthwhile for larger models, on several hosts.
    assert not broadcast.is_worthwhile([like], ["a", "b"])
    broadcast._MIN_TOTAL_BYTES = 2**20
    assert broadcast.is_worthwhile([like], ["a", "b"]) and not broadcast.is_worthwhile([like], ["a", "a"])

    def bytes_read():
        metrics = tensorstore.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
        return sum(value["value"] for metric in metrics for value in metric["values"])

    def restore_alone():
        args = jax.tree.map(lambda leaf: ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype), like)
        with ocp.PyTreeCheckpointer() as orbax:
            return orbax.restore(folder / "checkpoint", item=like, restore_args=args, partial_restore=True)

    report = {}
    for name, read in (("all", restore_alone), ("once", lambda: broadcast.restore(epath.Path(folder / "checkpoint"), like))):
        before = bytes_read()
        restored = read()
        report[name] = bytes_read() - before
        report[f"{name} differs"] = [
            leaf
            for leaf, value in expected.items()
            for shard in restored[leaf].addressable_shards
            if np.asarray(shard.data).tobytes() != value[shard.index].tobytes()
        ] + [leaf for leaf in like if restored[leaf].sharding != like[leaf].sharding]
    (folder / f"{index}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

"""Contents of a MODEL_DIR, copies of one, and a disk of its own to put one onto."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from bertfam.storage import locks
from bertfam.training.checkpoints import manifest, selection

SPEEDS = ("tokens_per_second", "mfu", "waiting_for_data")


def metrics(model_dir):
    """Return the lines of metrics.jsonl without times, speeds and memory, which no two runs share."""
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["split"] not in ("memory", "time")]
    return [{name: value for name, value in line.items() if name not in SPEEDS} for line in lines]


def arrays(model_dir, step):
    """Return all arrays of a checkpoint by name: parameters, optimizer, counters, and the average if there is one."""
    folder = model_dir / "checkpoints" / str(step)
    trees = {path.name: _tree(path) for path in sorted(folder.iterdir()) if path.is_dir()}
    leaves = jax.tree_util.tree_leaves_with_path(trees)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def _tree(item):
    """Return the NumPy arrays of one item, saved on any devices."""
    with ocp.PyTreeCheckpointer() as orbax:
        like = orbax.metadata(item).item_metadata.tree
        return orbax.restore(item, restore_args=jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like))


def assert_equal_arrays(left, right):
    assert left.keys() == right.keys() and len(left) > 60
    different = [name for name in left if not np.array_equal(left[name], right[name])]
    assert not different


def whole(model_dir):
    """Return the steps whose every byte is as it was written."""
    directory = model_dir / "checkpoints"
    return [step for step in selection.steps(directory) if manifest.fault(directory / str(step), contents=True) is None]


def copy_run(model_dir, copy):
    """Copy a run, and return the copy; the lock that another test may hold for a moment is not copied."""
    return shutil.copytree(model_dir, copy, ignore=shutil.ignore_patterns(f"{locks.NAME}*"))


def cut(model_dir, copy, step):
    """Copy a run as it was when the checkpoint of `step` had been saved, and return the copy."""
    copy_run(model_dir, copy)
    for path in (copy / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    return copy


def journal(output):
    """Return the number of documents on the disk by split, according to the journal; None if there is no journal."""
    try:
        splits = json.loads((output.parent / f".{output.name}.partial/journal.json").read_text())["splits"]
    except FileNotFoundError:
        return None
    return {name.partition("/")[2]: done["counts"]["documents"] for name, done in splits.items()}


class CannotMount(Exception):
    """Disks cannot be mounted here."""


@contextlib.contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Make a folder on a disk of its own; raises CannotMount."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        raise CannotMount("disks cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], capture_output=True)


def remount(folder: Path, options: str) -> None:
    """Change the options of a mounted disk: "ro", "rw", "size=64m"."""
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


def fill(path: Path, room: int = 0) -> None:
    """Write a file that leaves `room` bytes of its disk."""
    path.write_bytes(bytes(shutil.disk_usage(path.parent).free - room))
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while not room:
            file.write(bytes(1000))

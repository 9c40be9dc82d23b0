"""Table of the shardings of a run's parameters, optimizer state, batches and activations on a mesh."""

from typing import Any

import jax
from flax import linen as nn

from bertfam.planning.programs import stages_of
from bertfam.sharding.named_shardings import path_name
from bertfam.sharding.rules import as_tuple
from bertfam.training.run_plan import local_bytes
from bertfam.training.trainer import Trainer


def shardings(trainer: Trainer) -> list[dict[str, Any]]:
    """Return a row for every array of the state, every feature of a batch, and every logical axis of activations.

    A row has `part` ("parameters", "optimizer", ...), `name`, `shape`, logical `axes`, the mesh axes `over` which each of them
    is sharded (only those of more than one device), and `bytes` per device. Axes of activations have no shape and no bytes,
    because their sizes differ.
    """
    rows = []
    for part, title in _PARTS.items():
        boxed = _leaves(getattr(trainer.run.boxed_state, part), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
        for name, leaf in _leaves(getattr(trainer.abstract_state, part)).items():
            rows.append(_row(title, name, leaf, getattr(boxed[name], "names", ())))
    for stage in stages_of(trainer.run):
        features = trainer.stages[stage].features
        for name, leaf in trainer.abstract_batch(stage).items():
            rows.append(_row(f"batch of {trainer.run.stages[stage].length} tokens", name, leaf, ("batch", *features[name].axes)))
    for axis, axes in trainer.run.mesh.rules.items():
        if axis != "embed":  # for parameters only
            over = [[name for name in as_tuple(axes) if trainer.mesh.shape[name] > 1]]
            rows.append({"part": "activations", "name": axis, "shape": None, "axes": [axis], "over": over, "bytes": None})
    return rows


_PARTS = {"params": "parameters", "opt_state": "optimizer", "average": "average", "carry": "carry", "aux": "aux"}


def _row(part: str, name: str, leaf: jax.ShapeDtypeStruct, axes: tuple[str | None, ...]) -> dict[str, Any]:
    sharding: Any = leaf.sharding
    spec = [*sharding.spec, *[None] * (len(leaf.shape) - len(sharding.spec))]
    return {
        "part": part,
        "name": name,
        "shape": list(leaf.shape),
        "axes": list(axes) or [None] * len(leaf.shape),
        "over": [[name for name in as_tuple(mesh_axes) if sharding.mesh.shape[name] > 1] for mesh_axes in spec],
        "bytes": local_bytes(leaf),
    }


def shardings_text(rows: list[dict[str, Any]]) -> str:
    """Format the rows, one array per line; "heads 12 / tensor" is an axis of size 12 that is sharded over the mesh axis tensor.

    Moments with the sharding of their parameter share its line.
    """
    moments: dict[str, list[dict[str, Any]]] = {}
    parameters = {row["name"]: row for row in rows if row["part"] == "parameters"}
    for row in rows:
        owner = _owner(row["name"], parameters) if row["part"] == "optimizer" else None
        if owner and (row["shape"], row["over"]) == (parameters[owner]["shape"], parameters[owner]["over"]):
            moments.setdefault(owner, []).append(row)
    merged = {id(row) for owned in moments.values() for row in owned}
    lines, part = [], None
    for row in rows:
        if row["part"] != part:
            part = row["part"]
            sizes = [other["bytes"] for other in rows if other["part"] == part and other["bytes"] is not None]
            lines.append(part + (f": {sum(sizes) / 2**20:,.2f} MiB of each device" if sizes else ""))
        if id(row) not in merged:
            owned = moments.get(row["name"], []) if part == "parameters" else []
            names = ", ".join(moment["name"].removesuffix(row["name"]).strip("/") for moment in owned)
            lines.append(_line(row) + (f"  and of the optimizer {names}" if names else ""))
    return "\n".join(lines)


def _owner(name: str, parameters: dict[str, Any]) -> str | None:
    """Return the parameter whose name is the end of a moment's name; None if there is none."""
    parts = name.split("/")
    ends = ("/".join(parts[place:]) for place in range(len(parts)))
    return next((end for end in ends if end in parameters), None)


def _line(row: dict[str, Any]) -> str:
    axes = []
    for axis, size, over in zip(row["axes"], row["shape"] or [None] * len(row["axes"]), row["over"], strict=True):
        words = " ".join(str(word) for word in (axis, size) if word is not None)
        axes.append(words + (f" / {' x '.join(over)}" if over else ""))
    size = "" if row["bytes"] is None else f"{row['bytes'] / 2**20:10,.2f} MiB  "
    return f"  {size}{row['name']}  [{', '.join(axes)}]"


def _leaves(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    """Return the leaves of a tree by name."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    return {path_name(path): leaf for path, leaf in leaves}

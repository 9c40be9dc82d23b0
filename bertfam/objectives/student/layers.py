"""Initial parameters of a student from its teacher: layers, embeddings and the masked-language-model head."""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.layers.stack import AXIS, FIRST
from bertfam.models.encoder import EncoderConfig, MaskedLmConfig, init_encoder, init_masked_lm_head
from bertfam.plurals import plural

Layers = Literal["spread", "random"]
_STACKS = tuple(f"encoder/{stack}/" for stack in (FIRST, AXIS))
_HEAD, _POSITIONS = "mlm_head/", "encoder/embeddings/position/table"


def spread(count: int, of: int) -> tuple[int, ...]:
    """Space `count` of a teacher's `of` layers evenly from the first to the last, e.g. (0, 2, 4, 7, 9, 11) of 12.

    Layer i is round(i (of - 1) / (count - 1)), halves rounded up; the published six of twelve are these. A single layer is the
    first.
    """
    steps = max(count - 1, 1)
    return tuple((2 * layer * (of - 1) + steps) // (2 * steps) for layer in range(count))


def select_layers(layers: str | tuple[int, ...], count: int, of: int) -> tuple[int, ...]:
    """Return the number of the teacher's layer that each layer of the student starts as.

    Args:
      layers: these numbers, or "spread".
      count: number of the student's layers.
      of: number of the teacher's layers.

    Raises:
      UserError: the teacher lacks one of the layers, or the student has another number of layers.
    """
    if isinstance(layers, str):
        if count > of:
            some = tuple(layer * of // count for layer in range(count))
            raise UserError(
                f"the student has {plural(count, 'layer')} and the teacher {of}: name the layers to start from, as {some}, or "
                f'"random" (Distillation.layers, or --layers={",".join(map(str, some))})'
            )
        return spread(count, of)
    if len(layers) != count:
        raise UserError(
            f"layers {layers} name {plural(len(layers), 'layer')} of the teacher, and the student has {plural(count, 'layer')}"
        )
    for layer in layers:
        if not 0 <= layer < of:
            raise UserError(f"layers {layers} names {layer}, and the teacher's layers are 0 to {of - 1}")
    return layers


def teacher_params(student: MaskedLmConfig, teacher: EncoderConfig, params: Any, layers: Sequence[int]) -> dict[str, Any]:
    """Copy the parts of a student's parameters {"encoder", "mlm_head"} that the teacher provides; the other parts stay new.

    These are copied: the layers; each table and norm of the embeddings, and a norm behind the layers, where it is as wide in both
    models (token types only where the student has them, positions where the teacher has as many, RoBERTa's from its first one
    on); and the masked-language-model head if all of it fits.

    Args:
      student: config of the student, with the vocabulary of the teacher.
      teacher: config of the teacher.
      params: {"encoder", "mlm_head" if it has one} of the teacher, NumPy arrays.
      layers: number of the teacher's layer for each layer of the student.

    Raises:
      UserError: the teacher's layers do not fit the student.
    """
    ours, theirs = (traverse_util.flatten_dict(tree, sep="/") for tree in (_shapes(student), params))
    copied: dict[str, np.ndarray] = {}
    for path, leaf in ours.items():
        outside = path.startswith("encoder/") and not path.startswith(_STACKS)
        if outside and path != _POSITIONS and path in theirs and _fits(theirs[path], leaf, path):
            copied[path] = theirs[path]
    if _POSITIONS in ours and _POSITIONS in theirs and theirs[_POSITIONS].shape[1] == ours[_POSITIONS].shape[1]:
        # The rows before the first position are never read.
        before, after = len(theirs[_POSITIONS]) - (teacher.max_length or 0), ours[_POSITIONS].shape[0] - student.max_length
        rows = theirs[_POSITIONS][before : before + student.max_length]
        if len(rows) == student.max_length:
            copied[_POSITIONS] = np.pad(rows, ((after, 0), (0, 0)))
    head = {path: leaf for path, leaf in ours.items() if path.startswith(_HEAD)}
    if head.keys() == {path for path in theirs if path.startswith(_HEAD)}:
        if all(_fits(theirs[path], leaf, path) for path, leaf in head.items()):
            copied |= {path: theirs[path] for path in head}
    numbered = _numbered(theirs, teacher.num_layers)
    first = 0
    for prefix in _STACKS:
        leaves = {path.removeprefix(prefix): leaf for path, leaf in ours.items() if path.startswith(prefix)}
        if not leaves:
            continue
        for name, leaf in leaves.items():
            chosen = layers[first : first + leaf.shape[0]]
            copied[prefix + name] = np.stack([_of_layer(numbered, number, name, leaf.shape[1:], leaves) for number in chosen])
        first += max(leaf.shape[0] for leaf in leaves.values())
    return traverse_util.unflatten_dict(copied, sep="/")


def _shapes(config: MaskedLmConfig) -> Any:
    def init(key: jax.Array) -> Any:
        encoder = init_encoder(config, key)
        return {"encoder": encoder, "mlm_head": init_masked_lm_head(config, key, encoder)}

    return nn.meta.unbox(jax.eval_shape(init, jax.random.key(0)))


def _fits(theirs: np.ndarray, ours: Any, path: str) -> bool:
    """Return True if the shapes are equal, rows of the vocabulary aside, which each model pads to a multiple of its own."""
    by_word = path in ("encoder/embeddings/word/table", "mlm_head/bias", "mlm_head/decoder")
    return theirs.ndim == len(ours.shape) and theirs.shape[by_word:] == ours.shape[by_word:]


def _numbered(flat: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    """List each layer's parameters by name; layers that share parameters have the same ones."""
    numbered: list[dict[str, np.ndarray]] = []
    for prefix in _STACKS:
        leaves = {path.removeprefix(prefix): leaf for path, leaf in flat.items() if path.startswith(prefix)}
        if not leaves:
            continue
        length = count - len(numbered) if prefix == _STACKS[-1] else len(next(iter(leaves.values())))
        numbered += [{name: leaf[layer if len(leaf) > 1 else 0] for name, leaf in leaves.items()} for layer in range(length)]
    return numbered


def _of_layer(
    numbered: list[dict[str, np.ndarray]], number: int, name: str, shape: tuple[int, ...], leaves: dict[str, Any]
) -> np.ndarray:
    layer = numbered[number]
    if layer.keys() != leaves.keys() or layer[name].shape != shape:
        has = f"has {name} {layer[name].shape}, and the student's {shape}" if name in layer else f"has no {name}"
        if name in layer and layer[name].shape == shape:
            has = f"has other parameters ({min(layer.keys() ^ leaves.keys())})"
        raise UserError(
            f"layer {number} of the teacher {has}: the student cannot start as it; make its layers like the teacher's, or start "
            "at random (--layers=random)"
        )
    return layer[name]

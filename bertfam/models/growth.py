"""Growth of a trained model to a deeper or wider one of its family.

Layers are stacked (Gong et al. 2019, "Efficient Training of BERT by Progressively Stacking"), or each is repeated in its place
(Rae et al. 2021, appendix G), as ModernBERT-large was made from base. Other axes are tiled from the middle (Warner et al. 2024,
arXiv 2412.13663): the old values are in the middle of the new ones, and repeat before and after them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from flax import traverse_util
from flax.linen import meta

from bertfam.errors import UserError
from bertfam.layers.stack import AXIS, FIRST

Depth = Literal["stack", "repeat"]
_LAYERS = ("num_layers", "num_encoder_layers")
# Fields of a model that may be larger than those of the model that it grows from.
SIZES = frozenset((*_LAYERS, "num_heads", "hidden_size", "feed_forward_size", "embedding_size"))
_WIDTHS = ("hidden_size", "feed_forward_size", "embedding_size")
_WORDS: Mapping[Depth, str] = {"stack": "stacked", "repeat": "each repeated in its place"}
_NOT_TILED = ("vocab", "position")  # rows of a vocabulary are matched by its pieces, and positions repeated from the first one


@dataclass(frozen=True)
class Growth:
    """Growth of the parameters of a model.

    Attributes:
      old: config of the model that has the parameters.
      new: config of the larger model.
      depth: "stack" starts layer i of n layers as layer i mod n, "repeat" starts layer i of m as layer round(i n / m).
    """

    old: Any
    new: Any
    depth: Depth

    def check(self, folder: str, where: str = "Run.objective.model") -> None:
        """Raise UserError if the new model is not larger in some size, smaller in another, or has wider heads.

        Args:
          folder: folder of the old model, for messages.
          where: place of the new model in the configuration.
        """
        for name, before, now in self._sizes():
            if not (isinstance(before, int) and isinstance(now, int) and now >= before):
                raise UserError(
                    f"{where}.{name} is {now}, and {before} in {folder}: --init_grow makes no size smaller; change it"
                )
        if not self._grown():
            raise UserError(
                f"--init_grow: the sizes of this run are those of {folder}: name a larger model of the family, as by "
                "--gin_file=models/NAME.gin, or leave the flag out"
            )
        if self.new.head_dim != self.old.head_dim:
            raise UserError(
                f"{where}.num_heads is {self.new.num_heads}, of heads {self.new.head_dim} wide, and those of {folder} are "
                f"{self.old.head_dim} wide: a model grows by more heads of the same width; change num_heads or hidden_size"
            )

    def describe(self) -> list[str]:
        """Return what grows, in words."""
        grown = [(name, f"{name} {before:,} -> {now:,}") for name, before, now in self._grown()]
        deeper, wider = ([words for name, words in grown if (name in _LAYERS) == is_layers] for is_layers in (True, False))
        lines = [f"{', '.join(deeper)}, {_WORDS[self.depth]}"] if deeper else []
        return [*lines, f"{', '.join(wider)}, tiled from the middle"] if wider else lines

    def params(self, boxed: Any, given: Any) -> Any:
        """Grow the parameters of some parts; the axes of vocabularies and positions stay as they are.

        Args:
          boxed: shapes of the new parameters of these parts, boxed with logical axis names.
          given: the old parameters of these parts.

        Raises:
          UserError: if an axis is made of several parts.
        """
        flat, boxes = traverse_util.flatten_dict(given), traverse_util.flatten_dict(boxed)
        before = {path[: path.index(FIRST)]: box.value.shape[0] for path, box in boxes.items() if FIRST in path}
        grown = {}
        for path, value in flat.items():
            value = np.asarray(value)
            for axis, size in enumerate(meta.unbox(boxes[path]).shape if path in boxes else ()):
                name = boxes[path].names[axis]
                if size != value.shape[axis] and name not in _NOT_TILED:
                    value = np.take(value, self._origins(path, name, value.shape[axis], size, before), axis)
            grown[path] = value
        return traverse_util.unflatten_dict(grown)

    def _origins(
        self, path: Sequence[str], name: str | None, old: int, new: int, before: Mapping[Sequence[str], int]
    ) -> np.ndarray:
        """Return the old place of each new place along an axis: int[new]; `before` are the first layers of each network."""
        if name == AXIS:
            return layer_origins(self.depth, old, new, before.get(path[: path.index(AXIS)], 0) if AXIS in path else 0)
        if name is None and (old, new) not in {(before, now) for size, before, now in self._grown() if size in _WIDTHS}:
            raise UserError(
                f"{'/'.join(path)} has an axis of {old:,} places that is made of several parts, and cannot grow: leave "
                f"{path[0]} out of --init_parts, which is then new"
            )
        return tile_origins(old, new)

    def _sizes(self) -> list[tuple[str, Any, Any]]:
        """Return the sizes of both models that are set in one of them, by name."""
        both = [(name, getattr(self.old, name, None), getattr(self.new, name, None)) for name in sorted(SIZES)]
        return [(name, before, now) for name, before, now in both if (before, now) != (None, None)]

    def _grown(self) -> list[tuple[str, int, int]]:
        return [(name, before, now) for name, before, now in self._sizes() if now != before]


def layer_origins(depth: Depth, old: int, new: int, before: int = 0) -> np.ndarray:
    """Return the old layer from which each layer of a deeper stack starts: int[new].

    Args:
      depth: the rule, see `Growth`.
      old: number of layers of the old stack.
      new: number of layers of the new one.
      before: number of first layers of the network, of another stack, which "repeat" counts too.
    """
    if depth == "stack":
        return np.arange(new) % old
    share = (before + old) / (before + new)
    return np.array([min(max(round((before + layer) * share) - before, 0), old - 1) for layer in range(new)])


def tile_origins(old: int, new: int) -> np.ndarray:
    """Return the old place from which each place of a wider axis starts, the old ones being in the middle: int[new]."""
    return (np.arange(new) - (new - old) // 2) % old

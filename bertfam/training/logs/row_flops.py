"""FLOPs of a training step on packed rows, whose tokens attend within their own example."""

import numpy as np

from bertfam.data.rows.batches import Examples, Rows
from bertfam.data.rows.blocks import sampled
from bertfam.data.rows.layout import SeveralExamples
from bertfam.data.rows.mixture import MixedRows
from bertfam.features import RowShape
from bertfam.objectives.objective import Objective


def row_flops(objective: Objective, shape: RowShape, rows: Rows) -> int:
    """Return the matrix-product FLOPs of training on one row, the mean over the rows of an epoch where they are packed.

    Args:
      objective: the objective.
      shape: sizes of a row.
      rows: the rows, whose plan states the sizes of packed examples.
    """
    parts = rows.by_corpus()
    shares = rows.shares if isinstance(rows, MixedRows) else [1 / len(parts)] * len(parts)
    return round(sum(share * _mean(objective, shape, sampled(part.examples)) for share, part in zip(shares, parts, strict=True)))


def _mean(objective: Objective, shape: RowShape, examples: Examples) -> float:
    sizes = examples.example_sizes if isinstance(examples, SeveralExamples) else None
    if sizes is None:
        return objective.flops(shape)
    # An encoder alone has no targets, and its row none of their FLOPs.
    return flops_of_examples(objective, shape, sizes if shape.targets else sizes * np.array([1, 0]), len(examples))


def flops_of_examples(objective: Objective, shape: RowShape, sizes: np.ndarray, rows: int) -> float:
    """Return the mean matrix-product FLOPs of training on packed rows.

    Args:
      objective: the objective.
      shape: sizes of a row.
      sizes: int[examples, 2], the tokens of the inputs and of the targets of every example; 0 targets in an encoder alone.
      rows: number of rows that have these examples.
    """
    different, counts = np.unique(sizes, axis=0, return_counts=True)
    inside = sum(
        count * _attention(objective, shape, *size) for size, count in zip(different.tolist(), counts.tolist(), strict=True)
    )
    return objective.flops(shape) - _attention(objective, shape, shape.length, shape.targets) + inside / rows


def _attention(objective: Objective, shape: RowShape, inputs: int, targets: int) -> int:
    """Return the FLOPs that an example has beyond those of its tokens alone, each an example of its own: those of their pairs."""

    def flops(inputs: int, targets: int) -> int:
        return objective.flops(shape._replace(length=inputs, targets=targets, predictions=0))

    none = flops(0, 0)
    return flops(inputs, targets) - none - inputs * (flops(1, 0) - none) - targets * (flops(0, 1) - none)

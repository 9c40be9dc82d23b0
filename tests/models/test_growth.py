"""Places from which the layers and the values of a larger model start."""

import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

from bertfam.errors import UserError
from bertfam.models.growth import Growth, layer_origins, tile_origins
from bertfam.models.modernbert import ModernBertConfig


def test_layers():
    assert layer_origins("stack", 2, 5).tolist() == [0, 1, 0, 1, 0]
    assert layer_origins("repeat", 2, 4).tolist() == [0, 0, 1, 1]
    # ModernBERT-large's 28 layers from base's 22 by the published code, of which the first layer is a stack of its own here.
    published = [round(layer * 22 / 28) for layer in range(28)]
    assert [0, *(1 + layer_origins("repeat", 21, 27, before=1))] == published


def test_tiles_from_the_middle():
    """The published rule: the old values in the middle, and from there repeated to both ends."""
    for old, new in ((3, 5), (3, 4), (4, 19), (768, 1024), (1152, 2624)):
        offset, expected = (new - old) // 2, np.empty(new, int)
        expected[offset : offset + old] = range(old)
        for place in range(offset):
            expected[offset - 1 - place] = old - 1 - place % old
        for place in range(offset + old, new):
            expected[place] = (place - offset) % old
        assert np.array_equal(tile_origins(old, new), expected)


def test_tensors_by_their_axes():
    small = ModernBertConfig(num_layers=3, hidden_size=4, num_heads=2, feed_forward_size=6, max_length=8)
    large = ModernBertConfig(num_layers=5, hidden_size=8, num_heads=4, feed_forward_size=9, max_length=16)
    axes = {
        "first_layers/norm/scale": (("layers", "embed"), (1, 4), (1, 8)),
        "layers/norm/scale": (("layers", "embed"), (2, 4), (4, 8)),
        "embeddings/word/table": (("vocab", "embed"), (7, 4), (9, 8)),
        "dense/kernel": (("embed", None), (4, 4), (8, 8)),
    }
    generator = np.random.default_rng(0)
    given = {name: generator.standard_normal(old) for name, (_, old, _) in axes.items()}
    boxed = {name: nn.LogicallyPartitioned(np.empty(new), names) for name, (names, _, new) in axes.items()}
    grown = traverse_util.flatten_dict(
        Growth(small, large, "repeat").params(*(traverse_util.unflatten_dict(tree, sep="/") for tree in (boxed, given))), sep="/"
    )
    wide = [2, 3, 0, 1, 2, 3, 0, 1]
    expected = {
        "first_layers/norm/scale": given["first_layers/norm/scale"][:, wide],
        "layers/norm/scale": given["layers/norm/scale"][[0, 0, 1, 1]][:, wide],  # round(3/5 i) - 1 for i = 1 to 4
        "embeddings/word/table": given["embeddings/word/table"][:, wide],  # its rows are matched by pieces later
        "dense/kernel": given["dense/kernel"][wide][:, wide],
    }
    for name, value in expected.items():
        assert np.array_equal(grown[name], value), name
    joint = {"head": {"kernel": nn.LogicallyPartitioned(np.empty((16, 8)), (None, "embed"))}}
    with pytest.raises(UserError, match="head/kernel has an axis of 8 places that is made of several parts"):
        Growth(small, large, "stack").params(joint, {"head": {"kernel": np.empty((8, 4))}})

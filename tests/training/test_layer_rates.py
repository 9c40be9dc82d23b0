"""Layer-wise decay d: rates of 1 for heads, d for the last of L layers, d ** L for the first, d ** (L + 1) for embeddings."""

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util

from bertfam.models.bert import BertConfig
from bertfam.objectives.bert import MlmNsp
from bertfam.training.optimizers import Adafactor, BertAdam, Lamb, Lion, Muon
from bertfam.training.optimizers.layer_rates import layer_rates
from bertfam.training.optimizers.tensors import describe
from bertfam.training.schedules import ConstantRate

FIXED = ConstantRate(0.1, warmup_steps=0)


def parameters():
    """Return the parameters, all 1, of a BERT of twelve layers with a pooler and heads: boxed shapes and arrays."""
    model = BertConfig(vocab_size=8, num_layers=12, hidden_size=4, num_heads=2, feed_forward_size=4, max_length=16)
    boxed = jax.eval_shape(lambda key: MlmNsp(model).init(key, tiny.SHAPE)[0], jax.random.key(0))
    return boxed, jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), nn.meta.unbox(boxed))


def first_update(config, boxed, params):
    """Return the first update of parameters whose gradient is the parameters themselves."""
    optimizer = config.build(1, boxed)
    return jax.device_get(jax.jit(lambda params: optimizer.update(params, optimizer.init(params), params, step=0)[0])(params))


@pytest.mark.parametrize(("count", "below"), [("plain", 0), ("electra", 1)])
def test_one_step_with_a_unit_gradient(count, below):
    """A leftover pooler does not count as a layer."""
    boxed, params = parameters()
    updates = first_update(Lion(FIXED, weight_decay=0.0, clip_norm=None, layer_decay=0.8, layer_count=count), boxed, params)
    layer = 0.8 ** (np.arange(12, 0, -1) + below)
    assert layer[11] == (0.8 if count == "plain" else pytest.approx(0.64))
    for path, update in jax.tree_util.tree_leaves_with_path(updates):
        names = [key.key for key in path]
        expected = 1.0
        if "layers" in names:
            expected = layer.reshape(-1, *[1] * (update.ndim - 1))
        elif "embeddings" in names:
            expected = 0.8 ** (13 + below)
        np.testing.assert_allclose(update, np.broadcast_to(-0.1 * expected, update.shape), rtol=1e-6, err_msg=str(names))
    assert {"pooler", "mlm_head", "nsp_head", "encoder"} == set(updates)


def test_rates_are_listed_from_the_heads_down():
    rates = layer_rates(0.8, describe(parameters()[0]))
    assert list(rates)[:2] == ["heads", "layer 12"] and list(rates)[-2:] == ["layer 1", "embeddings"] and len(rates) == 14
    assert rates["heads"] == 1 and rates["layer 12"] == 0.8
    assert rates["layer 1"] == pytest.approx(0.8**12) and rates["embeddings"] == pytest.approx(0.8**13)
    rates = layer_rates(0.8, describe(parameters()[0]), "electra")
    assert rates["heads"] == 1 and rates["layer 12"] == pytest.approx(0.64) and rates["embeddings"] == pytest.approx(0.8**14)


def test_first_layers_are_counted_with_the_following_layers():
    """Two first layers come before three others; a second network with fewer layers has its own count."""
    lengths = {"encoder/first_layers": 2, "encoder/layers": 3, "other/layers": 2}
    params = {f"{stack}/kernel": np.ones((length, 4, 5), np.float32) for stack, length in lengths.items()}
    params = traverse_util.unflatten_dict(params | {"encoder/embeddings/table": np.ones((3, 4), np.float32)}, sep="/")
    boxed = jax.tree.map(lambda leaf: nn.LogicallyPartitioned(leaf, ("layers", "embed", "mlp")[3 - leaf.ndim :]), params)
    rates = layer_rates(0.5, describe(boxed))
    assert list(rates) == ["heads", "layer 5", "layer 4", "layer 3", "layer 2", "layer 1", "embeddings"]
    updates = first_update(Lion(FIXED, weight_decay=0.0, clip_norm=None, layer_decay=0.5), boxed, params)
    scales = {
        name: -10 * update[:, 0, 0] for name, update in traverse_util.flatten_dict(updates, sep="/").items() if update.ndim == 3
    }
    expected = {"encoder/first_layers": [2**-5, 2**-4], "encoder/layers": [2**-3, 2**-2, 2**-1], "other/layers": [2**-2, 2**-1]}
    for stack, shares in expected.items():
        np.testing.assert_allclose(scales[f"{stack}/kernel"], shares, rtol=1e-6)
    np.testing.assert_allclose(updates["encoder"]["embeddings"]["table"], -0.1 * 2**-6, rtol=1e-6)


@pytest.mark.parametrize("make", [BertAdam, Lamb, Adafactor, Muon])
def test_layer_decay_only_scales_updates(make):
    params = {"encoder": {"layers": {"kernel": np.random.default_rng(0).standard_normal((3, 4, 5), np.float32)}}}
    boxed = jax.tree.map(lambda leaf: nn.LogicallyPartitioned(leaf, ("layers", "embed", "mlp")), params)
    scaled, unscaled = (first_update(make(FIXED, layer_decay=decay), boxed, params) for decay in (0.5, 1.0))
    shares = np.array([0.125, 0.25, 0.5])[:, None, None]
    np.testing.assert_allclose(scaled["encoder"]["layers"]["kernel"], unscaled["encoder"]["layers"]["kernel"] * shares, rtol=1e-6)

"""Pruned models of several families: the outputs of the parts that are left, in bertfam and in transformers."""

import dataclasses

import jax
import numpy as np
import parity
import pytest
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models import pruning
from bertfam.models.bart import BartConfig
from bertfam.models.bert import BertConfig
from bertfam.models.bigbird import BigBirdConfig
from bertfam.models.encoder import init_encoder
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.longformer import LongformerConfig
from bertfam.models.modernbert import ModernBertConfig
from bertfam.models.palm import PalmConfig
from bertfam.models.pruning import HEADS, NEURONS
from bertfam.models.t5 import T5Config

SIZES = {"vocab_size": parity.VOCABULARY, "num_layers": 3, "hidden_size": 32, "num_heads": 4, "feed_forward_size": 24}
BERT = BertConfig(**SIZES, max_length=24, dropout_rate=0.0)


def opened(config, parts=frozenset({"encoder"})):
    """Return boxed shapes and random parameters of a model."""
    family = huggingface.family_of(config)
    boxed = jax.eval_shape(lambda key: family.init(config, key, parts), jax.random.key(0))
    generator = np.random.default_rng(0)
    return boxed, jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape, np.float32), nn.meta.unbox(boxed))


def shapes(tree):
    return jax.tree.map(lambda leaf: leaf.shape, tree)


def hidden(config, params):
    """Return the last hidden states of random rows."""
    return parity.jax_outputs(config, params, parity.batch(types=2))["hidden_states"][-1]


def test_heads_and_neurons_in_transformers(tmp_path):
    """Removed heads are masked ones, and the export has heads of zeros; fewer neurons and layers are smaller folders."""
    pytest.importorskip("torch")
    from transformers import AutoModel

    boxed, params = opened(BERT)
    site = ("encoder", "layers", "attention")
    kept = np.array([[0, 2], [1, 3], [0, 1]])
    removed = np.array([[not (row == head).any() for head in range(4)] for row in kept])
    zeros = pruning.masked(boxed, params, {site: removed}, HEADS)
    config = pruning.with_heads(BERT, boxed, 2)
    smaller = pruning.compact(boxed, params, {site: kept}, HEADS)
    assert (config.num_heads, config.head_size, config.head_dim) == (2, 8, 8)
    assert shapes(smaller) == shapes(huggingface.shapes_of(config, frozenset({"encoder"})))
    expected = hidden(BERT, zeros)
    assert np.abs(hidden(BERT, params) - expected).max() > 0.1
    np.testing.assert_allclose(hidden(config, smaller), expected, atol=1e-5)

    neurons = ("encoder", "layers", "feed_forward")
    boxed, _ = opened(config)
    narrow = pruning.compact(boxed, smaller, {neurons: np.array([[5, 1, 7], [0, 2, 4], [23, 8, 9]])}, NEURONS)
    config = dataclasses.replace(config, feed_forward_size=3)
    layers = {("encoder",): [0, 2]}
    few = pruning.keep_layers(boxed, narrow, layers)
    config = pruning.with_layers(config, layers)
    assert shapes(few) == shapes(huggingface.shapes_of(config, frozenset({"encoder"})))
    huggingface.write(tmp_path / "out", config, few)
    model = AutoModel.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert (model.config.num_hidden_layers, model.config.intermediate_size, model.config.num_attention_heads) == (2, 3, 4)
    rows = parity.batch(types=2)
    found = parity.torch_outputs(model, rows, last="last_hidden_state")
    assert parity.agree({"output": hidden(config, few)}, {"output": found["last"]}, rows)


def test_masked_heads_have_no_gradient():
    boxed, params = opened(BERT)
    removed = np.array([[True, False, False, True]] * 3)
    zeros = pruning.masked(boxed, params, {("encoder", "layers", "attention"): removed}, HEADS)
    rows = parity.batch(types=2)
    tokens = rows.pop("tokens")

    def loss(params):
        return (BERT.encoder().apply({"params": params["encoder"]}, tokens, **rows, train=False)[0] ** 2).sum()

    gradient = jax.jit(jax.grad(loss))(zeros)["encoder"]["layers"]["attention"]
    output, value = np.asarray(gradient["output"]["kernel"]), np.asarray(gradient["value"]["kernel"])
    assert not output[removed].any() and not value.swapaxes(1, 2)[removed].any() and output[~removed].all()


LM = frozenset({"embeddings", "decoder"})
PAIR = LM | {"encoder"}
MODERN = ModernBertConfig(**SIZES, max_length=24, window=4)


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (MODERN, frozenset({"encoder"})),
        (Gpt2Config(**SIZES, max_length=24), LM),
        (BartConfig(**SIZES, max_length=24, num_encoder_layers=2, num_encoder_heads=4, encoder_feed_forward_size=16), PAIR),
        (LongformerConfig(**SIZES, max_length=24, window=(2, 4, 6)), frozenset({"encoder"})),
    ],
)
def test_shapes_of_families(config, parts):
    """Configs state the shapes that are left, for encoders, decoders and encoder-decoders."""
    boxed, params = opened(config, parts)
    kept = {network: [0, count - 1] for network, count in pruning.network_layers(config, boxed).items()}
    params, config = pruning.keep_layers(boxed, params, kept), pruning.with_layers(config, kept)
    assert shapes(params) == shapes(huggingface.shapes_of(config, parts))
    boxed, _ = opened(config, parts)
    config = pruning.with_neurons(pruning.with_heads(config, boxed, 3), 0.5)
    for axis, left in ((HEADS, lambda _: 3), (NEURONS, lambda units: pruning.left(units, 0.5))):
        own = {site: np.tile(np.arange(left(units)), (count, 1)) for site, (count, units) in pruning.sites(boxed, axis).items()}
        assert own
        params = pruning.compact(boxed, params, own, axis)
    assert shapes(params) == shapes(huggingface.shapes_of(config, parts))
    assert config.flops(16, 4) < MODERN.flops(16, 4) * 10


def test_layers_of_their_own_kinds():
    assert pruning.with_layers(MODERN, {("encoder",): [0, 2]}).types == ("global", "local")
    boxed, params = opened(MODERN)
    with pytest.raises(UserError, match="the first layer"):
        pruning.keep_layers(boxed, params, {("encoder",): [1, 2]})
    longformer = LongformerConfig(**SIZES, max_length=24, window=(2, 4, 6))
    assert pruning.with_layers(longformer, {("encoder",): [0, 2]}).window == (2, 6)


def test_heads_that_stay():
    """Families that compute with the place of a head refuse the compact form, each with its reason."""
    for config, words in (
        (T5Config(**SIZES), "position biases"),
        (PalmConfig(**SIZES, max_length=24, head_size=8, num_key_value_heads=2), "share one of keys"),
        (BigBirdConfig(**SIZES, max_length=64, block_size=4, num_random_blocks=1), "drawn"),
    ):
        boxed = jax.eval_shape(lambda key, config=config: boxed_params(config, key), jax.random.key(0))
        with pytest.raises(UserError, match=f"{words}.*--form=masked"):
            pruning.with_heads(config, boxed, 2)


def boxed_params(config, key):
    return {"encoder": init_encoder(config, key)} if config.kind == "encoder" else init_language_model(config, key)


def test_weights_by_magnitude():
    _, params = opened(BERT)
    for scope in ("model", "layer"):
        found = pruning.smallest_zero(params, 0.25, scope)
        leaves = jax.tree_util.tree_leaves_with_path(found["encoder"]["layers"])
        kernels = [leaf for path, leaf in leaves if path[-1].key == "kernel"]
        values = np.concatenate([np.ravel(leaf) for leaf in kernels])
        assert (values == 0).mean() == pytest.approx(0.25, abs=1e-3)
        by_layer = np.stack([[(leaf[layer] == 0).mean() for layer in range(3)] for leaf in kernels])
        assert (np.ptp(by_layer) < 0.01) == (scope == "layer")
        assert shapes(found) == shapes(params)

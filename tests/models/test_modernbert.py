"""ModernBERT: parameters, sizes, kinds of layers, loops over layers, windows and packed rows."""

import dataclasses
import json
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_bert

from bertfam.errors import UserError
from bertfam.kernels.attention import reference
from bertfam.layers import dropout
from bertfam.layers.execution import Execution
from bertfam.models.encoder import init_encoder, init_masked_lm_head
from bertfam.models.modernbert import Encoder, ModernBertConfig

# Global layers 0 and 3; after the first, one period (local, local, global) and two remaining layers.
CONFIG = ModernBertConfig(vocab_size=99, num_layers=6, hidden_size=48, num_heads=4, feed_forward_size=40, max_length=24, window=6)
GOLDEN = Path(__file__).parent / "golden" / "modernbert_parameters.json"


def shapes(config):
    """Return the boxed shapes of encoder and head."""

    def init(key):
        encoder = init_encoder(config, key)
        return {"encoder": encoder, "mlm_head": init_masked_lm_head(config, key, encoder)}

    return jax.eval_shape(init, jax.random.key(0))


def test_parameter_tree_is_the_published_one():
    boxes = jax.tree_util.tree_leaves_with_path(shapes(CONFIG), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
    tree = {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}
    assert tree == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (ModernBertConfig(vocab_size=50368), 149_655_232),
        (
            ModernBertConfig(vocab_size=50368, num_layers=28, hidden_size=1024, num_heads=16, feed_forward_size=2624),
            395_881_664,
        ),
    ],
)
def test_published_sizes(config, parameters):
    padding = (50432 - 50368) * (config.hidden_size + 1)
    assert sum(leaf.size for leaf in jax.tree.leaves(nn.unbox(shapes(config)))) == parameters + padding


def test_flops():
    """Four of the six layers are local and see up to 7 of 20 tokens; a GeGLU has three products."""
    near = sum(abs(query - key) <= 3 for query in range(20) for key in range(20))
    layers = 6 * 20 * (8 * 48**2 + 6 * 48 * 40) + 2 * 4 * 48 * 20 * 20 + 4 * 4 * 48 * near
    assert CONFIG.flops(20, 3) == 3 * (layers + 3 * (2 * 48**2 + 2 * 48 * 99))
    assert dataclasses.replace(CONFIG, window=1000).flops(20, 3) == dataclasses.replace(CONFIG, global_every=1).flops(20, 3)


@pytest.mark.parametrize(
    ("options", "types"),
    [
        ({}, "g l l g l l"),
        ({"num_layers": 1}, "g"),
        ({"num_layers": 4, "global_every": 1}, "g g g g"),
        ({"num_layers": 5, "global_every": 2}, "g l g l g"),
        ({"num_layers": 3, "layer_types": ("local", "local", "global")}, "l l g"),
    ],
)
def test_types_of_layers(options, types):
    names = {"g": "global", "l": "local"}
    assert dataclasses.replace(CONFIG, **options).types == tuple(names[letter] for letter in types.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 50}, "hidden_size = 50 is not a multiple of num_heads = 4"),
        ({"hidden_size": 36}, "hidden_size = 36 is 4 .num_heads. heads of the odd width 9"),
        ({"window": 0}, "window = 0 must be at least 1"),
        ({"global_every": 0}, "global_every = 0 must be at least 1"),
        ({"global_theta": 0.0}, "global_theta = 0.0 must be above 0"),
        ({"feed_forward_dropout_rate": 1.0}, "feed_forward_dropout_rate = 1.0"),
        ({"layer_types": ("global", "local")}, r"layer_types = \('global', 'local'\) must be 6 \(num_layers\) of global, local"),
        ({"layer_types": ("global",) * 5 + ("dense",)}, "layer_types = .* of global, local"),
        ({"activation": "swish"}, "activation = 'swish' is not one of gelu, gelu_tanh, relu"),
    ],
)
def test_config_names_clashing_values(change, message):
    with pytest.raises(UserError, match=f"ModernBertConfig.{message}"):
        dataclasses.replace(CONFIG, **change)


def test_rows_longer_than_max_length_are_refused():
    with pytest.raises(UserError, match="25 tokens.*max_length 24"):
        small_bert.apply(small_bert.random_params(CONFIG), small_bert.batch(CONFIG, lengths=(25,), length=25), CONFIG)


def test_initial_values():
    """Kernels that add to the residual sum start at 1 / sqrt(2 layers) of the others' deviation."""
    config = dataclasses.replace(CONFIG, hidden_size=128, feed_forward_size=128)
    params = nn.unbox(small_bert.init(config))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [key.key for key in path]
        if names[-1] == "scale":
            assert np.all(leaf == 1)
            continue
        deviation = 0.02 / np.sqrt(12) if "output" in names else 0.02
        assert np.max(np.abs(leaf)) <= 2 * deviation
        assert abs(np.std(leaf) / deviation - 0.88) < 0.03, names
    kernel = params["layers"]["attention"]["query"]["kernel"]
    assert len({float(one[0, 0, 0]) for one in (*kernel, *params["first_layers"]["attention"]["query"]["kernel"])}) == 6
    init_head = jax.jit(lambda key: nn.unbox(init_masked_lm_head(config, key, {"embeddings": params["embeddings"]})))
    head = jax.device_get(init_head(jax.random.key(0)))
    assert abs(np.std(head["dense"]["kernel"]) / 0.02 * np.sqrt(12) - 0.88) < 0.03


@pytest.fixture(scope="module")
def params():
    return small_bert.random_params(CONFIG)


def test_scan_and_unroll_agree(params):
    """One period is looped, and two layers remain; tests/layers/test_stack.py compares dropout and gradients."""
    inputs = small_bert.batch(CONFIG)
    hidden, actual = (small_bert.apply(params, inputs, CONFIG, Execution(layers=layers))[0] for layers in ("scan", "unroll"))
    real = inputs["segment_ids"] > 0
    np.testing.assert_allclose(actual[real], hidden[real], atol=1e-5)


def test_places_of_dropout(monkeypatch):
    drawn = []

    def record(key, inputs, rate):
        drawn.append(({48: "e", 40: "f"}.get(inputs.shape[-1], "p"), rate))
        return inputs

    monkeypatch.setattr(dropout, "dropout", record)
    monkeypatch.setattr(reference, "dropout", record)
    rates = {"embedding": 0.1, "attention": 0.2, "attention_output": 0.3, "feed_forward": 0.4}
    config = dataclasses.replace(CONFIG, num_layers=2, **{f"{place}_dropout_rate": rate for place, rate in rates.items()})
    encoder, inputs = Encoder(config, Execution(layers="unroll", attention="reference")), small_bert.batch(config)
    rngs = {"dropout": jax.random.key(0)}
    jax.eval_shape(
        lambda params: encoder.apply({"params": params}, **inputs, train=True, rngs=rngs)[0], small_bert.random_params(config)
    )
    # embeddings, and in each layer attention probabilities, attention, hidden layer
    assert drawn == [("e", 0.1), *2 * [("p", 0.2), ("e", 0.3), ("f", 0.4)]]


def test_collected_values_are_in_the_order_of_layers(params):
    """Attention weights show which layers are local; hidden states are those of a model without the layers after them."""
    inputs = small_bert.batch(CONFIG)
    collect = frozenset({"hidden_states", "attention_probs"})
    hidden, collected = small_bert.apply(params, inputs, CONFIG, collect=collect)
    assert collected["hidden_states"].shape == (7, 4, 20, 48) and collected["attention_probs"].shape == (6, 4, 4, 20, 20)
    assert np.array_equal(collected["hidden_states"][-1], hidden)
    far = np.abs(np.arange(20)[:, None] - np.arange(20)) > 3
    sees_far_tokens = [bool(np.any(np.asarray(weights)[0][:, far] > 0)) for weights in collected["attention_probs"]]
    assert sees_far_tokens == [name == "global" for name in CONFIG.types]
    fewer = dataclasses.replace(CONFIG, num_layers=4)
    cut = params | {"layers": jax.tree.map(lambda leaf: leaf[:3], params["layers"])}
    states = small_bert.apply(cut, inputs, fewer, collect=collect)[1]["hidden_states"]
    np.testing.assert_allclose(collected["hidden_states"][:4], states[:4], atol=1e-5)
    with pytest.raises(ValueError, match="cannot collect"):
        small_bert.apply(params, inputs, CONFIG, collect=frozenset({"logits"}))


def test_padding_does_not_change_real_tokens(params):
    """Kernels have half their scale: at full scale, six layers without a LayerNorm at their ends raise rounding to 2e-5."""
    small_bert.assert_padding_changes_nothing(jax.tree.map(lambda leaf: leaf / 2, params), CONFIG)


def test_packed_examples_are_isolated_bit_for_bit(params):
    """Windows end with an example, and positions start anew with each; kernels are halved, see above."""
    params = jax.tree.map(lambda leaf: leaf / 2, params)
    # Row 0 has both examples, and rows 1 and 2 one of them each.
    inputs = small_bert.batch(CONFIG, lengths=(16, 8, 8))
    inputs["tokens"][1:, :8] = inputs["tokens"][0, :16].reshape(2, 8)
    inputs["segment_ids"][0, 8:16] = 2
    inputs["positions"] = np.arange(20, dtype=np.int32) % 8 * (inputs["segment_ids"] > 0)
    changed = inputs | {"tokens": inputs["tokens"].copy()}
    changed["tokens"][0, :8] = (inputs["tokens"][0, :8] + 1) % 99
    one, other = (small_bert.apply(params, which, CONFIG)[0] for which in (inputs, changed))
    assert np.array_equal(one[0, 8:], other[0, 8:]) and not np.array_equal(one[0, :8], other[0, :8])
    np.testing.assert_allclose(one[0, :16].reshape(2, 8, -1), one[1:, :8], atol=1e-5)


def test_row_of_padding_gives_no_nan():
    """One layer is global and one local."""
    config = dataclasses.replace(CONFIG, num_layers=2)
    inputs = small_bert.batch(config, lengths=(20, 0))

    def loss(params):
        hidden, _ = Encoder(config, Execution(dtype="bfloat16")).apply({"params": params}, **inputs, train=False)
        return jnp.sum(jnp.square(hidden.astype(jnp.float32)))

    value, gradient = jax.device_get(jax.jit(jax.value_and_grad(loss))(small_bert.random_params(config)))
    assert np.isfinite(value) and all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))

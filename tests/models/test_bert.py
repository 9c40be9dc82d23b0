"""BERT: parameters, sizes, padding, packed rows, bfloat16 and collected values."""

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
from bertfam.layers.execution import Execution
from bertfam.models import bert
from bertfam.models.encoder import pooler, sentence_head, word_table

CONFIG = small_bert.CONFIG
GOLDEN = Path(__file__).parent / "golden" / "bert_parameters.json"


def tree_of(config):
    """Return {path: [shape, logical axes]} of the encoder and all heads."""
    tokens, hidden = jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 2, config.hidden_size))

    def init(key):
        encoder = bert.Encoder(config).init(key, tokens, segment_ids=tokens, token_type_ids=tokens, train=False)
        params = {"encoder": encoder["params"]}
        table = word_table(nn.unbox(params))
        params["pooler"] = pooler(config).init(key, hidden)["params"]
        params["mlm_head"] = config.masked_lm_head().init(key, hidden, table)["params"]
        params["nsp_head"] = sentence_head(config).init(key, hidden)["params"]
        return params

    boxes = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(init, jax.random.key(0)), is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
    )
    return {"/".join(key.key for key in path): [list(box.value.shape), list(box.names)] for path, box in boxes}


def test_parameter_tree_is_the_published_one():
    assert tree_of(CONFIG) == json.loads(GOLDEN.read_text())


def test_untied_head_adds_a_table():
    untied = tree_of(dataclasses.replace(CONFIG, tie_embeddings=False))
    added = {path: untied[path] for path in untied.keys() - tree_of(CONFIG).keys()}
    assert added == {"mlm_head/decoder": [[128, 48], ["vocab", "embed"]]}


def test_initial_values():
    config = dataclasses.replace(CONFIG, hidden_size=128, initializer_range=0.02)
    params = nn.unbox(small_bert.init(config))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name == "bias":
            assert np.all(leaf == 0)
        elif name == "scale":
            assert np.all(leaf == 1)
        else:
            assert np.max(np.abs(leaf)) <= 0.04  # cut at two deviations, which leaves a deviation of 0.88 x 0.02
            if leaf.size > 10_000:
                assert abs(np.std(leaf) - 0.0176) < 0.0005


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 50}, "hidden_size = 50 is not a multiple of num_heads = 4"),
        ({"num_layers": 0}, "num_layers = 0"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"vocab_size": 9, "table_rows": 8}, "table_rows = 8 must be at least 9"),
        ({"dropout_rate": 1.0}, "dropout_rate = 1.0"),
        ({"attention_dropout_rate": -0.1}, "attention_dropout_rate = -0.1"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon = 0.0"),
        ({"activation": "swish"}, "activation = 'swish' is not one of gelu, gelu_tanh, relu"),
    ],
)
def test_config_names_clashing_values(change, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_rows_longer_than_the_position_table_are_refused():
    with pytest.raises(UserError, match="25 tokens.*max_length 24"):
        small_bert.apply(small_bert.random_params(), small_bert.batch(lengths=(25,), length=25))


def test_sizes_and_flops_of_bert_base():
    config = bert.BertConfig(vocab_size=30522)
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)

    def init(tokens):
        return bert.Encoder(config).init(jax.random.key(0), tokens, segment_ids=tokens, token_type_ids=tokens, train=False)

    padding = (30592 - 30522) * 768
    shapes = nn.unbox(jax.eval_shape(init, tokens))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 108_891_648 + padding
    # 12 layers of 128 x (8h^2 + 4hf + 4h128) and 20 heads of 2h^2 + 2hV, three times
    forward = 12 * 128 * (8 * 768**2 + 4 * 768 * 3072 + 4 * 768 * 128) + 20 * (2 * 768**2 + 2 * 768 * 30522)
    assert config.flops(128, 20) == 3 * forward


@pytest.mark.parametrize("execution", [Execution(), Execution(attention="reference")])
def test_padding_does_not_change_real_tokens(execution):
    small_bert.assert_padding_changes_nothing(small_bert.random_params(), execution=execution)


def test_packed_examples_are_isolated_bit_for_bit():
    params, inputs = small_bert.random_params(), small_bert.batch(lengths=(20,))
    inputs["segment_ids"] = np.array([[1] * 8 + [2] * 9 + [0] * 3], np.int32)
    inputs["positions"] = np.array([[*range(8), *range(9), 0, 0, 0]], np.int32)
    changed = inputs | {"tokens": np.where(inputs["segment_ids"] == 1, (inputs["tokens"] + 1) % 99, inputs["tokens"])}
    one, other = (small_bert.apply(params, which)[0] for which in (inputs, changed))
    assert np.array_equal(one[:, 8:], other[:, 8:]) and not np.array_equal(one[:, :8], other[:, :8])

    alone = {name: inputs[name][:, 8:17] for name in ("tokens", "token_type_ids")}
    alone["segment_ids"] = np.ones((1, 9), np.int32)
    np.testing.assert_allclose(one[:, 8:17], small_bert.apply(params, alone)[0], atol=1e-5)


def test_row_of_padding_gives_no_nan():
    params = small_bert.random_params()
    inputs = small_bert.batch(lengths=(20, 0))
    module = bert.Encoder(CONFIG, Execution(dtype="bfloat16"))

    def loss(params):
        hidden, _ = module.apply({"params": params}, **inputs, train=False)
        return jnp.sum(jnp.square(hidden.astype(jnp.float32)))

    value, gradient = jax.device_get(jax.jit(jax.value_and_grad(loss))(params))
    assert np.isfinite(value) and all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_bfloat16_is_finite_and_near():
    params, inputs = small_bert.random_params(), small_bert.batch()
    wide, _ = small_bert.apply(params, inputs)
    narrow, _ = small_bert.apply(params, inputs, execution=Execution(dtype="bfloat16"))
    assert narrow.dtype == jnp.bfloat16
    real = inputs["segment_ids"] > 0
    difference = np.abs(np.float32(narrow) - wide)[real]
    assert np.all(np.isfinite(narrow)) and difference.mean() < 0.02 and difference.max() < 0.13  # twice the measured values


@pytest.mark.parametrize("layers", ["scan", "unroll"])
def test_collected_values(layers):
    params, inputs = small_bert.random_params(), small_bert.batch()
    hidden, collected = small_bert.apply(
        params, inputs, execution=Execution(layers=layers), collect=frozenset({"hidden_states", "attention_probs"})
    )
    assert collected["hidden_states"].shape == (4, 4, 20, 48)
    assert collected["attention_probs"].shape == (3, 4, 4, 20, 20)
    assert np.array_equal(collected["hidden_states"][-1], hidden)
    assert small_bert.apply(params, inputs)[1] == {}
    for unknown in ("logits", "cross_attention_probs"):
        with pytest.raises(ValueError, match="cannot collect"):
            small_bert.apply(params, inputs, collect=frozenset({unknown}))

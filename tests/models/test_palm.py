"""PaLM against its equations in float64: NumPy, one token and one head at a time. transformers has no class for it."""

import dataclasses

import decoder_parity
import jax
import numpy as np
import pytest
from flax import linen as nn

from bertfam.models.language_model import init_language_model
from bertfam.models.palm import PalmConfig

# Heads have width 6, which is not 32 / 4.
CONFIG = PalmConfig(
    vocab_size=101, num_layers=2, hidden_size=32, num_heads=4, feed_forward_size=40, max_length=16, head_size=6, rotary_theta=50.0
)


def normalise(x, scale):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale


def rotate(head, position):
    """Apply rotary positions, where the two halves of a head are real and imaginary parts."""
    half = len(head) // 2
    pairs = head[:half] + 1j * head[half:]
    pairs = pairs * np.exp(1j * position * 50.0 ** (-np.arange(half) / half))
    return np.concatenate([pairs.real, pairs.imag])


def palm(params, tokens, key_heads):
    """Compute hidden states float64[length, embed] and logits float64[length, vocabulary] of one text."""
    table, decoder = params["embeddings"]["table"][:101], params["decoder"]
    hidden = table[tokens]
    for layer in range(2):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], decoder["layers"])
        attention, feed_forward = block["attention"], block["feed_forward"]
        inputs = [normalise(x, block["attention_norm"]["scale"]) for x in hidden]
        keys = [
            [rotate(y @ attention["key"]["kernel"][:, head], place) for head in range(key_heads)]
            for place, y in enumerate(inputs)
        ]
        values = [[y @ attention["value"]["kernel"][:, head] for head in range(key_heads)] for y in inputs]
        following = []
        for place, y in enumerate(inputs):
            added = np.zeros(32)
            for head in range(4):
                key_head = head * key_heads // 4
                query = rotate(y @ attention["query"]["kernel"][:, head], place)
                scores = np.array([query @ keys[other][key_head] for other in range(place + 1)]) / np.sqrt(6)
                shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                mixed = sum(share * values[other][key_head] for other, share in enumerate(shares))
                added = added + mixed @ attention["output"]["kernel"][head]
            gate = y @ feed_forward["intermediate"]["kernel"]
            wide = gate / (1 + np.exp(-gate)) * (y @ feed_forward["linear"]["kernel"])
            following.append(hidden[place] + added + wide @ feed_forward["output"]["kernel"])
        hidden = np.stack(following)
    hidden = np.stack([normalise(x, decoder["norm"]["scale"]) for x in hidden])
    return hidden, hidden @ table.T / np.sqrt(32)


@pytest.mark.parametrize("key_heads", [1, 2])
def test_outputs_match_the_equations(key_heads):
    config = dataclasses.replace(CONFIG, num_key_value_heads=key_heads)
    params = decoder_parity.random_params(config)
    double = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for side in ("right", "left"):
        inputs = decoder_parity.batch(side)
        actual = decoder_parity.jax_outputs(config, params, inputs)
        for row, real in enumerate(inputs["segment_ids"] > 0):
            if not np.any(real):
                continue
            hidden, logits = palm(double, inputs["tokens"][row, real], key_heads)
            np.testing.assert_allclose(actual["output"][row, real], hidden, rtol=0, atol=1e-4)
            np.testing.assert_allclose(actual["logits"][row, real], logits, rtol=0, atol=1e-3)


def test_every_parameter_matters():
    """Fresh values in place of any one parameter change the result of the equations."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), decoder_parity.random_params(CONFIG))
    tokens = np.arange(5) * 7
    _, expected = palm(params, tokens, 1)
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        fresh = np.ones_like if path[-1].key == "scale" else np.zeros_like
        other = jax.tree_util.tree_map_with_path(
            lambda at, leaf, path=path, fresh=fresh: fresh(leaf) if at == path else leaf, params
        )
        assert np.max(np.abs(palm(other, tokens, 1)[1] - expected)) > 1e-2, path


def test_initial_deviations():
    """Kernels have deviation 1 / sqrt(inputs), the word table 1."""
    config = dataclasses.replace(CONFIG, hidden_size=96, head_size=32, feed_forward_size=160)
    params = nn.unbox(jax.jit(lambda key: init_language_model(config, key))(jax.random.key(0)))
    layers = params["decoder"]["layers"]
    inputs = {"query": 96, "key": 96, "value": 96, "output": 128}
    deviations = [(layers["attention"][name]["kernel"], count**-0.5) for name, count in inputs.items()]
    inputs = {"intermediate": 96, "linear": 96, "output": 160}
    deviations += [(layers["feed_forward"][name]["kernel"], count**-0.5) for name, count in inputs.items()]
    for kernel, deviation in [*deviations, (params["embeddings"]["table"], 1.0)]:
        # the deviation of n values has a relative error of 1 / sqrt(2n)
        assert np.std(kernel) == pytest.approx(deviation, rel=4 / np.sqrt(2 * kernel.size))

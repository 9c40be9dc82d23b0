"""Frozen parameters and linear probes: what is trained, by which gradient, and what is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from flax import traverse_util
from gradients import random_params

from bertfam.errors import UserError
from bertfam.layers.heads.scalar_mix import ScalarMix
from bertfam.objectives.fine_tuning.heads import Classification, Tagging
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.objectives.fine_tuning.probe import LinearProbe
from bertfam.training.optimizers import AdamW
from bertfam.training.schedules import ConstantRate
from bertfam.training.stages.phases import Phase
from bertfam.training.state import first_state
from bertfam.training.step import make_gradient, make_train_step

MODEL, HEAD = tiny.objective().model, Classification(("bad", "good"))


def batch_of(rows=8):
    batch = {name: value for name, value in tiny.batch(rows).items() if name.startswith(("encoder", "sequence"))}
    labels = np.random.default_rng(0).integers(0, 2, (rows, 1)).astype(np.float32)
    return batch | {"labels": labels, "label_weights": np.ones_like(labels)}


def trained(objective):
    """Return the state before and after three steps, and the gradient of the first."""
    params, batch = random_params(objective), batch_of()
    boxed = jax.eval_shape(lambda key: objective.init(key, tiny.SHAPE), jax.random.key(0))[0]
    optimizer = AdamW(ConstantRate(0.01), weight_decay=0.1).build(10, jax.eval_shape(objective.frozen.trained, boxed))
    begin = state = first_state((params, {}, {}), optimizer, objective.frozen, averaged=False)
    step = jax.jit(make_train_step(Phase.of(objective), optimizer))
    for _ in range(3):
        state, _ = step(state, batch, tiny.SEED)
    gradient = jax.jit(make_gradient(Phase.of(objective), microbatches=2))(begin, batch, tiny.SEED)[0]
    return jax.device_get((begin, state, gradient))


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


def test_a_frozen_encoder_is_bit_equal_and_has_neither_gradient_nor_optimizer_state():
    begin, end, gradient = trained(FineTuning(MODEL, HEAD, freeze="encoder"))
    jax.tree.map(np.testing.assert_array_equal, end.params["encoder"], begin.params["encoder"])
    assert gradient.keys() == {"pooler", "classifier"}
    assert all((end.params[part]["dense" if part == "pooler" else "output"]["kernel"] != 0).any() for part in gradient)
    assert all((flat(end.params)[path] != flat(begin.params)[path]).any() for path in flat(gradient))
    sizes = sum(leaf.size for leaf in jax.tree.leaves(gradient))
    assert sum(leaf.size for leaf in jax.tree.leaves(end.opt_state) if leaf.ndim) == 2 * sizes


def test_frozen_lower_layers_are_bit_equal_and_the_others_have_the_gradient_of_the_whole_model():
    begin, end, gradient = trained(FineTuning(MODEL, HEAD, freeze=1))
    whole = FineTuning(MODEL, HEAD)
    expected = flat(jax.device_get(jax.jit(make_gradient(Phase.of(whole), microbatches=2))(begin, batch_of(), tiny.SEED)[0]))
    before, after = flat(begin.params), flat(end.params)
    for path, value in before.items():
        frozen = len(value) if "embeddings" in path else 1 if "layers" in path else 0
        np.testing.assert_array_equal(after[path][:frozen], value[:frozen])
        if "embeddings" in path:
            assert path not in flat(gradient)
        else:
            np.testing.assert_allclose(flat(gradient)[path], expected[path][frozen:], rtol=1e-4, atol=1e-6)
            assert "key/bias" in path or (after[path][frozen:] != value[frozen:]).any()


def test_more_layers_than_the_encoder_has_are_refused():
    objective = FineTuning(MODEL, HEAD, freeze=3)
    with pytest.raises(UserError, match="3 layers of the encoder are to be frozen, which has 2 layers"):
        jax.eval_shape(objective.frozen.trained, random_params(objective))
    for wrong in (0, "all"):
        with pytest.raises(UserError, match=r"FineTuning\.freeze"):
            FineTuning(MODEL, HEAD, freeze=wrong)
    with pytest.raises(UserError, match=r"LinearProbe\.layer is 3, and the encoder has 2 layers"):
        FineTuning(MODEL, HEAD, probe=LinearProbe(3))


@pytest.mark.parametrize("layer", [0, -1, "mix"])
def test_a_probe_is_linear_in_the_mean_of_a_layer_or_in_the_mix_of_all(layer):
    objective, batch = FineTuning(MODEL, HEAD, freeze="encoder", probe=LinearProbe(layer)), batch_of()
    params = random_params(objective)
    assert params.keys() == {"encoder", "probe"} | ({"scalar_mix"} if layer == "mix" else set())
    inputs = {"segment_ids": batch["encoder_segment_ids"], "token_type_ids": batch["encoder_token_type_ids"], "train": False}
    encoder = {"params": params["encoder"]}
    collected = MODEL.encoder().apply(encoder, batch["encoder_input_tokens"], **inputs, collect=frozenset({"hidden_states"}))[1]
    states = np.float64(collected["hidden_states"])
    if layer == "mix":
        weights, gamma = (np.float64(params["scalar_mix"][name]) for name in ("weights", "gamma"))
        shares = np.exp(weights) / np.exp(weights).sum()
        hidden = gamma * sum(share * state for share, state in zip(shares, states, strict=True))
    else:
        hidden = states[layer]
    means = np.stack([row[real > 0].mean(axis=0) for row, real in zip(hidden, batch["encoder_segment_ids"], strict=True)])
    expected = means @ np.float64(params["probe"]["output"]["kernel"]) + params["probe"]["output"]["bias"]
    outputs = jax.jit(lambda rows: objective.outputs(params, rows, key=jax.random.key(0), train=True))(batch)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)


def test_a_mix_begins_as_the_mean_and_probes_of_words_read_each_token():
    hidden = jnp.arange(24.0).reshape(3, 2, 4)
    params = nn.meta.unbox(ScalarMix().init(jax.random.key(0), hidden))
    np.testing.assert_allclose(ScalarMix().apply(params, hidden), hidden.mean(axis=0), rtol=1e-6)
    assert FineTuning(MODEL, Tagging(("O", "B-X")), probe=LinearProbe())._classifier.pooling is None

"""Bidirectional language model against torch's LSTMs, and its loss by hand."""

import dataclasses

import jax
import numpy as np
import pytest
from gradients import assert_sums_of_microbatches, compile_loss, random_params

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.features import RowShape
from bertfam.models.characters import CharacterWords
from bertfam.models.elmo import BilmConfig
from bertfam.objectives.representations.bilm import Bilm

torch = pytest.importorskip("torch")

SHAPE = RowShape(length=10, predictions=10)
CONFIG = BilmConfig(vocab_size=30, hidden_size=12, dropout_rate=0.0)
OBJECTIVE = Bilm(CONFIG)
GATES = "ifgo"  # in torch's order


def batch_of(rows=4, seed=0):
    """Return rows of two packed examples with padding, in which tokens but the first and last of each are predicted."""
    generator = np.random.default_rng(seed)
    first, second = generator.integers(3, 5, (2, rows))
    place = np.arange(10)
    segments = np.where(place < first[:, None], 1, np.where(place < (first + second)[:, None], 2, 0)).astype(np.int32)
    tokens = np.where(segments > 0, generator.integers(5, 30, segments.shape), 0).astype(np.int32)
    used = np.zeros((rows, 10), bool)
    positions = np.zeros((rows, 10), np.int32)
    for row in range(rows):
        chosen = [*range(1, first[row]), *range(first[row] + 1, first[row] + second[row])]
        positions[row, : len(chosen)], used[row, : len(chosen)] = chosen, True
    return {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": segments,
        "encoder_token_type_ids": np.zeros_like(tokens),
        "masked_positions": positions,
        "masked_target_tokens": np.where(used, np.take_along_axis(tokens, positions, axis=1), 0),
        "masked_loss_weights": used.astype(np.float32),
    }


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE, shape=SHAPE)


@pytest.fixture(scope="module")
def hidden_states(params):
    """Return the hidden states of the batch [layers + 1, batch, length, embed]."""
    encode = jax.jit(lambda params, batch: OBJECTIVE.activations(params, batch)["encoder"][0])
    return np.asarray(encode(params, batch_of()))


def torch_lstm(cell):
    """Return torch's LSTM of one layer and direction with the weights of a cell."""
    lstm = torch.nn.LSTM(6, 6, batch_first=True)
    weights = {
        "weight_ih_l0": np.concatenate([cell[f"i{gate}"]["kernel"].T for gate in GATES]),
        "weight_hh_l0": np.concatenate([cell[f"h{gate}"]["kernel"].T for gate in GATES]),
        "bias_ih_l0": np.concatenate([cell[f"h{gate}"]["bias"] for gate in GATES]),
        "bias_hh_l0": np.zeros(24, np.float32),
    }
    lstm.load_state_dict({name: torch.tensor(np.array(value)) for name, value in weights.items()})
    return lstm


def test_parity_with_torch(params, hidden_states):
    batch = batch_of()
    encoder = params["encoder"]
    table = encoder["embeddings"]["word"]["table"]
    for row, (tokens, segments) in enumerate(zip(batch["encoder_input_tokens"], batch["encoder_segment_ids"], strict=True)):
        for segment in (1, 2):
            here = segments == segment
            states = torch.tensor(np.tile(table[tokens[here]], 2))[None]
            np.testing.assert_array_equal(hidden_states[0, row, here], states[0])
            for layer in range(2):
                cells = {
                    name: jax.tree.map(lambda leaf, layer=layer: leaf[layer], encoder["layers"][name]["cell"])
                    for name in ("forward", "backward")
                }
                with torch.no_grad():
                    forward = torch_lstm(cells["forward"])(states[..., :6])[0]
                    backward = torch_lstm(cells["backward"])(states[..., 6:].flip(1))[0].flip(1)
                    states = torch.cat([forward, backward], dim=-1) + (states if layer else 0)
                np.testing.assert_allclose(hidden_states[layer + 1, row, here], states[0], atol=1e-5)


PROJECTED = Bilm(dataclasses.replace(CONFIG, lstm_units=9))


def cells_of(params, layer):
    """Return the parameters of the cells of both directions of a layer."""
    layers = params["encoder"]["layers"]
    return {name: jax.tree.map(lambda leaf: np.asarray(leaf)[layer], layers[name]["cell"]) for name in ("forward", "backward")}


def hidden_states_of(objective, params, batch):
    encode = jax.jit(lambda params, batch: objective.activations(params, batch)["encoder"][0])
    return np.asarray(encode(params, batch))


def test_projected_lstms_match_torch():
    """torch's LSTM with proj_size has the same gates, in the same order."""
    params, batch = random_params(PROJECTED, shape=SHAPE), batch_of()
    hidden = hidden_states_of(PROJECTED, params, batch)

    def lstm_of(cell):
        lstm = torch.nn.LSTM(6, 9, proj_size=6, batch_first=True)
        kernels = {"ih": cell["input"]["kernel"], "hh": cell["recurrent"]["kernel"], "hr": cell["projection"]["kernel"]}
        weights = {f"weight_{name}_l0": kernel.T for name, kernel in kernels.items()}
        weights |= {"bias_ih_l0": cell["recurrent"]["bias"], "bias_hh_l0": np.zeros(36, np.float32)}
        lstm.load_state_dict({name: torch.tensor(np.array(value)) for name, value in weights.items()})
        return lstm

    for row, segments in enumerate(batch["encoder_segment_ids"]):
        for segment in (1, 2):
            here = segments == segment
            states = torch.tensor(hidden[0, row, here])[None]
            for layer in range(2):
                cells = cells_of(params, layer)
                with torch.no_grad():
                    forward = lstm_of(cells["forward"])(states[..., :6])[0]
                    backward = lstm_of(cells["backward"])(states[..., 6:].flip(1))[0].flip(1)
                    states = torch.cat([forward, backward], dim=-1) + (states if layer else 0)
                np.testing.assert_allclose(hidden[layer + 1, row, here], states[0], atol=1e-5)


def test_clipped_cells_by_hand():
    """The cell state and the projected output are limited, in float64."""
    clip = 0.4
    objective = Bilm(dataclasses.replace(CONFIG, num_layers=1, lstm_units=9, clip=clip))
    params, batch = random_params(objective, shape=SHAPE), batch_of()
    cells_of(params, 0)["forward"]["projection"]["kernel"][...] *= 5  # so that outputs are beyond the limit, too
    hidden, cell = hidden_states_of(objective, params, batch), cells_of(params, 0)["forward"]
    kernels = {name: np.float64(cell[name]["kernel"]) for name in ("input", "recurrent", "projection")}

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    clipped = set()
    for row, segments in enumerate(batch["encoder_segment_ids"]):
        state, output = np.zeros(9), np.zeros(6)
        for place in np.flatnonzero(segments):
            if place and segments[place] != segments[place - 1]:
                state, output = np.zeros(9), np.zeros(6)
            gates = hidden[0, row, place, :6] @ kernels["input"] + output @ kernels["recurrent"] + cell["recurrent"]["bias"]
            into, forget, candidate, out = np.split(gates, 4)
            state = sigmoid(forget) * state + sigmoid(into) * np.tanh(candidate)
            clipped |= {"state"} if np.abs(state).max() > clip else set()
            state = np.clip(state, -clip, clip)
            output = (sigmoid(out) * np.tanh(state)) @ kernels["projection"]
            clipped |= {"output"} if np.abs(output).max() > clip else set()
            output = np.clip(output, -clip, clip)
            np.testing.assert_allclose(hidden[1, row, place, :6], output, atol=1e-5)
    assert clipped == {"state", "output"}


def test_published_sizes():
    """ELMo has 93.6 million parameters without its softmax (Peters et al. 2018, as published by AllenNLP)."""
    config = load(["runs/elmo.gin", "models/elmo_original.gin"]).build("Run").objective.model
    assert (config.lstm_units, config.units, config.clip) == (4096, 512, 3.0)
    config = dataclasses.replace(config, vocab_size=30, spelling=config.characters.spell(["word"] * 30, {}))
    shapes = jax.eval_shape(lambda key: Bilm(config).init(key, SHAPE)[0]["encoder"], jax.random.key(0))
    assert round(sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6, 1) == 93.6
    # 2 directions of 2 LSTMs, of 1,024 x 16,384 and 4,096 x 512 products a token
    lstms = 4 * (1024 * 16_384 + 4096 * 512)
    assert config.flops(10, 0) == 3 * (2 * 10 * lstms + 10 * config.characters.flops(512))


def test_loss_by_hand(params, hidden_states):
    batch = batch_of()
    total, out = compile_loss(OBJECTIVE, gradient=False)(params, batch)
    table, bias = np.float64(params["encoder"]["embeddings"]["word"]["table"][:30]), params["lm_head"]["bias"][:30]
    losses = {"forward": [], "backward": []}
    for row, tokens in enumerate(batch["encoder_input_tokens"]):
        for place in batch["masked_positions"][row][batch["masked_loss_weights"][row] > 0]:
            segments, last = batch["encoder_segment_ids"][row], hidden_states[-1, row]
            after = last[place + 1, 6:] if place < 9 and segments[place + 1] == segments[place] else np.zeros(6)
            for name, state in (("forward", last[place - 1, :6]), ("backward", after)):
                logits = table @ state + bias
                losses[name].append(np.log(np.exp(logits).sum()) - logits[tokens[place]])
    for name, values in losses.items():
        metric = out.metrics[f"{name}_loss"]
        assert metric.total / metric.weight == pytest.approx(np.mean(values), rel=1e-5)
    assert total == pytest.approx(np.mean(losses["forward"]) + np.mean(losses["backward"]), rel=1e-5)


def test_words_read_by_their_characters():
    """The embeddings are those of the characters, and the softmax has a table of its own."""
    config = dataclasses.replace(CONFIG, filters=((1, 4), (3, 8)), character_size=3, highways=1, longest_word=7)
    characters = config.characters
    spelling = characters.spell([f"word {number}" for number in range(30)], {})
    objective = Bilm(dataclasses.replace(config, spelling=spelling))
    params, batch = random_params(objective, shape=SHAPE), batch_of()
    assert params["lm_head"]["word"]["table"].shape == (128, 6) and set(params["encoder"]["embeddings"]) == {"words"}
    words = CharacterWords(characters, spelling, 6)

    @jax.jit
    def compute(params, batch):
        embedded = words.apply({"params": params["encoder"]["embeddings"]["words"]}, batch["encoder_input_tokens"])
        states = objective._states(params, batch, key=None, train=False)
        return embedded, objective.activations(params, batch)["encoder"][0][0], states

    embedded, first, states = jax.device_get(compute(params, batch))
    np.testing.assert_allclose(first, np.tile(embedded, 2), atol=1e-6)
    total, _ = compile_loss(objective, gradient=False)(params, batch)
    table, bias = np.float64(params["lm_head"]["word"]["table"][:30]), params["lm_head"]["bias"][:30]
    logits = {name: own @ table.T + bias for name, own in states.items()}
    targets, used = batch["masked_target_tokens"], batch["masked_loss_weights"] > 0
    expected = 0.0
    for own in logits.values():
        picked = np.take_along_axis(own, targets[..., None], axis=-1)[..., 0]
        expected += (np.log(np.exp(own).sum(axis=-1)) - picked)[used].mean()
    assert total == pytest.approx(expected, rel=1e-5)


def test_no_token_is_seen_by_its_own_prediction(params):
    """Changing a token changes the states that predict others, and never its own."""
    batch = batch_of()
    states = jax.jit(lambda params, batch: OBJECTIVE._states(params, batch, key=None, train=False))
    changed = dict(batch) | {"encoder_input_tokens": batch["encoder_input_tokens"].copy()}
    rows = np.arange(4)
    changed["encoder_input_tokens"][rows, batch["masked_positions"][:, 1]] = 7
    for name, before in states(params, batch).items():
        after = states(params, changed)[name]
        np.testing.assert_array_equal(before[:, 1], after[:, 1])
        assert np.abs(before - after).max() > 1e-3, name


def test_sums_of_microbatches(params):
    run = jax.jit(lambda batch: OBJECTIVE.loss(params, {}, {}, batch, key=None, train=False))
    assert_sums_of_microbatches(run, batch_of(6))


def test_mistakes():
    with pytest.raises(UserError, match="hidden_size = 5 is odd"):
        BilmConfig(hidden_size=5)
    with pytest.raises(UserError, match="clip = 3.0 is of LSTMs with lstm_units"):
        BilmConfig(clip=3.0)
    with pytest.raises(UserError, match="lstm_units = 0"):
        BilmConfig(lstm_units=0)
    with pytest.raises(UserError, match="BilmConfig has no attention"):
        tokens = np.zeros((1, 2), np.int32)
        CONFIG.encoder().init(jax.random.key(0), tokens, segment_ids=tokens, train=False, collect=frozenset({"attention_probs"}))

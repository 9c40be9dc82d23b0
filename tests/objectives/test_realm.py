"""REALM: the marginal and its gradient against brute force, own passages, and an index that is refreshed within the step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import linen as nn
from gradients import compile_loss, random_params

from bertfam.features import RowShape
from bertfam.layers.execution import Execution
from bertfam.objectives.retrieval.realm import Realm
from bertfam.retrieval.index import Index
from bertfam.retrieval.passages import TOKENS, VECTORS, read_passages
from bertfam.training.stages.phases import Phase
from bertfam.training.state import TrainState
from bertfam.training.step import make_gradient

CLS, SEP, MASK = 2, 3, 4
ROWS, LENGTH, PASSAGE, WIDTH, PASSAGES = 4, 10, 7, 5, 11
SHAPE = RowShape(LENGTH, predictions=3, rows=ROWS)
OBJECTIVE = Realm(
    dataclasses.replace(tiny.objective().model, num_layers=1),
    Execution(layers="unroll"),
    passages=PASSAGES,
    candidates=3,
    passage_length=PASSAGE,
    overlap=3,
    spare=2,
    refresh=4,
    projection=WIDTH,
)


@pytest.fixture(scope="module")
def batch():
    """Return rows `[CLS] text [SEP]` with masked places, of which the last row is padding."""
    generator = np.random.default_rng(0)
    sizes = np.array([LENGTH, 8, 6, 0])
    place = np.arange(LENGTH)
    tokens = generator.integers(5, tiny.VOCABULARY, (ROWS, LENGTH))
    tokens = np.where(place == 0, CLS, np.where(place == sizes[:, None] - 1, SEP, tokens))
    used = np.arange(3) < np.array([2, 1, 0, 0])[:, None]
    rows = {
        "encoder_input_tokens": np.where(place < sizes[:, None], tokens, 0),
        "encoder_segment_ids": (place < sizes[:, None]).astype(int),
        "encoder_token_type_ids": np.zeros((ROWS, LENGTH), int),
        "masked_positions": np.where(used, [[4, 5, 0], [2, 0, 0], [0, 0, 0], [0, 0, 0]], 0),
        "masked_target_tokens": np.where(used, generator.integers(5, tiny.VOCABULARY, (ROWS, 3)), 0),
    }
    rows["encoder_input_tokens"][0, 4:6] = rows["encoder_input_tokens"][1, 2] = MASK
    return {name: value.astype(np.int32) for name, value in rows.items()} | {"masked_loss_weights": used.astype(np.float32)}


@pytest.fixture(scope="module")
def texts(batch):
    """Return the tokens of the passages; the fourth has three tokens of row 0 with one of its targets, the fifth two."""
    generator = np.random.default_rng(1)
    texts = [generator.integers(5, tiny.VOCABULARY, 1 + number % PASSAGE).tolist() for number in range(PASSAGES)]
    text, target = batch["encoder_input_tokens"][0].tolist(), int(batch["masked_target_tokens"][0, 0])
    texts[3] = [9, *text[2:4], target, 9]
    texts[4] = [9, *text[2:4], 1 + target % 40, 9]
    return texts


@pytest.fixture(scope="module")
def index(texts, tmp_path_factory):
    """Return the folder of an index of these passages with random vectors."""
    index = Index(tmp_path_factory.mktemp("realm") / "index", PASSAGES, WIDTH, PASSAGES, {})
    index.create()
    vectors = np.random.default_rng(2).standard_normal((PASSAGES, WIDTH)).astype(np.float32)
    index.write_shard(0, vectors, [" ".join(map(str, text)) for text in texts])
    return index


@pytest.fixture(scope="module")
def aux(index):
    def encode(texts):
        return [np.array(text.split(), np.int32) for text in texts]

    arrays = read_passages(index, encode, PASSAGE, tiny.VOCABULARY)
    return {"passages": {name: stored[:, :] for name, stored in arrays.items()}}


@pytest.fixture(scope="module")
def params():
    return random_params(OBJECTIVE, scale=1.0, shape=SHAPE)  # so large that candidates differ


def hidden(tree, texts, types):
    """Run an encoder on one text after another: float32[texts, length, embed]."""
    length, encoder = max(map(len, texts)), OBJECTIVE.model.encoder(OBJECTIVE.execution)

    def run(row):
        tokens, types, is_real = (value[None] for value in row)
        return encoder.apply({"params": tree}, tokens, segment_ids=is_real, token_type_ids=types, train=False)[0][0]

    rows = (texts, types, [[1] * len(text) for text in texts])
    return jax.lax.map(run, tuple(jnp.array([[*row, *[0] * (length - len(row))] for row in part]) for part in rows))


def embedded(params, texts):
    """Embed texts: float32[texts, width]."""
    own, states = params["retriever_projection"], hidden(params["retriever"], texts, [[0] * len(text) for text in texts])
    projected = states[:, 0] @ own["dense"]["kernel"] + own["dense"]["bias"]
    centred = projected - projected.mean(axis=1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12) * own["norm"]["scale"] + own["norm"]["bias"]


def by_hand(params, queries, targets, candidates):
    """Compute the sum of the loss one row, one candidate and one place after another.

    Args:
      params: the parameters.
      queries: the tokens of each row.
      targets: {place: token} of each row.
      candidates: the tokens of each row's candidates, [] for the null document, equally many for each.

    Returns:
      The loss, and (accurate predictions, utility, probability of the null document) as sums.
    """
    loss, right, utility, null = 0.0, 0.0, 0.0, 0.0
    pairs = [(query, text) for query, texts in zip(queries, candidates, strict=True) for text in texts]
    vectors = embedded(params, [*queries, *([CLS, *text, SEP] for _, text in pairs)])
    rows = [[*query, *text, SEP] if text else query for query, text in pairs]
    types = [[0] * len(query) + [1] * (len(row) - len(query)) for row, (query, _) in zip(rows, pairs, strict=True)]
    states, count = hidden(params["encoder"], rows, types), len(candidates[0])
    for row, places in enumerate(targets):
        own = slice(row * count, (row + 1) * count)
        shares = jax.nn.softmax(vectors[len(queries) :][own] @ vectors[row])
        null += shares[0]
        # [candidates, places, vocabulary]
        words = jax.nn.log_softmax(OBJECTIVE.logits(params, states[own, jnp.array(list(places))]))
        for slot, target in enumerate(places.values()):
            marginal = shares @ jnp.exp(words[:, slot])
            loss -= jnp.log(marginal[target])
            right += jnp.argmax(marginal) == target
            utility += jnp.log(marginal[target]) - words[0, slot, target]
    return loss, (right, utility, null)


def test_the_marginal_by_hand(params, batch, texts, aux):
    """Row 0 leaves out its own passage, which fits best, and not the next one, which shares two tokens with it."""
    sizes = batch["encoder_segment_ids"].sum(axis=1)
    queries = [batch["encoder_input_tokens"][row, : sizes[row]].tolist() for row in (0, 1)]
    targets = [
        dict(zip(places, batch["masked_target_tokens"][row].tolist(), strict=False)) for row, places in ((0, (4, 5)), (1, (2,)))
    ]
    embeddings = np.asarray(jax.jit(lambda own: embedded(own, queries))(params))
    vectors = np.array(aux["passages"][VECTORS])
    vectors[3], vectors[4] = (factor * embeddings[0] for factor in (30, 20))
    order = [np.argsort(-(vectors[:PASSAGES] @ query), kind="stable")[:4].tolist() for query in embeddings]
    assert order[0][:2] == [3, 4]
    candidates = [[[], *[texts[number] for number in found if row or number != 3][:2]] for row, found in enumerate(order)]

    (loss, out), gradient = compile_loss(OBJECTIVE)(params, batch, {"passages": aux["passages"] | {VECTORS: vectors}})
    compute = jax.jit(jax.value_and_grad(lambda own: by_hand(own, queries, targets, candidates), has_aux=True))
    (expected, sums), expected_gradient = jax.tree.map(np.asarray, compute(params))
    expected, sums = float(expected), [float(value) for value in sums]
    assert loss == pytest.approx(expected / 3, rel=1e-5)
    assert tuple(out.metrics["mlm_loss"]) == pytest.approx((expected, 3), rel=1e-5)
    assert tuple(out.metrics["mlm_accuracy"]) == (sums[0], 3)
    assert tuple(out.metrics["retrieval_utility"]) == pytest.approx((sums[1], 3), rel=1e-5, abs=1e-5)
    # Row 2 has no target.
    assert tuple(out.metrics["null_probability"]) == pytest.approx((sums[2], 2), rel=1e-5)
    largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient))
    assert np.abs(gradient["retriever_projection"]["dense"]["kernel"]).max() > 1e-3 * largest
    for left, right in zip(*map(jax.tree.leaves, (gradient, expected_gradient)), strict=True):
        np.testing.assert_allclose(3 * left, right, atol=1e-5 * largest)


def test_updates_refresh_the_index(params, batch, aux):
    """Each period embeds all passages by the parameters of its first update, for the next one; a restart changes nothing."""
    state = TrainState(np.zeros((), np.int32), params, {}, {}, aux, {}, np.zeros((), np.int32))
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: OBJECTIVE.init(key, SHAPE)[1], jax.random.key(0)))
    state = state._replace(carry=jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))
    gradient = jax.jit(make_gradient(Phase.of(OBJECTIVE), microbatches=1))
    tokens = jnp.array(aux["passages"][TOKENS])
    rebuild = jax.jit(lambda own: OBJECTIVE.embed_passages(own["retriever"], jnp.arange(PASSAGES), tokens, batch))
    rows = {update: jax.tree.map(lambda leaf, update=update: leaf * np.float32(1 + 0.1 * update), params) for update in range(9)}
    used = []
    for update, own in rows.items():
        _, carry, _ = gradient(state._replace(params=own), batch, tiny.SEED)
        # As from a checkpoint, which holds the carry alone.
        state = state._replace(carry=jax.tree.map(np.array, jax.device_get(carry)))
        used.append(state.carry["refresh"]["vectors"][:PASSAGES])
        assert state.carry["refresh"]["updates"] == update + 1
    rebuilt = {update: np.asarray(rebuild(OBJECTIVE.split(rows[update]))) for update in (0, 4)}
    assert np.abs(rebuilt[0] - rebuilt[4]).max() > 0.1
    for update, vectors in enumerate(used):
        expected = aux["passages"][VECTORS][:PASSAGES] if update < 4 else rebuilt[4 * (update // 4 - 1)]
        np.testing.assert_allclose(vectors, expected, atol=1e-6, err_msg=str(update))

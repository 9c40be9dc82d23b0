"""Words from their characters, against NumPy in float64, and their spelling."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from bertfam.errors import UserError
from bertfam.models.characters import BEGIN_TEXT, BEGIN_WORD, END_WORD, PADDING, CharacterCnn, CharacterWords
from bertfam.models.elmo import BilmConfig

CNN = CharacterCnn(filters=((1, 3), (2, 4), (5, 6)), character_size=4, highways=2, longest=8)
WORDS = ["[CLS]", "a", "Änderung", "unbelievable", "it"]
SPELLING = CNN.spell(WORDS, {0: BEGIN_TEXT})


@pytest.fixture(scope="module")
def network():
    return CharacterWords(CNN, SPELLING, 7)


@pytest.fixture(scope="module")
def vectors(network, params):
    """Return a function that computes the vectors of tokens int[batch, length]."""
    apply = jax.jit(network.apply)
    return lambda tokens: np.asarray(apply({"params": params}, np.array(tokens, np.int32)))


@pytest.fixture(scope="module")
def params(network):
    shapes = nn.meta.unbox(jax.eval_shape(network.init, jax.random.key(0), np.zeros((1, 1), np.int32)))["params"]
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: generator.normal(0, 0.5, leaf.shape).astype(np.float32), shapes)


def by_hand(params, characters):
    """Return the vector of a word by equations 1 to 4 of Kim et al. 2016, in float64."""
    params = jax.tree.map(np.float64, jax.device_get(params))
    letters = params["character"]["table"][characters]
    found = []
    for width, _ in CNN.filters:
        kernel, bias = params[f"width_{width}"]["kernel"], params[f"width_{width}"]["bias"]
        places = range(CNN.longest - width + 1)
        sums = [np.einsum("wc,wco->o", letters[place : place + width], kernel) + bias for place in places]
        found.append(np.maximum(np.max(sums, axis=0), 0))
    word = np.concatenate(found)
    for layer in range(CNN.highways):
        kernel, bias = params[f"highway_{layer}"]["kernel"], params[f"highway_{layer}"]["bias"]
        gate = 1 / (1 + np.exp(-(word @ kernel[:, 0] + bias[0] - 2)))
        word = gate * np.maximum(word @ kernel[:, 1] + bias[1], 0) + (1 - gate) * word
    return word @ params["projection"]["kernel"] + params["projection"]["bias"]


def test_parity_with_numpy(vectors, params):
    table = CNN.read_spelling(SPELLING)
    expected = np.stack([by_hand(params, characters) for characters in table])
    # A batch smaller than the vocabulary, and a larger one.
    for tokens in ([[3, 1, 1]], [[0, 1, 2, 3, 4, 4, 4]]):
        np.testing.assert_allclose(vectors(tokens), expected[np.array(tokens)], rtol=1e-5, atol=1e-5)


def test_only_tokens_outside_the_vocabulary_are_nan(vectors):
    for tokens in ([[1, 5, 2]], [[1, 5, 0, 0, 0, 0, 0]]):
        np.testing.assert_array_equal(np.isnan(vectors(tokens)).all(axis=-1), np.array(tokens) == 5)


def test_spelling():
    table = CNN.read_spelling(SPELLING)
    assert table.shape == (5, 8) and table.dtype == np.int32
    assert table[0].tolist() == [BEGIN_WORD, BEGIN_TEXT, END_WORD] + [PADDING] * 5
    assert table[1].tolist() == [BEGIN_WORD, ord("a"), END_WORD] + [PADDING] * 5
    assert table[2].tolist() == [BEGIN_WORD, *"Ändern".encode()[:6], END_WORD]
    assert table[3].tolist() == [BEGIN_WORD, *b"unbeli", END_WORD]


def test_flops_are_those_of_the_products():
    width = CNN.size
    windows = sum((8 - wide + 1) * wide * 4 * count for wide, count in CNN.filters)
    assert CNN.flops(7) == 2 * (windows + 2 * 2 * width**2 + width * 7)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"filters": ()}, r"filters = \(\) has no filter"),
        ({"filters": ((9, 4),), "longest_word": 8}, "filters = .* widths from 1 to longest_word, 8"),
        ({"filters": ((1, 0),)}, "filters = .* numbers above 0"),
        ({"longest_word": 2}, "longest_word = 2 must be at least 3"),
    ],
)
def test_mistakes(values, message):
    with pytest.raises(UserError, match=f"BilmConfig.{message}"):
        BilmConfig(**values)


def test_a_model_without_a_vocabulary_is_refused():
    config = BilmConfig(vocab_size=5, hidden_size=12, filters=CNN.filters)
    with pytest.raises(
        UserError, match="BilmConfig.filters reads the characters of a vocabulary's words: name it by --vocab=DIR"
    ):
        config.encoder().init(jax.random.key(0), np.zeros((1, 1), np.int32), segment_ids=np.ones((1, 1), np.int32), train=False)

"""Cloze: every mask in order, the likeliest first; what cannot be filled is refused in one line."""

import jax
import numpy as np
import pytest

from bertfam.api import Model
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.decoding.fill import fill
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.bert import BertConfig

VOCABULARY = WordPiece([*SPECIAL_PIECES, *"abcdefgh."])
CONFIG = BertConfig(vocab_size=VOCABULARY.size, num_layers=1, hidden_size=16, num_heads=2, feed_forward_size=24, max_length=12)


def random_model(parts=("encoder", "pooler", "mlm_head", "nsp_head")):
    generator = np.random.default_rng(0)
    shapes = huggingface.shapes_of(CONFIG, frozenset(parts))
    return Model(CONFIG, jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape).astype(np.float32), shapes), VOCABULARY)


@pytest.fixture(scope="module")
def model():
    return random_model()


def test_every_mask_in_order_with_the_probabilities_of_the_whole_vocabulary(model):
    texts = ["a [MASK] c [MASK].", "[MASK] [MASK]"]
    filled = fill(model, texts, top_k=3)
    assert [[mask.position for mask in masks] for masks in filled] == [[2, 4], [1, 2]]
    for text, masks in zip(texts, filled, strict=True):
        ids = VOCABULARY.encode_prompt(text).ids
        row = np.pad(np.asarray(ids, np.int32), (0, CONFIG.max_length - len(ids)))
        logits = np.asarray(model.apply(row[None])["mlm_logits"], np.float64)[0]
        assert logits.shape == (CONFIG.max_length, VOCABULARY.size)
        for mask in masks:
            row = np.exp(logits[mask.position] - logits[mask.position].max())
            row /= row.sum()
            best = np.argsort(-row)[:3]
            assert [found.token_id for found in mask.predictions] == best.tolist()
            assert [found.token for found in mask.predictions] == VOCABULARY.pieces(best)
            np.testing.assert_allclose([found.probability for found in mask.predictions], row[best], rtol=1e-4)


def test_more_candidates_than_tokens_are_all_tokens(model):
    ((mask,),) = fill(model, ["[MASK]"], top_k=1000)
    assert sorted(found.token_id for found in mask.predictions) == list(range(VOCABULARY.size))
    assert sum(found.probability for found in mask.predictions) == pytest.approx(1, abs=1e-5)


def test_a_text_is_filled_as_it_is_alone(model):
    texts = ["a [MASK] [MASK].", "b c d e f g [MASK] [MASK]"]
    for together, text in zip(fill(model, texts), texts, strict=True):
        (alone,) = fill(model, [text])
        for left, right in zip(together, alone, strict=True):
            assert [found.token for found in left.predictions] == [found.token for found in right.predictions]
            np.testing.assert_allclose(*([found.probability for found in mask.predictions] for mask in (left, right)), rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b", "no [MASK] in 'a b'; write [MASK] where a token is to be filled in"),
        ("", "no [MASK] in ''; write [MASK] where a token is to be filled in"),
        ("a [mask]", "no [MASK] in 'a [mask]'; write [MASK] where a token is to be filled in"),
        (
            "a b c d e f g h a b [MASK]",
            "'a b c d e f g h a b [MASK]' has 13 tokens and the model reads at most 12; shorten it",
        ),
    ],
)
def test_what_cannot_be_filled_is_refused(model, text, message):
    with pytest.raises(UserError) as caught:
        fill(model, ["[MASK]", text])
    assert str(caught.value) == message


def test_a_text_as_long_as_the_model_reads_is_filled(model):
    ((mask,),) = fill(model, ["a b c d e f g h a [MASK]"])
    assert mask.position == 10 and len(mask.predictions) == 5


def test_a_model_without_the_head_cannot_fill():
    with pytest.raises(UserError) as caught:
        fill(random_model(("encoder", "pooler")), ["[MASK]"])
    assert str(caught.value) == (
        "the model has no masked-language-model head, so it cannot fill; it was imported or exported without one"
    )

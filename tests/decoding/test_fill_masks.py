"""Filling of masks: all masks in order, the most likely tokens first, and refused inputs."""

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


def test_model_with_nan_logits_is_refused():
    broken = random_model()
    broken = Model(CONFIG, jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), broken.params), VOCABULARY)
    with pytest.raises(UserError, match="the model's logits are not numbers, so it fills no mask"):
        fill(broken, ["a [MASK]"])


def test_masks_are_filled_in_order_with_probabilities_over_the_vocabulary(model):
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
            assert [prediction.token_id for prediction in mask.predictions] == best.tolist()
            assert [prediction.token for prediction in mask.predictions] == VOCABULARY.pieces(best)
            np.testing.assert_allclose([prediction.probability for prediction in mask.predictions], row[best], rtol=1e-4)


def test_large_top_k_returns_the_whole_vocabulary(model):
    ((mask,),) = fill(model, ["[MASK]"], top_k=1000)
    assert sorted(prediction.token_id for prediction in mask.predictions) == list(range(VOCABULARY.size))
    assert sum(prediction.probability for prediction in mask.predictions) == pytest.approx(1, abs=1e-5)


def test_predictions_do_not_depend_on_other_texts(model):
    texts = ["a [MASK] [MASK].", "b c d e f g [MASK] [MASK]"]
    for filled, text in zip(fill(model, texts), texts, strict=True):
        (alone,) = fill(model, [text])
        for left, right in zip(filled, alone, strict=True):
            assert [prediction.token for prediction in left.predictions] == [prediction.token for prediction in right.predictions]
            np.testing.assert_allclose(
                *([prediction.probability for prediction in mask.predictions] for mask in (left, right)), rtol=1e-4
            )


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
def test_texts_that_cannot_be_filled_are_refused(model, text, message):
    with pytest.raises(UserError) as caught:
        fill(model, ["[MASK]", text])
    assert str(caught.value) == message


def test_text_of_the_maximum_length_is_filled(model):
    ((mask,),) = fill(model, ["a b c d e f g h a [MASK]"])
    assert mask.position == 10 and len(mask.predictions) == 5


def test_model_without_a_head_cannot_fill():
    with pytest.raises(UserError) as caught:
        fill(random_model(("encoder", "pooler")), ["[MASK]"])
    assert str(caught.value) == (
        "the model has no masked-language-model head, so it cannot fill: it was pretrained without masks, as word2vec and "
        "ELMo's model are, or fine-tuned, imported or exported without the head"
    )

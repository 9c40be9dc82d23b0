"""Python API on a Hugging Face folder and on the folder of a run (see tests/commands for trained ones)."""

import gin
import jax
import numpy as np
import pytest

import bertfam
from bertfam import cli
from bertfam.api import Model, load
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.bert import BertConfig

VOCABULARY = WordPiece([*SPECIAL_PIECES, *"abcdefgh"])
CONFIG = BertConfig(vocab_size=VOCABULARY.size, num_layers=2, hidden_size=16, num_heads=2, feed_forward_size=24, max_length=12)
TOKENS = np.array([[2, 5, 6, 7, 3, 0, 0], [2, 8, 3, 9, 10, 11, 3]], np.int32)


@pytest.fixture(scope="module")
def params():
    generator = np.random.default_rng(0)
    shapes = huggingface.shapes_of(CONFIG, frozenset({"encoder", "pooler", "mlm_head", "nsp_head"}))
    return jax.tree.map(lambda leaf: 0.3 * generator.standard_normal(leaf.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def folder(params, tmp_path_factory):
    """Return a Hugging Face folder."""
    base = tmp_path_factory.mktemp("api")
    VOCABULARY.save(base / "tokenizer")
    huggingface.write(base / "theirs", CONFIG, params, tokenizer_files=sorted((base / "tokenizer").iterdir()))
    return base / "theirs"


def test_names_and_shapes_of_outputs(params):
    outputs = Model(CONFIG, params, VOCABULARY).apply(TOKENS, collect=["hidden_states", "attention_probs"])
    assert {name: value.shape for name, value in outputs.items()} == {
        "hidden": (2, 7, 16),
        "pooled": (2, 16),
        "mlm_logits": (2, 7, VOCABULARY.size),
        "nsp_logits": (2, 2),
        "hidden_states": (3, 2, 7, 16),
        "attention_probs": (2, 2, 2, 7, 7),
    }
    assert {str(value.dtype) for value in outputs.values()} == {"float32"}
    np.testing.assert_array_equal(outputs["hidden_states"][-1], outputs["hidden"])
    np.testing.assert_allclose(outputs["attention_probs"].sum(-1)[:, 1], 1, rtol=1e-5)
    assert not np.asarray(outputs["attention_probs"])[:, 0, :, :5, 5:].any()  # no token attends to padding


def test_pad_tokens_are_padding_unless_segment_ids_are_given(params):
    model = Model(CONFIG, params, VOCABULARY)
    hidden = model.apply(TOKENS)["hidden"]
    alone = model.apply(TOKENS[:1, :5])["hidden"]
    np.testing.assert_allclose(hidden[:1, :5], alone, atol=1e-5)
    with_segments = model.apply(TOKENS, segment_ids=np.ones_like(TOKENS))["hidden"]
    assert np.abs(with_segments[0, :5] - hidden[0, :5]).max() > 1e-3 and np.abs(with_segments[1] - hidden[1]).max() < 1e-5
    with_types = model.apply(TOKENS, token_type_ids=np.ones_like(TOKENS))["hidden"]
    assert np.abs(with_types[1] - hidden[1]).max() > 1e-3


def test_padding_before_tokens_is_refused(params):
    """Positions and [CLS] would be wrong."""
    model = Model(CONFIG, params, VOCABULARY)
    with pytest.raises(UserError, match="row 1 has padding before a token: put padding behind the tokens"):
        model.apply(np.array([[2, 5, 3, 0], [0, 2, 5, 3]]))
    with pytest.raises(UserError, match="row 0 has padding"):
        model.apply(TOKENS, segment_ids=np.arange(7)[None] > [[2], [9]])
    model.apply(np.array([[2, 0, 5, 3]]), segment_ids=np.ones((1, 4)))
    model.apply(np.zeros((1, 4), np.int32))  # a row of padding


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["text"], "not text: .*encode_prompt"),
        (None, "not an object of type NoneType"),
        ([["a", "b"]], "encode_prompt"),
        (TOKENS[0], r"tokens\[None\]"),
        (TOKENS[None], r"\[1, 2, 7\]"),
        (TOKENS * 1.0, "float"),
        ([[2, 5], [2]], "differ in length"),
        ([[2, 13]], "13, but those of the vocabulary are 0 to 12"),
        ([[-1, 2]], "-1"),
    ],
)
def test_what_are_no_tokens_is_refused(params, tokens, words):
    with pytest.raises(UserError, match=words):
        Model(CONFIG, params, VOCABULARY).apply(tokens)


def test_segment_ids_of_another_shape_are_refused(params):
    with pytest.raises(UserError, match=r"segment_ids have the shape \[2, 6\]"):
        Model(CONFIG, params, VOCABULARY).apply(TOKENS, segment_ids=np.ones((2, 6)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"masked_positions": [[7], [0]]}, "masked_positions must be 0 to 6, not 7"),
        ({"masked_positions": [[0], [-1]]}, "masked_positions must be 0 to 6, not -1"),
        ({"masked_positions": [[1.5], [2]]}, "masked_positions must be whole numbers"),
        ({"masked_positions": [[1]]}, r"masked_positions have the shape \[1, 1\]"),
        ({"masked_positions": [[1, 2], [1]]}, "masked_positions .* differ in length"),
        ({"masked_positions": TOKENS > 4}, "masked_positions are positions, not booleans"),
        ({"masked_positions": "x"}, "masked_positions must be whole numbers"),
        ({"token_type_ids": TOKENS * 0 + 2}, "token_type_ids must be 0 to 1, not 2"),
        ({"token_type_ids": TOKENS * 0.5}, "token_type_ids must be "),
        ({"collect": "hidden_states"}, r"write \['hidden_states'\]"),
        ({"segment_ids": -TOKENS}, "segment_ids must be at least 0"),
        ({"segment_ids": TOKENS * np.nan}, "segment_ids must be at least 0, not nan"),
    ],
)
def test_arguments_that_do_not_fit_the_tokens_are_refused(params, arguments, words):
    with pytest.raises(UserError, match=words):
        Model(CONFIG, params, VOCABULARY).apply(TOKENS, **arguments)


def test_representation_is_one_short_line(params):
    text = repr(Model(CONFIG, params, VOCABULARY))
    assert "\n" not in text and len(text) < 700 and "BertConfig(" in text and "mlm_head" in text and "13 tokens" in text


def test_predictions_at_masked_positions_match_those_everywhere(params):
    model = Model(CONFIG, params, VOCABULARY)
    everywhere, some = model.apply(TOKENS), model.apply(TOKENS, masked_positions=np.array([[1, 4], [6, 0]]))
    for row, places in enumerate([(1, 4), (6, 0)]):
        np.testing.assert_allclose(some["mlm_logits"][row], everywhere["mlm_logits"][row, list(places)], atol=1e-5)


def test_rows_longer_than_the_model_are_refused(params):
    with pytest.raises(UserError) as caught:
        Model(CONFIG, params, VOCABULARY).apply(np.full((1, 13), 5))
    assert str(caught.value) == (
        "rows of 13 tokens do not fit a model with max_length 12: use shorter rows or set max_length to at least 13"
    )


def test_both_kinds_of_folders_give_the_same_model(folder, params, tmp_path):
    assert cli.main(["import", f"--input={folder}", f"--output={tmp_path / 'ours'}"]) == 0
    expected = Model(CONFIG, params, VOCABULARY).apply(TOKENS)
    assert bertfam.load is load
    for path in (folder, str(tmp_path / "ours")):
        model = load(path)
        assert model.config == CONFIG and model.vocabulary.fingerprint == VOCABULARY.fingerprint
        outputs = model.apply(TOKENS)
        assert outputs.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value, err_msg=name)


def test_model_without_heads_gives_hidden_states_only(params):
    outputs = Model(CONFIG, {"encoder": params["encoder"]}, VOCABULARY).apply(TOKENS)
    assert outputs.keys() == {"hidden"}


def test_matrix_products_have_the_highest_precision(params):
    traced = str(jax.make_jaxpr(Model(CONFIG, params, VOCABULARY).apply)(TOKENS))
    assert traced.count("dot_general[") == traced.count("(Precision.HIGHEST, Precision.HIGHEST)") > 5


def test_load_keeps_the_gin_configuration_of_the_program(folder, tmp_path):
    assert cli.main(["import", f"--input={folder}", f"--output={tmp_path / 'ours'}"]) == 0
    gin.clear_config()
    gin.parse_config("BertConfig.num_layers = 7\nSTEPS = 3\nmine/Stage.steps = %STEPS")
    gin.finalize()
    before = gin.config_str()
    load(tmp_path / "ours")
    assert gin.config_str() == before and gin.config_is_locked() and gin.query_parameter("BertConfig.num_layers") == 7
    gin.clear_config()


def test_other_folders_are_refused(folder, tmp_path):
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert str(caught.value) == f"{tmp_path} is neither a model folder (config.gin) nor a Hugging Face folder (config.json)"
    with pytest.raises(UserError) as caught:
        load(folder, step=3)
    assert str(caught.value) == f"{folder} is a Hugging Face folder and has no checkpoints; leave the step out"
    assert cli.main(["import", f"--input={folder}", f"--output={tmp_path / 'ours'}"]) == 0
    with pytest.raises(UserError) as caught:
        load(tmp_path / "ours", step=3)
    assert str(caught.value) == f"{tmp_path}/ours/checkpoints has no step 3; it has 0"

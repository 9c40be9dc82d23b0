"""Arguments of the Python API of other types: each is refused in one line that names it, and the nearest right ones work."""

from pathlib import Path

import numpy as np
import pytest
import small_gpt2
from upath import UPath

from bertfam import api
from bertfam.call_arguments import check_path
from bertfam.data import vocabularies
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.decoding.fill import fill, select_masked_lm
from bertfam.decoding.strategies import PRESETS, BeamSearch, Greedy, Limits, Sample, resolve
from bertfam.errors import UserError
from bertfam.evaluation.sentence_scores import scorer
from bertfam.models.bert import BertConfig

VOCABULARY = WordPiece([*SPECIAL_PIECES, *"abc"])


@pytest.fixture(scope="module")
def model():
    return small_gpt2.model()


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ("The old", r"prompts must be a list .* write \['The old'\]"),
        (b"The old", "prompts must be a list .* b'The old'"),
        (None, "prompts must be a list .* None"),
        ({"a": 1}, "prompts must be a list .* {'a': 1}"),
        ({"a"}, "prompts must be a list .* {'a'}"),
        (5, "prompts must be a list .* not 5"),
        ([5], r"prompts\[0\] is 5, .* write \[\[5, \.\.\.\]\]"),
        (np.array([5, 6]), r"prompts\[0\] is 5, "),
        (["a", b"abc"], r"prompts\[1\] must be a text, not b'abc': .*decode"),
        (["a", None], r"prompts\[1\] must be .*, not None"),
        ([{"a": 1}], r"prompts\[0\] must be .*, not {'a': 1}"),
        ([["a", "b"]], r"prompts\[0\] must be token ids, .* not \['a', 'b'\]"),
        ([np.array([5.7, 6.2])], r"prompts\[0\] must be token ids, .* float64 of the shape \[2\]"),
        ([[True, False]], r"prompts\[0\] must be token ids"),
        ([[[5, 6]]], r"prompts\[0\] must be token ids, .*\[length\]"),
        ([[[5, 6], [5]]], r"prompts\[0\] must be token ids"),
        ([[5, 257]], r"prompts\[0\] has the id 257, but those of the vocabulary are 0 to 256"),
        ([[5, -1]], r"prompts\[0\] has the id -1"),
        ([[5, 2**40]], r"prompts\[0\] has the id 1099511627776"),
    ],
    ids=str,
)
def test_what_are_no_prompts_is_refused(model, prompts, words):
    with pytest.raises(UserError, match=words):
        model.generate(prompts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "sampel"}, "strategy 'sampel' .* did you mean sample"),
        ({"strategy": None}, r"strategy must be Greedy\(\), .* not None"),
        ({"strategy": Sample}, "strategy must be .* the class Sample"),
        ({"strategy": Limits()}, "strategy must be .* Limits"),
        ({"limits": 60}, r"limits must be Limits\(\.\.\.\), .* not 60"),
        ({"limits": None}, "limits must be .* None"),
        ({"texts": "2"}, "texts must be a whole number, not '2'"),
        ({"texts": 1.5}, "texts must be a whole number, not 1.5"),
        ({"batch_size": None}, "batch_size must be a whole number, not None"),
        ({"mesh": 4}, "mesh must be a jax.sharding.Mesh, .* not 4"),
        ({"execution": "bfloat16"}, r"execution must be Execution\(\.\.\.\), not 'bfloat16'"),
    ],
    ids=str,
)
def test_options_of_other_types_are_refused(model, arguments, words):
    with pytest.raises(UserError, match=words):
        model.generate(["a"], **arguments)


@pytest.mark.parametrize(
    ("make", "values", "words"),
    [
        (Sample, {"temperature": "1"}, "temperature must be a number, not '1'"),
        (Sample, {"top_k": 2.5}, "top_k must be a whole number, not 2.5"),
        (Sample, {"top_p": None}, "top_p must be a number, not None"),
        (Sample, {"seed": "7"}, "seed must be a whole number"),
        (BeamSearch, {"beams": True}, "beams must be a whole number, not True"),
        (BeamSearch, {"length_penalty": "1"}, "length_penalty must be a number"),
        (Limits, {"max_new_tokens": 8.0}, "max_new_tokens must be a whole number, not 8.0"),
        (Limits, {"no_repeat_ngrams": None}, "no_repeat_ngrams must be a whole number, not None"),
    ],
    ids=str,
)
def test_settings_of_other_types_are_refused(make, values, words):
    with pytest.raises(UserError, match=words):
        make(**values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 5}, r"write limits=Limits\(max_new_tokens=...\)"),
        ({"max_length": 5}, r"no argument max_length: write limits=Limits\(max_new_tokens=...\)"),
        ({"temperature": 0.7}, r"write strategy=Sample\(temperature=...\)"),
        ({"num_beams": 4}, r"write strategy=BeamSearch\(beams=...\)"),
        ({"do_sample": True}, 'write strategy="sample"'),
        ({"num_return_sequences": 2}, "write texts=..."),
    ],
    ids=str,
)
def test_arguments_of_transformers_are_answered_with_ours(model, options, words):
    with pytest.raises(UserError, match=words):
        model.generate(["a"], **options)


def test_every_kind_of_path_is_a_path():
    for path in ("folder", Path("folder"), UPath("memory://folder")):
        check_path(path, "path")


def test_name_of_a_preset_is_a_strategy():
    for name, preset in PRESETS.items():
        assert resolve(name, Limits(8)) == (preset.strategy, Limits(8, no_repeat_ngrams=preset.no_repeat_ngrams))
    assert resolve("beam", Limits(8, no_repeat_ngrams=3))[1].no_repeat_ngrams == 3
    assert resolve(BeamSearch(), Limits(8)) == (BeamSearch(), Limits(8))
    assert resolve(Sample(top_k=np.int64(3), temperature=np.float32(0.5)), Limits())[0].top_k == 3


def test_texts_and_tokens_of_any_list_are_prompts(model):
    ids = small_gpt2.VOCABULARY.encode_prompt("ab", frame=False).ids
    expected = model.generate(["ab"], Greedy(), Limits(3))[0][0].tokens
    prompts = [np.str_("ab"), ids, ids.tolist(), tuple(ids), ids.astype(np.int64)]
    texts = model.generate((prompt for prompt in prompts), Greedy(), Limits(3))
    assert [found[0].tokens for found in texts] == [expected] * len(prompts)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: VOCABULARY.encode_prompt(["a", "b"]), r"text must be a text, not \['a', 'b'\]"),
        (lambda: VOCABULARY.encode(None), "text must be a text, not None"),
        (lambda: VOCABULARY.encode_batch("a b"), r"texts must be a list of texts, .* write \['a b'\]"),
        (lambda: VOCABULARY.encode_batch([("a", "b")]), r"texts\[0\] must be a text"),
        (lambda: VOCABULARY.decode("ab"), "ids must be a list of whole numbers, not one text$"),
        (lambda: VOCABULARY.decode([5.5]), "an id must be a whole number, not 5.5"),
        (lambda: VOCABULARY.decode(5), "ids must be a list of whole numbers, not 5"),
        (lambda: VOCABULARY.pieces([99]), "id 99 is outside the vocabulary of 8"),
        (lambda: api.load(None), "path must be .* not None"),
        (lambda: api.load(5), "path must be .* not 5"),
        (lambda: api.load("folder", step="3"), "step must be a whole number, not '3'"),
        (lambda: api.load("folder", network=5), "network must be a text, not 5"),
        (lambda: api.load_networks("folder", average="no"), "average must be True or False, not 'no'"),
        (lambda: scorer(api.Model(BertConfig(vocab_size=8), {}, VOCABULARY)), "networks must be models by name, .* type Model"),
        (lambda: select_masked_lm(api.Model(BertConfig(vocab_size=8), {}, VOCABULARY)), "networks must be .* type Model"),
        (lambda: vocabularies.load(None), "folder must be a folder's path .* not None"),
    ],
)
def test_arguments_of_other_functions_are_refused(call, words):
    with pytest.raises(UserError, match=words):
        call()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("[MASK]",), r"texts must be a list .* write \['\[MASK\]'\]"),
        (([b"[MASK]"],), r"texts\[0\] must be a text, not b"),
        ((None,), "texts must be a list of texts, not None"),
        ((["[MASK]"], "5"), "top_k must be a whole number, not '5'"),
        ((["[MASK]"], 0), "top_k is 0, and must be at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_filled_is_refused(arguments, words):
    model = api.Model(BertConfig(vocab_size=8), {"mlm_head": {}}, VOCABULARY)
    with pytest.raises(UserError, match=words):
        fill(model, *arguments)
    assert fill(model, []) == []


def test_unknown_intermediates_are_refused(model):
    for collect, words in [(["attention_prob"], "did you mean attention_probs"), ([5], "names 5"), (5, "not 5"), (None, "None")]:
        with pytest.raises(UserError, match=f"collect .*{words}"):
            model.apply(np.ones((1, 3), np.int32), collect=collect)

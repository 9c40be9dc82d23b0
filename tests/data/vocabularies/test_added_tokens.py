"""Added tokens of Hugging Face's tokenizers, compared with `AutoTokenizer`."""

import json

import pytest
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import ByteLevel

from bertfam.data import vocabularies
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.errors import UserError

transformers = pytest.importorskip("transformers")

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLAIN = [
    "newword",
    AddedToken("cab", single_word=True),
    AddedToken("BAD", normalized=False, lstrip=True, rstrip=True),
    AddedToken("kept Whole", normalized=True),
    AddedToken("ACE", normalized=False, rstrip=True),
    AddedToken("bed", lstrip=True, single_word=True),
]
_SPECIAL = ["[ENT]", AddedToken("<col>", rstrip=True), AddedToken("<ROW>", lstrip=True, normalized=True)]
_TEXTS = [
    "a newwordab NEWWORD newword",
    "cab cabab abcab, cab. CAB",
    "x  BAD  bad BADge  ACE  ace ACEd",
    "a kept whole b Kept Whole kept  whole",
    "a  bed abed beds bed",
    "  newword  cab",
    "",
]
_PROMPTS = [*_TEXTS, "a [ENT] b[ENT]c  <col>  d <row> e  <ROW> f [ent]"]


def wordpiece():
    return WordPiece([*SPECIAL_PIECES, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), ".", ",", "[", "]", "<", ">"])


def byte_bpe(layout):
    controls, alphabet = LAYOUTS[layout], sorted(ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("n", "e"), ("b", "e"), ("be", "d")]
    pieces = [*controls.first, *alphabet, *("".join(pair) for pair in merges), *controls.last]
    return ByteBpe(pieces, merges, layout=controls)


_KINDS = {"bert": wordpiece, "roberta": lambda: byte_bpe("roberta"), "gpt2": lambda: byte_bpe("gpt2")}


@pytest.fixture(params=_KINDS)
def theirs(request, tmp_path):
    """Folder that transformers saved with added tokens, its tokenizer, and the vocabulary before."""
    before = _KINDS[request.param]()
    before.save(tmp_path / "before")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "before")
    tokenizer.add_tokens(_PLAIN)
    tokenizer.add_tokens(_SPECIAL, special_tokens=True)
    tokenizer.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs", transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs"), before


def test_added_tokens_give_the_ids_of_auto_tokenizer_and_are_exported_as_they_are(theirs, tmp_path):
    folder, tokenizer, before = theirs
    vocabulary = vocabularies.load(folder)
    vocabulary.save(tmp_path / "ours")
    again = vocabularies.load(tmp_path / "ours")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    known = "bed" in before.pieces(range(before.size))
    assert vocabulary.size == len(tokenizer) == before.size + len(_PLAIN) + len(_SPECIAL) - known
    for text in _PROMPTS:
        ids = tokenizer(text).input_ids
        for ours in (vocabulary, again):
            assert ours.encode_prompt(text).ids.tolist() == ids, text
        assert exported(text).input_ids == ids, text
    for text in _TEXTS:  # running text, which has no control tokens
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert vocabulary.encode_batch([text])[0].tolist() == ids == vocabulary.encode(text).ids.tolist(), text
    assert again.fingerprint == vocabulary.fingerprint != before.fingerprint
    written, read = ({id: repr(token) for id, token in t.added_tokens_decoder.items()} for t in (exported, tokenizer))
    assert written == read


def test_special_added_tokens_are_control_tokens_and_plain_ones_are_words(theirs):
    folder, tokenizer, before = theirs
    vocabulary = vocabularies.load(folder)
    tokens = vocabulary.token_ids
    special = tokenizer.convert_tokens_to_ids(["[ENT]", "<col>", "<ROW>"])
    plain = tokenizer.convert_tokens_to_ids(["newword", "cab", "BAD", "kept Whole", "ACE", "bed"])
    assert set(tokens.special) == {*before.token_ids.special, *special} and set(plain) <= set(tokens.pieces.tolist())
    assert tokens.starts_word[plain].all()
    assert not set(special) & set(vocabulary.encode_batch(["a [ENT] <col> <ROW>"])[0].tolist())


def test_added_padding_token_of_gpt2_keeps_its_role(tmp_path):
    byte_bpe("gpt2").save(tmp_path / "before")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "before")
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(tmp_path / "theirs")
    vocabulary = vocabularies.load(tmp_path / "theirs")
    vocabulary.save(tmp_path / "ours")
    assert vocabulary.token_ids.pad == vocabularies.load(tmp_path / "ours").token_ids.pad == tokenizer.pad_token_id
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").pad_token == "[PAD]"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"newword": 62}),
        ("tokenizer_config.json", {"do_lower_case": True, "added_tokens_decoder": {"62": {"content": "newword"}}}),
        ("tokenizer_config.json", {"do_lower_case": True, "additional_special_tokens": ["newword"]}),
        ("tokenizer_config.json", {"do_lower_case": True, "extra_special_tokens": {"image": "newword"}}),
        ("tokenizer_config.json", {"do_lower_case": True, "bos_token": {"content": "newword"}}),
    ],
)
def test_added_tokens_outside_tokenizer_json_are_refused(tmp_path, name, content):
    wordpiece().save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert vocabularies.load(tmp_path).size == wordpiece().size
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match="added token 'newword' is not in tokenizer.json.*save_pretrained"):
        vocabularies.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda token: token.update(id=99), "added token 'newword' has the id 99"),
        (lambda token: token.update(id="62"), "id is '62', and must be a whole number"),
        (lambda token: token.update(content=None), "without a content"),
        (lambda token: token.update(lstrip=1), "lstrip is 1, and must be true or false"),
    ],
)
def test_damaged_added_tokens_are_refused(tmp_path, change, message):
    wordpiece().save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    token = {"id": wordpiece().size, "content": "newword", "special": False}
    change(token)
    content["added_tokens"].append(token)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        vocabularies.load(tmp_path)

"""Vocabulary folders whose files differ, as after a word was added by hand: the one that is used is named in a warning."""

import json

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from bertfam.data import vocabularies
from bertfam.data.vocabularies.added_pieces import AddedPiece
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece

WORDS = WordPiece([*SPECIAL_PIECES, "sail", "##boat", "[NEW]"], added=[AddedPiece("[NEW]", apart=True)])
BYTES = ByteBpe([*sorted(ByteLevel.alphabet()), "ab", "<|endoftext|>"], [("a", "b")], layout=LAYOUTS["gpt2"])


def append_piece(path):
    ids = json.loads(path.read_text())
    path.write_text(json.dumps(ids | {"sailboat": len(ids)}))


def append_line(path):
    path.write_text(path.read_text() + "sailboat\n")


def change_case(path):
    path.write_text(path.read_text().replace("sail", "Sail"))


def append_merge(path):
    path.write_text(path.read_text() + "b a\n")


@pytest.mark.parametrize(
    ("vocabulary", "name", "change", "entry"),
    [
        (WORDS, "vocab.txt", append_line, "entry 7 is 'sailboat' in the one and missing in the other"),
        (WORDS, "vocab.txt", change_case, "entry 5 is 'Sail' in the one and 'sail' in the other"),
        (BYTES, "vocab.json", append_piece, "entry 258 is 'sailboat'"),
        (BYTES, "merges.txt", append_merge, "entry 1 is 'b a' in the one and missing"),
    ],
    ids=["added word", "changed word", "added piece", "added merge"],
)
def test_file_that_is_not_used_is_named_once(vocabulary, name, change, entry, tmp_path, capsys):
    vocabulary.save(tmp_path)
    assert vocabularies.load(tmp_path).fingerprint == vocabulary.fingerprint and not capsys.readouterr().err
    change(tmp_path / name)
    for _ in range(2):
        assert vocabularies.load(tmp_path).fingerprint == vocabulary.fingerprint
    (line,) = capsys.readouterr().err.splitlines()
    assert f"warning: {tmp_path / name} and {tmp_path / 'tokenizer.json'} differ" in line
    assert entry in line and "tokenizer.json is used" in line


def test_damaged_file_that_is_not_used_is_ignored(tmp_path, capsys):
    WORDS.save(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    assert vocabularies.load(tmp_path).fingerprint == WORDS.fingerprint and not capsys.readouterr().err


def add_piece_to_model(content):
    model = content["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"]["sailboat"] = len(model["vocab"])
    else:
        model["vocab"].append(["sailboat", -3.0])


def rename_piece_of_model(content):
    table = content["model"]["vocab"]
    last = max(table, key=table.get) if isinstance(table, dict) else None
    if last is None:
        table[-1][0] = "sailboat"
    else:
        table["sailboat"] = table.pop(last)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(("layout", "change"), [("t5", add_piece_to_model), ("albert", rename_piece_of_model)])
def test_tokenizer_that_differs_from_the_sentencepiece_model_is_named(learn, kind, layout, change, tmp_path, capsys):
    vocabulary = learn(kind, layout)
    vocabulary.save(tmp_path)
    assert vocabularies.load(tmp_path).fingerprint == vocabulary.fingerprint and not capsys.readouterr().err
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert vocabularies.load(tmp_path).fingerprint == vocabulary.fingerprint
    (line,) = capsys.readouterr().err.splitlines()
    assert f"warning: {tmp_path / 'tokenizer.json'} and {tmp_path / 'spiece.model'} differ" in line
    assert "'sailboat'" in line and "spiece.model is used, so restore tokenizer.json" in line


@pytest.mark.parametrize(
    ("stated", "value", "is_named"),
    [
        ("do_lower_case", False, True),
        ("do_lower_case", True, False),
        ("strip_accents", False, True),
        ("strip_accents", True, False),
        ("strip_accents", None, False),
        ("tokenize_chinese_chars", False, True),
    ],
)
def test_config_that_differs_from_the_tokenizer_is_named(vocabulary, stated, value, is_named, tmp_path, capsys):
    vocabulary.save(tmp_path / "vocab")
    path = tmp_path / "vocab/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {stated: value}))
    loaded = vocabularies.load(tmp_path / "vocab")
    assert loaded.fingerprint == vocabulary.fingerprint
    assert (f"tokenizer_config.json says {stated} =" in capsys.readouterr().err) == is_named


def test_prefix_space_that_differs_from_the_tokenizer_is_named(tmp_path, capsys):
    ByteBpe.train(["Some text, some more text."], size=270).save(tmp_path / "vocab")
    path = tmp_path / "vocab/tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"add_prefix_space": True}))
    assert not vocabularies.load(tmp_path / "vocab").add_prefix_space
    assert "tokenizer_config.json says add_prefix_space = true, and tokenizer.json false" in capsys.readouterr().err

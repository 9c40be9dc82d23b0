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

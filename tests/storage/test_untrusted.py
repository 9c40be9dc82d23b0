"""Bounded reading of files in folders that others wrote."""

import os

import pytest

from bertfam.config import paths
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.build_folder import BuildFolder
from bertfam.errors import UserError
from bertfam.storage import untrusted
from bertfam.training.integrity import model_dir_files


def _gigabytes(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 3 << 30)


def test_files_of_gigabytes_are_refused_unread(tmp_path):
    for name in ("cache/digests.json", "run/start.json", "partial/journal.json", "a.gin"):
        _gigabytes(tmp_path / name)
    (tmp_path / "run/files.json").write_text('{"format": 1, "files": {"start.json": ""}, "config": "", "vocabulary": ""}')
    for read, name in (
        (lambda: digests.read(tmp_path / "cache"), "cache/digests.json"),
        (lambda: model_dir_files.check(tmp_path / "run"), "run/start.json"),
        (lambda: paths.read(str(tmp_path / "a.gin"), "--gin_file"), "a.gin"),
    ):
        with pytest.raises(UserError, match=f"{tmp_path / name} has 3,072 MiB"):
            read()
    assert not BuildFolder(tmp_path / "partial").documents  # starts over


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "a is not JSON: Expecting"),
        (b"\xff{}", "a is not JSON: 'utf-8'"),
        (b"[]", "a does not hold a JSON object"),
        (None, "cannot be read"),
        ('{"a": 1}'.encode("utf-16"), "a is UTF-16, as Windows programs"),
        (b'{"a": "\\ud800"}', "a is not JSON: .*surrogates"),
        (b'{"b": [{"a": 1, "c": 2, "a": 3}]}', "a is not JSON: an object has 'a' twice"),
        (b"[" * 100_000 + b"]" * 100_000, "a is not JSON: it is nested more than 100 levels"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "nested more than 100 levels"),
        (b'{"a": [' + b"[]," * 2_000_000 + b"[]]}", "a is not JSON: it holds more than 4,000,000 values"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a is not JSON: Exceeds the limit"),
        (b'{"' + b'\\"' * 3_000_000, "a is not JSON: Unterminated string"),
    ],
)
def test_files_without_a_bounded_json_object_are_refused(tmp_path, data, message):
    if data is not None:
        (tmp_path / "a").write_bytes(data)
    with pytest.raises(UserError, match=message):
        untrusted.read_json(tmp_path / "a")


@pytest.mark.parametrize(("encoding", "name"), [("utf-16", "UTF-16"), ("latin-1", "not UTF-8 at byte 1")])
def test_text_in_another_encoding_is_refused(tmp_path, encoding, name):
    (tmp_path / "vocab.txt").write_text("zü", encoding=encoding)
    with pytest.raises(UserError, match=rf"vocab\.txt is {name}"):
        untrusted.read_text(tmp_path / "vocab.txt")


def test_brackets_in_texts_are_no_levels_and_a_byte_order_mark_is_skipped(tmp_path):
    text = '\ufeff{"a": "' + "[" * 500 + '\\"' + "{" * 500 + '", "b": "\\ud83d\\ude00"}'
    (tmp_path / "a").write_text(text, encoding="utf-8")
    assert untrusted.read_json(tmp_path / "a")["b"] == "\U0001f600"


def test_only_regular_files_inside_the_folder_are_read(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "inside").write_text("text")
    (folder / "out").symlink_to("../outside")
    (folder / "absolute").symlink_to(tmp_path / "outside")
    (folder / "within").symlink_to("inside")
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    assert untrusted.read_text(folder / "within") == "text"
    (tmp_path / "linked").symlink_to(folder)
    assert untrusted.read_text(tmp_path / "linked" / "inside") == "text"  # the folder itself may be a link
    for name, message in [
        ("out", "link out of its folder"),
        ("absolute", "link out of its folder"),
        ("loop", "cannot be read"),
        ("folder", "not a regular file"),
        ("fifo", "not a regular file"),
        ("n" * 5000, "cannot be read"),
        ("nul\0", "cannot be read"),
    ]:
        with pytest.raises(UserError, match=message):
            untrusted.read_bytes(folder / name)


def test_links_of_the_hub_cache_are_followed(tmp_path):
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "0123", tmp_path / "models--a--b" / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
    (blobs / "abc").write_text("text")
    (snapshot / "vocab.txt").symlink_to("../../blobs/abc")
    assert untrusted.read_text(snapshot / "vocab.txt") == "text"


def test_files_that_are_too_large_are_not_opened(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(UserError, match="tokenizer.json has 200 MiB.* at most 64 MiB"):
        untrusted.read_json(tmp_path / "tokenizer.json")
    untrusted.check_file(tmp_path / "tokenizer.json", max_bytes=None)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "n" * 5000, "nul\0", "é" * 128, "a\\b"])
def test_names_that_a_file_states_are_names_without_a_path(tmp_path, name):
    with pytest.raises(UserError, match="named without a path") as caught:
        untrusted.file_in(tmp_path, name)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    assert untrusted.file_in(tmp_path, "model-00001-of-00002.safetensors").parent == tmp_path


def test_values_of_other_types_are_refused():
    content = {"text": "a", "flag": True, "null": None, "long": ["a" * 1000] * 50}
    assert untrusted.typed(content, "text", str, "f") == "a" and untrusted.typed(content, "flag", bool, "f")
    assert untrusted.typed(content, "null", int, "f") is None and untrusted.typed(content, "absent", int, "f") is None
    for name, kind in [("text", int), ("flag", int), ("long", dict)]:
        with pytest.raises(UserError, match=f"^f: {name} is .{{1,60}}, and must be a"):
            untrusted.typed(content, name, kind, "f")

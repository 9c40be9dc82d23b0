"""Digests of token caches: flips in each file, caches without digests, ids beyond the vocabulary, and `cache --verify`."""

import json
import os
import re
import shutil
import threading

import numpy as np
import pytest

from bertfam import cli
from bertfam.data.token_cache import cache as cache_module
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.digests import BLOCK_BYTES, CheckedArray
from bertfam.errors import UserError

TOKENS = "text/train/tokens.bin"


@pytest.fixture
def copy(cache_dir, tmp_path):
    return shutil.copytree(cache_dir, tmp_path / "cache")


def flip(path, place):
    """Flip a bit of the file, without a trace in its time."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def read_all(directory, size):
    cache = TokenCache(directory)
    for split in ("train", "validation"):
        documents = cache.documents(split, "text", size)
        documents.tokens[:]


FILES = [
    "cache.json", "digests.json", "vocab/vocab.txt", "vocab/tokenizer.json", "vocab/tokenizer_config.json", TOKENS,
    "text/train/sentence_starts.bin", "text/train/sentence_starts.offsets.bin", "text/validation/tokens.bin",
    "text/validation/sentence_starts.bin", "text/validation/sentence_starts.offsets.bin",
]  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_is_found_in_every_file(copy, vocabulary, name):
    size = (copy / name).stat().st_size
    for place in sorted({0, size // 2, size - 1}):
        flip(copy / name, place)
        with pytest.raises(UserError) as raised:
            read_all(copy, vocabulary.size)
        assert str(copy) in str(raised.value) and "\n" not in str(raised.value)
        if name not in ("cache.json", "digests.json"):
            assert f"{copy / name}: block {place // BLOCK_BYTES} " in str(raised.value)
        flip(copy / name, place)
        read_all(copy, vocabulary.size)


@pytest.mark.parametrize("name", [*FILES, "text/train/tokens.offsets.bin"])
def test_verify_names_file_and_block(copy, capsys, name):
    assert cli.main(["cache", "--verify", f"--output={copy}"]) == 0
    assert re.search(r"all \d+ files", capsys.readouterr().out)
    flip(copy / name, (copy / name).stat().st_size - 2)
    assert cli.main(["cache", "--verify", f"--output={copy}"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and str(copy) in error
    if name not in ("cache.json", "digests.json"):
        assert f"{copy / name}: block {((copy / name).stat().st_size - 2) // BLOCK_BYTES} " in error


def test_only_blocks_that_are_read_are_checked(copy, vocabulary):
    flip(copy / TOKENS, 2 * BLOCK_BYTES + 5)
    tokens = TokenCache(copy).documents("train", "text", vocabulary.size).tokens
    block = BLOCK_BYTES // tokens.dtype.itemsize
    assert len(tokens) > 3 * block
    whole = np.fromfile(copy / TOKENS, tokens.dtype)
    places = np.array([[0, block], [3 * block, len(tokens) + 7]])
    assert np.array_equal(tokens.take(places, mode="clip"), whole.take(places, mode="clip"))
    assert np.array_equal(tokens[5 : 2 * block], whole[5 : 2 * block])
    for read in (lambda: tokens[: 2 * block + 1], lambda: tokens.take(np.array([2 * block]), mode="clip"), lambda: tokens[:]):
        with pytest.raises(UserError, match=f"{copy / TOKENS}: block 2 .bytes {2 * BLOCK_BYTES} to {3 * BLOCK_BYTES - 1}. "):
            read()


def test_threads_share_the_checks(cache_dir, vocabulary):
    tokens = TokenCache(cache_dir).documents("train", "text", vocabulary.size).tokens
    whole = np.fromfile(cache_dir / TOKENS, tokens.dtype)
    generator = np.random.default_rng(0)
    wrong = []

    def read(places):
        if not np.array_equal(tokens.take(places, mode="clip"), whole[places]):
            wrong.append(places)

    threads = [threading.Thread(target=read, args=(generator.integers(0, len(whole), (50, 9)),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_missing_file_is_named(copy):
    for name in ("digests.json", "vocab/vocab.txt", TOKENS):
        (copy / name).rename(copy.parent / "aside")
        with pytest.raises(UserError, match=f"{copy / name} is missing"):
            read_all(copy, None)
        (copy.parent / "aside").rename(copy / name)


def without_digests(copy):
    """Make the cache one that an earlier version has built."""
    (copy / "digests.json").unlink()
    manifest = json.loads((copy / "cache.json").read_text())
    del manifest["digests"]
    (copy / "cache.json").write_text(json.dumps(manifest, indent=1) + "\n")


def test_cache_without_digests_is_used_with_a_warning_and_gets_them(copy, vocabulary, capsys):
    without_digests(copy)
    read_all(copy, vocabulary.size)
    read_all(copy, vocabulary.size)
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{copy} has no digests" in warning and f"--verify --output={copy}" in warning
    assert cli.main(["cache", "--verify", f"--output={copy}"]) == 0
    read_all(copy, vocabulary.size)
    assert capsys.readouterr().err == ""
    flip(copy / TOKENS, 0)
    with pytest.raises(UserError, match=f"{copy / TOKENS}: block 0 "):
        read_all(copy, vocabulary.size)


@pytest.mark.parametrize(
    ("name", "dtype", "place", "value"),
    [
        (TOKENS, np.uint16, 3, 60_000),
        ("text/train/sentence_starts.bin", np.int64, 2, -5),
        ("text/train/sentence_starts.bin", np.int64, 2, 2**40),
        ("text/validation/sentence_starts.offsets.bin", np.int64, 1, 2**40),
        ("text/validation/sentence_starts.offsets.bin", np.int64, 0, 1),
        ("text/validation/tokens.offsets.bin", np.int64, 1, 3),
    ],
)
def test_cache_that_cannot_be_right_gets_no_digests(copy, capsys, name, dtype, place, value):
    without_digests(copy)
    values = np.fromfile(copy / name, dtype)
    values[place] = value
    values.tofile(copy / name)
    cache_module._warn_without_digests(copy)
    capsys.readouterr()
    assert cli.main(["cache", "--verify", f"--output={copy}"]) == 2
    error = capsys.readouterr().err
    assert str(copy / name) in error and error.count("\n") == 1
    assert not (copy / "digests.json").exists()


@pytest.mark.parametrize("name", ["sentence_starts.bin", "sentence_starts.offsets.bin"])
def test_positions_that_cannot_be_right_are_refused_although_the_digests_agree(copy, vocabulary, name):
    path = copy / "text" / "train" / name
    positions = np.fromfile(path, np.int64)
    positions[1:-1] = positions[1:-1][::-1]
    positions.tofile(path)
    (copy / "digests.json").write_text(digests.compute(copy))
    with pytest.raises(UserError, match=f"{path} is damaged: its positions do not rise from 0 to "):
        read_all(copy, vocabulary.size)


def test_id_beyond_the_vocabulary_is_refused_when_it_is_read(tmp_path):
    tokens = CheckedArray(tmp_path, "tokens.bin", np.array([1, 2, 7], np.uint16), None, 7)
    with pytest.raises(UserError, match=f"{tmp_path / 'tokens.bin'}: block 0 holds the id 7, and the vocabulary has 7 pieces"):
        tokens.take(np.array([0]))


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"format": 2, "files": {}}', '{"format": 1, "files": 3}', '{"format": 1, "files": {"a": {"size": 1}}}',
     '{"format": 1, "files": {"a": {"size": 1, "crc32": ""}}}', '{"format": 1, "files": {"a": {"size": 1, "crc32": "xyz"}}}',
     '{"format": 1, "files": {"vocab/../../a": {"size": 0, "crc32": ""}}}'],
)  # fmt: skip
def test_damaged_digests_are_refused(copy, content):
    (copy / "digests.json").write_text(content)
    with pytest.raises(UserError, match=f"{copy / 'digests.json'} is damaged"):
        TokenCache(copy)


def test_digests_of_a_build_are_those_of_its_files(cache_dir):
    assert (cache_dir / digests.NAME).read_text() == digests.compute(cache_dir)


STARTS, BOUNDS = "text/train/sentence_starts.bin", "text/train/sentence_starts.offsets.bin"


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 positions, of which the caches of the tests have many."""
    monkeypatch.setattr(digests, "BLOCK_BYTES", 128)


def redigest(copy):
    (copy / "digests.json").write_text(digests.compute(copy))


@pytest.mark.parametrize("name", [STARTS, BOUNDS])
def test_stored_documents_read_and_check_only_the_starts_they_use(copy, small_blocks, name):
    redigest(copy)
    flip(copy / name, 8 * (np.fromfile(copy / name, np.int64).size // 2))
    documents = TokenCache(copy).stored_documents("train", "text")
    count = len(documents)
    documents.joined("part", [(0, 3), (count - 3, count)])
    with pytest.raises(UserError, match=f"{name}: block "):
        documents.joined("all", [(0, count)])
    with pytest.raises(UserError, match=f"{name}: block "):
        TokenCache(copy).documents("train", "text")


@pytest.mark.parametrize("has_digests", [True, False])
@pytest.mark.parametrize("place", [16, 19])  # the first of a block, and one within it
def test_stored_documents_refuse_starts_that_do_not_rise(copy, small_blocks, place, has_digests):
    starts = np.fromfile(copy / STARTS, np.int64)
    starts[place] = starts[place - 1] - 1
    starts.tofile(copy / STARTS)
    redigest(copy)
    if not has_digests:
        (copy / "digests.json").unlink()
        manifest = json.loads((copy / "cache.json").read_text())
        (copy / "cache.json").write_text(json.dumps(manifest | {"digests": False}))
    documents = TokenCache(copy).stored_documents("train", "text")
    with pytest.raises(UserError, match=f"{STARTS} is damaged: its positions do not rise from 0 to {starts[-1]} in block 1"):
        documents.joined("all", [(0, len(documents))])


def test_joined_documents_are_those_of_the_whole(cache):
    whole, stored = cache.documents("train", "text"), cache.stored_documents("train", "text")
    starts, bounds = whole.sentence_starts, whole.sentence_bounds
    part = stored.joined("part", [(5, 9), (2, 4), (len(whole) - 1, len(whole))])
    assert part.name == "part"
    for new, old in enumerate([5, 6, 7, 8, 2, 3, len(whole) - 1]):
        begin, end = bounds[old], bounds[old + 1]
        own = part.sentence_starts[part.sentence_bounds[new] : part.sentence_bounds[new + 1] + 1]
        assert np.array_equal(np.diff(own), np.diff(starts[begin : end + 1]))
        assert np.array_equal(part.tokens[own[0] : own[-1]], whole.tokens[starts[begin] : starts[end]])


def test_positions_are_those_of_the_file(copy, monkeypatch):
    monkeypatch.setattr(digests, "BLOCK_BYTES", 128)
    values = np.sort(np.random.default_rng(0).integers(0, 10**6, 1000))
    values[0] = 0
    values.tofile(copy / "positions.bin")
    positions = digests.CheckedPositions(copy, "positions.bin", 1000, int(values[-1]), None)
    for key in (slice(0, 1), slice(15, 17), slice(16, 32), slice(3, 3), slice(990, 2000), slice(None)):
        assert np.array_equal(positions[key], values[key])
    places = np.array([[999, 0, 31], [32, 500, 0]])
    assert np.array_equal(positions.take(places), values[places])
    assert positions.take(np.array([-5, 5000]), mode="clip").tolist() == [values[0], values[-1]]
    assert positions.take(np.zeros(0, np.int64)).size == 0


def test_files_of_the_system_and_of_others_are_not_verified(copy, capsys):
    for name in (".DS_Store", "text/._train", "text/Thumbs.db", "notes.txt"):
        (copy / name).write_bytes(b"x")
    words = ["cache", "--verify", f"--output={copy}"]
    assert cli.main(words) == 0
    output = capsys.readouterr()
    assert "as they were written" in output.out and "of no token cache, which are not verified: notes.txt" in output.err
    without_digests(copy)
    (copy / "notes.txt").unlink()
    assert cli.main(words) == 0
    assert not re.search(r"DS_Store|\._train|Thumbs", (copy / digests.NAME).read_text())

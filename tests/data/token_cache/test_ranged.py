"""Token caches in a bucket that are read by ranges: the rows of a local cache, few bytes, a bounded disk, and faults."""

import json
import os
import re
import shutil
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import fake_bucket
import numpy as np
import pytest

from bertfam import cli
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.blocks import Blocks
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import digests, ranged
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import TransientError, UserError
from bertfam.storage import buckets, files, gcs, paths
from bertfam.storage.block_store import BlockStore

BLOCK = 1024
LIMIT = 40 * BLOCK  # of about 300 KiB
TOKENS, STARTS = "text/train/tokens.bin", "text/train/sentence_starts.bin"
BY_BLOCKS = Blocks(above_documents=0, documents=16, piece_documents=4)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, tmp_path, bucket):
    monkeypatch.setattr(digests, "BLOCK_BYTES", BLOCK)
    monkeypatch.setenv("BERTFAM_CACHE", str(tmp_path / "copies"))
    monkeypatch.setenv("BERTFAM_CACHE_GIB", repr(LIMIT / 2**30))


@pytest.fixture(scope="module")
def source(cache_dir, tmp_path_factory):
    """Return a local cache with digests of small blocks."""
    copy = shutil.copytree(cache_dir, tmp_path_factory.mktemp("source") / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_BYTES", BLOCK)
        (copy / digests.NAME).write_text(digests.compute(copy))
    return copy


@pytest.fixture(scope="module")
def remote(source, bucket):
    """Return the address of the same cache in the bucket."""
    buckets.upload(source, paths.to_path(f"{bucket}/ranged"))
    return f"{bucket}/ranged"


@pytest.fixture
def stores(monkeypatch):
    """Return the list of stores that are opened."""
    opened = []
    make = BlockStore.__init__
    monkeypatch.setattr(BlockStore, "__init__", lambda store, *args: (make(store, *args), opened.append(store))[0])
    return opened


def fetched(name):
    """Return the ranges of bytes of a file that were requested since the last call."""
    return sorted((first, end) for found, first, end in fake_bucket.downloads() if found.endswith(name))


@contextmanager
def changed(remote, name, content):
    """Put other content, None for none, in the place of an object until the block ends."""
    path = paths.to_path(remote) / name
    before = path.read_bytes()
    files.write_bytes(path, content) if content is not None else path.unlink()
    try:
        yield
    finally:
        files.write_bytes(path, before)


def disk_bytes(store):
    return os.fstat(store._file).st_blocks * 512


@pytest.mark.parametrize(("rows", "blocks"), [(SentencePairs(), None), (Packed(), BY_BLOCKS)], ids=["whole", "by blocks"])
def test_rows_are_those_of_a_local_cache_at_any_step(source, remote, tokens, stores, rows, blocks):
    data = TextData(rows=rows, corruption=BertMasking(), blocks=blocks)
    here = data.training(TokenCache(source), tokens, 64, 16, 3)
    there = data.training(TokenCache(remote), tokens, 64, 16, 3)
    resumed = data.training(TokenCache(remote), tokens, 64, 16, 3)
    for opened, steps in ((there, (0, 1, 2)), (resumed, (100_000, 100_001, 7))):
        for step in steps:
            expected, found = here.rows(step, 4, 12), opened.rows(step, 4, 12)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
    (store,) = stores  # shared by all caches of the process
    assert BLOCK < disk_bytes(store) <= LIMIT


def test_only_the_blocks_that_are_needed_are_requested(source, remote):
    tokens = TokenCache(remote).stored_documents("train", "text").tokens
    whole = np.fromfile(source / TOKENS, tokens.dtype)
    size = BLOCK // tokens.dtype.itemsize
    fake_bucket.downloads()
    places = np.array([[5, 9 * size], [9 * size - 1, 20 * size]])
    assert np.array_equal(tokens.take(places), whole[places])
    assert fetched(TOKENS) == [(0, BLOCK), (8 * BLOCK, 10 * BLOCK), (20 * BLOCK, 21 * BLOCK)]
    assert np.array_equal(tokens[20 * size - 1 : 22 * size + 1], whole[20 * size - 1 : 22 * size + 1])
    assert np.array_equal(tokens.take(np.array([-7, 10**9]), mode="clip"), whole[[0, -1]])
    end = whole.nbytes
    assert fetched(TOKENS) == [(19 * BLOCK, 23 * BLOCK), (end // BLOCK * BLOCK, end)]
    with pytest.raises(IndexError):
        tokens.take(np.array([len(tokens)]))


def test_blocks_that_were_not_read_for_longest_are_deleted(source, remote, stores):
    documents = TokenCache(remote).stored_documents("train", "text")
    tokens, starts = documents.tokens, documents.sentence_starts
    whole, size = np.fromfile(source / TOKENS, tokens.dtype), BLOCK // tokens.dtype.itemsize
    for first in (0, 20, 40):
        places = np.array([*range(first, first + 20), 0]) * size
        assert np.array_equal(tokens.take(places), whole[places])
    fake_bucket.downloads()
    tokens.take(np.array([0, *range(40, 60)]) * size)
    assert fetched(TOKENS) == []
    tokens.take(np.array([3, 2 * size]))
    assert fetched(TOKENS) == [(2 * BLOCK, 3 * BLOCK)]
    assert np.array_equal(tokens[:], whole) and np.array_equal(starts[:], np.fromfile(source / STARTS, np.int64))
    assert disk_bytes(stores[0]) <= LIMIT


def test_threads_share_the_blocks(source, remote, stores):
    tokens = TokenCache(remote).stored_documents("train", "text").tokens
    whole = np.fromfile(source / TOKENS, tokens.dtype)
    # Most of the time in a few blocks, which threads fetch at once, and which the others drive out.
    few = [np.random.default_rng(seed).integers(0, 10_000, (4, 20)) for seed in range(2)]
    many = [np.random.default_rng(seed).integers(0, len(whole), (4, 20)) for seed in range(2)]

    def read(places):
        return all(np.array_equal(tokens.take(row), whole[row]) for row in places)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, few + many))
    (store,) = stores
    assert disk_bytes(store) <= LIMIT
    kept = [(name, block) for name, slots in store._slots.items() for block in np.flatnonzero(slots >= 0)]
    slots = [store._slots[name][block] for name, block in kept]
    assert len(set(slots)) == len(slots) <= LIMIT // BLOCK
    for (name, block), slot in zip(kept, slots, strict=True):
        content = (source / name).read_bytes()[block * BLOCK : (block + 1) * BLOCK]
        assert store._bytes[slot * BLOCK : slot * BLOCK + len(content)].tobytes() == content


def test_blocks_of_the_next_documents_are_fetched_in_advance(remote, tokens, monkeypatch):
    monkeypatch.setattr(ranged, "_WHOLE_BYTES", 0)
    monkeypatch.setenv("BERTFAM_CACHE_GIB", "1")
    documents = TokenCache(remote).stored_documents("train", "text")
    part = documents.joined("part", [(3, 6), (40, 44)])
    part.tokens.prefetch_all()
    assert fetched(TOKENS)
    part.tokens[:]
    assert fetched(TOKENS) == []
    examples = TextData(rows=Packed(), corruption=BertMasking(), blocks=BY_BLOCKS).training(TokenCache(remote), tokens, 64, 4, 0)
    blocks = examples.sequence.examples
    fake_bucket.downloads()
    blocks.prepare(2)
    blocks._held[2].result()
    for thread in [thread for thread in threading.enumerate() if thread.name == "blocks prefetch"]:
        thread.join()
    assert fetched(TOKENS)
    blocks._block(2).rows(np.arange(blocks.rows_in(2)), np.zeros(blocks.rows_in(2), np.uint64))
    assert fetched(TOKENS) == []


@pytest.mark.parametrize("name", [TOKENS, STARTS, "text/train/sentence_starts.offsets.bin", "vocab/vocab.txt"])
def test_flipped_bit_is_one_line_that_names_file_and_block(source, remote, name):
    content = bytearray((source / name).read_bytes())
    place = len(content) // 2
    content[place] ^= 4
    with changed(remote, name, bytes(content)):
        with pytest.raises(UserError) as raised:
            documents = TokenCache(remote).stored_documents("train", "text")
            documents.joined("all", [(0, len(documents))]).tokens[:]
        assert f"{name}: block {place // BLOCK} " in str(raised.value) and "\n" not in str(raised.value)
        if name != "vocab/vocab.txt":
            assert str(raised.value).startswith(f"{remote}/{name}: ")


def test_whole_cache_is_verified_by_ranges(source, remote, stores, capsys):
    assert cli.main(["cache", "--verify", f"--output={remote}"]) == 0
    out, error = capsys.readouterr()
    assert re.search(r"all \d+ files", out)
    (line,) = error.splitlines()
    assert remote in line and "is read by ranges" in line and "BERTFAM_CACHE_GIB" in line
    assert disk_bytes(stores[0]) <= LIMIT
    name = "text/train/tokens.offsets.bin"  # no row reads it
    with changed(remote, name, bytes((source / name).stat().st_size)):
        assert cli.main(["cache", "--verify", f"--output={remote}"]) == 2
    assert f"{remote}/{name}: block 0 " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("place", [128, 130])  # the first of a block, and one within it
def test_starts_that_do_not_rise_are_refused_although_the_digests_agree(source, remote, place):
    starts = np.fromfile(source / STARTS, np.int64)
    starts[place] = starts[place - 1] - 1
    recorded = json.loads((source / digests.NAME).read_text())
    blocks = [starts[first : first + BLOCK // 8].tobytes() for first in range(0, len(starts), BLOCK // 8)]
    recorded["files"][STARTS]["crc32"] = "".join(f"{zlib.crc32(block):08x}" for block in blocks)
    with changed(remote, STARTS, starts.tobytes()), changed(remote, digests.NAME, json.dumps(recorded).encode()):
        documents = TokenCache(remote).stored_documents("train", "text")
        with pytest.raises(UserError, match=f"{STARTS} is damaged: its positions do not rise from 0 to {starts[-1]} in block 1"):
            documents.joined("all", [(0, len(documents))])


def test_unknown_ids_and_missing_files_are_refused(remote):
    tokens = TokenCache(remote).stored_documents("train", "text", 700).tokens
    with pytest.raises(UserError, match=rf"{remote}/{TOKENS}: block \d+ holds the id \d+, and the vocabulary has 700 pieces"):
        tokens[:]
    with changed(remote, TOKENS, None), pytest.raises(UserError, match=f"{remote}/{TOKENS} is missing"):
        TokenCache(remote).stored_documents("train", "text")


def test_failing_requests_are_retried_and_then_are_a_fault_that_may_pass(source, remote, monkeypatch):
    monkeypatch.setattr(gcs, "_DELAYS", (0.0, 0.0, 0.0))
    tokens = TokenCache(remote).stored_documents("train", "text").tokens
    with fake_bucket.faults(503, count=3, match="tokens.bin"):
        assert np.array_equal(tokens[:5000], np.fromfile(source / TOKENS, tokens.dtype)[:5000])
    with fake_bucket.faults(503, match="tokens.bin"), pytest.raises(TransientError, match=f"{remote} cannot be read"):
        tokens[60_000:]


def test_full_disk_is_a_warning_and_changes_no_value(source, remote, monkeypatch, capsys):
    monkeypatch.setattr(os, "pwrite", lambda file, content, place: 0)
    tokens = TokenCache(remote).stored_documents("train", "text").tokens
    assert np.array_equal(tokens[:], np.fromfile(source / TOKENS, tokens.dtype))
    assert np.array_equal(tokens[:], np.fromfile(source / TOKENS, tokens.dtype))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "warning:" in line]
    assert remote in line and "No space left on device" in line


def test_small_caches_and_those_without_digests_are_copied(source, remote, monkeypatch, capsys):
    manifest = json.loads((source / "cache.json").read_text()) | {"digests": False}
    with changed(remote, digests.NAME, None), changed(remote, "cache.json", json.dumps(manifest).encode()):
        assert TokenCache(remote).documents("train", "text").tokens[:].size
    monkeypatch.delenv("BERTFAM_CACHE_GIB")
    for _ in range(2):
        assert isinstance(TokenCache(remote).documents("train", "text").tokens, digests.CheckedArray)
    copied = [line for line in capsys.readouterr().err.splitlines() if "is copied to" in line]
    assert len(copied) == 2 and all(remote in line for line in copied)

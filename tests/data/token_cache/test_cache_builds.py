"""How a token cache is built: by any number of processes, stopped and restarted at any place, beside other builds."""

import fcntl
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass

import numpy as np
import pytest

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.token_cache import build_folder, builder, progress, tokenize, worker_pool
from bertfam.data.token_cache.build_folder import BuildFolder, BuildInterrupted
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.progress import Progress
from bertfam.data.token_cache.tokenize import Block, tokenise
from bertfam.data.token_cache.writer import Counts, SplitWriter
from bertfam.errors import UserError


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(tokenize, "_BATCH_CHARACTERS", 20_000)


@pytest.fixture
def starts(monkeypatch):
    """The processes that were started."""
    found = []

    class Counted(worker_pool._Worker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self._process)

    monkeypatch.setattr(worker_pool, "_Worker", Counted)
    return found


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_bytes_do_not_depend_on_the_processes(tmp_path, corpus, vocabulary, small_batches, starts, processes):
    documents = ["\n".join(lines) for lines in corpus.texts("train")]
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(documents[number::3]))
    texts = {"text": TextFiles(f"{tmp_path}/*.txt", input_format="paragraphs", validation_fraction=0.1)}
    built = build(texts, vocabulary, tmp_path / "cache", processes=processes)
    assert contents(built.directory) == contents(build(texts, vocabulary, tmp_path / "plain").directory)
    assert built.counts("train")["documents"] > 20 and built.counts("validation")["documents"] > 1
    assert len(starts) == processes and all(process.poll() is not None for process in starts)


@pytest.mark.parametrize(("name", "size"), [("_BATCH_CHARACTERS", 1), ("_BATCH_CHARACTERS", 7777), ("_CHARACTERS_AT_ONCE", 50)])
def test_the_bytes_do_not_depend_on_the_batches(tmp_path, corpus, vocabulary, cache_dir, monkeypatch, name, size):
    monkeypatch.setattr(tokenize, name, size)
    assert contents(build({"text": corpus}, vocabulary, tmp_path / "cache").directory) == contents(cache_dir)


def test_little_text_starts_no_process(tmp_path, corpus, vocabulary, cache_dir, starts):
    built = build({"text": corpus}, vocabulary, tmp_path / "cache", processes=2)
    assert not starts and contents(built.directory) == contents(cache_dir)


def test_a_sentence_is_joined_to_the_one_before(vocabulary):
    """What is put between sentences belongs to the later one, and nothing is put before the first."""

    class Joined:
        size, joint = vocabulary.size, "and "

        def encode_batch(self, texts):
            return vocabulary.encode_batch(texts)

    plain = tokenise(Given(), vocabulary, [["one two", "and three"], ["four"]])
    joined = tokenise(Given(), Joined(), [["one two", "three"], ["four"]])
    assert np.array_equal(plain.tokens, joined.tokens) and np.array_equal(plain.sentences, joined.sentences)


@dataclass(frozen=True)
class Given(Corpus):
    """Documents of a number of sentences, one of which does something else."""

    does: str = ""
    documents_in_train: int = 400

    def texts(self, split):
        for number in range(self.documents_in_train if split == "train" else 0):
            yield [f"Sentence {index} of document {number}." for index in range(20)] + ["x"] * (number == 250)

    def sentences(self, lines):
        if lines[-1] == "x" and self.does == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if lines[-1] == "x" and self.does == "refuse":
            raise UserError("that is no text")
        if lines[-1] == "x" and self.does == "fail":
            raise ZeroDivisionError("a fault")
        if lines[-1] == "x" and self.does == "panic":
            raise Panic("no character boundary")
        if lines[-1] == "x" and self.does == "print":
            print("printed by a corpus")
        return lines

    def fingerprint(self):
        return {"kind": "given"}


@pytest.fixture(scope="module")
def whole(vocabulary, tmp_path_factory):
    """What is in a cache of `Given()`."""
    return contents(build({"text": Given()}, vocabulary, tmp_path_factory.mktemp("whole") / "cache").directory)


def test_what_a_process_refuses_is_told_and_leaves_nothing(tmp_path, vocabulary, small_batches):
    with pytest.raises(UserError, match="^that is no text$"):
        build({"text": Given("refuse")}, vocabulary, tmp_path / "new" / "cache", processes=2)
    assert not list(tmp_path.iterdir())


def test_a_fault_in_a_process_keeps_its_traceback(tmp_path, vocabulary, small_batches):
    with pytest.raises(RuntimeError, match=r"(?s)in a tokenisation worker:\nTraceback.*in sentences.*ZeroDivisionError: a fault"):
        build({"text": Given("fail")}, vocabulary, tmp_path / "cache", processes=2)


def test_what_a_corpus_prints_does_not_disturb(tmp_path, vocabulary, small_batches, capfd, whole):
    built = build({"text": Given("print")}, vocabulary, tmp_path / "cache", processes=2)
    assert contents(built.directory) == whole
    assert "printed by a corpus" in capfd.readouterr().err


def test_a_killed_process_is_one_line_and_the_build_can_go_on(tmp_path, vocabulary, small_batches, capsys, whole):
    with pytest.raises(BuildInterrupted, match=r"was killed \(SIGKILL\), perhaps because memory ran out"):
        build({"text": Given("kill")}, vocabulary, tmp_path / "cache", processes=1)
    assert not (tmp_path / "cache").exists()
    capsys.readouterr()
    built = build({"text": Given()}, vocabulary, tmp_path / "cache", processes=1)
    line = capsys.readouterr().err.splitlines()[0]
    documents = int(line.removeprefix(f"resuming in {tmp_path / '.cache.partial'}: ").partition(" ")[0])
    assert 0 < documents <= 250
    assert contents(built.directory) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


class Stop(BaseException):
    """Ends a build as abruptly as a signal, in this process."""


def stopped_after(records, monkeypatch, **build_arguments):
    """A build that ends right after, or right before, its journal has been written so many times."""
    remaining = [records]
    record = BuildFolder.record

    def counted(*arguments):
        if remaining[0] == 0:
            raise Stop
        remaining[0] -= 1
        record(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BuildFolder, "record", counted)
        patch.setattr(builder, "_RECORD_SECONDS", 0.0)
        patch.setattr(builder, "_RECORD_SHARE", 1e9)
        with pytest.raises(Stop):
            build(**build_arguments)


@pytest.fixture
def files(tmp_path):
    """Seven files, two of them empty, and one of one document."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number, documents in enumerate([30, 0, 1, 80, 5, 0, 60]):
        text = "\n\n".join(f"Document {index} of file {number}.\nIt is about {index * number}." for index in range(documents))
        (folder / f"{number}.txt").write_text(text)
    return TextFiles((str(folder / "*.txt"),), validation_fraction=0.2)


def test_a_build_goes_on_wherever_it_is_stopped(tmp_path, vocabulary, files, monkeypatch):
    """Stopped after each single record in turn, of two corpora; the journal, not the files, says what is done."""
    monkeypatch.setattr(tokenize, "_BATCH_CHARACTERS", 600)
    corpora = {"files": files, "given": Given(documents_in_train=3)}
    whole = contents(build(corpora, vocabulary, tmp_path / "whole").directory)
    tokenised = []
    monkeypatch.setattr(worker_pool, "tokenise", lambda *given: tokenised.append(len(given[2])) or tokenise(*given))
    stops = 0
    while not (tmp_path / "cache").exists():
        try:
            stopped_after(1, monkeypatch, corpora=corpora, vocabulary=vocabulary, directory=tmp_path / "cache")
        except pytest.fail.Exception:  # no stop: it has been finished
            break
        stops += 1
    assert stops > 10 and contents(tmp_path / "cache") == whole
    # A batch is tokenised again where the stop came between the files and the journal, and none a third time.
    documents = sum(len(list(corpus.texts(split))) for corpus in corpora.values() for split in ("train", "validation"))
    assert documents <= sum(tokenised) <= 2 * documents


def test_other_text_starts_anew(tmp_path, vocabulary, small_batches, monkeypatch, capsys):
    stopped_after(2, monkeypatch, corpora={"text": Given()}, vocabulary=vocabulary, directory=tmp_path / "cache")
    other = {"text": Other()}
    assert "resuming" not in capsys.readouterr().err
    built = build(other, vocabulary, tmp_path / "cache")
    assert capsys.readouterr().err.splitlines()[0] == (
        f"starting over in {tmp_path / '.cache.partial'}: the unfinished build was of something else "
        '(fingerprint.corpora.text.kind was "given" and is "other" now)'
    )
    assert contents(built.directory) == contents(build(other, vocabulary, tmp_path / "plain").directory)


class Other(Given):
    def texts(self, split):
        return map(list, map(reversed, super().texts(split)))

    def fingerprint(self):
        return {"kind": "other"}


@pytest.mark.parametrize("journal", ["", "{", "[]", "{}", '{"format": 1}'])
def test_a_damaged_journal_starts_anew(tmp_path, vocabulary, small_batches, monkeypatch, journal, whole):
    stopped_after(2, monkeypatch, corpora={"text": Given()}, vocabulary=vocabulary, directory=tmp_path / "cache")
    (tmp_path / ".cache.partial" / "journal.json").write_text(journal)
    built = build({"text": Given()}, vocabulary, tmp_path / "cache")
    assert contents(built.directory) == whole


@pytest.mark.parametrize("stopped", ["in-a-split", "at-the-end"])
def test_files_that_lack_what_the_journal_says_are_refused(tmp_path, vocabulary, small_batches, monkeypatch, stopped, whole):
    """The same command again, as the message says, starts anew."""
    given = {"corpora": {"text": Given()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    if stopped == "in-a-split":
        stopped_after(2, monkeypatch, **given)
    else:
        stopped_in("finish", monkeypatch, **given)
    tokens = tmp_path / ".cache.partial/cache/text/train/tokens.bin"
    os.truncate(tokens, 10)
    with pytest.raises(
        UserError,
        match="tokens.bin has 10 bytes where [0-9]+ were written: run the same command again, which starts over$",
    ):
        build(**given)
    assert not list(tmp_path.iterdir())
    assert contents(build(**given).directory) == whole


def stopped_in(method, monkeypatch, **build_arguments):
    """A build that ends where it would call a method of `BuildFolder`."""

    def stop(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(BuildFolder, method, stop)
        with pytest.raises(Stop):
            build(**build_arguments)


@pytest.mark.parametrize("moment", ["before the cache is in place", "after that", "within the removal"])
def test_a_build_that_is_killed_at_its_end(tmp_path, vocabulary, small_batches, monkeypatch, capsys, moment, whole):
    given = {"corpora": {"text": Given()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    partial = tmp_path / ".cache.partial"
    if moment == "before the cache is in place":
        stopped_in("finish", monkeypatch, **given)
    elif moment == "after that":
        stopped_in("finish", monkeypatch, **given)
        (partial / "cache").rename(tmp_path / "done")
    else:
        stopped_after(2, monkeypatch, **given)
        removed = []

        def remove(path):
            removed.append(path)
            if len(removed) > 1:
                raise Stop

        with monkeypatch.context() as patch:
            # The first file goes, whichever it is, and then the process.
            patch.setattr(build_folder.shutil, "rmtree", remove)
            patch.setattr(build_folder.Path, "unlink", lambda path, missing_ok=False: remove(path) or os.unlink(path))
            with pytest.raises(Stop):
                BuildFolder(partial).clear()
        assert (partial / "cache").exists() and not (partial / "journal.json").exists()
    capsys.readouterr()
    built = build(**given)
    assert ("resuming" in capsys.readouterr().err) == (moment == "before the cache is in place")
    assert contents(built.directory) == whole and not partial.exists()


def test_what_a_build_leaves_that_is_killed_when_its_cache_is_in_place(tmp_path, vocabulary, small_batches, monkeypatch, whole):
    given = {"corpora": {"text": Given()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    partial = tmp_path / ".cache.partial"
    stopped_in("finish", monkeypatch, **given)
    shutil.copytree(partial, tmp_path / "kept")
    build(**given)
    shutil.copytree(tmp_path / "kept", partial)
    with open(partial / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert contents(build(**given).directory) == whole
        assert partial.exists(), "the process that is at it removes it"
    assert contents(build(**given).directory) == whole
    assert not partial.exists()


def test_a_vocabulary_that_is_gone_starts_anew(tmp_path, vocabulary, small_batches, monkeypatch, capsys, whole):
    """A power cut may take it."""
    given = {"corpora": {"text": Given()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    stopped_after(2, monkeypatch, **given)
    (tmp_path / ".cache.partial/cache/vocab/tokenizer.json").unlink()
    (tmp_path / ".cache.partial/cache/vocab/vocab.txt").unlink()
    built = build(**given)
    assert "resuming" not in capsys.readouterr().err
    assert contents(built.directory) == whole


def test_everything_is_on_the_disk_before_the_cache_is_in_place(tmp_path, vocabulary, monkeypatch):
    """Each file and folder of it, and then the folder that it is in."""
    synced, replaced = {}, {}
    fsync, replace = os.fsync, os.replace

    def noted(handle):
        synced[os.readlink(f"/proc/self/fd/{handle}")] = len(synced)
        fsync(handle)

    def placed(old, new):
        replaced[str(new)] = set(synced)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", placed)
    cache = tmp_path / "cache"
    build({"text": Given(documents_in_train=3)}, vocabulary, cache)
    partial = tmp_path / ".cache.partial" / "cache"
    before = replaced[str(cache)]
    assert {str(partial / path.relative_to(cache)) for path in (cache, *cache.rglob("*")) if path.name != "cache.json"} <= before
    assert str(partial / "cache.json") in before and str(tmp_path) in synced and str(tmp_path) not in before


def test_text_that_changes_meanwhile_is_refused(tmp_path, vocabulary, files, monkeypatch):
    path = tmp_path / "text" / "3.txt"
    finish = Progress.finish

    def changed(progress, counts):
        finish(progress, counts)
        path.write_text(path.read_text().replace("Document", "document"))

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Progress, "finish", changed)
    with pytest.raises(UserError) as raised:
        build({"text": files}, vocabulary, tmp_path / "cache")
    assert re.fullmatch(
        r"the text changed while it was tokenised \(corpora\.text\.train\[3\.txt\]\.sha256 was .* and is .* now\): run the same "
        "command again",
        str(raised.value),
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_leads_to_where_the_cache_shall_be(tmp_path, vocabulary, exists):
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk" / "place")
    if exists:
        (tmp_path / "disk" / "place").mkdir()
    built = build({"text": Given(documents_in_train=3)}, vocabulary, tmp_path / "cache")
    assert built.counts("train")["documents"] == 3 and (tmp_path / "cache").is_symlink()
    assert os.listdir(tmp_path / "disk") == ["place"]


class Panic(BaseException):
    """As that of a library written in Rust."""


@pytest.mark.parametrize("processes", [0, 1])
def test_a_panic_names_the_document(tmp_path, vocabulary, small_batches, processes):
    error = RuntimeError if processes else Panic
    with pytest.raises(error) as raised:
        build({"text": Given("panic")}, vocabulary, tmp_path / "cache", processes=processes)
    told = "".join(traceback.format_exception(raised.value))
    assert "Panic: no character boundary" in told
    assert "in the document that begins with 'Sentence 0 of document 250.'" in told


def test_two_builds_at_once_make_one_cache(tmp_path, vocabulary, small_batches, monkeypatch):
    """The second waits for the first, then takes what it has built, or says what differs."""
    held, release = threading.Event(), threading.Event()
    finish = BuildFolder.finish

    def slow(*arguments):
        held.set()
        release.wait(60)
        finish(*arguments)

    monkeypatch.setattr(BuildFolder, "finish", slow)
    told = io.StringIO()  # capsys would lose what a thread writes while another reads
    monkeypatch.setattr(sys, "stderr", told)
    found = {}

    def run(name, corpus):
        try:
            found[name] = build({"text": corpus}, vocabulary, tmp_path / "cache")
        except UserError as error:
            found[name] = error

    threads = [threading.Thread(target=run, args=("first", Given()))]
    threads[0].start()
    assert held.wait(60)
    for name, corpus in (("second", Given()), ("other", Other())):
        threads.append(threading.Thread(target=run, args=(name, corpus)))
        threads[-1].start()
    waiting = f"waiting for the process that builds in {tmp_path / '.cache.partial'}"
    until = time.monotonic() + 60
    while told.getvalue().count(waiting) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    release.set()
    for thread in threads:
        thread.join(60)
    assert told.getvalue().count("tokenising train") == 1
    assert isinstance(found["first"], TokenCache) and isinstance(found["second"], TokenCache)
    assert 'corpora.text.kind was "given" and is "other" now' in str(found["other"])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_writer_goes_on_behind_its_counts(tmp_path):
    """What lies behind them is cut off; files of another writer can be appended."""
    first = Block(np.arange(5, dtype=np.uint16), np.array([2, 3]), np.array([1, 1]), 1, words=4, bytes=30)
    second = Block(np.arange(7, dtype=np.uint16), np.array([1, 4, 2]), np.array([3]), 0, words=6, bytes=40)
    whole = SplitWriter(tmp_path / "whole", "uint16")
    whole.append(first)
    after_first = whole.counts
    whole.append(second)
    whole.close()
    assert whole.counts == Counts(documents=3, sentences=5, tokens=12, skipped_documents=1, words=10, bytes=70)
    cut = SplitWriter(tmp_path / "whole", "uint16", after_first)
    cut.append(second)
    cut.close()
    starts = np.fromfile(tmp_path / "whole/sentence_starts.bin", np.int64)
    assert starts.tolist() == [0, 2, 5, 6, 10, 12]
    assert np.fromfile(tmp_path / "whole/sentence_starts.offsets.bin", np.int64).tolist() == [0, 1, 2, 5]
    assert np.fromfile(tmp_path / "whole/tokens.offsets.bin", np.int64).tolist() == [0, 2, 5, 12]
    assert np.fromfile(tmp_path / "whole/tokens.bin", np.uint16).tolist() == [*range(5), *range(7)]
    joined = SplitWriter(tmp_path / "joined", "uint16")
    for name, block in (("a", first), ("b", second)):
        part = SplitWriter(tmp_path / name, "uint16")
        part.append(block)
        part.close()
        joined.append_files(tmp_path / name, part.counts)
    joined.close()
    assert joined.counts == whole.counts and contents(tmp_path / "joined") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("text", "counts"),
    [("one sentence", (1, 1, 1)), ("one\ntwo\n\n", (1, 2, 2)), ("a b\n\nc", (2, 2, 3))],
)
def test_the_smallest_corpora(tmp_path, vocabulary, text, counts):
    (tmp_path / "a.txt").write_text(text)
    cache = build({"text": TextFiles(str(tmp_path / "a.txt"), validation_fraction=0.0)}, vocabulary, tmp_path / "cache")
    found = cache.counts("train")
    assert (found["documents"], found["sentences"]) == counts[:2] and found["tokens"] >= counts[2]
    documents = cache.documents("validation", "text")
    assert len(documents) == 0 and len(documents.tokens) == 0 and json.loads((tmp_path / "cache/cache.json").read_text())


def test_a_terminal_shows_what_is_left(monkeypatch, capsys):
    """Half of 300 bytes were 600 characters, so 600 more will come, at 100 a second."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    shown = progress.Progress("tokenising train", [150, 100, 50], Counts(), 0)
    now[0] += 3
    shown.show(Counts(5, 20, 300), part=0, characters=300)
    assert capsys.readouterr().err == "\r\x1b[Ktokenising train: 5 documents, 300 tokens, 3 s, 100 tokens/s"
    now[0] += 3
    shown.show(Counts(9, 40, 1200), part=1, characters=600)
    assert capsys.readouterr().err.endswith("9 documents, 1,200 tokens, 6 s, 200 tokens/s, 0:00:06 left (50%)")

"""Builds of token caches: any number of processes, stops and restarts at any place, and concurrent builds."""

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
from time_limits import FAR_SECONDS

from bertfam.data.corpora import document_batches
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.parallel import worker_pool
from bertfam.data.token_cache import build_folder, builder, progress, tokenize
from bertfam.data.token_cache.build_folder import BuildFolder
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.progress import Progress
from bertfam.data.token_cache.tokenize import Block, tokenise
from bertfam.data.token_cache.writer import Counts, SplitWriter
from bertfam.errors import UserError
from bertfam.storage import locks


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def labelled_files(folder, documents, files=3):
    """Write documents, given as their lines, to files of labelled texts; return the corpus, which holds some of them out."""
    for number in range(files):
        records = [[" ".join(lines), str(index / 8)] for index, lines in enumerate(documents)][number::files]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in records))
    return LabelledFiles(str(folder / "*.jsonl"), kind="number", validation_fraction=0.2)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(document_batches, "_CHARACTERS", 6_000)


@pytest.fixture
def started_processes(monkeypatch):
    """The worker processes that were started."""
    processes = []

    class CountedWorker(worker_pool._Worker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            processes.append(self._process)

    monkeypatch.setattr(worker_pool, "_Worker", CountedWorker)
    return processes


def test_bytes_do_not_depend_on_the_number_of_processes(tmp_path, corpus, vocabulary, small_batches, started_processes):
    documents = ["\n".join(lines) for lines in corpus.texts("train")]
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(documents[number::3]))
    texts = {
        "text": TextFiles(f"{tmp_path}/*.txt", input_format="paragraphs", validation_fraction=0.1),
        "labelled": labelled_files(tmp_path, [lines[:2] for lines in corpus.texts("train")]),
    }
    built = build(texts, vocabulary, tmp_path / "cache", processes=2)
    assert contents(built.directory) == contents(build(texts, vocabulary, tmp_path / "plain").directory)
    for name in texts:
        assert built.counts("train", name)["documents"] > 20 and built.counts("validation", name)["documents"] > 1
    assert sorted(built.documents("train", "labelled").labels[:].tolist())[-1] > 8
    assert len(started_processes) == 4 and all(process.poll() is not None for process in started_processes)


@pytest.mark.parametrize(
    ("module", "name", "size"),
    [(document_batches, "_CHARACTERS", 1), (document_batches, "_CHARACTERS", 7777), (tokenize, "_CHARACTERS_AT_ONCE", 50)],
    ids=["one", "some", "at once"],
)
def test_bytes_do_not_depend_on_the_batch_size(tmp_path, corpus, vocabulary, cache_dir, monkeypatch, module, name, size):
    monkeypatch.setattr(module, name, size)
    assert contents(build({"text": corpus}, vocabulary, tmp_path / "cache").directory) == contents(cache_dir)


def test_little_text_starts_no_process(tmp_path, corpus, vocabulary, cache_dir, started_processes):
    built = build({"text": corpus}, vocabulary, tmp_path / "cache", processes=2)
    assert not started_processes and contents(built.directory) == contents(cache_dir)


def test_joint_is_put_between_sentences(vocabulary):
    """Put the joint before every sentence except the first; its tokens belong to the later sentence."""

    class Joined:
        size, joint = vocabulary.size, "and "

        def encode_flat(self, texts):
            return vocabulary.encode_flat(texts)

    plain = tokenise(NumberedDocuments(), vocabulary, [["one two", "and three"], ["four"]])
    joined = tokenise(NumberedDocuments(), Joined(), [["one two", "three"], ["four"]])
    assert np.array_equal(plain.tokens, joined.tokens) and np.array_equal(plain.sentences, joined.sentences)


@dataclass(frozen=True)
class NumberedDocuments(Corpus):
    """Documents of numbered sentences, one of which behaves as `does` says."""

    does: str = ""
    documents_in_train: int = 120

    def texts(self, split):
        for number in range(self.documents_in_train if split == "train" else 0):
            yield [f"Sentence {index} of document {number}." for index in range(20)] + ["x"] * (number == 80)

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
    """Contents of a cache of `NumberedDocuments()`."""
    return contents(build({"text": NumberedDocuments()}, vocabulary, tmp_path_factory.mktemp("whole") / "cache").directory)


def test_user_error_in_a_process_is_reported_and_leaves_no_files(tmp_path, vocabulary, small_batches):
    with pytest.raises(UserError, match="^that is no text$"):
        build({"text": NumberedDocuments("refuse")}, vocabulary, tmp_path / "new" / "cache", processes=2)
    assert not list(tmp_path.iterdir())


def test_exception_in_a_process_keeps_its_traceback(tmp_path, vocabulary, small_batches):
    with pytest.raises(RuntimeError, match=r"(?s)in a tokenisation worker:\nTraceback.*in sentences.*ZeroDivisionError: a fault"):
        build({"text": NumberedDocuments("fail")}, vocabulary, tmp_path / "cache", processes=2)


def test_output_of_a_corpus_goes_to_stderr(tmp_path, vocabulary, small_batches, capfd, whole):
    built = build({"text": NumberedDocuments("print")}, vocabulary, tmp_path / "cache", processes=2)
    assert contents(built.directory) == whole
    assert "printed by a corpus" in capfd.readouterr().err


def test_killed_process_is_reported_and_the_build_can_be_resumed(tmp_path, vocabulary, small_batches, capsys, whole):
    with pytest.raises(worker_pool.WorkerKilled, match=r"was killed \(SIGKILL\), perhaps because memory ran out"):
        build({"text": NumberedDocuments("kill")}, vocabulary, tmp_path / "cache", processes=1)
    assert not (tmp_path / "cache").exists()
    capsys.readouterr()
    built = build({"text": NumberedDocuments()}, vocabulary, tmp_path / "cache", processes=1)
    line = capsys.readouterr().err.splitlines()[0]
    documents = int(line.removeprefix(f"resuming in {tmp_path / '.cache.partial'}, which has ").partition(" ")[0])
    assert 0 < documents <= 80
    assert contents(built.directory) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


class Stop(BaseException):
    """Exception that ends a build in this process as abruptly as a signal."""


def stop_after(records, monkeypatch, **build_arguments):
    """Stop a build right after, or right before, the journal has been written `records` times."""
    remaining = [records]
    record = BuildFolder.record

    def record_or_stop(*arguments):
        if remaining[0] == 0:
            raise Stop
        remaining[0] -= 1
        record(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(BuildFolder, "record", record_or_stop)
        patch.setattr(builder, "_RECORD_SECONDS", 0.0)
        patch.setattr(builder, "_RECORD_SHARE", 1e9)
        with pytest.raises(Stop):
            build(**build_arguments)


@pytest.fixture
def files(tmp_path):
    """Seven files, of which two are empty and one has a single document."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number, documents in enumerate([30, 0, 1, 80, 5, 0, 60]):
        text = "\n\n".join(f"Document {index} of file {number}.\nIt is about {index * number}." for index in range(documents))
        (folder / f"{number}.txt").write_text(text)
    return TextFiles((str(folder / "*.txt"),), validation_fraction=0.2)


def test_build_resumes_wherever_it_is_stopped(tmp_path, vocabulary, files, monkeypatch):
    """Stop after every single record in turn, with several corpora; the journal, not the files, says how much is finished."""
    monkeypatch.setattr(document_batches, "_CHARACTERS", 600)
    labelled = labelled_files(tmp_path, [["Text", str(number)] for number in range(200)])
    (tmp_path / "words.conll").write_text("".join(f"word\tA\n{number}\tB\n\n" for number in range(200)))
    tagged = TaggedFiles(str(tmp_path / "words.conll"), classes=("A", "B"))
    corpora = {"files": files, "labelled": labelled, "tagged": tagged, "given": NumberedDocuments(documents_in_train=3)}
    whole = contents(build(corpora, vocabulary, tmp_path / "whole").directory)
    tokenised = []
    monkeypatch.setattr(tokenize, "tokenise", lambda *arguments: tokenised.append(len(arguments[2])) or tokenise(*arguments))
    stops = 0
    while not (tmp_path / "cache").exists():
        try:
            stop_after(1, monkeypatch, corpora=corpora, vocabulary=vocabulary, directory=tmp_path / "cache")
        except pytest.fail.Exception:  # the build finished without a stop
            break
        stops += 1
    assert stops > 10 and contents(tmp_path / "cache") == whole
    # A batch is tokenised a second time if the stop came between the files and the journal, and never a third time.
    documents = sum(len(list(corpus.texts(split))) for corpus in corpora.values() for split in ("train", "validation"))
    assert documents <= sum(tokenised) <= 2 * documents


def test_build_of_other_text_starts_over(tmp_path, vocabulary, small_batches, monkeypatch, capsys):
    stop_after(2, monkeypatch, corpora={"text": NumberedDocuments()}, vocabulary=vocabulary, directory=tmp_path / "cache")
    other = {"text": OtherDocuments()}
    assert "resuming" not in capsys.readouterr().err
    built = build(other, vocabulary, tmp_path / "cache")
    assert capsys.readouterr().err.splitlines()[0] == (
        f"starting over in {tmp_path / '.cache.partial'}: the unfinished build was of something else "
        '(fingerprint.corpora.text.kind was "given" and is "other" now)'
    )
    assert contents(built.directory) == contents(build(other, vocabulary, tmp_path / "plain").directory)


class OtherDocuments(NumberedDocuments):
    def texts(self, split):
        return map(list, map(reversed, super().texts(split)))

    def fingerprint(self):
        return {"kind": "other"}


@pytest.mark.parametrize("journal", ["{", "[]", '{"format": 1}'])
def test_build_with_a_damaged_journal_starts_over(tmp_path, vocabulary, small_batches, monkeypatch, journal, whole):
    stop_after(2, monkeypatch, corpora={"text": NumberedDocuments()}, vocabulary=vocabulary, directory=tmp_path / "cache")
    (tmp_path / ".cache.partial" / "journal.json").write_text(journal)
    built = build({"text": NumberedDocuments()}, vocabulary, tmp_path / "cache")
    assert contents(built.directory) == whole


@pytest.mark.parametrize("stopped", ["in-a-split", "at-the-end"])
def test_files_that_do_not_match_the_journal_are_refused(tmp_path, vocabulary, small_batches, monkeypatch, stopped, whole):
    """The same command starts over the second time, as the message says."""
    arguments = {"corpora": {"text": NumberedDocuments()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    if stopped == "in-a-split":
        stop_after(2, monkeypatch, **arguments)
    else:
        stop_in("finish", monkeypatch, **arguments)
    tokens = tmp_path / ".cache.partial/cache/text/train/tokens.bin"
    os.truncate(tokens, 10)
    with pytest.raises(
        UserError,
        match="tokens.bin has 10 bytes where [0-9]+ were written: run the same command again, which starts over$",
    ):
        build(**arguments)
    assert not list(tmp_path.iterdir())
    assert contents(build(**arguments).directory) == whole


def test_unfinished_build_with_a_link_in_it_starts_over(tmp_path, vocabulary, small_batches, monkeypatch, whole):
    arguments = {"corpora": {"text": NumberedDocuments()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    stop_after(2, monkeypatch, **arguments)
    split = tmp_path / ".cache.partial/cache/text/train"
    split.rename(tmp_path / "victim")
    split.symlink_to(tmp_path / "victim")
    before = contents(tmp_path / "victim")
    assert contents(build(**arguments).directory) == whole and contents(tmp_path / "victim") == before


def stop_in(method, monkeypatch, **build_arguments):
    """Stop a build where it would call a method of `BuildFolder`."""

    def stop(*_):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(BuildFolder, method, stop)
        with pytest.raises(Stop):
            build(**build_arguments)


@pytest.mark.parametrize("moment", ["before the cache is in place", "after that", "within the removal"])
def test_build_killed_at_its_end_can_be_repeated(tmp_path, vocabulary, small_batches, monkeypatch, capsys, moment, whole):
    arguments = {"corpora": {"text": NumberedDocuments()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    partial = tmp_path / ".cache.partial"
    if moment == "before the cache is in place":
        stop_in("finish", monkeypatch, **arguments)
    elif moment == "after that":
        stop_in("finish", monkeypatch, **arguments)
        (partial / "cache").rename(tmp_path / "done")
    else:
        stop_after(2, monkeypatch, **arguments)
        removed = []

        def remove(path):
            removed.append(path)
            if len(removed) > 1:
                raise Stop

        with monkeypatch.context() as patch:
            # The process stops after it has removed the first file, whichever that is.
            patch.setattr(shutil, "rmtree", remove)
            patch.setattr(build_folder.Path, "unlink", lambda path, missing_ok=False: remove(path) or os.unlink(path))
            with pytest.raises(Stop):
                BuildFolder(partial).clear()
        assert (partial / "cache").exists() and not (partial / "journal.json").exists()
    capsys.readouterr()
    built = build(**arguments)
    assert ("resuming" in capsys.readouterr().err) == (moment == "before the cache is in place")
    assert contents(built.directory) == whole and not partial.exists()


def test_leftovers_of_a_build_killed_after_placing_its_cache_are_removed(tmp_path, vocabulary, small_batches, monkeypatch, whole):
    arguments = {"corpora": {"text": NumberedDocuments()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    partial = tmp_path / ".cache.partial"
    stop_in("finish", monkeypatch, **arguments)
    shutil.copytree(partial, tmp_path / "kept")
    build(**arguments)
    shutil.copytree(tmp_path / "kept", partial)
    with locks.hold(partial):
        assert contents(build(**arguments).directory) == whole
        assert partial.exists(), "the process that is at it removes it"
    assert contents(build(**arguments).directory) == whole
    assert not partial.exists()


def test_build_with_a_lost_vocabulary_starts_over(tmp_path, vocabulary, small_batches, monkeypatch, capsys, whole):
    """Remove the files that a power cut may lose."""
    arguments = {"corpora": {"text": NumberedDocuments()}, "vocabulary": vocabulary, "directory": tmp_path / "cache"}
    stop_after(2, monkeypatch, **arguments)
    (tmp_path / ".cache.partial/cache/vocab/tokenizer.json").unlink()
    (tmp_path / ".cache.partial/cache/vocab/vocab.txt").unlink()
    built = build(**arguments)
    assert "resuming" not in capsys.readouterr().err
    assert contents(built.directory) == whole


def test_all_files_are_synced_before_the_cache_is_in_place(tmp_path, vocabulary, monkeypatch):
    """Sync every file and folder of the cache first, and its parent folder after the rename."""
    synced, replaced = {}, {}
    fsync, replace = os.fsync, os.replace

    def record_sync(handle):
        synced[os.readlink(f"/proc/self/fd/{handle}")] = len(synced)
        fsync(handle)

    def record_replace(old, new):
        replaced[str(new)] = set(synced)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    cache = tmp_path / "cache"
    build({"text": NumberedDocuments(documents_in_train=3)}, vocabulary, cache)
    partial = tmp_path / ".cache.partial" / "cache"
    before = replaced[str(cache)]
    assert {str(partial / path.relative_to(cache)) for path in (cache, *cache.rglob("*")) if path.name != "cache.json"} <= before
    assert str(partial / "cache.json") in before and str(tmp_path) in synced and str(tmp_path) not in before


def test_text_that_changes_during_the_build_is_refused(tmp_path, vocabulary, files, monkeypatch):
    path = tmp_path / "text" / "3.txt"
    finish = Progress.finish

    def finish_and_change(progress, counts):
        finish(progress, counts)
        path.write_text(path.read_text().replace("Document", "document"))

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Progress, "finish", finish_and_change)
    with pytest.raises(UserError) as raised:
        build({"text": files}, vocabulary, tmp_path / "cache")
    assert re.fullmatch(
        r"the text changed while it was tokenised \(corpora\.text\.train\[3\.txt\]\.sha256 was .* and is .* now\): run the same "
        "command again",
        str(raised.value),
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("exists", [True, False])
def test_cache_is_placed_at_the_target_of_a_link(tmp_path, vocabulary, exists):
    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk" / "place")
    if exists:
        (tmp_path / "disk" / "place").mkdir()
    built = build({"text": NumberedDocuments(documents_in_train=3)}, vocabulary, tmp_path / "cache")
    assert built.counts("train")["documents"] == 3 and (tmp_path / "cache").is_symlink()
    assert os.listdir(tmp_path / "disk") == ["place"]


class Panic(BaseException):
    """Exception like a panic of a library written in Rust."""


@pytest.mark.parametrize("processes", [0, 1])
def test_panic_is_reported_with_the_document(tmp_path, vocabulary, small_batches, processes):
    error = RuntimeError if processes else Panic
    with pytest.raises(error) as raised:
        build({"text": NumberedDocuments("panic")}, vocabulary, tmp_path / "cache", processes=processes)
    report = "".join(traceback.format_exception(raised.value))
    assert "Panic: no character boundary" in report
    assert "in the document that begins with 'Sentence 0 of document 80.'" in report


def test_concurrent_builds_make_one_cache(tmp_path, vocabulary, small_batches, monkeypatch):
    """The second build waits for the first, then uses its cache or reports the difference."""
    is_finishing, release = threading.Event(), threading.Event()
    finish = BuildFolder.finish

    def slow(*arguments):
        is_finishing.set()
        release.wait(FAR_SECONDS)
        finish(*arguments)

    monkeypatch.setattr(BuildFolder, "finish", slow)
    stderr = io.StringIO()  # capsys would lose what a thread writes while another reads
    monkeypatch.setattr(sys, "stderr", stderr)
    results = {}

    def run(name, corpus):
        try:
            results[name] = build({"text": corpus}, vocabulary, tmp_path / "cache")
        except UserError as error:
            results[name] = error

    threads = [threading.Thread(target=run, args=("first", NumberedDocuments()))]
    threads[0].start()
    assert is_finishing.wait(FAR_SECONDS)
    for name, corpus in (("second", NumberedDocuments()), ("other", OtherDocuments())):
        threads.append(threading.Thread(target=run, args=(name, corpus)))
        threads[-1].start()
    waiting = f"which writes {tmp_path / 'cache'}"
    deadline = time.monotonic() + FAR_SECONDS
    while stderr.getvalue().count(waiting) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    release.set()
    for thread in threads:
        thread.join(FAR_SECONDS)
    assert stderr.getvalue().count("tokenising train") == 1
    assert isinstance(results["first"], TokenCache) and isinstance(results["second"], TokenCache)
    assert 'corpora.text.kind was "given" and is "other" now' in str(results["other"])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_writer_resumes_after_its_counts(tmp_path):
    """Cut off the data after the counts; files of another writer can be appended."""
    corpus = TextFiles("a.txt")
    first = Block(np.arange(5, dtype=np.uint16), np.array([2, 3]), np.array([1, 1]), 1, words=4, bytes=30)
    second = Block(np.arange(7, dtype=np.uint16), np.array([1, 4, 2]), np.array([3]), 0, words=6, bytes=40)
    whole = SplitWriter(tmp_path / "whole", "uint16", Counts(), corpus)
    whole.append(first)
    after_first = whole.counts
    whole.append(second)
    whole.close()
    assert whole.counts == Counts(documents=3, sentences=5, tokens=12, skipped_documents=1, words=10, bytes=70)
    resumed = SplitWriter(tmp_path / "whole", "uint16", after_first, corpus)
    resumed.append(second)
    resumed.close()
    starts = np.fromfile(tmp_path / "whole/sentence_starts.bin", np.int64)
    assert starts.tolist() == [0, 2, 5, 6, 10, 12]
    assert np.fromfile(tmp_path / "whole/sentence_starts.offsets.bin", np.int64).tolist() == [0, 1, 2, 5]
    assert np.fromfile(tmp_path / "whole/tokens.offsets.bin", np.int64).tolist() == [0, 2, 5, 12]
    assert np.fromfile(tmp_path / "whole/tokens.bin", np.uint16).tolist() == [*range(5), *range(7)]
    joined = SplitWriter(tmp_path / "joined", "uint16", Counts(), corpus)
    for name, block in (("a", first), ("b", second)):
        part = SplitWriter(tmp_path / name, "uint16", Counts(), corpus)
        part.append(block)
        part.close()
        joined.append_files(tmp_path / name, part.counts)
    joined.close()
    assert joined.counts == whole.counts and contents(tmp_path / "joined") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("text", "counts"),
    [("one sentence", (1, 1, 1)), ("one\ntwo\n\n", (1, 2, 2)), ("a b\n\nc", (2, 2, 3))],
)
def test_smallest_corpora(tmp_path, vocabulary, text, counts):
    (tmp_path / "a.txt").write_text(text)
    cache = build({"text": TextFiles(str(tmp_path / "a.txt"), validation_fraction=0.0)}, vocabulary, tmp_path / "cache")
    cache_counts = cache.counts("train")
    assert (cache_counts["documents"], cache_counts["sentences"]) == counts[:2] and cache_counts["tokens"] >= counts[2]
    documents = cache.documents("validation", "text")
    assert len(documents) == 0 and len(documents.tokens) == 0 and json.loads((tmp_path / "cache/cache.json").read_text())


def test_terminal_shows_the_remaining_time(monkeypatch, capsys):
    """Half of 300 bytes were 600 characters, so 600 more remain, at 100 a second."""
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

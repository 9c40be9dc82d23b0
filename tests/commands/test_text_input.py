"""Text as people bring it, through the command line: what must work, and one line for what is wrong."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import zstandard
from command_line import in_process
from pyarrow import parquet

from bertfam import cli
from bertfam.data.token_cache.cache import TokenCache
from bertfam.storage.credentials import check_address

pytestmark = pytest.mark.usefixtures("caches_in_process")
TEXT = "The cat saw the café.\nIt sat.\n\nTwo birds sang.\n\nThe dog barked at the cat.\nIt ran.\nIt sat.\n"
LONG = random.Random(0).randbytes(999).hex() + "\n"  # also when it is compressed


def table(columns):
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), sink)
    return sink.getvalue().to_pybytes()


# Name -> bytes of the file "a", flags, beginning of the message after "a".
BAD_FILES = {
    "empty": (b"", [], ": no document"),
    "blank documents": (b"\n  \n\t\r\n\r\n\n", [], ": no document"),
    "latin-1": (TEXT.encode("latin-1"), [], ":1: not UTF-8 at byte offset 19; "),
    "cut off in a character": (TEXT.encode() + b"\xc3", [], f":9: not UTF-8 at byte offset {len(TEXT) + 1}; "),
    "utf-16": (TEXT.encode("utf-16"), [], ":1: not UTF-8 at byte offset 0; "),
    "nul": (b"One.\n\nTwo\0.\n", [], ":3: a NUL character; "),
    "long line": (
        b"One.\n" + b"word " * 7_000_000,
        [],
        ":2: a line longer than 33,554,432 characters; ",
    ),
    "gzip cut off": (gzip.compress(LONG.encode())[:-30], [], ": the gzip file is truncated"),
    "zstd cut off": (zstandard.compress(LONG.encode())[:-30], [], ": the zstd file is truncated"),
    "json without the field": (
        b'{"text": "One."}\n{"id": 1, "body": "Two."}\n',
        ["--input_format=jsonl"],
        ":2: no field 'text' but id, body; ",
    ),
    "json field that is no string": (
        b'{"text": "One."}\n{"text": ["Two."]}\n',
        ["--input_format=jsonl"],
        ":2: the field 'text' is a list, not a string; ",
    ),
    "broken json": (
        b'{"text": "One."}\n{"text": "Two."\n',
        ["--input_format=jsonl"],
        ":2: not JSON (Expecting ',' delimiter); ",
    ),
    "parquet without the column": (
        table({"id": [1], "body": ["One."]}),
        ["--input_format=parquet"],
        ": no column 'text' but id, body; ",
    ),
    "parquet cut off in the middle": (
        table({"text": [LONG] * 9})[:400],
        ["--input_format=parquet"],
        ": not a Parquet file, or damaged after row 0; ",
    ),
    "broken parquet": (
        table({"text": ["One."]})[:-9],
        ["--input_format=parquet"],
        ": not a Parquet file, or damaged after row 0; ",
    ),
}
# Name -> flags, message.
BAD_NAMES = {
    "missing": (["--input=none.txt"], "no such file: none.txt (in {})"),
    "glob without match": (["--input=*.none"], "no file matches *.none (in {})"),
    "folder": (["--input=folder"], "folder is a folder; name the files in it, for example folder/*.txt"),
    "dangling link": (["--input=link.txt"], "link.txt is a link to nowhere, which does not exist"),
    "glob of a dangling link": (["--input=l*.txt"], "link.txt is a link to nowhere, which does not exist"),
    "file in a file": (["--input=good.txt/a.txt"], "no such file: good.txt/a.txt (in {})"),
    "device": (["--input=/dev/null"], "/dev/null is a pipe or device, but text is read more than once; write it to a file first"),
    "link to itself": (["--input=loop.txt"], "loop.txt cannot be read: Too many levels of symbolic links"),
    "glob of a link to itself": (["--input=lo*.txt"], "loop.txt cannot be read: Too many levels of symbolic links"),
    "encoding that is none of files": (
        ["--input=good.txt", "--encoding=utf-7"],
        "TextFiles: encoding 'utf-7' is unknown; use a Python codec, such as utf-8, utf-16, latin-1, cp1252, gb18030 or "
        "shift_jis (TextFiles.encoding from --encoding=utf-7)",
    ),
    "encoding": (
        ["--input=good.txt", "--encoding=utf-9"],
        "TextFiles: encoding 'utf-9' is unknown; use a Python codec, such as utf-8, utf-16, latin-1, cp1252, gb18030 or "
        "shift_jis (TextFiles.encoding from --encoding=utf-9)",
    ),
    "field of plain text": (
        ["--input=good.txt", "--text_field=body"],
        "TextFiles: text_field 'body' goes with jsonl and parquet: sentences has no fields (TextFiles.text_field from "
        "--text_field=body)",
    ),
    "encoding of parquet": (
        ["--input=good.txt", "--encoding=latin-1", "--input_format=parquet"],
        "TextFiles: encoding 'latin-1' does not go with parquet, whose strings are UTF-8 (TextFiles.encoding from "
        "--encoding=latin-1)",
    ),
    "password": (
        ["--input=s3://AKID:SEC/RET@bucket/*.txt"],
        "s3://***@bucket/*.txt: an address with a password would stand in logs and files: leave it out, and set "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them into ~/.aws/credentials",
    ),
    "signed address": (
        ["--input=https://host/a.txt?v=1&X-Amz-Signature=SECRET&t=2"],
        "https://host/a.txt?X-Amz-Signature=***: an address with a key would stand in logs and files: leave it out, and download "
        "the file first",
    ),
    "token of a web server in a configuration": (
        ["--gin.corpus/TextFiles.train=('https://SECRET@host:8080/a.txt',)", "--gin.TextData.corpus=@corpus/TextFiles()"],
        "https://***@host:8080/a.txt: an address with a password would stand in logs and files: leave it out, and download the "
        "file first",
    ),
    "encoding of a task": (
        ["--task=python_docs", "--encoding=latin-1"],
        "--encoding says how --input is read: it does not go with --task=python_docs",
    ),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.txt").symlink_to("nowhere")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "good.txt").write_text(TEXT)
    assert cli.main(["vocab", "--input=good.txt", "--size=60", "--min_frequency=1", "--output=vocab"]) == 0
    return tmp_path


def listing(folder):
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def refused(folder, capfd):
    """What a command says; nothing is written."""

    def run(*words):
        before = listing(Path())
        capfd.readouterr()
        status = cli.main([*words, "--output=out"])
        output = capfd.readouterr()
        assert (status, output.out) == (2, "") and listing(Path()) == before
        return output.err

    return run


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(folder, refused, name):
    data, flags, message = BAD_FILES[name]
    (folder / "a").write_bytes(data)
    said = refused("vocab", "--input=a", *flags)
    assert said.startswith(f"bertfam: error: a{message}") and said.count("\n") == 1
    assert refused("cache", "--input=a", "--vocab=vocab", *flags) == said


def test_a_bad_file_in_a_process_of_its_own(folder):
    (folder / "a").write_bytes(b"\xff")
    before = listing(folder)
    for words in (["vocab"], ["cache", "--vocab=vocab"]):
        command = [sys.executable, "-m", "bertfam", *words, "--input=a", "--output=out"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "") and listing(folder) == before
        assert done.stderr.startswith("bertfam: error: a:1: not UTF-8 at byte offset 0; ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_and_flags(folder, refused, name):
    flags, message = BAD_NAMES[name]
    assert refused("vocab", *flags) == f"bertfam: error: {message.replace('{}', str(folder))}\n"


def test_a_file_beside_its_compressed_copy_is_named_once(folder, capfd):
    (folder / "copy.txt").write_text(TEXT)
    (folder / "copy.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    capfd.readouterr()
    assert cli.main(["cache", "--vocab=vocab", "--input=good.txt", "--input=copy*", "--output=cache"]) == 0
    (warning,) = (line for line in capfd.readouterr().err.splitlines() if "warning" in line)
    assert warning.startswith("bertfam: warning: copy.txt and copy.txt.gz are both read: ")


@pytest.mark.parametrize("address", ["https://h:8080/a@b.txt?v=1", "abfs://box@account/a", "sftp://me@host/a", "s3://b/a:b@c"])
def test_addresses_without_a_password(address):
    check_address(address)


@pytest.fixture
def without_rights(folder):
    """This process may not read what its user has not been given; the superuser may read everything."""
    if user := os.geteuid():
        yield
        return
    folder.chmod(0o777)
    try:
        os.seteuid(65534)
    except OSError:
        pytest.skip("this process cannot give up its rights")
    yield
    os.seteuid(user)


@pytest.mark.parametrize("format", ["sentences", "jsonl", "parquet"])
def test_a_file_that_may_not_be_read(folder, refused, request, format):
    (folder / "a").write_bytes(table({"text": ["One."]}))
    (folder / "a").chmod(0)
    (folder / "folder").chmod(0)
    request.getfixturevalue("without_rights")
    for name in ("a", "folder/a"):
        message = f"bertfam: error: {name} cannot be read: Permission denied\n"
        assert refused("vocab", f"--input={name}", f"--input_format={format}") == message
        assert refused("cache", f"--input={name}", f"--input_format={format}", "--vocab=vocab") == message


TOO_LITTLE = (
    "the corpus has 1 training document and its rows need at least 2; separate documents by blank lines, or choose another "
    "--input_format"
)
NO_TOKEN = "the corpus has no training document with any token in it; give more text"
# Name -> text, message of what makes rows of it.
TOO_SMALL = {
    "one sentence": ("One sentence.", TOO_LITTLE),
    "one sentence and joiners": ("\u200d\n\nOne sentence.\n\u200d\n", TOO_LITTLE),
    "joiners": ("\u200d\n\n\u200d\n\u200d\n", NO_TOKEN),
}


@pytest.mark.parametrize("name", TOO_SMALL)
def test_text_that_is_too_little_for_pairs(refused, folder, name):
    text, message = TOO_SMALL[name]
    (folder / "a").write_text(text)
    (*progress, last) = refused("cache", "--input=a", "--vocab=vocab").splitlines()
    assert last == f"bertfam: error: {message}" and [line.split(":")[0] for line in progress] == [
        "tokenising train",
        "tokenising validation",
    ]


def test_joiners_alone_in_preview(folder, capfd):
    """Lines of zero-width joiners are no sentences; without any other there is nothing to show."""
    (folder / "a").write_text("\u200d\n\n" + TEXT.replace("\n\n", "\n\u200d\n\n\u200d\n\n"))
    words = ["preview", "--vocab=vocab", "--length=16", "--examples=2", "--json"]
    assert cli.main(["cache", "--vocab=vocab", "--input=good.txt", "--output=cache"]) == 0
    capfd.readouterr()
    assert cli.main([*words, "--cache_dir=cache"]) == 0
    expected = capfd.readouterr().out
    assert cli.main([*words, "--input=a"]) == 0
    output = capfd.readouterr()
    assert len(json.loads(output.out)) == 2 and output.out == expected and ", 3 skipped, " in output.err
    (folder / "a").write_text("\u200d\n\n\u200d\n")
    before = listing(folder)
    with pytest.raises(SystemExit, match="^2$"):  # the process that builds the cache has told it
        cli.main([*words, "--input=a"])
    output = capfd.readouterr()
    assert (output.out, output.err.splitlines()[-1]) == ("", f"bertfam: error: {NO_TOKEN}") and listing(folder) == before


def test_a_vocabulary_without_mask(folder, refused):
    (folder / "poor").mkdir()
    (folder / "poor" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\ncat\n")
    assert refused("cache", "--input=good.txt", "--vocab=poor") == (
        "bertfam: error: poor/vocab.txt: the vocabulary has no [MASK]: it needs all of [PAD] [UNK] [CLS] [SEP] [MASK]\n"
    )


def test_a_file_that_was_good_before_leaves_the_cache_as_it_was(folder):
    words = ["cache", "--vocab=vocab", "--output=cache", "--input=a"]
    (folder / "a").write_text(TEXT)
    assert cli.main(words) == 0
    (folder / "a").write_bytes(b"\xff")
    before = listing(folder)
    assert cli.main(words) == 2 and listing(folder) == before


def contents(cache):
    """Every array of a cache, by split and name."""
    return {
        (split, name): np.asarray(getattr(cache.documents(split, "text"), name))
        for split in ("train", "validation")
        for name in ("tokens", "sentence_starts", "sentence_bounds")
    }


def test_the_same_text_however_it_is_written(folder):
    lines = TEXT.split("\n\n")
    odd = "\u200d\n\n" + TEXT.replace("\n\n", "\n\u200d\n\x01\x02\n\n\ufeff\n\n") + "\n\u200d\n\x0b\n"
    fields = [line.replace("\n", "\r\n") for line in lines]
    written = {
        "final newline": (TEXT.encode(), []),
        "none": (TEXT.rstrip("\n").encode(), []),
        "blank of spaces": (TEXT.replace("\n\n", "\n  \n").encode(), []),
        "crlf": (TEXT.replace("\n", "\r\n").encode(), []),
        "cr": (TEXT.replace("\n", "\r").encode(), []),
        "mark": (TEXT.encode("utf-8-sig"), []),
        "gzip": (gzip.compress(TEXT.encode()), []),
        "zstd": (zstandard.compress(TEXT.encode()), []),
        "latin-1": (TEXT.encode("latin-1"), ["--encoding=latin-1"]),
        "utf-16": (gzip.compress(TEXT.encode("utf-16")), ["--encoding=UTF-16"]),
        "jsonl": ("\n".join(json.dumps({"t": line}) for line in fields).encode(), ["--text_field=t", "--input_format=jsonl"]),
        "parquet": (table({"t": fields}), ["--text_field=t", "--input_format=parquet"]),
        "lines without tokens": (odd.encode(), []),
    }
    expected = None
    for name, (data, flags) in written.items():
        (folder / "a").write_bytes(data)
        assert cli.main(["cache", "--vocab=vocab", f"--output={name}", "--input=a", *flags]) == 0
        found = contents(TokenCache(Path(name)))
        expected = expected or found
        assert len(expected["train", "sentence_bounds"]) == 4
        for key, value in found.items():
            np.testing.assert_array_equal(value, expected[key], err_msg=f"{name} {key}")


@pytest.mark.parametrize("command", ["vocab", "cache"])
def test_help_explains_text(command):
    said = " ".join(in_process(command, "--help").stdout.split())
    for words in (
        "compressed by gzip or zstd",
        "one paragraph per line, split into sentences",
        "one JSON object per line",
        "one document per row",
        "--text_field NAME",
        "--encoding NAME",
        "wiki40b_en",
    ):
        assert words in said

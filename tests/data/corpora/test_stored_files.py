"""Text in buckets and behind other protocols: the same documents as from a disk, several files at once."""

import contextlib
import errno
import gzip
import http.server
import json
import sys
import threading
import typing
from types import SimpleNamespace

import fake_bucket
import fsspec
import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from bertfam import cli
from bertfam.data.corpora import document_batches
from bertfam.data.corpora.read_ahead import read_in_order
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import STORAGE_FAULT, TransientError, UserError
from bertfam.storage import streams
from bertfam.storage.paths import to_path

TEXTS = [f"The cat number {number} sat.\nIt slept.\n\nThe dog number {number} ran.\n" for number in range(12)]


def put(address, content):
    with fsspec.open(address, "wb", **({"token": "anon"} if address.startswith("gs://") else {})) as file:
        file.write(content)


@pytest.fixture(scope="module")
def folders(bucket, tmp_path_factory):
    """Return a local folder and one in the bucket with the same files, of many kinds."""
    here, there = tmp_path_factory.mktemp("texts"), f"{bucket}/texts"
    to_path(there)  # configures gcsfs
    table = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": TEXTS}), table)
    files = {f"plain/{number:02}.txt": text.encode() for number, text in enumerate(TEXTS)}
    files |= {f"gzip/a/{number:02}.txt.gz": gzip.compress(text.encode()) for number, text in enumerate(TEXTS)}
    files |= {f"zstd/{number:02}.txt.zst": zstandard.compress(text.encode()) for number, text in enumerate(TEXTS)}
    files["lines.jsonl"] = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
    files["table.parquet"] = table.getvalue().to_pybytes()
    files["damaged.txt.gz"] = gzip.compress(TEXTS[0].encode())[:-9]
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
        put(f"{there}/{name}", content)
    return here, there


@pytest.mark.parametrize(
    ("pattern", "settings"),
    [
        ("plain/*.txt", {}),
        ("gzip/**/*.gz", {}),
        ("zstd/[01][0-9].txt.zst", {}),
        ("lines.jsonl", {"input_format": "jsonl"}),
        ("table.parquet", {"input_format": "parquet"}),
    ],
)
def test_documents_are_those_of_local_files(folders, pattern, settings):
    here, there = (TextFiles(f"{folder}/{pattern}", validation_fraction=0.3, **settings) for folder in folders)
    for split in ("train", "validation"):
        expected = list(here.documents(split))
        assert expected and list(there.documents(split)) == expected
        assert [part.size for part in there.parts(split)] == [part.size for part in here.parts(split)]
        assert [text for part in there.parts(split) for text in there.part(split, part)] == list(here.texts(split))


def test_fingerprint_changes_with_the_object(folders, bucket):
    address = f"{bucket}/changing/a.txt"
    put(address, b"One.")
    first = TextFiles(address).fingerprint()
    assert first == TextFiles(address).fingerprint() and first["train"][0]["size"] == 4
    put(address, b"Two.")
    assert TextFiles(address).fingerprint() != first


def test_any_protocol_of_fsspec_works():
    for name, text in (("b", "Two."), ("a", "One.")):
        put(f"memory://stored/{name}.txt", text.encode())
    corpus = TextFiles("memory://stored/*.txt", validation_fraction=0.0)
    assert list(corpus.documents("train")) == [["One."], ["Two."]] and corpus.fingerprint()["train"][0]["version"]


class PlainServer(http.server.BaseHTTPRequestHandler):
    """Web server without ranges, like that of Python; chunked.txt has no known length."""

    protocol_version = "HTTP/1.1"
    files: typing.ClassVar = {}

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        content, is_chunked = self.files[self.path], self.path == "/chunked.txt"
        self.send_response(200)
        name, value = ("Transfer-Encoding", "chunked") if is_chunked else ("Content-Length", len(content))
        self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):  # the client closes the connection once it knows enough
                self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content) if is_chunked else content)

    def log_message(self, *args):
        pass


def test_web_servers_without_ranges(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_BLOCK", 1000)
    text = "".join(f"{text}\n" for text in TEXTS * 200).encode()
    (tmp_path / "a.txt").write_bytes(text)
    expected = list(TextFiles(str(tmp_path / "a.txt")).texts("train"))
    table = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": TEXTS * 1000}), table)
    PlainServer.files = {"/a.txt": text, "/chunked.txt": text, "/a.txt.gz": gzip.compress(text)}
    PlainServer.files["/a.parquet"] = table.getvalue().to_pybytes()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), PlainServer) as server:
        monkeypatch.setattr(server, "handle_error", lambda *args: None)  # connections that the client has closed
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for name in ("a.txt", "chunked.txt", "a.txt.gz"):
            assert list(TextFiles(f"{address}/{name}").texts("train")) == expected
        with pytest.raises(UserError, match=f"{address}/a.parquet: .*no ranges; download the file"):
            list(TextFiles(f"{address}/a.parquet", input_format="parquet").texts("train"))
        server.shutdown()


class FaultyServer(http.server.BaseHTTPRequestHandler):
    """Web server that answers NUMBER.txt with that status; its other pages are an index with a dead link."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        name = self.path.rpartition("/")[2].removesuffix(".txt")
        self.send_response(int(name) if name.isdecimal() else 200)
        self.end_headers()
        if self.command == "GET" and not name.isdecimal():
            self.wfile.write(b'<a href="404.txt">')

    def log_message(self, *args):
        pass


def test_statuses_of_web_servers_are_mistakes_or_may_pass():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FaultyServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        for status, kind, words in (
            (404, UserError, "no such file"),
            (410, UserError, "no such file"),
            (401, UserError, "HTTP 401, no permission"),
            (403, UserError, "HTTP 403, no permission"),
            (451, UserError, "HTTP 451"),
            (429, TransientError, "HTTP 429"),
            (503, TransientError, "HTTP 503"),
            (520, TransientError, "HTTP 520"),
        ):
            address = f"{root}/{status}.txt"
            for read in (lambda name: list(TextFiles(name).texts("train")), lambda name: streams.open_binary(name).read()):
                with pytest.raises((UserError, TransientError)) as refusal:
                    read(address)
                line = str(refusal.value)
                assert type(refusal.value) is kind and words in line and address in line and "\n" not in line, line
        with pytest.raises(UserError, match=f"no such file: {root}/links/404.txt"):  # a dead link
            list(TextFiles(f"{root}/links/*.txt").texts("train"))
        server.shutdown()


class LinkingServer(http.server.BaseHTTPRequestHandler):
    """Web server whose index links to texts beside the folder, and above it."""

    LINKS = (
        "a.txt",
        "sub/b.txt",
        "../secret/c.txt",
        "%2e%2e/secret/d.txt",
        "./../secret/e.txt",
        "/secret/f.txt",
        "/corpus-old/g.txt",
    )

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.command == "GET":
            links = "".join(f'<a href="{link}">' for link in self.LINKS) if self.path.rstrip("/") == "/corpus" else "Text."
            self.wfile.write(links.encode())

    def log_message(self, *args):
        pass


def test_links_of_an_index_stay_in_the_folder_of_the_glob():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), LinkingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}/corpus"
        for pattern, names in (("*.txt", ["a.txt"]), ("**/*.txt", ["a.txt", "sub/b.txt"])):
            found = [file.address for file in streams.find_stored(f"{root}/{pattern}")]
            assert found == [f"{root}/{name}" for name in names], pattern
        server.shutdown()


class RedirectingServer(http.server.BaseHTTPRequestHandler):
    """Web server that sends circle.txt to itself, and file.txt to a file of the client."""

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "file:///etc/passwd" if self.path == "/file.txt" else self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


def test_addresses_that_lead_nowhere_are_mistakes(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RedirectingServer) as server:
        monkeypatch.setattr(server, "handle_error", lambda *args: None)  # TLS in place of a request
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        for address, words in (
            (f"http://127.0.0.1:{port}/circle.txt", "sends from one address to another without end"),
            (f"http://127.0.0.1:{port}/file.txt", "file:///etc/passwd"),
            (f"https://127.0.0.1:{port}/a.txt", "without TLS"),
            ("http://name.invalid/a.txt", "its server has no address here"),
            ("http://[::1/a.txt", "is no address of a web server"),
            ("https://127.0.0.1:99999/a.txt", "is no address of a web server"),
            ("http:///a.txt", "is no address of a web server (no server)"),
        ):
            with pytest.raises(UserError) as refusal:
                list(TextFiles(address).texts("train"))
            assert words in str(refusal.value) and address in str(refusal.value), refusal.value
        server.shutdown()


def test_a_web_server_has_no_limit_on_the_time_of_a_file():
    timeout = streams._filesystem("https://example.com/a.txt")[0].client_kwargs["timeout"]
    assert timeout.total is None and timeout.sock_read == 60


def test_what_cannot_be_read_is_one_line(folders, monkeypatch):
    _, there = folders
    monkeypatch.setitem(sys.modules, "s3fs", None)  # not installed
    for pattern, words in (
        (f"{there}/none.txt", f"no such file: {there}/none.txt"),
        (f"{there}/*.none", f"no file matches {there}/*.none"),
        (f"{there}/plain", f"{there}/plain is a folder"),
        (f"{there}/**.txt", f"{there}/**.txt: ** is a whole part of an address"),
        (f"{there}/damaged.txt.gz", f"{there}/damaged.txt.gz: the gzip file is truncated"),
        (f"gs://{fake_bucket.LOCKED}/a.txt", "no permission"),
        ("gs://nowhere/a.txt", "there is no bucket gs://nowhere"),
        ("s3://bucket/a.txt", "pip install 'bertfam[s3]'"),
        ("nothing://a.txt", "Protocol not known: nothing"),
        ("https://[", "https://["),
        ("http://127.0.0.1:1/a.txt", "http://127.0.0.1:1/a.txt cannot be read"),
        ("gs:/bucket/a.txt", "write gs://bucket/a.txt"),
        ("s3:bucket/a.txt", "write s3://bucket/a.txt"),
        ("github://a.txt", "github://a.txt"),
        ("gs://a\x00b/a.txt", "cannot be printed"),
        ("file:///dev/null", "/dev/null is a pipe or device"),
    ):
        with pytest.raises((UserError, TransientError)) as refusal:
            list(TextFiles(pattern).texts("train"))
        assert words in str(refusal.value) and "\n" not in str(refusal.value), pattern


def test_files_are_read_at_once_and_in_order():
    meeting = threading.Barrier(3, timeout=300)  # passed only by three readers together

    def reader(number):
        meeting.wait()
        yield [f"{number}"]
        if number == 2:
            raise UserError("no more")

    found = []
    with pytest.raises(UserError, match="no more"):
        for documents in read_in_order([lambda number=number: reader(number) for number in range(3)], ahead=True):
            found += documents
    assert found == [["0"], ["1"]] or found == [["0"], ["1"], ["2"]]
    many = [lambda number=number: iter([[f"{number}"]]) for number in range(30)]
    assert [document for documents in read_in_order(many, ahead=True) for document in documents] == [
        [f"{number}"] for number in range(30)
    ]


def test_vocabulary_and_cache_of_a_bucket_resume_and_equal_local_ones(folders, bucket, tmp_path, monkeypatch, capsys):
    here, there = folders
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(document_batches, "_CHARACTERS", 10_000)
    long = "\n\n".join(f"Sentence {number} of a long text." for number in range(1_000))  # more than two batches
    (here / "plain" / "00.txt").write_text(long)
    put(f"{there}/plain/00.txt", long.encode())
    for name, folder in (("here", here), ("there", there)):
        assert cli.main(["vocab", f"--input={folder}/plain/1*.txt", "--size=70", f"--output=vocab-{name}"]) == 0
    assert (tmp_path / "vocab-here/vocab.txt").read_bytes() == (tmp_path / "vocab-there/vocab.txt").read_bytes()
    cache = ["cache", "--vocab=vocab-here", "--processes=0"]
    assert cli.main([*cache, f"--input={here}/plain/*.txt", "--output=here"]) == 0

    build = [*cache, f"--input={there}/plain/*.txt", "--output=there"]
    with monkeypatch.context() as patch:  # the store fails once, after the first file
        plain = streams._Stream.readinto

        def fail(self, buffer):
            if self._address.endswith("/07.txt"):
                self._file = SimpleNamespace(read=reset, close=lambda: None)
            return plain(self, buffer)

        def reset(size):
            raise ConnectionResetError(errno.ECONNRESET, "the store is gone")

        patch.setattr(streams._Stream, "readinto", fail)
        capsys.readouterr()
        assert cli.main(build) == STORAGE_FAULT
    assert f"Connection reset by peer: {there}/plain/07.txt cannot be read; " in capsys.readouterr().err
    assert cli.main(build) == 0
    assert "resuming in" in capsys.readouterr().err
    names = [path.relative_to("here") for path in TokenCache("here").directory.rglob("*.bin")]
    assert names and all((tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes() for name in names)
    assert cli.main(build) == 0 and "built already" in capsys.readouterr().out
    check = ["check", "--gin_file=runs/quickstart_bert.gin", "--vocab=vocab-here", f"--input={there}/plain/*.txt"]
    assert cli.main([*check, "--gin.Stage.length=32"]) == 0

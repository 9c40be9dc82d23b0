"""Local substitute for Google Cloud Storage: the package's handlers on a server that takes many requests at once.

`python fake_bucket.py [SECONDS]` prints its address and serves until its stdin ends, each request after so many seconds. All
access to the bucket "locked" is forbidden. `faults` makes it refuse some requests.
"""

import functools
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage

BUCKET, LOCKED = "bucket", "locked"


def read_data(request_handler, query, package=server._read_data):
    """Read data as the package does, but the exact bytes of a multipart upload, from which its parser strips a final CR."""
    kind = request_handler.headers.get("Content-Type") or ""
    match = re.fullmatch(r"""multipart/related; *boundary=['"]?([^'"]+)['"]?""", kind)
    if not match:
        return package(request_handler, query)
    boundary = b"--" + match[1].encode()
    body = server._read_raw_data(request_handler)
    end = b"\r\n" if body.partition(boundary)[2].startswith(b"\r\n") else b"\n"
    _, meta, content, *_ = (end + body).split(end + boundary)
    (_, _, meta), (head, _, content) = (part.partition(end + end) for part in (meta, content))
    kind = re.search(rb"content-type: *([^\s;]+)", head, re.IGNORECASE)
    return {"meta": json.loads(meta), "content": content, "content-type": kind[1].decode() if kind else None}


server._read_data = read_data
# With each change the package writes the metadata of all objects, which nobody reads from a store in memory.
Storage._write_config_to_file = lambda storage: None


@functools.lru_cache(maxsize=8)
def read_content(storage, bucket, name, generation, package=Storage.get_file):
    """Read an object once for many requests for ranges of it."""
    return package(storage, bucket, name)


def read_file(storage, bucket, name, show_error=True, package=Storage.get_file):
    try:
        generation = storage.get_file_obj(bucket, name)["generation"]
    except NotFound:  # the parts of an upload, which grow
        return package(storage, bucket, name, show_error)
    return read_content(storage, bucket, name, generation)


Storage.get_file = read_file


class Handler(RequestHandler):
    """Handler with what TensorStore relies on: generations of objects, and requests that depend on them."""

    lock = threading.Lock()  # the package's storage handles one request at a time
    generation = None
    faults: dict = {}  # the arguments of `faults`, as strings
    random = random.Random(0)
    delay_seconds = 0.0
    downloads: list = []  # object, first byte, end, of each request for content

    def answer(self, method):
        if self.path.startswith("/faults"):
            type(self).faults = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            self.refuse(200)
            return
        if self.path == "/downloads":
            content = json.dumps(self.downloads).encode()
            self.downloads.clear()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        time.sleep(self.delay_seconds)
        if f"/b/{LOCKED}/" in self.path:
            self.refuse(403)
            return
        rfile = self.rfile
        if self.headers.get("Content-Length"):
            self.rfile = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.is_faulty(method):
                self.refuse(int(self.faults["code"]))
            else:
                self.handle_request(method)
        finally:
            self.rfile = rfile

    def is_faulty(self, method):
        """Return whether to refuse this request, by the arguments of `faults`."""
        with self.lock:
            left = int(self.faults.get("count", 0))
            if not left:
                return False
            name = self.multipart_name(dict(parse_qsl(urlsplit(self.path).query))) or ""
            if not re.search(self.faults["match"], f"{method} {unquote(self.path)} {name}"):
                return False
            if self.random.random() >= float(self.faults["share"]):
                return False
            self.faults["count"] = str(left - 1)
            return True

    def handle_request(self, method):
        with self.lock:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            match = re.fullmatch(r".*/b/([^/]+)/o(?:/([^/]+))?", url.path)
            name = match and (match[2] or query.get("name") or self.multipart_name(query))
            self.generation = self.current(match[1], unquote(name)) if name else None
            if method == "GET" and self.generation and query.get("alt") == "media":
                size = int(self.storage.get_file_obj(match[1], unquote(name))["size"])
                part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                self.downloads.append((unquote(name), *((int(part[1]), int(part[2]) + 1) if part else (0, size))))
            current_generation = self.generation or "0"
            if query.get("ifGenerationMatch", current_generation) != current_generation:
                self.refuse(412)
            elif self.generation and query.get("ifGenerationNotMatch") == current_generation:
                self.refuse(304)
            else:
                Router(self).handle(method)

    def multipart_name(self, query):
        """Return the name that the first part of an upload gives."""
        if query.get("uploadType") != "multipart":
            return None
        body = self.rfile.getvalue()
        return json.JSONDecoder().raw_decode(body[body.index(b"{") :].decode(errors="replace"))[0]["name"]

    def current(self, bucket, name):
        try:
            return self.storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return None

    def refuse(self, code):
        content = b"" if code == 304 else json.dumps({"error": {"code": code, "message": "no"}}).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self):
        if self.generation and self.command == "GET":
            self.send_header("x-goog-generation", self.generation)
        super().end_headers()

    def do_GET(self):
        self.answer(self.command)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Ignore clients that close the connection, since they were killed or need no more of an object."""


@contextmanager
def serve(delay_seconds=0.0):
    """Yield the environment variables of processes that use the store, which serves until the block ends."""
    with subprocess.Popen(
        [sys.executable, __file__, str(delay_seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        address = process.stdout.readline().strip()
        yield {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "anybody",
            "FSSPEC_GCS_TOKEN": "anon",
        }
        process.stdin.close()


@contextmanager
def faults(code, *, share=1.0, count=10**9, match=""):
    """Refuse a share of the requests whose method, path and name match, until the block ends or a number of them is refused."""
    address = os.environ["STORAGE_EMULATOR_HOST"]
    query = urlencode({"code": code, "share": share, "count": count, "match": match})
    urllib.request.urlopen(f"{address}/faults?{query}").close()
    try:
        yield
    finally:
        urllib.request.urlopen(f"{address}/faults").close()


def downloads():
    """Return the object, the first byte and the end of each request for content since the last call."""
    with urllib.request.urlopen(f"{os.environ['STORAGE_EMULATOR_HOST']}/downloads") as answer:
        return [tuple(download) for download in json.load(answer)]


def main():
    logging.disable(logging.CRITICAL)
    Handler.delay_seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    storage = Storage(use_memory_fs=True)
    buckets.create_bucket(BUCKET, storage)
    fake = Server(("localhost", 0), functools.partial(Handler, storage))
    threading.Thread(target=fake.serve_forever, daemon=True).start()
    print(f"http://localhost:{fake.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

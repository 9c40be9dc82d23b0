"""Several files in object storage read at once, in threads that spend their time waiting for the store.

The order of the documents is that of the files. Local files are read one by one: a disk has no delay to hide.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

_FILES = 8  # read at once
_CHUNK = 250_000  # characters that a thread hands over together
_CHUNKS = 8  # handed over ahead of the reader, which bounds the memory

Documents = Iterator[list[str]]


def read_in_order(readers: Sequence[Callable[[], Documents]], *, ahead: bool) -> Iterator[Documents]:
    """Yield the documents of each reader, in the order of the readers.

    Args:
      readers: Functions that open a file and yield its documents.
      ahead: Read several files at once.
    """
    if not ahead or len(readers) < 2:
        yield from (reader() for reader in readers)
        return
    stop = threading.Event()
    waiting, running = iter(readers), [_Reader(reader, stop) for reader in readers[:_FILES]]
    waiting = islice(waiting, len(running), None)
    try:
        while running:
            yield running.pop(0).documents()
            running += [_Reader(reader, stop) for reader in islice(waiting, 1)]
    finally:
        stop.set()


class _Reader(threading.Thread):
    """Thread that reads one file."""

    def __init__(self, reader: Callable[[], Documents], stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._reader, self._stop_event = reader, stop
        self._chunks: queue.Queue[list[list[str]] | BaseException] = queue.Queue(_CHUNKS)
        self.start()

    def run(self) -> None:
        """Read the file to its end, which an empty chunk stands for, or to an error."""
        try:
            for chunk in _chunks(self._reader()):
                if not self._put(chunk):
                    return
            self._put([])
        except BaseException as error:  # raised again by `documents`
            self._put(error)

    def _put(self, chunk: list[list[str]] | BaseException) -> bool:
        """Hand a chunk over; return False if nobody reads any more."""
        while not self._stop_event.is_set():
            try:
                self._chunks.put(chunk, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def documents(self) -> Documents:
        """Yield the documents of the file."""
        while chunk := self._chunks.get():
            if isinstance(chunk, BaseException):
                raise chunk
            yield from chunk


def _chunks(documents: Documents) -> Iterator[list[list[str]]]:
    chunk: list[list[str]] = []
    size = 0
    for lines in documents:
        chunk.append(lines)
        size += sum(map(len, lines))
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk

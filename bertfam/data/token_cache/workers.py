"""Tokenises with many processes, or in this one; the blocks are the same, and in the order of the text."""

import contextlib
import queue
import signal
import subprocess
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from pickle import loads
from types import TracebackType

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.token_cache import worker
from bertfam.data.token_cache.build_folder import BuildInterrupted
from bertfam.data.token_cache.tokenize import Batch, Block, tokenise
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.subprocesses import command, environment, receive, send

# A process has one thread: its cores are those of the other processes.
_SINGLE = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Workers:
    """Processes that start when there is enough text for them, and end with the context."""

    def __init__(self, processes: int, vocabulary: Vocabulary, folder: Path) -> None:
        """`folder` holds the vocabulary; with 0 processes this one tokenises."""
        self._processes, self._vocabulary, self._folder = processes, vocabulary, folder
        self._all: list[_Worker] = []
        self._idle: queue.Queue[_Worker] = queue.Queue()
        self._threads = ThreadPoolExecutor(max(1, processes))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            process.end()
        self._threads.shutdown(cancel_futures=True)

    def blocks(self, corpus: Corpus, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Block]]:
        """Batches with their tokens, in order.

        Raises:
          UserError: a process refuses the text.
          BuildInterrupted: a process was killed.
        """
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        if not self._processes or len(first) < 2:
            for batch in batches:
                yield batch, tokenise(corpus, self._vocabulary, batch.texts)
            return
        while len(self._all) < self._processes:
            self._all.append(_Worker(self._folder))
            self._idle.put(self._all[-1])
        waiting: deque[tuple[Batch, Future[Block]]] = deque()
        for batch in batches:
            waiting.append((batch, self._threads.submit(self._block, corpus, batch)))
            if len(waiting) > 2 * self._processes:
                yield waiting[0][0], waiting[0][1].result()
                waiting.popleft()
        for batch, future in waiting:
            yield batch, future.result()

    def _block(self, corpus: Corpus, batch: Batch) -> Block:
        worker = self._idle.get()
        try:
            return worker.tokenise(corpus, batch.texts)
        finally:
            self._idle.put(worker)


class _Worker:
    """One process that runs `cache_worker`."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            command(worker.__name__, str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**_SINGLE),
        )
        self._corpus: Corpus | None = None

    def tokenise(self, corpus: Corpus, texts: list[list[str]]) -> Block:
        assert self._process.stdin and self._process.stdout
        given, self._corpus = None if corpus is self._corpus else corpus, corpus
        try:
            send(self._process.stdin, (given, texts))
            kind, answer = loads(receive(self._process.stdout))
        except (EOFError, OSError):
            raise self._ended() from None
        if kind == "mistake":
            raise UserError(answer)
        if kind == "fault":
            raise RuntimeError(f"in a process that tokenises:\n{answer}")
        return answer

    def _ended(self) -> Exception:
        status = self._process.wait()
        if status >= 0:
            return RuntimeError(f"a process that tokenises has ended with status {status}")
        return BuildInterrupted(
            f"a process that tokenises was killed ({signal.Signals(-status).name}), perhaps for want of memory: give the same "
            "command again, which goes on, with fewer --processes"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

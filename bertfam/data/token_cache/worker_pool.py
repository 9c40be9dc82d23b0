"""Tokenisation in worker processes, or in this one; the blocks and their order are the same."""

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

# One thread per worker, as the other cores belong to the other workers.
_SINGLE = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class WorkerPool:
    """Worker processes that start once there is more than one batch, and end with the context."""

    def __init__(self, processes: int, vocabulary: Vocabulary, folder: Path) -> None:
        """Create workers for the vocabulary in `folder`; with 0 processes this process tokenises."""
        self._processes, self._vocabulary, self._folder = processes, vocabulary, folder
        self._all: list[_Worker] = []
        self._idle: queue.Queue[_Worker] = queue.Queue()
        self._threads = ThreadPoolExecutor(max(1, processes))

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            process.end()
        self._threads.shutdown(cancel_futures=True)

    def blocks(self, corpus: Corpus, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Block]]:
        """Yield batches with their tokens, in order.

        Raises:
          UserError: if the text is not valid.
          BuildInterrupted: if a worker was killed.
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
    """A process that runs `worker`."""

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
        new_corpus, self._corpus = None if corpus is self._corpus else corpus, corpus
        try:
            send(self._process.stdin, (new_corpus, texts))
            kind, answer = loads(receive(self._process.stdout))
        except (EOFError, OSError):
            raise self._exit_error() from None
        if kind == "user_error":
            raise UserError(answer)
        if kind == "error":
            raise RuntimeError(f"in a tokenisation worker:\n{answer}")
        return answer

    def _exit_error(self) -> Exception:
        status = self._process.wait()
        if status >= 0:
            return RuntimeError(f"a tokenisation worker exited with status {status}")
        return BuildInterrupted(
            f"a tokenisation worker was killed ({signal.Signals(-status).name}), perhaps because memory ran out: run the same "
            "command again with fewer --processes to resume"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

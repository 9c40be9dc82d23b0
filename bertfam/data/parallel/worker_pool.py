"""Functions of batches of text in worker processes, or in this one; the results and their order are the same."""

import contextlib
import queue
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pickle import loads
from types import TracebackType
from typing import Any, TypeVar

from bertfam.data.corpora.document_batches import Batch
from bertfam.data.parallel import worker
from bertfam.errors import UserError
from bertfam.subprocesses import command, environment, receive, send

# One thread per worker, as the other cores belong to the other workers.
_SINGLE = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Result = TypeVar("Result")
Function = Callable[[list[list[str]]], Result]


class WorkerKilled(UserError):
    """Death of a worker process by a signal."""


class WorkerPool:
    """Worker processes that start once there is more than one batch, and end with the context."""

    def __init__(self, processes: int, kind: str) -> None:
        """Create workers, which messages call by their `kind`; with 0 processes this process does the work."""
        self._processes, self._kind = processes, kind
        self._all: list[_Worker] = []
        self._idle: queue.Queue[_Worker] = queue.Queue()
        self._threads = ThreadPoolExecutor(max(1, processes))

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._all:
            process.end()
        self._threads.shutdown(cancel_futures=True)

    def results(self, function: Function[Result], batches: Iterator[Batch]) -> Iterator[tuple[Batch, Result]]:
        """Yield batches with the function of their texts, in order.

        Args:
          function: a function that can be pickled.
          batches: the batches.

        Raises:
          UserError: if the text is not valid.
          WorkerKilled: if a worker was killed.
        """
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        if not self._processes or len(first) < 2:
            for batch in batches:
                yield batch, function(batch.texts)
            return
        while len(self._all) < self._processes:
            self._all.append(_Worker(self._kind))
            self._idle.put(self._all[-1])
        waiting: deque[tuple[Batch, Future[Result]]] = deque()
        for batch in batches:
            waiting.append((batch, self._threads.submit(self._result, function, batch)))
            if len(waiting) > 2 * self._processes:
                yield waiting[0][0], waiting[0][1].result()
                waiting.popleft()
        for batch, future in waiting:
            yield batch, future.result()

    def _result(self, function: Function[Result], batch: Batch) -> Result:
        worker = self._idle.get()
        try:
            return worker.apply(function, batch.texts)
        finally:
            self._idle.put(worker)


class _Worker:
    """A process that runs `worker`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._process = subprocess.Popen(
            command(worker.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**_SINGLE),
        )
        self._function: Function[Any] | None = None

    def apply(self, function: Function[Result], texts: list[list[str]]) -> Result:
        assert self._process.stdin and self._process.stdout
        new_function, self._function = None if function is self._function else function, function
        try:
            send(self._process.stdin, (new_function, texts))
            kind, answer = loads(receive(self._process.stdout))
        except (EOFError, OSError):
            raise self._exit_error() from None
        if kind == "user_error":
            raise UserError(answer)
        if kind == "error":
            raise RuntimeError(f"in a {self._kind} worker:\n{answer}")
        return answer

    def _exit_error(self) -> Exception:
        status = self._process.wait()
        if status >= 0:
            return RuntimeError(f"a {self._kind} worker exited with status {status}")
        return WorkerKilled(
            f"a {self._kind} worker was killed ({signal.Signals(-status).name}), perhaps because memory ran out: run the same "
            "command again with fewer --processes"
        )

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

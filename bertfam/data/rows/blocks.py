"""Rows of corpora that are too large to be planned as a whole: by blocks of documents, each planned when it is first read.

The documents are cut into pieces of consecutive ones. A seeded permutation assigns the pieces to blocks, so that a block holds
text from many places of the corpus. A block is a corpus of its own to the layout of the rows, which plans it with a seed of its
own. An epoch visits all blocks in an order of its own, and draws the rows of a block in an order of their own.

The place of a row gives its block without any plan, because each block has a fixed quota of places in an epoch: its share of the
tokens, times the rows per token of a sample. Where a plan has more or fewer rows than the quota, the block continues in the next
epoch where it stopped in the last one, or begins its rows anew within the epoch: a block has epochs of its own, as a corpus of a
mixture has, and uses each of its rows once before it uses any again. The sample of a block of up to 4,096 documents is the whole
block, whose quota is exact.

A process holds the block that it reads and the next one, which a thread plans in advance. Where the text is in a bucket, another
thread fetches the tokens of the next block. Batches remain a function of the seed
and the step alone: nothing depends on the blocks that were read before.
"""

import contextlib
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from bertfam.corruption import keys
from bertfam.data.rows.batches import Examples
from bertfam.data.rows.order import Order, permute
from bertfam.data.token_cache.documents import Documents, JoinedRanges, StoredDocuments
from bertfam.errors import UserError

_PIECES, _PLAN = range(2)  # folded into the seed of the plan
_SAMPLED = 4096  # documents of a sampled block
_SAMPLES, _LEAST_SAMPLES = 64, 2  # sampled blocks of a run, and of a corpus
_ROW_BITS = 32  # of the number of a row beyond the quota
_LEAST = 2  # documents of a piece: a random second sentence comes from another document
_HELD = 3  # blocks in memory: the current one, the next one, and the last one, whose rows a batch may still contain


@dataclass(frozen=True)
class Blocks:
    """Plan of large corpora by blocks of documents, of which a process holds few at a time.

    The rows of a batch are drawn from one block, or from two where it ends: a block is what the buffer of a shuffled stream is
    elsewhere. The limits and the sizes of blocks are for a run of one corpus, and are divided among the corpora of a mixture.

    Attributes:
      above_documents: Number of documents up to which a corpus is planned as a whole, as long as it has few tokens.
      above_tokens: Number of tokens up to which a corpus is planned as a whole, as long as it has few documents.
      documents: Maximum number of documents of a block, of which mixtures of many corpora keep at least a piece.
      piece_documents: Maximum number of consecutive documents of a piece.
      piece_tokens: About the maximum number of tokens of a piece.
    """

    above_documents: int = 1 << 22
    above_tokens: int = 1 << 32
    documents: int = 1 << 18
    piece_documents: int = 1 << 14
    piece_tokens: int = 1 << 24

    def __post_init__(self) -> None:
        for name, least in (
            ("above_documents", 0),
            ("above_tokens", 0),
            ("documents", _LEAST),
            ("piece_documents", _LEAST),
            ("piece_tokens", 1),
        ):
            if getattr(self, name) < least:
                raise UserError(f"Blocks.{name} is {getattr(self, name)}: it must be at least {least}")

    def apply_to(self, documents: StoredDocuments, corpora: int) -> bool:
        """Return True if a corpus, one of `corpora`, is planned by blocks."""
        is_large = len(documents) * corpora > self.above_documents or len(documents.tokens) * corpora > self.above_tokens
        return is_large and len(documents) >= 2 * _LEAST

    def divide(self, documents: StoredDocuments, corpora: int, seed: int) -> list[np.ndarray]:
        """Divide a corpus into blocks: the first document and the end of the pieces of each, int64[pieces, 2]."""
        size, count = len(documents), max(-(-len(documents) // self.piece_documents), len(documents.tokens) // self.piece_tokens)
        pieces = max(1, min(count, size // _LEAST))
        together = max(1, self.documents // (self.piece_documents * corpora))
        blocks = -(-pieces // together)
        edges = np.arange(pieces + 1) * size // pieces
        places = permute(np.arange(pieces), pieces, np.full(pieces, keys.fold(seed, _PIECES)[0]))
        # Sorted within a block, so that files are read in order.
        parts = (np.sort(part) for part in np.split(places, np.arange(1, blocks) * pieces // blocks))
        return [np.stack([edges[part], edges[part + 1]], axis=1) for part in parts]


class BlockExamples(Examples):
    """Rows of one corpus, planned by blocks.

    Examples 0 .. len - 1 are the rows of all blocks, as many of each as its quota. Rows of a block beyond its quota follow, with
    numbers that only `number` gives.
    """

    def __init__(
        self,
        documents: StoredDocuments,
        plan: Callable[[Documents, int], Examples],
        blocks: Blocks,
        corpora: int,
        seed: int,
    ) -> None:
        """Divide a corpus into blocks, and plan a sample of them.

        Args:
          documents: The corpus.
          plan: Function that plans the rows of documents with a seed.
          blocks: Sizes of the blocks.
          corpora: Number of corpora of the run.
          seed: Seed of the plan.
        """
        self._documents, self._plan, self._seed = documents, plan, seed
        self._pieces = blocks.divide(documents, corpora, seed)
        edges = np.concatenate(self._pieces)
        tokens = documents.sentence_starts.take(documents.sentence_bounds.take(edges)).astype(np.int64)
        bounds = np.cumsum([0, *(len(pieces) for pieces in self._pieces)])
        self._tokens = np.add.reduceat(tokens[:, 1] - tokens[:, 0], bounds[:-1])
        self._held: OrderedDict[int, Future[Examples]] = OrderedDict()
        self._lock = threading.Lock()
        self.quotas = self._estimate(max(_LEAST_SAMPLES, _SAMPLES // corpora))
        self._begins = np.concatenate([[0], np.cumsum(self.quotas)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def warnings(self) -> list[str]:
        """Problems of a sample of the text, one line each."""
        return self.sample.warnings

    @functools.cached_property
    def sample(self) -> Examples:
        """Rows of a sample of the first block."""
        return self._plan(self._sample(0), self._block_seed(0))

    def rows_in(self, block: int) -> int:
        """Return the number of rows of a block, which is planned unless it is in memory."""
        return len(self._block(block))

    def number(self, blocks: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the examples that are the given rows of blocks: int64[n]."""
        return np.where(rows < self.quotas[blocks], self._begins[blocks] + rows, len(self) + (blocks << _ROW_BITS) + rows)

    def rows(self, examples: np.ndarray, row_keys: np.ndarray) -> dict[str, np.ndarray]:
        """Build uncorrupted rows as the layout does, with draws of their own in each block."""
        block, row = self._locate(examples)
        epoch_keys = keys.unfold(row_keys, examples)
        result: dict[str, np.ndarray] = {}
        for number in np.unique(block).tolist():
            here, planned = np.flatnonzero(block == number), self._block(number)
            inner = row[here] % len(planned)
            for name, value in planned.rows(inner, keys.fold(epoch_keys[here], number, inner)).items():
                if name not in result:
                    result[name] = np.zeros((len(examples), *value.shape[1:]), value.dtype)
                result[name][here] = value
        return result

    def _locate(self, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the block of each example, and its row in the block: int64[n] each."""
        beyond, is_beyond = examples - len(self), examples >= len(self)
        block = np.where(is_beyond, beyond >> _ROW_BITS, np.searchsorted(self._begins, examples, side="right") - 1)
        return block, np.where(is_beyond, beyond & ((1 << _ROW_BITS) - 1), examples - self._begins[block])

    def has(self, block: int) -> bool:
        """Return True if a block is in memory, or is being planned."""
        return block in self._held

    def prepare(self, block: int) -> None:
        """Have a thread plan a block, unless it is in memory."""
        with self._lock:
            if block not in self._held:
                self._hold(block, _planner().submit(self._plan_block, block, is_ahead=True))

    def _block(self, block: int) -> Examples:
        """Return the plan of a block, and make it here unless it is in memory or the thread is making it."""
        with self._lock:
            future = self._held.get(block)
            is_mine = future is None or future.cancel()  # a plan that waits behind those of other corpora
            if future is None or is_mine:
                future = Future()
                future.set_running_or_notify_cancel()
            self._hold(block, future)
        if is_mine:
            try:
                future.set_result(self._plan_block(block))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()

    def _hold(self, block: int, plan: "Future[Examples]") -> None:
        self._held[block] = plan
        self._held.move_to_end(block)
        while len(self._held) > _HELD:
            self._held.popitem(last=False)

    def _plan_block(self, block: int, *, is_ahead: bool = False) -> Examples:
        pieces = [(int(first), int(end)) for first, end in self._pieces[block]]
        documents = self._documents.joined(self._documents.name, pieces)
        if is_ahead:
            _prefetch(documents)
        return self._plan(documents, self._block_seed(block))

    def _block_seed(self, block: int) -> int:
        return int(keys.fold(self._seed, _PLAN, block)[0])

    def _sample(self, block: int) -> Documents:
        """Return the first documents of each piece of a block, about 4,096 in all, or the whole block if it has no more."""
        return self._documents.joined(f"a sample of {self._documents.name}", self._sample_ranges(block))

    def _sample_ranges(self, block: int) -> list[tuple[int, int]]:
        pieces = self._pieces[block]
        size = _size(pieces)
        most = max(_LEAST, size if size <= _SAMPLED else _SAMPLED // len(pieces))
        return [(int(first), min(int(end), int(first) + most)) for first, end in pieces]

    def _estimate(self, samples: int) -> np.ndarray:
        """Return the quota of each block, from the rows of evenly spaced samples: int64[blocks]."""
        blocks = len(self._pieces)
        numbers = np.unique(np.linspace(0, blocks - 1, min(samples, blocks)).astype(np.int64)).tolist()
        self._documents.prefetch_starts([documents for number in numbers for documents in self._sample_ranges(number)])
        rows, tokens, exact = 0, 0, {}
        for number in numbers:
            documents = self._sample(number)
            count = len(self._plan(documents, self._block_seed(number)))
            rows, tokens = rows + count, tokens + len(documents.tokens)
            if len(documents) == _size(self._pieces[number]):
                exact[number] = count
        quotas = np.maximum(1, np.rint(self._tokens * (rows / max(tokens, 1))).astype(np.int64))
        quotas[list(exact)] = list(exact.values())
        return quotas


def _prefetch(documents: Documents) -> None:
    """Have a thread fetch the values of a block from the bucket that they are in; it ends with the process."""
    values = (documents.tokens, documents.units, documents.labels)
    parts = [part for part in values if isinstance(part, JoinedRanges) and part.is_fetched]

    def fetch() -> None:
        with contextlib.suppress(Exception):  # the rows that need the values fetch them again, and raise the error
            for part in parts:
                part.prefetch_all()

    if parts:
        threading.Thread(target=fetch, name="blocks prefetch", daemon=True).start()


@functools.cache
def _planner() -> ThreadPoolExecutor:
    """Return the thread that plans blocks, one for all corpora, so that two plans are never made at once."""
    return ThreadPoolExecutor(1, thread_name_prefix="blocks")


class BlockOrder(Order):
    """All blocks in a new order in each epoch, and the rows of each in a new order."""

    def __init__(self, examples: BlockExamples, key: int) -> None:
        """Create the order of the rows `examples`, drawn from a key."""
        self._examples, self._key = examples, key
        self._visits = functools.lru_cache(maxsize=2)(self._make_visits)

    @override
    def index(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, within = np.divmod(places, len(self._examples))
        own_epochs, numbers = np.empty_like(places), np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            blocks, begins = self._visits(epoch)
            visits = np.where(epochs == epoch, np.searchsorted(begins, within, side="right") - 1, -1)
            for visit in np.unique(visits[visits >= 0]).tolist():
                here = np.flatnonzero(visits == visit)
                was_held = self._examples.has(blocks[visit])
                own_epochs[here], numbers[here] = self._in_block(epoch, blocks[visit], within[here] - begins[visit])
                # Not with the first rows of a run, which wait for as few plans as possible.
                if was_held:
                    self._examples.prepare(blocks[visit + 1] if visit + 1 < len(blocks) else self._visits(epoch + 1)[0][0])
        return own_epochs, numbers

    def _make_visits(self, epoch: int) -> tuple[list[int], np.ndarray]:
        """Return the blocks in the order of an epoch, and the place of the first row of each in it: int64[blocks]."""
        quotas = self._examples.quotas
        blocks = permute(np.arange(len(quotas)), len(quotas), np.full(len(quotas), keys.fold(self._key, epoch)[0]))
        return blocks.tolist(), np.cumsum(quotas[blocks]) - quotas[blocks]

    def _in_block(self, epoch: int, block: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the epochs of a block and the examples at places int64[n] of its quota in an epoch: int64[n] each."""
        quota = int(self._examples.quotas[block])
        shuffled = permute(places, quota, np.full(len(places), keys.fold(self._key, epoch, block)[0]))
        own_epochs, rows = np.divmod(epoch * quota + shuffled, self._examples.rows_in(block))
        return own_epochs, self._examples.number(np.full_like(rows, block), rows)


def sampled(examples: Examples) -> Examples:
    """Return rows that are all in memory: those of a sample if the corpus is planned by blocks."""
    return examples.sample if isinstance(examples, BlockExamples) else examples


def _size(pieces: np.ndarray) -> int:
    """Return the number of documents of pieces int64[pieces, 2]."""
    return int((pieces[:, 1] - pieces[:, 0]).sum())

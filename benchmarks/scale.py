"""Growth of time and memory with the size of a corpus: opening its token cache, planning its rows, and the first batches.

    python -m benchmarks.scale --documents 1e6 --documents 1e7 --documents 1e8 --documents 1e9

Documents have synthetic lengths, of about 1,000 tokens and 40 sentences in the mean, and no text. The lengths of 99,991 documents
are drawn from a lognormal distribution and repeated, so that any range of a corpus of any size is computed where it is read: the
figures leave out the disk. Opening is measured on files of the right size in which nearly all is a hole. Each figure is of a
process of its own, in seconds of CPU time of all its threads; rows/s leave out the thread that plans the next block. Peak memory
includes the interpreter. With --whole, corpora are planned as a whole. --read=FOLDER makes batches of a token cache instead.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measurement import table
from bertfam.arguments import ScriptParser, output_file
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.token_ids import TokenIds
from bertfam.data import vocabularies
from bertfam.data.rows.batches import Batches
from bertfam.data.rows.blocks import Blocks
from bertfam.data.rows.layout import RowLayout
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.cache import FORMAT, TokenCache
from bertfam.data.token_cache.documents import Documents, Mode, StoredDocuments

_TOKENS = TokenIds(size=30_522, pad=0, unk=100, cls=101, sep=102, mask=103, special=(0, 100, 101, 102, 103))
_DRAWN = 99_991  # documents; a prime, so that pieces of the plan begin elsewhere in each repetition
_MEAN_TOKENS, _SPREAD, _SENTENCE = 1000, 1.0, 25
_LATE = 10**6
_WORKLOADS: dict[str, tuple[RowLayout, int]] = {  # layout, number of corpora
    "whole sentences": (FullSentences(), 1),
    "packed": (Packed(), 1),
    "pairs": (SentencePairs(), 1),
    "packed, 100 corpora": (Packed(), 100),
}
_OPEN = "opening"


class Repeated:
    """Positions that repeat the steps of a base: value i is base[i mod period] + (i div period) * end of the base."""

    dtype = np.dtype(np.int64)

    def __init__(self, base: np.ndarray, count: int) -> None:
        """Create `count` positions from a base int64[period + 1]."""
        self._base, self._period, self._count = base, len(base) - 1, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: slice) -> np.ndarray:
        first, end, _ = key.indices(self._count)
        parts = []
        while first < end:
            times, place = divmod(first, self._period)
            size = min(end - first, self._period - place)
            parts.append(self._base[place : place + size] + times * self._base[-1])
            first += size
        return np.concatenate(parts)

    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        """Return the values at `indices`."""
        times, places = np.divmod(indices, self._period)
        return self._base[places] + times * self._base[-1]


class Hashed:
    """Tokens that are a function of their place."""

    dtype = np.dtype(np.uint16)

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, key: slice) -> np.ndarray:
        return self.take(np.arange(*key.indices(self._count)))

    def take(self, indices: np.ndarray, /, *, mode: Mode = "raise") -> np.ndarray:
        """Return the tokens at `indices`."""
        return (1000 + (indices & 0x3FFF)).astype(np.uint16)


@dataclasses.dataclass
class SyntheticCache:
    """Token cache of synthetic corpora.

    Attributes:
      count: Number of documents of all corpora.
      corpora: Names of the corpora.
    """

    count: int
    corpora: tuple[str, ...]
    directory: str = "synthetic"

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        mean = np.log(_MEAN_TOKENS) - _SPREAD**2 / 2
        lengths = np.clip(generator.lognormal(mean, _SPREAD, _DRAWN), 2, 100_000).astype(np.int64)
        sentences = -(-lengths // _SENTENCE)
        # Sentences of a document differ by at most one token; their number is what matters here.
        number = np.arange(sentences.sum()) - np.repeat(np.cumsum(sentences) - sentences, sentences)
        sizes = np.repeat(lengths // sentences, sentences) + (number < np.repeat(lengths % sentences, sentences))
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._bounds = np.concatenate([[0], np.cumsum(sentences)])

    def has_pairs(self, corpus: str) -> bool:
        """Return False."""
        return False

    def stored_documents(self, split: str, corpus: str, vocabulary_size: int | None = None) -> StoredDocuments:
        """Return the documents of a corpus."""
        bounds = Repeated(self._bounds, self.count // len(self.corpora) + 1)
        sentences = int(bounds.take(np.array([len(bounds) - 1]))[0])
        starts = Repeated(self._starts, sentences + 1)
        tokens = int(starts.take(np.array([sentences]))[0])
        return StoredDocuments("synthetic text", Hashed(tokens), starts, bounds)

    def documents(self, split: str, corpus: str, vocabulary_size: int | None = None) -> Documents:
        """Return the documents of a corpus with their starts in memory."""
        stored = self.stored_documents(split, corpus)
        return Documents(stored.name, stored.tokens, stored.sentence_starts[:], stored.sentence_bounds[:])


def measure_rows(workload: str, documents: int, step: int, batch_size: int, length: int, whole: bool) -> dict[str, Any]:
    """Plan the rows of a workload, and make the batches from a step on."""
    layout, corpora = _WORKLOADS[workload]
    cache: Any = SyntheticCache(documents, tuple(f"c{number}" for number in range(corpora)))
    data = TextData(rows=layout, corruption=BertMasking())
    data = dataclasses.replace(data, blocks=None) if whole else data
    start = time.process_time()
    batches: Batches = data.training(cache, _TOKENS, length, batch_size, 0)
    planned = time.process_time()
    batches.rows(step, 0, batch_size)
    first = time.process_time()
    reading = time.thread_time()
    for number in range(1, 101):
        batches.rows(step + number, 0, batch_size)
    rate = 100 * batch_size / (time.thread_time() - reading)
    return {"plan_seconds": planned - start, "first_batch_seconds": first - planned, "rows_per_second": rate}


def measure_opening(documents: int) -> dict[str, Any]:
    """Open a token cache of files in which all but the ends is a hole."""
    cache = SyntheticCache(documents, ("text",))
    stored = cache.stored_documents("train", "text")
    sentences, tokens = len(stored.sentence_starts) - 1, len(stored.tokens)
    files = {
        "text/train/tokens.bin": (2 * tokens, b""),
        "text/train/sentence_starts.bin": (8 * (sentences + 1), np.int64(tokens).tobytes()),
        "text/train/sentence_starts.offsets.bin": (8 * (documents + 1), np.int64(sentences).tobytes()),
    }
    with tempfile.TemporaryDirectory() as folder:
        recorded = {}
        for name, (size, end) in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(size - len(end))
                file.seek(0, 2)
                file.write(end)
            block = bytes(digests.BLOCK_BYTES)
            full, rest = divmod(size, digests.BLOCK_BYTES)
            last = f"{zlib.crc32((bytes(rest) + end)[len(end) :]):08x}" if rest else ""
            recorded[name] = {"size": size, "crc32": f"{zlib.crc32(block):08x}" * full + last}
        counts = {"documents": documents, "sentences": sentences, "tokens": tokens}
        split = {"counts": counts, "dtypes": {"tokens": "uint16", "sentence_starts": "int64"}}
        empty = split | {"counts": dict.fromkeys(counts, 0)}
        content = {"format": FORMAT, "fingerprint": {}, "corpora": {"text": {"train": split, "validation": empty}}}
        Path(folder, "cache.json").write_text(json.dumps(content))
        Path(folder, digests.NAME).write_text(json.dumps({"format": 1, "files": recorded}))
        del recorded
        opening = [sys.executable, "-m", "benchmarks.scale", f"--open={folder}"]
        return json.loads(subprocess.run(opening, stdout=subprocess.PIPE, text=True, check=True).stdout)


def open_cache(folder: str) -> dict[str, Any]:
    """Open the training text of a token cache, and read the places at which pieces of its documents begin."""
    start = time.process_time()
    documents = TokenCache(folder).stored_documents("train", "text")
    pieces = sum(len(block) for block in Blocks().divide(documents, 1, 0))
    for positions in (documents.sentence_bounds, documents.sentence_starts):
        positions.take(np.arange(pieces) * len(positions) // pieces)
    return {"plan_seconds": time.process_time() - start}


def read_cache(folder: str, step: int, batches: int, batch_size: int, length: int) -> dict[str, Any]:
    """Open a token cache, local or in a bucket, and make batches of whole sentences from a step on; seconds include waiting."""
    start = time.perf_counter()
    cache = TokenCache(folder)
    tokens = vocabularies.load(cache.vocabulary_directory).token_ids
    source = TextData(rows=FullSentences(), corruption=BertMasking()).training(cache, tokens, length, batch_size, 0)
    planned = time.perf_counter()
    source.rows(step, 0, batch_size)
    first = time.perf_counter()
    for number in range(1, batches):
        source.rows(step + number, 0, batch_size)
    seconds = time.perf_counter() - first
    figures = {"plan_seconds": planned - start, "first_batch_seconds": first - planned, "cpu_seconds": time.process_time()}
    return figures | ({"rows_per_second": (batches - 1) * batch_size / seconds} if batches > 1 else {})


def with_memory(figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures with the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux, where `getrusage` includes the memory of the process that started this one
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return figures | {"peak_bytes": int(lines["VmHWM"].split()[0]) * 1024}
    return figures | {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def main() -> int:
    """Measure all workloads at all sizes and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--documents", type=float, action="append", help="number of documents; repeatable (default: 1e6)")
    parser.add_argument("--batch_size", type=int, default=256, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--workload", choices=[_OPEN, *_WORKLOADS], action="append", help="only this one; repeatable")
    parser.add_argument("--batches", type=int, default=101, help="batches that --read makes (default: %(default)s)")
    parser.add_argument("--whole", action="store_true", help="plan corpora of any size as a whole")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--step", type=int, help="measure one workload from this step on in this process and print JSON")
    parser.add_argument("--open", metavar="FOLDER", help="open a token cache in this process and print JSON")
    parser.add_argument("--read", metavar="FOLDER", help="make batches of a token cache from --step on in this process and print")
    args = parser.parse_args()
    sizes = [int(size) for size in args.documents or [1e6]]
    if args.open or args.read or args.step is not None:
        rows = (args.batch_size, args.length)
        if args.open:
            figures = open_cache(args.open)
        elif args.read:
            figures = read_cache(args.read, args.step or 0, args.batches, *rows)
        else:
            figures = measure_rows(args.workload[0], sizes[0], args.step, *rows, args.whole)
        print(json.dumps(with_memory(figures)))
        return 0
    results = []
    for size in sizes:
        for workload in args.workload or [_OPEN, *_WORKLOADS]:
            results.append({"workload": workload, "documents": size, **_measure(args, workload, size)})
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    if args.json:
        content = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "results": results}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    names = ["work", "documents", "plan s", "first batch, step 0, s", f"step {_LATE:,}, s", "rows/s", "peak MiB"]
    print(table(names, [_line(result) for result in results]))
    return 0


def _measure(args: argparse.Namespace, workload: str, size: int) -> dict[str, Any]:
    """Measure one workload at one size, each start in a process of its own."""
    if workload == _OPEN:
        return measure_opening(size)
    figures: dict[str, Any] = {}
    for step in (_LATE, 0):
        command = [sys.executable, "-m", "benchmarks.scale", f"--workload={workload}", f"--documents={size}", f"--step={step}"]
        command += [f"--batch_size={args.batch_size}", f"--length={args.length}", *(["--whole"] if args.whole else [])]
        done = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        peak = max(done["peak_bytes"], figures.get("peak_bytes", 0))
        figures |= {**done, "peak_bytes": peak, **({"late_seconds": done["first_batch_seconds"]} if step else {})}
    return figures


def _line(result: dict[str, Any]) -> list[str]:
    seconds = (result.get(name) for name in ("plan_seconds", "first_batch_seconds", "late_seconds"))
    cells = ["-" if value is None else f"{value:.2f}" for value in seconds]
    rate = result.get("rows_per_second")
    peak = f"{result['peak_bytes'] / 2**20:,.0f}"
    return [result["workload"], f"{result['documents']:,}", *cells, "-" if rate is None else f"{rate:,.0f}", peak]


if __name__ == "__main__":
    sys.exit(main())

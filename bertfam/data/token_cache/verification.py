"""Verification of a whole token cache, which adds digests to one that has none."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import SPLITS
from bertfam.data.token_cache import digests
from bertfam.data.token_cache.cache import TokenCache, feature_path
from bertfam.errors import UserError, is_terminal, warn
from bertfam.plurals import listed, plural
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import write_text
from bertfam.storage.paths import local

_INSPECTED = ("/tokens.bin", "/sentence_starts.bin", "/sentence_starts.offsets.bin")


def verify(directory: str | Path) -> str:
    """Read every byte of a token cache and compare it with its digests, with progress on stderr.

    A cache without digests is inspected (sizes, order of the starts, ids) and gets them.

    Returns:
      A line that says what was found.

    Raises:
      UserError: if a byte is not as it was written, or there are no digests and the cache cannot be right.
    """
    cache = TokenCache(directory)
    size = vocabularies.load(cache.vocabulary_directory).size
    recorded: Mapping[str, digests.FileDigests] | None
    if cache.ranged_files:
        folder, recorded, sizes = cache.directory, cache.ranged_files.digests, dict(cache.ranged_files.sizes)
    else:
        folder = local(cache.directory)
        recorded = digests.read(folder)
        files = [path for path in folder.rglob("*") if path.is_file() and not digests.is_foreign(path.name)]
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    sizes.pop(digests.NAME, None)
    if recorded is not None:
        _leave_out_others(directory, sizes, recorded)
    names, total = sorted(sizes), sum(sizes.values())
    progress = _Progress(str(directory), total)
    if recorded is not None:
        for name in sorted({*names, *recorded}):
            # What is read by ranges is checked when it is inspected, and so is read once.
            if not (cache.ranged_files and name.endswith(_INSPECTED)):
                digests.check_file(folder, name, recorded, progress)
    for corpus in cache.corpora:
        for split in SPLITS:
            _inspect(cache, split, corpus, size, progress if cache.ranged_files else lambda size: None)
            if not cache.ranged_files:
                _check_token_offsets(cache, split, corpus, feature_path(folder / corpus / split, "tokens", "offsets"))
    if recorded is None:
        if is_remote(directory):
            raise UserError(
                f"{directory} has no digests, and those of a cache in a bucket are made when it is built; build it again"
            )
        write_text(folder / digests.NAME, digests.compute(folder, progress))
    progress.finish()
    what = "as they were written" if recorded is not None else "without visible damage, and have digests now"
    return f"token cache: {directory}: all {plural(len(names), 'file')} ({plural(total, 'byte')}) are {what}"


def _leave_out_others(directory: str | Path, sizes: dict[str, int], recorded: Mapping[str, digests.FileDigests]) -> None:
    """Remove files that no cache has from `sizes`, with a warning; one of a cache without digests stays, and is refused."""
    others = [name for name in sizes if name not in recorded and not name.endswith(".bin") and not name.startswith("vocab/")]
    for name in sorted(others):
        del sizes[name]
    if others:
        warn([f"{directory} has files of no token cache, which are not verified: {listed(sorted(others), 5)}"])


def _inspect(cache: TokenCache, split: str, corpus: str, size: int, progress: Callable[[int], None]) -> None:
    """Raise UserError if starts or ids of a split cannot be right, whatever the digests say."""
    documents = cache.stored_documents(split, corpus, size)
    for values in (documents.sentence_bounds, documents.sentence_starts, documents.tokens):
        for start in range(0, len(values), 1 << 24):
            progress(values[start : start + (1 << 24)].nbytes)


def _check_token_offsets(cache: TokenCache, split: str, corpus: str, path: Path) -> None:
    """Raise UserError unless documents begin where their first sentences do, in a file that other programs may read, not rows."""
    if not path.is_file():
        return
    documents = cache.documents(split, corpus)
    offsets = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    bounds = documents.sentence_bounds
    is_right = len(offsets) == 8 * len(bounds)
    for start in range(0, len(bounds) if is_right else 0, 1 << 20):
        expected = documents.sentence_starts[bounds[start : start + (1 << 20)]]
        is_right = is_right and np.array_equal(offsets[8 * start : 8 * (start + len(expected))].view(np.int64), expected)
    if not is_right:
        raise UserError(
            f"{path} is damaged: its positions are not those of the documents' first sentences; delete {cache.directory} and "
            "build it again"
        )


class _Progress:
    """Line on stderr, updated each second on a terminal."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done, self._last = title, total, 0, 0.0

    def __call__(self, size: int) -> None:
        self._done += size
        if is_terminal(sys.stderr) and time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            share = self._done / max(self._total, 1)
            print(f"\r\x1b[Kverifying {self._title}: {share:.0%}", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Clear the line."""
        if is_terminal(sys.stderr):
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

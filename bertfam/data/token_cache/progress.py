"""Progress line of a token cache build."""

import sys
import time
from collections.abc import Sequence

from bertfam.data.token_cache.writer import Counts
from bertfam.errors import is_terminal
from bertfam.plurals import plural


class Progress:
    """Line on stderr, updated each second on a terminal and otherwise written once at the end.

    The remaining time is estimated once a part of the text has been read completely: the characters per byte of the parts read
    so far give the number of characters in the rest.
    """

    def __init__(self, title: str, sizes: Sequence[int], before: Counts, characters: int) -> None:
        """Create the line of a split whose parts have `sizes` bytes; `before` and `characters` were tokenised by earlier runs."""
        self._title, self._sizes, self._before, self._first = title, sizes, before, characters
        self._begin, self._last = time.monotonic(), 0.0
        self._part, self._characters_per_byte = 0, 0.0

    def show(self, counts: Counts, part: int, characters: int) -> None:
        """Update the line on a terminal; `part` is being read, and `characters` have been read so far."""
        read = sum(self._sizes[:part])
        if part > self._part and read:
            self._part, self._characters_per_byte = part, characters / read
        if is_terminal(sys.stderr) and time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            print(f"\r\x1b[K{self._line(counts)}{self._left(characters)}", end="", file=sys.stderr, flush=True)

    def finish(self, counts: Counts) -> None:
        """Write the final line."""
        print(("\r\x1b[K" if is_terminal(sys.stderr) else "") + self._line(counts), file=sys.stderr, flush=True)

    def _line(self, counts: Counts) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        skipped = f", {counts.skipped_documents:,} skipped" if counts.skipped_documents else ""
        rate = (counts.tokens - self._before.tokens) / seconds
        return (
            f"{self._title}: {plural(counts.documents, 'document')}, {plural(counts.tokens, 'token')}{skipped}, {seconds:.0f} s, "
            f"{rate:,.0f} tokens/s"
        )

    def _left(self, characters: int) -> str:
        total = self._characters_per_byte * sum(self._sizes)
        if not total or characters <= self._first:
            return ""
        seconds = (time.monotonic() - self._begin) * max(0.0, total - characters) / (characters - self._first)
        minutes, seconds = divmod(int(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {hours}:{minutes:02}:{seconds:02} left ({min(1.0, characters / total):.0%})"

"""Integrity of the tables by which SentencePiece normalises text.

A table has the size of a trie in bytes, the trie as a double array of 32-bit units (Darts), and the strings that replace what the
trie matches. The library walks the trie without looking at its end: a damaged table would crash the process or leak its memory.
"""

import numpy as np

from bertfam.errors import UserError

_MOST_MATCHES = 32  # for which the library has room, of prefixes of one text


def check_charsmap(table: bytes) -> None:
    """Raise UserError if some text would lead the library beyond the end of a table; an empty one normalises nothing."""
    size = int.from_bytes(table[:4], "little")
    strings = table[4 + size :]
    if table and (size == 0 or size % 4 or not strings.endswith(b"\0") or not _is_sound(table[4 : 4 + size], len(strings))):
        raise UserError("the table of the normaliser (precompiled_charsmap) is damaged; restore the file")


def _is_sound(trie: bytes, length: int) -> bool:
    """Return whether every walk through a trie stays inside it, and every value inside strings of this length."""
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    places = np.arange(units.size)
    bases = places ^ ((units >> 10) << ((units & 0x200) >> 6))
    labels = units & 0x800000FF
    # The children of a node are at its base ^ their label, a byte; units that hold values have greater labels.
    children = places[labels < 256]
    children = children[np.argsort(children ^ labels[children], kind="stable")]
    parents = children ^ labels[children]
    matches = np.full(units.size, -1)  # on the way to a node, at most
    matches[0] = 0
    nodes = places[:1]
    while nodes.size:
        if (bases[nodes] | 0xFF).max() >= units.size:
            return False
        first, last = (np.searchsorted(parents, bases[nodes], side) for side in ("left", "right"))
        counts = last - first
        starts = np.repeat(first - np.cumsum(counts) + counts, counts)
        following = children[starts + np.arange(counts.sum())]
        has_value = (units[following] >> 8) & 1
        values = bases[following[has_value == 1]]
        if values.size and (values.max() >= units.size or (units[values] & 0x7FFFFFFF).max() >= length):
            return False
        before = matches.copy()
        np.maximum.at(matches, following, np.repeat(matches[nodes], counts) + has_value)
        nodes = np.flatnonzero(matches > before)
        if matches.max() > _MOST_MATCHES:
            return False
    return True

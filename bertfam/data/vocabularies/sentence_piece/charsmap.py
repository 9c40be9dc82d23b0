"""Tables by which SentencePiece normalises text: their integrity, and the sequences that they match.

A table has the size of a trie in bytes, the trie as a double array of 32-bit units (Darts), and the strings that replace what the
trie matches. The library walks the trie without looking at its end: a damaged table would crash the process or leak its memory.
"""

from typing import NamedTuple

import numpy as np

from bertfam.errors import UserError

_MOST_MATCHES = 32  # for which the library has room, of prefixes of one text
_LONGEST, _MOST_SEQUENCES = 16, 1 << 20  # in bytes, and in number; SentencePiece's own tables have a letter and three marks
# First and last characters of the alphabets whose letters compose to syllables, each of 3 bytes.
_JAMO = (("\u1100", "\u11ff"), ("\u3131", "\u318e"), ("\u3260", "\u327e"), ("\uffa0", "\uffdc"))


def check_charsmap(table: bytes) -> None:
    """Raise UserError if some text would lead the library beyond the end of a table; an empty one normalises nothing."""
    size = int.from_bytes(table[:4], "little")
    strings = table[4 + size :]
    if table and (size == 0 or size % 4 or not strings.endswith(b"\0") or not _is_sound(table[4 : 4 + size], len(strings))):
        raise UserError("the table of the normaliser (precompiled_charsmap) is damaged; restore the file")


def matched_sequences(table: bytes) -> list[str]:
    """Return the sequences of several characters that a sound table matches, but for those that begin with a Korean jamo.

    Raises:
      UserError: it has more of them than any table for text.
    """
    size = int.from_bytes(table[:4], "little")
    trie = _parse(table[4 : 4 + size])
    nodes, found = np.zeros(1, np.int64), list[str]()
    matched = np.zeros((1, 0), np.uint8)  # the bytes on the way to each node
    while nodes.size and matched.shape[1] < _LONGEST:
        counts, nodes = trie.children(nodes)
        if nodes.size > _MOST_SEQUENCES:
            raise UserError(f"the table of the normaliser (precompiled_charsmap) has more than {_MOST_SEQUENCES:,} sequences")
        matched = np.concatenate([np.repeat(matched, counts, axis=0), trie.labels[nodes, None].astype(np.uint8)], axis=1)
        if matched.shape[1] == len(_JAMO[0][0].encode()):
            code = matched @ np.array([1 << 16, 1 << 8, 1])
            bounds = [[int.from_bytes(letter.encode(), "big") for letter in letters] for letters in _JAMO]
            kept = ~np.any([(first <= code) & (code <= last) for first, last in bounds], axis=0)
            nodes, matched = nodes[kept], matched[kept]
        texts = (row.tobytes().decode(errors="replace") for row in matched[trie.has_value(nodes)])
        found += [text for text in texts if len(text) > 1]
    return found


class _Trie(NamedTuple):
    """Trie as a double array: the children of a node are at its base ^ their label, a byte.

    Attributes:
      units: the units.
      bases: of each unit.
      labels: of each unit; units that hold values have greater labels than a byte.
      places: those of the units with labels of a byte, sorted by their parents' bases.
      parents: these bases.
    """

    units: np.ndarray
    bases: np.ndarray
    labels: np.ndarray
    places: np.ndarray
    parents: np.ndarray

    def children(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of children of each node, and all children in the order of the nodes."""
        first, last = (np.searchsorted(self.parents, self.bases[nodes], side) for side in ("left", "right"))
        counts = last - first
        starts = np.repeat(first - np.cumsum(counts) + counts, counts)
        return counts, self.places[starts + np.arange(counts.sum())]

    def has_value(self, nodes: np.ndarray) -> np.ndarray:
        """Return whether what leads to each node is a match."""
        return np.asarray((self.units[nodes] >> 8) & 1, bool)


def _parse(trie: bytes) -> _Trie:
    units = np.frombuffer(trie, "<u4").astype(np.int64)
    places = np.arange(units.size)
    bases = places ^ ((units >> 10) << ((units & 0x200) >> 6))
    labels = units & 0x800000FF
    children = places[labels < 256]
    children = children[np.argsort(children ^ labels[children], kind="stable")]
    return _Trie(units, bases, labels, children, children ^ labels[children])


def _is_sound(trie: bytes, length: int) -> bool:
    """Return whether every walk through a trie stays inside it, and every value inside strings of this length."""
    parsed = _parse(trie)
    units, bases = parsed.units, parsed.bases
    matches = np.full(units.size, -1)  # on the way to a node, at most
    matches[0] = 0
    nodes = np.zeros(1, np.int64)
    while nodes.size:
        if (bases[nodes] | 0xFF).max() >= units.size:
            return False
        counts, following = parsed.children(nodes)
        has_value = parsed.has_value(following)
        values = bases[following[has_value]]
        if values.size and (values.max() >= units.size or (units[values] & 0x7FFFFFFF).max() >= length):
            return False
        before = matches.copy()
        np.maximum.at(matches, following, np.repeat(matches[nodes], counts) + has_value)
        nodes = np.flatnonzero(matches > before)
        if matches.max() > _MOST_MATCHES:
            return False
    return True

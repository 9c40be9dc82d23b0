"""Steps of the `tokenizers` library that normalise text as SentencePiece does by its table.

SentencePiece replaces the longest sequence that its table matches, such as a letter and its marks. The library's `Precompiled`
looks up single characters, and clusters of at most 5 bytes by their shortest match, which loses marks. Composing the text first
(NFC) would sort marks and compose across other marks, which SentencePiece does not. So a separator keeps NFC from what the table
does not match, and another one keeps characters apart from each other for `Precompiled`.
"""

import functools
import unicodedata
from collections import defaultdict
from collections.abc import Collection

from tokenizers import Regex, normalizers

from bertfam.data.vocabularies.sentence_piece.charsmap import matched_sequences

# Characters that never stand in text ("noncharacters"). The library cannot put them before a text's first character.
_UNCOMPOSED, _APART = "\ufdd0", "\ufdd1"
_KANA_MARKS = "\uff9e\uff9f"  # half-width, no marks to Unicode
_MARK = rf"\p{{M}}{_KANA_MARKS}"
# NFC adds a final consonant to a syllable, and the table to its letters only; some letters of other alphabets become consonants.
_SYLLABLE = "(?<=[\uac00-\ud7a3])(?=[\u11a8-\u11c2\u3133\u3135\u3136\u313a-\u3140\uffa3\uffa5\uffa6\uffaa-\uffb0])"
# What else belongs to one cluster with the character before it: vowels of Korean, Thai and Lao, joiners, and LF after CR.
_CLUSTER = rf"(?!\A)(?<!{_UNCOMPOSED})(?=[{_MARK}\u1160-\u11ff\u0e33\u0eb3\u200c\u200d])|(?<=\r)(?=\n)"


def normalization_steps(table: bytes) -> list[normalizers.Normalizer]:
    """Return the steps that normalise text by a sound table (precompiled_charsmap)."""
    return [
        normalizers.Replace(Regex(_uncomposed_places(table)), _UNCOMPOSED),
        normalizers.NFC(),
        normalizers.Replace(Regex(_CLUSTER), _APART),
        normalizers.Precompiled(table),
        normalizers.Replace(_APART, ""),
        normalizers.NFC(),  # of letters that the table has made of others, such as half-width kana
        normalizers.Replace(_UNCOMPOSED, ""),
    ]


@functools.lru_cache(maxsize=4)
def _uncomposed_places(table: bytes) -> str:
    """Return a pattern of the places before marks that the table matches with nothing before them."""
    bases = defaultdict[str, list[str]](list)  # by the marks after them
    for sequence in matched_sequences(table):
        # The table gives sequences of marks alone what their characters give.
        if unicodedata.combining(sequence[0]) == 0 and all(map(_is_mark, sequence[1:])):
            bases[sequence[1:]].append(sequence[0])
    composed = defaultdict[str, list[str]](list)  # by the last mark
    for marks, letters in sorted(bases.items()):
        composed[marks[-1]].append(f"(?<={_character_class(letters)}{marks})")
    matched = "|".join(f"{mark}(?:{'|'.join(places)})" for mark, places in composed.items())
    return rf"(?!\A)(?=[{_MARK}])(?!{matched or '(?!)'})|{_SYLLABLE}"


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or character in _KANA_MARKS


def _character_class(characters: Collection[str]) -> str:
    """Return a class of letters and marks, none of which has a meaning in a pattern."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(chr(first) if first == last else f"{chr(first)}-{chr(last)}" for first, last in ranges) + "]"

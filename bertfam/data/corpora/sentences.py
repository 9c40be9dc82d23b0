"""Sentence splitting by `sentencex`, with corrections for its mistakes on real text.

sentencex 1.0.32 is used as it is, except for Chinese, and its boundaries are corrected: it lacks some abbreviations, ends
sentences within names such as "tf.DType", and panics at wide spaces before a full stop. `pysbd` and `nltk` are not dependencies
of bertfam.
"""

import functools
import re
from collections.abc import Callable, Iterator

from bertfam.errors import UserError

# ISO 639-1 codes of Chinese and of the languages for which `sentencex` has specific rules (abbreviations, quotes, sentence ends).
LANGUAGES = tuple("am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split())
# Any other language, by sentencex's general rules (full stops of many scripts, English abbreviations).
UNDETERMINED = "und"

# Abbreviations that sentencex lacks.
_ABBREVIATIONS = {
    "de": r"\d{1,3}",  # ordinals; the noun that follows is capitalised
    "es": r"[A-Z]|D|Dña|núm|pág|págs|art|vol|cap|fig",
    "fi": r"tri|prof|hra|rva|nti|esim|ks|vrt|nk|huom",
    "fr": r"[A-Z]|MM|Mme|Mmes|Mlle|Mlles|Me|Mgr|St|Ste|no|art|cf|p|pp|vol|fig|chap|av|env|éd",
}
# For Chinese, sentencex's general rules miss ends before a digit and split at spaces inside parentheses.
_CHINESE = re.compile(r"[^。！？!?\n]*(?:[。！？!?\n]+[”’」』》）)\"]*|$)")
_QUOTES = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}


# Codes of countries that are often taken for those of their languages.
_LANGUAGE_OF = {"cn": "zh", "dk": "da", "gr": "el", "jp": "ja", "ua": "uk"}


def check_language(language: str) -> None:
    """Raise UserError unless `split_sentences` supports the language."""
    if language not in LANGUAGES and language != UNDETERMINED:
        base = re.split("[-_]", language)[0].lower()  # of a locale such as en_US
        base = _LANGUAGE_OF.get(base, base)
        nearest = f"did you mean {base}? It is" if base in LANGUAGES else "use"
        raise UserError(
            f"language {language!r} has no sentence rules; {nearest} one of {', '.join(LANGUAGES)}, "
            f'or "{UNDETERMINED}" for rules that fit most others'
        )


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split a paragraph into stripped, non-empty sentences in order.

    A quotation inside a sentence is kept whole (except in Chinese); one that makes up the whole sentence is split.

    Args:
      text: Running text without hard line breaks; a newline inside it ends a sentence.
      language: One of `LANGUAGES`, or "und".

    Raises:
      UserError: If the language is not supported.
    """
    check_language(language)
    if language == "zh":
        return [sentence for piece in _CHINESE.findall(text) if (sentence := piece.strip())]
    continues = _CONTINUES[language]
    sentences: list[str] = []
    pending = ""
    for piece in _pieces(text, language):
        if sentences and not pending and _MARKS.fullmatch(piece):  # as in "Really... !"
            sentences[-1] = f"{sentences[-1]} {piece.strip()}".rstrip()
            continue
        pending += piece
        # Full stops inside a name ("tf.DType", "example.com") do not end a sentence: white space must follow.
        if not pending.endswith((".", "!", "?")) and not continues.search(pending):
            sentences += _stripped(pending)
            pending = ""
    sentences += _stripped(pending)
    return [part for sentence in sentences for part in _unquoted(sentence, language)]


def _stripped(text: str) -> list[str]:
    stripped = text.strip()
    return [stripped] if stripped else []


def _pieces(text: str, language: str) -> Iterator[str]:
    """Yield the text cut at the ends of sentencex's sentences."""
    end = 0
    # sentencex counts each space before a full stop as one byte, and panics within a wider one.
    for piece in _segment()(language, _WIDE_SPACE.sub(" ", text)):
        begin, end = end, end + len(piece)
        yield text[begin:end]


@functools.cache
def _segment() -> Callable[[str, str], list[str]]:
    """Return sentencex's function, which is imported when it is first used."""
    from sentencex import segment

    return segment


def _unquoted(sentence: str, language: str) -> list[str]:
    """Split a sentence that is one quotation from beginning to end; return any other unchanged."""
    closing = _QUOTES.get(sentence[0], "")
    inside = sentence[1:-1]
    if not inside or sentence[-1] not in closing or any(quote in inside for quote in (sentence[0], *closing)):
        return [sentence]
    parts = split_sentences(inside, language)
    if not parts:
        return [sentence]
    parts[0] = sentence[0] + inside[: inside.index(parts[0][0])] + parts[0]
    parts[-1] += inside[len(inside.rstrip()) :] + sentence[-1]
    return parts


def _continuation(language: str) -> re.Pattern[str]:
    """Return a pattern of ends of a piece that do not end a sentence: abbreviations, and the number of a list item alone."""
    ends = [r"^\s*\(?(?:\d{1,3}|[a-zA-Z])[.)]\s+$"]
    if words := _ABBREVIATIONS.get(language):
        ends.append(rf"(?:^|[\s('’])(?:{words})\.\s+$")
    return re.compile("|".join(ends))


_CONTINUES = {language: _continuation(language) for language in (*LANGUAGES, UNDETERMINED)}
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\.)")
_MARKS = re.compile(r"[!?.…\s]+")

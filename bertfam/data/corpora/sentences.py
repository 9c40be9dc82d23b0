"""Splitting running text into sentences: `sentencex`, and what it misses on real text put right."""

import re
from collections.abc import Iterator

from bertfam.errors import UserError

# By ISO 639-1 code: Chinese, and those that `sentencex` has rules of its own for (abbreviations, quotes, sentence ends).
LANGUAGES = tuple("am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk zh".split())
# Any other language: sentencex's general rules (full stops of many scripts, English abbreviations).
UNDETERMINED = "und"

# What ends in a full stop without ending a sentence, beyond what sentencex knows.
_ABBREVIATIONS = {
    "de": r"\d{1,3}",  # ordinals; the noun that follows has a capital
    "es": r"[A-Z]|D|Dña|núm|pág|págs|art|vol|cap|fig",
    "fi": r"tri|prof|hra|rva|nti|esim|ks|vrt|nk|huom",
    "fr": r"[A-Z]|MM|Mme|Mmes|Mlle|Mlles|Me|Mgr|St|Ste|no|art|cf|p|pp|vol|fig|chap|av|env|éd",
}
# sentencex's general rules miss ends before a digit, and find some at spaces inside parentheses.
_CHINESE = re.compile(r"[^。！？!?\n]*(?:[。！？!?\n]+[”’」』》）)\"]*|$)")
_QUOTES = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}


def check_language(language: str) -> None:
    """Raises UserError when `language` is no code that `split_sentences` takes."""
    if language not in LANGUAGES and language != UNDETERMINED:
        raise UserError(
            f"language {language!r} has no sentence rules: use one of {', '.join(LANGUAGES)}, "
            f'or "{UNDETERMINED}" for rules that fit most others'
        )


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Sentences of a paragraph in order, stripped, none of them empty.

    A quotation inside a sentence is left whole (but not in Chinese); one that is all of a sentence is split.

    Args:
      text: running text without hard line breaks; a newline inside it ends a sentence.
      language: one of `LANGUAGES`, or "und".

    Raises:
      UserError: the language is not known.
    """
    check_language(language)
    if language == "zh":
        return [sentence for piece in _CHINESE.findall(text) if (sentence := piece.strip())]
    goes_on = _GOES_ON[language]
    sentences: list[str] = []
    begun = ""
    for piece in _pieces(text, language):
        if sentences and not begun and _MARKS.fullmatch(piece):  # as in "Really... !"
            sentences[-1] = f"{sentences[-1]} {piece.strip()}".rstrip()
            continue
        begun += piece
        # Full stops inside a name ("tf.DType", "example.com") end nothing: white space must follow.
        if not begun.endswith((".", "!", "?")) and not goes_on.search(begun):
            sentences += _stripped(begun)
            begun = ""
    sentences += _stripped(begun)
    return [part for sentence in sentences for part in _unquoted(sentence, language)]


def _stripped(text: str) -> list[str]:
    stripped = text.strip()
    return [stripped] if stripped else []


def _pieces(text: str, language: str) -> Iterator[str]:
    """The text cut where sentencex ends sentences."""
    from sentencex import segment

    end = 0
    # It counts each space before a full stop as one byte, and panics within a wider one.
    for piece in segment(language, _WIDE_SPACE.sub(" ", text)):
        begin, end = end, end + len(piece)
        yield text[begin:end]


def _unquoted(sentence: str, language: str) -> list[str]:
    """The sentences of one that is a quotation from begin to end; any other as it is."""
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


def _goes_on(language: str) -> re.Pattern[str]:
    """Ends of a piece that are no end of a sentence: an abbreviation, and the number of a list's item, alone."""
    ends = [r"^\s*\(?(?:\d{1,3}|[a-zA-Z])[.)]\s+$"]
    if words := _ABBREVIATIONS.get(language):
        ends.append(rf"(?:^|[\s('’])(?:{words})\.\s+$")
    return re.compile("|".join(ends))


_GOES_ON = {language: _goes_on(language) for language in (*LANGUAGES, UNDETERMINED)}
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\.)")
_MARKS = re.compile(r"[!?.…\s]+")

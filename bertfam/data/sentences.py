"""Splitting running text into sentences."""

from bertfam.errors import UserError

# The languages that `sentencex` has rules of its own for (abbreviations, quotes, sentence ends), by ISO 639-1 code.
LANGUAGES = tuple("am ar bg bn ca da de el en es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk".split())
# Any other language: sentencex's general rules (full stops of many scripts, English abbreviations).
UNDETERMINED = "und"


def check_language(language: str) -> None:
    """Raises UserError when `language` is no code that `split_sentences` takes."""
    if language not in LANGUAGES and language != UNDETERMINED:
        raise UserError(
            f"language {language!r} has no sentence rules: use one of {', '.join(LANGUAGES)}, "
            f'or "{UNDETERMINED}" for rules that fit most others'
        )


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Sentences of a paragraph in order, stripped, none of them empty.

    Args:
      text: running text without hard line breaks; a newline inside it ends a sentence.
      language: one of `LANGUAGES`, or "und".

    Raises:
      UserError: the language is not known.
    """
    check_language(language)
    from sentencex import segment

    sentences = []
    begun = ""
    for piece in segment(language, text):
        begun += piece
        # Full stops inside a name ("tf.DType", "example.com") end nothing: white space must follow.
        if not begun.endswith((".", "!", "?")):
            sentences.append(begun.strip())
            begun = ""
    sentences.append(begun.strip())
    return [sentence for sentence in sentences if sentence]

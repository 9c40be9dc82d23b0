"""Which language a text is in, by an optional library: py3langid (139 languages, needs NumPy alone, draws nothing)."""

from collections.abc import Callable

from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

_READ = 10_000  # characters


def language_filter(language: str, least: float) -> Callable[[str], bool]:
    """Whether a text, by its first 10,000 characters, is in a language with at least this probability.

    C4 was made with langdetect; its threshold, 0.99, is for pages of a few sentences and more.

    Args:
      language: ISO 639 code, as "en".
      least: probability.

    Raises:
      UserError: the library is not installed, or does not know the language.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError(
            f"--language={language} needs py3langid, which cannot be imported ({error}): pip install 'bertfam[clean]', or leave "
            "--language out to keep pages of all languages"
        ) from error
    found = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if language not in found.labels:
        hint = did_you_mean(language, found.labels, f"one of {', '.join(sorted(found.labels))}")
        raise UserError(f"--language={language} is no language that py3langid knows{hint}")

    def is_wanted(text: str) -> bool:
        likeliest, probability = found.classify(text[:_READ])
        return likeliest == language and probability >= least

    return is_wanted

"""Language identification with an optional library, py3langid (139 languages, requires only NumPy, deterministic)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

_CHARACTERS = 10_000  # the part of a text that is classified


def language_filter(language: str, least: float) -> Callable[[str], bool]:
    """Return a function that is True for texts in a language, as classified by their first 10,000 characters.

    C4 was made with langdetect and a threshold of 0.99, for pages of at least a few sentences.

    Args:
      language: ISO 639 code, such as "en".
      least: least probability of the language.

    Raises:
      UserError: if the library is not installed or does not know the language.
    """
    try:
        import py3langid.langid  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--language={language} needs py3langid, which cannot be imported ({error}): pip install 'bertfam[clean]', or leave "
            "--language out to keep pages of all languages"
        ) from error
    labels = _identifier().labels
    if language not in labels:
        hint = did_you_mean(language, labels, f"one of {', '.join(sorted(labels))}")
        raise UserError(f"--language={language} is not a language of py3langid{hint}")
    return _LanguageFilter(language, least)


@dataclass(frozen=True)
class _LanguageFilter:
    """Function that can be pickled, without the library's model."""

    language: str
    least: float

    def __call__(self, text: str) -> bool:
        likeliest, probability = _identifier().classify(text[:_CHARACTERS])
        return likeliest == self.language and probability >= self.least


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

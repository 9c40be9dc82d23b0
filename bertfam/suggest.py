"""The nearest name to a misspelt one, as every error line gives it."""

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """Return at most `count` candidates that resemble `name`, best first, ignoring case."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(candidates)}
    return [by_folded[match] for match in difflib.get_close_matches(name.casefold(), by_folded, n=count)]


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error line: "; did you mean NAME?", or "; OTHERWISE" where nothing is near."""
    if found := nearest(name, candidates):
        return f"; did you mean {found[0]}?"
    return f"; {otherwise}" if otherwise else ""

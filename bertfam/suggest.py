"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """Return at most `count` candidates that resemble `name`, best first, ignoring case."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(candidates)}
    return [by_folded[match] for match in difflib.get_close_matches(name.casefold(), by_folded, n=count)]


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message: "; did you mean NAME?", or "; OTHERWISE" if no candidate is similar."""
    if matches := nearest(name, candidates):
        return f"; did you mean {matches[0]}?"
    return f"; {otherwise}" if otherwise else ""

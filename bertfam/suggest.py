"""Suggestions for misspelt names, and for several in the place of one."""

import difflib
import re
from collections.abc import Callable, Iterable


def nearest(name: str, candidates: Iterable[str], count: int = 1) -> list[str]:
    """Return at most `count` candidates that resemble `name`, best first, ignoring case."""
    by_folded = {candidate.casefold(): candidate for candidate in sorted(candidates)}
    return [by_folded[match] for match in difflib.get_close_matches(name.casefold(), by_folded, n=count)]


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message: "; did you mean NAME?", or "; OTHERWISE" if no candidate is similar."""
    if matches := nearest(name, candidates):
        return f"; did you mean {matches[0]}?"
    return f"; {otherwise}" if otherwise else ""


def one_each(text: str, is_known: Callable[[str], bool]) -> str:
    """Return the end of a message about known values with commas between: each has a flag of its own; "" for others."""
    parts = text.split(",")
    return f"; each has a flag of its own: {' and '.join(parts)}" if len(parts) > 1 and all(map(is_known, parts)) else ""


def without_commas(text: str) -> list[str]:
    """Return the numbers that one with commas may mean: 1,000 is a thousand, or 1.000 by a decimal comma; [] for other text."""
    number = text.removeprefix("-")
    sign = text[: len(text) - len(number)]
    thousands = [number.replace(",", "")] if re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+(\.\d+)?", number) else []
    decimal = [number.replace(",", ".")] if re.fullmatch(r"\d+,\d+(e-?\d+)?", number) else []
    return [sign + found for found in thousands + decimal]

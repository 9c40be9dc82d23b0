"""Counts with their nouns, and lists of names, in messages."""

from collections.abc import Iterable


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return "1 row" or "2,000 rows"; `nouns` is the plural where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def listed(names: Iterable[object], most: int) -> str:
    """Join names by commas, at most `most` of them: "a, b and 3 more"; "none" if there is none."""
    every = [str(name) for name in names]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more or "none"

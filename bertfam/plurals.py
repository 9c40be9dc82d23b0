"""Counts with their nouns in messages."""


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return "1 row" or "2,000 rows"; `nouns` is the plural where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"

"""Counts of cleaned text: the text kept and the text removed by each rule add up to the text seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHOWN = 100


@dataclass
class Count:
    """Number of pages, lines, and characters (without line ends).

    A removed page counts once, for the rule that removed it; lines that other rules removed from it before count for those rules.
    If only a part of a line is removed, its characters count but the line does not.

    Attributes:
      example: beginning of the first page, line or part of a line that the rule removed.
    """

    pages: int = 0
    lines: int = 0
    characters: int = 0
    example: str | None = None

    def add(self, pages: int = 0, lines: int = 0, characters: int = 0, example: str | None = None) -> None:
        """Add to the counts; an existing example is kept."""
        self.pages += pages
        self.lines += lines
        self.characters += characters
        if self.example is None and example is not None:
            self.example = example[:_SHOWN]

    def merge(self, other: Count) -> None:
        """Add the counts of later text."""
        self.add(other.pages, other.lines, other.characters, other.example)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, and the example if there is one."""
        numbers = {"pages": self.pages, "lines": self.lines, "characters": self.characters}
        return numbers if self.example is None else {**numbers, "example": self.example}


class Tally:
    """Counts of the text seen, of the text kept, and of the text removed by each rule."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        self.seen, self.kept = Count(), Count()
        self.removed = {rule: Count() for rule in rules}

    def merge(self, other: Tally) -> None:
        """Add the counts of later text, by the same rules or some of them."""
        self.seen.merge(other.seen)
        self.kept.merge(other.kept)
        for rule, count in other.removed.items():
            self.removed[rule].merge(count)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Tally:
        """Return the counts of which `as_json` gave the content."""
        tally = cls(())
        tally.seen, tally.kept = Count(**content["seen"]), Count(**content["kept"])
        tally.removed = {rule: Count(**count) for rule, count in content["removed"].items()}
        return tally

    def as_json(self) -> dict[str, Any]:
        """Return `seen`, `kept`, and `removed` by rule."""
        removed = {rule: count.as_json() for rule, count in self.removed.items()}
        return {"seen": self.seen.as_json(), "kept": self.kept.as_json(), "removed": removed}

    def table(self) -> str:
        """Return the counts as a table of text."""
        rows = {"seen": self.seen, **self.removed, "kept": self.kept}
        width = max(map(len, rows))
        lines = [f"{'':{width}}  {'pages':>12}  {'lines':>14}  {'characters':>17}"]
        for name, count in rows.items():
            sign = "-" if name in self.removed and (count.pages or count.lines or count.characters) else ""
            cells = (f"{sign if number else ''}{number:,}" for number in (count.pages, count.lines, count.characters))
            pages, of_lines, characters = cells
            lines.append(f"{name:{width}}  {pages:>12}  {of_lines:>14}  {characters:>17}")
        return "\n".join(lines)

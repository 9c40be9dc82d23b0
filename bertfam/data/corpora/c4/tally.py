"""What each rule of cleaning removed, counted so that what was kept and what was removed make up what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SHOWN = 100


@dataclass
class Count:
    """Pages, lines, and characters (without line ends).

    A page that is removed counts once, for the rule that removed it; of its lines, those that other rules removed before count
    for these. A line that loses only a part counts its characters alone.

    Attributes:
      example: the beginning of the first page, line or part of a line that a rule removed.
    """

    pages: int = 0
    lines: int = 0
    characters: int = 0
    example: str | None = None

    def add(self, pages: int = 0, lines: int = 0, characters: int = 0, example: str | None = None) -> None:
        """Counts more; the example that is there stays."""
        self.pages += pages
        self.lines += lines
        self.characters += characters
        if self.example is None and example is not None:
            self.example = example[:_SHOWN]

    def as_json(self) -> dict[str, Any]:
        """Numbers, and the example where there is one."""
        numbers = {"pages": self.pages, "lines": self.lines, "characters": self.characters}
        return numbers if self.example is None else {**numbers, "example": self.example}


class Tally:
    """A `Count` of what was seen, of what was kept, and of what each rule removed."""

    def __init__(self, rules: tuple[str, ...]) -> None:
        self.seen, self.kept = Count(), Count()
        self.removed = {rule: Count() for rule in rules}

    def as_json(self) -> dict[str, Any]:
        """`seen`, `kept`, and `removed` by rule."""
        removed = {rule: count.as_json() for rule, count in self.removed.items()}
        return {"seen": self.seen.as_json(), "kept": self.kept.as_json(), "removed": removed}

    def table(self) -> str:
        """The same for people."""
        rows = {"seen": self.seen, **self.removed, "kept": self.kept}
        width = max(map(len, rows))
        lines = [f"{'':{width}}  {'pages':>12}  {'lines':>14}  {'characters':>17}"]
        for name, count in rows.items():
            sign = "-" if name in self.removed and (count.pages or count.lines or count.characters) else ""
            cells = (f"{sign if number else ''}{number:,}" for number in (count.pages, count.lines, count.characters))
            pages, of_lines, characters = cells
            lines.append(f"{name:{width}}  {pages:>12}  {of_lines:>14}  {characters:>17}")
        return "\n".join(lines)

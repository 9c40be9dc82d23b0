"""What came of a disturbance: a row of the table."""

from collections import Counter
from dataclasses import dataclass, field

from stories import Story


@dataclass
class Row:
    """What came of one disturbance.

    Attributes:
      name: what was done.
      times: how often.
      hits: how many of them were shown to have hit what.
      codes: of all processes.
      redone: the most steps that were made again after one.
      faults: what was not as it must be.
      skipped: why it was not tried.
      deaths: what was under way at each kill.
    """

    name: str
    times: int = 0
    hits: Counter = field(default_factory=Counter)
    codes: Counter = field(default_factory=Counter)
    redone: int = 0
    faults: list[str] = field(default_factory=list)
    skipped: str | None = None
    deaths: list[str] = field(default_factory=list)

    def add(self, story: Story) -> None:
        """Adds a story that is over."""
        self.codes.update(ended.code for ended in story.ends)
        for ended in story.ends:
            if ended.code == 137:
                self.hits.update(ended.hits)
                self.deaths.append(f"step {ended.step}: {ended.doing}")
        self.redone = max(self.redone, story.redone)
        self.faults += story.faults

    @property
    def kills(self) -> int:
        return self.codes[137]

    @property
    def verdict(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        return "FAILS: " + "; ".join(self.faults) if self.faults else "holds"

"""Row of the campaign's table: the result of one disturbance."""

from collections import Counter
from dataclasses import dataclass, field

from scenarios import Scenario


@dataclass
class Row:
    """Result of one disturbance.

    Attributes:
      name: the disturbance.
      times: number of disturbances.
      hits: number of them that are known to have hit each part of a run.
      codes: number of processes by exit code.
      redone: the most steps that were repeated after one.
      faults: deviations from the expected result.
      skipped: reason for which it was not tried.
      deaths: phases at each kill.
    """

    name: str
    times: int = 0
    hits: Counter = field(default_factory=Counter)
    codes: Counter = field(default_factory=Counter)
    redone: int = 0
    faults: list[str] = field(default_factory=list)
    skipped: str | None = None
    deaths: list[str] = field(default_factory=list)

    def add(self, scenario: Scenario) -> None:
        """Add a finished scenario."""
        self.codes.update(outcome.code for outcome in scenario.outcomes)
        for outcome in scenario.outcomes:
            if outcome.code == 137:
                self.hits.update(outcome.hits)
                self.deaths.append(f"step {outcome.step}: {outcome.phases}")
        self.redone = max(self.redone, scenario.redone)
        self.faults += scenario.faults

    @property
    def kills(self) -> int:
        return self.codes[137]

    @property
    def verdict(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        return "FAILS: " + "; ".join(self.faults) if self.faults else "holds"

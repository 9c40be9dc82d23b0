"""Results of the runs of a suite, which a command that is started again keeps."""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.storage.files import write_text


@dataclass(frozen=True)
class Result:
    """Scores of one run.

    Attributes:
      scores: Each score by its name.
      outcomes: Score of each held-out text alone.
      settings: Settings of the run, by name.
    """

    scores: Mapping[str, float]
    outcomes: tuple[float, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TaskFolder:
    """Folder of a model's results on a task: source.json, seed_N.json, and files of unfinished runs.

    Results that were made of something else (another step, other texts or settings) are not read, and `begin` removes them.

    Attributes:
      path: The folder.
      source: Everything that determines the results but the seed, as JSON.
    """

    path: Path
    source: Mapping[str, Any]

    def read(self, seed: int) -> Result | None:
        """Return the result with a seed; None if there is none."""
        file = self.path / f"seed_{seed}.json"
        if not self._is_own() or not file.is_file():
            return None
        values = json.loads(file.read_text("utf-8"))
        return Result(values["scores"], tuple(values["outcomes"]), values["settings"])

    def begin(self) -> None:
        """Make the folder, without results of another source."""
        if not self._is_own():
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(parents=True)
            write_text(self._record, self._text)

    def write(self, seed: int, result: Result) -> None:
        """Write the result with a seed."""
        write_text(self.path / f"seed_{seed}.json", json.dumps(dataclasses.asdict(result)) + "\n")

    def tidy(self) -> None:
        """Remove what the runs share once all are finished."""
        shutil.rmtree(self.path / "cache", ignore_errors=True)

    @property
    def _record(self) -> Path:
        return self.path / "source.json"

    @property
    def _text(self) -> str:
        return json.dumps(self.source, sort_keys=True, default=str)

    def _is_own(self) -> bool:
        return self._record.is_file() and self._record.read_text("utf-8") == self._text

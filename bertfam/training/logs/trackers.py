"""Services that follow the metrics of runs, beside metrics.jsonl and TensorBoard."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from typing_extensions import override

from bertfam.errors import UserError, warn


class TrackedRun(Protocol):
    """Run that a service follows."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record values by name ("train/loss") after `step` updates."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class Tracker(ABC):
    """Service that follows runs: a frozen dataclass that gin binds to `Run.trackers`."""

    @abstractmethod
    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> TrackedRun:
        """Start to follow a run.

        Args:
          name: name of the run's folder.
          folder: local folder for files of the service.
          settings: the run's plan.

        Raises:
          UserError: if the service's package is not installed.
        """


@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases. Each start of a run is a run there, and those of one folder are a group.

    Attributes:
      project: name of the project.
      mode: "offline" writes files below MODEL_DIR/wandb, which `wandb sync` uploads; "online" uploads while training.
    """

    project: str = "bertfam"
    mode: Literal["offline", "online"] = "offline"

    @override
    def open(self, name: str, folder: Path, settings: Mapping[str, Any]) -> TrackedRun:
        try:
            import wandb
        except ImportError as error:
            raise UserError("Run.trackers has @Wandb(), whose package is not installed: pip install 'bertfam[wandb]'") from error
        options = wandb.Settings(console="off", silent=True)
        where: Any = {"project": self.project, "mode": self.mode, "group": name, "dir": str(folder)}
        return _WandbRun(wandb.init(**where, config=dict(settings), settings=options))


class _WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run
        # A resumed run writes some steps again, which the service's own count of steps would refuse.
        run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record values by name after `step` updates."""
        self._run.log({"step": step, **values})

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


class TrackedRuns:
    """The services that follow a run. One that fails is reported in a line and given up: it never stops training."""

    def __init__(self, trackers: Sequence[Tracker] = (), name: str = "", folder: Path = Path(), settings: Any = None) -> None:
        """Start to follow the run; the arguments are those of `Tracker.open`."""
        self._runs: list[tuple[str, TrackedRun]] = []
        for tracker in trackers:
            service = type(tracker).__name__
            try:
                self._runs.append((service, tracker.open(name, folder, settings or {})))
            except UserError:
                raise
            except Exception as error:
                self._report(service, error)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record values by name after `step` updates."""
        for entry in list(self._runs):
            service, run = entry
            try:
                run.write(step, values)
            except Exception as error:
                self._runs.remove(entry)
                self._report(service, error)

    def close(self) -> None:
        """Write what is left."""
        for service, run in self._runs:
            try:
                run.close()
            except Exception as error:
                self._report(service, error)

    def _report(self, service: str, error: Exception) -> None:
        line = next(iter(str(error).splitlines()), "")
        warn([f"{service} does not follow the run any further ({type(error).__name__}: {line[:200]})"])

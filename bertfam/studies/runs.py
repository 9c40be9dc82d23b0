"""Runs of a study in its folder: training one, scoring it, and reading results back.

DIR/runs/ARM/NAME/    a run: seed_0, or rate_0.001, or speed
  run.gin             its configuration, for `bertfam pretrain --gin_file`
  log.txt             output of training and scoring
  model/              its MODEL_DIR
  training/, SCORE/   results, see `bertfam.evaluation.suites.results`
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import jax

from bertfam.config import load
from bertfam.errors import TrainingError, UserError
from bertfam.evaluation.suites.results import Result, TaskFolder
from bertfam.evaluation.suites.suite import file_name
from bertfam.storage.files import write_text
from bertfam.storage.untrusted import check_subfolder, read_json, read_text
from bertfam.studies.scores.score import Command, Score, Trained
from bertfam.training.checkpoints import retention
from bertfam.training.logs import metrics_file
from bertfam.training.logs.phase_timer import TRAINING, WAITING
from bertfam.training.model_dir import read_run

Kind = Literal["speed", "rate", "seed"]
FINISHED, DIVERGED = "finished", "diverged"


@dataclass(frozen=True)
class StudyRun:
    """Run of a study.

    Attributes:
      kind: "seed" for the runs that are compared, "rate" for those that try a learning rate, "speed" for those that measure the
        time of an update.
      arm: name of the arm.
      seed: seed.
      rate: peak of the schedule; None: as the arm sets it.
      updates: number of updates.
      tokens: tokens of all rows.
      flops: matrix-product FLOPs.
      config: its configuration, as gin text.
      teacher: the teacher of a student.
    """

    kind: Kind
    arm: str
    seed: int
    rate: float | None
    updates: int
    tokens: int
    flops: int
    config: str
    teacher: str | None

    @property
    def name(self) -> str:
        """Name of the folder in that of the arm."""
        return {"seed": f"seed_{self.seed}", "rate": f"rate_{self.rate}", "speed": "speed"}[self.kind]

    @property
    def title(self) -> str:
        """The run in words."""
        words = {"seed": f"seed {self.seed}", "rate": f"learning rate {self.rate}", "speed": "speed"}
        return f"{self.arm}, {words[self.kind]}"


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run.

    Attributes:
      root: folder of the study.
      run: the run.
    """

    root: Path
    run: StudyRun

    @property
    def path(self) -> Path:
        """The folder."""
        return self.root / "runs" / file_name(self.run.arm) / self.run.name

    @property
    def log(self) -> Path:
        """The file of the run's output."""
        return self.path / "log.txt"

    @property
    def training(self) -> Result | None:
        """Result of training; None if it is not finished."""
        return self._training.read(self.run.seed)

    def score(self, score: Score) -> Result | None:
        """Return the result of a score; None if it is not measured."""
        return self._scored(score).read(self.run.seed)

    def is_finished(self, scores: Sequence[Score]) -> bool:
        """Return True if the run is trained and has its scores; a diverged one has none."""
        training = self.training
        if training is None or self.run.kind != "seed" or training.settings["status"] == DIVERGED:
            return training is not None
        return all(self.score(score) for score in scores)

    def check(self) -> None:
        """Raise UserError if the folder has a run with another configuration."""
        for folder in (self.root / "runs", self.path.parent, self.path):
            check_subfolder(folder)
        own = self.path / "run.gin"
        if own.is_file() and (was := read_text(own)) != self.run.config:
            raise UserError(
                f"{own} is of another study ({_difference(was, self.run.config)}): name another --output, or delete {self.path}"
            )

    def prepare(self) -> None:
        """Make the folder and write the configuration, which `check` has compared; raise UserError if it cannot be written."""
        self._training.begin()
        write_text(self.path / "run.gin", self.run.config)

    def execute(self, scores: Sequence[Score], modules: Sequence[str], command: Command) -> int:
        """Train and score what is not trained and scored yet; return the exit status.

        The output is appended to `log`. An update that is not finite ends training as a result, "diverged".

        Raises:
          UserError: a mistake that stops the run, which is in the log too.
        """
        check_subfolder(self.path)
        with open(self.log, "a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            try:
                if self.training is None and (status := self._train(modules, command)):
                    return status
                return self._score(scores, command)
            except UserError as error:
                print(f"bertfam: error: {error}", flush=True)
                raise

    def _train(self, modules: Sequence[str], command: Command) -> int:
        """Train; return the exit status."""
        path = self.path / "run.gin"
        load([str(path)], module_imports=modules, saved=[str(path)])  # imports no module that the user has not named
        flags = [f"--gin_file={path}", f"--model_dir={self.path / 'model'}", "--num_processes=1"]
        flags += [f"--module_import={module}" for module in modules]
        try:
            words = ("distill", [*flags, f"--teacher={self.run.teacher}"]) if self.run.teacher else ("pretrain", flags)
            if status := command(*words):
                return status
        except TrainingError as error:
            print(f"bertfam: error: {error}", flush=True)
            self._training.write(self.run.seed, self._trained(DIVERGED, str(error)))
            return 0
        self._training.write(self.run.seed, self._trained(FINISHED, ""))
        return 0

    def _trained(self, status: str, message: str) -> Result:
        """Return the result of training: its cost, and the last held-out loss of its own objective, if it has one."""
        seconds = {"seconds": 0.0, "seconds_of_updates": 0.0}
        model_dir = self.path / "model"
        for line in metrics_file.read(model_dir / metrics_file.NAME):
            if line.split == "time":
                of_updates = sum(line.values.get(name.replace(" ", "_"), 0.0) for name in (TRAINING, WAITING))
                seconds["seconds"] += sum(line.values.values())
                seconds["seconds_of_updates"] += of_updates
        losses = retention.held_out(model_dir, "loss")
        loss = {"loss": losses[max(losses)]} if losses else {}
        scores = {"updates": self.run.updates, "tokens": self.run.tokens, "flops": self.run.flops, **seconds, **loss}
        devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
        return Result(scores, (), {"status": status, "message": message, "devices": devices})

    def _score(self, scores: Sequence[Score], command: Command) -> int:
        """Measure the scores of a finished run that are not measured yet; return the exit status."""
        if self.is_finished(scores):
            return 0
        trained = partial(Trained, self.path / "model", read_run(self.path / "model"), command=command)
        for score in scores:
            folder = self._scored(score)
            if folder.read(self.run.seed) is None:
                print(f"scoring {score}", flush=True)
                folder.begin()
                result = score.measure(trained(folder=folder.path))
                if isinstance(result, int):
                    return result
                folder.write(self.run.seed, result)
        return 0

    @property
    def _training(self) -> TaskFolder:
        return TaskFolder(self.path / "training", {"run": hashlib.sha256(self.run.config.encode()).hexdigest()})

    def _scored(self, score: Score) -> TaskFolder:
        return TaskFolder(self.path / file_name(score.name), {**self._training.source, "score": repr(score)})


def _difference(was: str, now: str) -> str:
    """Describe the first line in which two configurations differ."""
    before, after = was.splitlines(), now.splitlines()
    removed, added = ([line for line in one if line not in other] for one, other in ((before, after), (after, before)))
    return " and now ".join([*removed[:1], *added[:1]]) or "in another order"


def write_runs(path: Path, runs: Sequence[StudyRun]) -> None:
    """Write the list of runs, which a process of its own reads to train one of them."""
    write_text(path, json.dumps({"runs": [asdict(run) for run in runs]}, indent=1) + "\n")


def read_runs(path: Path) -> list[StudyRun]:
    """Read a list of runs that `write_runs` wrote; raise UserError if it is damaged."""
    try:
        runs = [StudyRun(**run) for run in read_json(path)["runs"]]
        if not all(map(_is_sound, runs)):
            raise TypeError
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} holds no runs as bertfam ablate writes them: delete it, and give STUDY again") from error
    return runs


def _is_sound(run: StudyRun) -> bool:
    """Return True if the fields of a run, which name its folder, have their types."""
    numbers = (run.seed, run.updates, run.tokens, run.flops)
    words = (run.arm, run.config, run.teacher or "")
    is_rate = run.rate is None or type(run.rate) in (int, float)
    is_kind = run.kind in get_args(Kind) and is_rate
    return is_kind and all(type(number) is int for number in numbers) and all(type(word) is str for word in words)

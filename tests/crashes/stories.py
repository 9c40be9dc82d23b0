"""One MODEL_DIR through its disturbances: every start is looked at, and the end is compared with that of an undisturbed run."""

import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from command_line import Trained, started, write_texts
from model_folders import arrays, journal, metrics, whole
from phases import read
from victims import Aim, Ended, durations, run

from bertfam.training.checkpoints import newest

STEPS, BOUNDARY_STEP, CHECKPOINT_EVERY, EVAL_EVERY = 40, 25, 5, 6
_LARGEST_LOSS = 2 * CHECKPOINT_EVERY  # a save waits for the one before
RUN_FILE = f"""\
include "objectives/mlm_nsp.gin"
include "runs/defaults.gin"

TRAIN_STEPS = {BOUNDARY_STEP}
EVAL_EVERY = {EVAL_EVERY}
CHECKPOINT_EVERY = {CHECKPOINT_EVERY}
BATCH_SIZE = 8
SEED = 3

Run.stages = (@short/Stage(), @long/Stage())
short/Stage.length = 32
short/Stage.steps = {BOUNDARY_STEP}
long/Stage.length = 64
long/Stage.steps = {STEPS - BOUNDARY_STEP}
Run.log_every = 4
Run.average_decay = 0.9
Run.keep_checkpoints = 3
BertConfig.num_layers = 1
BertConfig.hidden_size = 64
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 256
BertConfig.max_length = 64
LinearDecay.peak = 1e-3
LinearDecay.warmup_steps = 5
MODEL = @BertConfig()
"""


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing has hit."""

    model_dir: Path
    seconds: Mapping[str, float]  # of each phase

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return arrays(self.model_dir, STEPS)

    @cached_property
    def metrics(self) -> dict[tuple[int, str], dict[str, float]]:
        return by_step(metrics(self.model_dir))


def by_step(lines):
    """{(step, split): values}."""
    return {(line["step"], line["split"]): line for line in lines}


@dataclass(frozen=True)
class Ground:
    """A folder with text, a vocabulary and a run file, on which all stories are told."""

    trained: Trained
    seed: int = 0

    @classmethod
    def made(cls, folder: Path, seed: int) -> "Ground":
        folder.mkdir(parents=True)
        # Enough text for a build of a token cache that takes some seconds.
        write_texts(folder / "text", held_out=slice(10, 40, 2), copies=6)
        (folder / "run.gin").write_text(RUN_FILE)
        words = ["vocab", f"--input={folder / 'text/held-out.txt'}", "--size=300", f"--output={folder / 'vocab'}"]
        with open(folder / "vocab.err", "w") as told:
            assert started(words, {}, stdout=told, stderr=told).wait() == 0, told.name
        return cls(Trained(folder), seed)

    @property
    def folder(self) -> Path:
        return self.trained.folder

    @cached_property
    def undisturbed(self) -> Undisturbed:
        return self.undisturbed_run("undisturbed")

    def undisturbed_run(self, name: str, *flags: str, **environment: str) -> Undisturbed:
        story = Story(self, name, *flags, environment=environment)
        assert story.go(0).code == 0, f"{story.folder}: the undisturbed run fails"
        marks = story.folder / "1.marks"
        return Undisturbed(story.model_dir, durations(read(marks.read_text())))

    def random(self, name: str) -> random.Random:
        """The chance of one disturbance, whatever others there are."""
        return random.Random(f"{self.seed} {name}")


class Story:
    """A MODEL_DIR that is made, disturbed, and brought to its end.

    Attributes:
      ends: of all processes.
      faults: what was not as it must be, in words.
      reached: the most updates that were ever made.
      redone: the most updates that were made again after an end.
      stops: the steps that a signal has stopped the run after.
    """

    def __init__(self, ground: Ground, name: str, *flags: str, environment: Mapping[str, str] = MappingProxyType({}), at=None):
        """Of MODEL_DIR FOLDER/NAME/model, or AT/model."""
        self.ground, self.flags, self.environment = ground, flags, environment
        self.folder = ground.folder / name
        self.folder.mkdir()
        self.model_dir = (at or self.folder) / "model"
        self.ends: list[Ended] = []
        self.faults: list[str] = []
        self.reached = self.redone = 0
        self.stops: list[int] = []
        self._stands = 0

    def with_cache(self) -> "Story":
        """With the token cache of the undisturbed run."""
        shutil.copytree(self.ground.undisturbed.model_dir / "cache", self.model_dir / "cache")
        return self

    def newest(self) -> int:
        """The newest step whose every byte is as it was written; 0: none."""
        return max(whole(self.model_dir), default=0)

    def go(self, *codes: int, aim: Aim | None = None, **environment: str) -> Ended:
        """One process; it must end with one of these codes, and with a line of error where that is 1 or 2.

        Args:
          codes: 0, 75, 1, 2, 137.
          aim: when it is struck.
          environment: as bertfam_process.py reads it.
        """
        before, built = self.newest(), sum((journal(self.model_dir / "cache") or {}).values())
        number = str(len(self.ends) + 1)
        words = self.ground.trained.pretrain(self.model_dir, *self.flags)
        ended = run(words, self.folder, number, {**self.environment, **environment}, aim)
        self.ends.append(ended)
        where = f"{self.folder.name}/{number}"
        if ended.code not in codes:
            self.faults.append(f"{where} exited with {ended.code}, not {' or '.join(map(str, codes))}")
        told = [line for line in ended.err.splitlines() if line.startswith("bertfam: error: ")]
        if "Traceback" in ended.err or len(told) != (ended.code in (1, 2)):
            self.faults.append(f"{where}.err has {len(told)} lines of error" + ", and a traceback" * ("Traceback" in ended.err))
        if ended.resumed is not None or ended.step:
            resumed = ended.resumed or 0
            if resumed != before:
                self.faults.append(f"{where} goes on from {resumed}, and {before} was whole")
            self.redone = max(self.redone, self._stands - resumed)
            self._stands = max(ended.step, resumed)
        if built and "tokenising" in ended.err and f" {built:,} documents are there already" not in ended.err:
            self.faults.append(f"{where} does not go on with a token cache of {built} documents")
        self.reached = max(self.reached, ended.step)
        if self.newest() < before:
            self.faults.append(f"{where}: {before} was whole before it, and {self.newest()} is after")
        if ended.code == 75:
            self.stops.append(ended.step)
        return ended

    def finish(self, like: Undisturbed | None = None, tolerance: float = 0.0) -> "Story":
        """Brings it to its end, and compares it with an undisturbed run."""
        if not self.ends or self.ends[-1].code != 0:
            self.go(0)
        self.compare(like or self.ground.undisturbed, tolerance)
        return self

    def compare(self, like: Undisturbed, tolerance: float) -> None:
        """Adds what is not as an undisturbed run has left it."""
        if newest(self.model_dir) != STEPS:
            self.faults.append(f"{self.folder.name} stands at {newest(self.model_dir)}")
            return
        found = arrays(self.model_dir, STEPS)
        if found.keys() != like.arrays.keys():
            self.faults.append(f"{self.folder.name} has other arrays")
        elif unlike := [name for name in found if not _same(found[name], like.arrays[name], tolerance)]:
            self.faults.append(f"{self.folder.name}: {len(unlike)} of {len(found)} arrays differ, {unlike[0]} for one")
        self._compare_metrics(like, tolerance)
        caches = [_contents(model_dir / "cache") for model_dir in (self.model_dir, like.model_dir)]
        if caches[0] != caches[1]:
            self.faults.append(f"{self.folder.name} has another token cache")
        if left := leftovers(self.model_dir):
            self.faults.append(f"{self.folder.name}: {', '.join(left)} is left over")

    def check_redone(self, most: int = _LARGEST_LOSS) -> None:
        """No more updates are made again than lie between a save and the one before."""
        if self.redone > most:
            self.faults.append(f"{self.folder.name}: {self.redone} steps were made again")

    def _compare_metrics(self, like: Undisturbed, tolerance: float) -> None:
        lines = metrics(self.model_dir)
        found, expected = by_step(lines), like.metrics
        if len(found) != len(lines):
            self.faults.append(f"{self.folder.name}: metrics.jsonl has a line twice")
        # A stop ends an interval; what comes after it is shorter.
        extra = {(step, "train") for step in self.stops} - expected.keys()
        shorter = {min(key for key in expected if key[1] == "train" and key >= stop) for stop in extra}
        if wrong := sorted(found.keys() ^ (expected.keys() | extra)):
            self.faults.append(f"{self.folder.name}: metrics.jsonl lacks, or has besides, {wrong[:3]}")
        for key in (found.keys() & expected.keys()) - shorter:
            there, right = found[key], expected[key]
            if there.keys() != right.keys() or not all(_same(there[name], right[name], tolerance) for name in right):
                self.faults.append(f"{self.folder.name}: metrics.jsonl has {json.dumps(there)}, not {json.dumps(right)}")
                break


def _same(left, right, tolerance):
    if left is None or isinstance(left, str):
        return left == right
    left, right = np.asarray(left), np.asarray(right)
    if tolerance:
        return left.shape == right.shape and np.allclose(left, right, rtol=tolerance, atol=tolerance)
    return left.dtype == right.dtype and np.array_equal(left, right)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def leftovers(model_dir: Path) -> list[str]:
    """What a MODEL_DIR holds that no finished run has."""
    hidden = [path for path in model_dir.rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial")]
    odd = [path for path in (model_dir / "checkpoints").iterdir() if not path.name.isdigit()]
    return [str(path.relative_to(model_dir)) for path in sorted({*hidden, *odd})]

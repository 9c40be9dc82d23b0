"""One MODEL_DIR through its disturbances: each start is checked, and the end is compared with an undisturbed run."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from command_line import Trained, in_process, write_texts
from model_folders import arrays, journal, metrics, whole
from phases import read
from signalled_process import Outcome, SignalPlan, durations, run, run_here

from bertfam.plurals import plural
from bertfam.training.checkpoints import newest

STEPS, BOUNDARY_STEP, SHORT_STEPS, CHECKPOINT_EVERY, EVAL_EVERY = 40, 25, 14, 5, 6
_LARGEST_LOSS = 2 * CHECKPOINT_EVERY  # a save waits for the one before
RUN_FILE = f"""\
include "objectives/mlm_nsp.gin"
include "runs/defaults.gin"

EVAL_EVERY = {EVAL_EVERY}
CHECKPOINT_EVERY = {CHECKPOINT_EVERY}
BATCH_SIZE = 8
SEED = 3

short/Stage.length = 32
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
ONE_STAGE = f"""\
TRAIN_STEPS = {SHORT_STEPS}
Run.stages = (@short/Stage(),)
short/Stage.steps = {SHORT_STEPS}
Run.eval_batches = 2
Execution.layers = "unroll"
"""
TWO_STAGES = f"""\
TRAIN_STEPS = {BOUNDARY_STEP}
short/Stage.steps = {BOUNDARY_STEP}
Run.stages = (@short/Stage(), @long/Stage())
long/Stage.length = 64
long/Stage.steps = {STEPS - BOUNDARY_STEP}
"""


@dataclass(frozen=True)
class Undisturbed:
    """Result of an undisturbed run."""

    model_dir: Path
    steps: int
    seconds: Mapping[str, float]  # of each phase; none in the short form

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        return arrays(self.model_dir, self.steps)

    @cached_property
    def metrics(self) -> dict[tuple[int, str], dict[str, float]]:
        return by_step(metrics(self.model_dir))


def by_step(lines):
    """Return {(step, split): values}."""
    return {(line["step"], line["split"]): line for line in lines}


@dataclass(frozen=True)
class Workspace:
    """Folder with text, a vocabulary and a run file, which all scenarios use.

    Attributes:
      trained: the folder.
      seed: seed of the random moments.
      short: True in the short form, in which undisturbed processes run in this one.
    """

    trained: Trained
    seed: int = 0
    short: bool = False

    @classmethod
    def create(cls, folder: Path, seed: int, *, short: bool = False) -> "Workspace":
        """Make the folder; in the short form the run has one stage, and the text is short."""
        folder.mkdir(parents=True)
        # Building the token cache of the long form takes some seconds.
        write_texts(folder / "text", held_out=slice(10, 40, 2), copies=1 if short else 6)
        (folder / "run.gin").write_text(RUN_FILE + (ONE_STAGE if short else TWO_STAGES))
        words = ["vocab", f"--input={folder / 'text/held-out.txt'}", "--size=300", f"--output={folder / 'vocab'}"]
        done = in_process(*words)
        assert done.returncode == 0, done.stderr
        return cls(Trained(folder), seed, short)

    @property
    def steps(self) -> int:
        """Number of updates of the run."""
        return SHORT_STEPS if self.short else STEPS

    @property
    def folder(self) -> Path:
        return self.trained.folder

    @cached_property
    def undisturbed(self) -> Undisturbed:
        return self.undisturbed_run("undisturbed")

    def undisturbed_run(self, name: str, *flags: str, **environment: str) -> Undisturbed:
        scenario = Scenario(self, name, *flags, environment=environment)
        assert scenario.launch(0).code == 0, f"{scenario.folder}: the undisturbed run fails"
        seconds = {} if self.short else durations(read((scenario.folder / "1.marks").read_text()))
        return Undisturbed(scenario.model_dir, self.steps, seconds)

    def random(self, name: str) -> random.Random:
        """Return the random numbers of one disturbance, which do not depend on others."""
        return random.Random(f"{self.seed} {name}")


class Scenario:
    """A MODEL_DIR that is created, disturbed and finished.

    Attributes:
      outcomes: outcomes of all processes.
      faults: deviations from the expected result, in words.
      reached: largest number of updates that were made.
      redone: largest number of updates that were repeated after a process ended.
      stops: steps after which a signal has stopped the run.
    """

    def __init__(
        self, workspace: Workspace, name: str, *flags: str, environment: Mapping[str, str] = MappingProxyType({}), at=None
    ):
        """Create the scenario, with MODEL_DIR FOLDER/NAME/model or AT/model."""
        self.workspace, self.flags, self.environment = workspace, flags, environment
        self.folder = workspace.folder / name
        self.folder.mkdir()
        self.model_dir = (at or self.folder) / "model"
        self.outcomes: list[Outcome] = []
        self.faults: list[str] = []
        self.reached = self.redone = 0
        self.stops: list[int] = []
        self._last_step = 0

    def with_cache(self) -> "Scenario":
        """Copy the token cache of the undisturbed run, and return the scenario."""
        shutil.copytree(self.workspace.undisturbed.model_dir / "cache", self.model_dir / "cache")
        return self

    def newest(self) -> int:
        """Return the newest step whose bytes are all as they were written, or 0."""
        return max(whole(self.model_dir), default=0)

    def launch(self, *codes: int, plan: SignalPlan | None = None, **environment: str) -> Outcome:
        """Run the command, which must end with one of the exit codes, and with a line of error if that is 1 or 2.

        Args:
          codes: exit codes among 0, 75, 1, 2, 137.
          plan: when it gets a signal.
          environment: variables that bertfam_process.py reads.
        """
        before, built = self.newest(), sum((journal(self.model_dir / "cache") or {}).values())
        number = str(len(self.outcomes) + 1)
        words = self.workspace.trained.pretrain(self.model_dir, *self.flags)
        if self.workspace.short and plan is None:
            outcome = run_here(words)
        else:
            outcome = run(words, self.folder, number, {**self.environment, **environment}, plan)
        self.outcomes.append(outcome)
        where = f"{self.folder.name}/{number}"
        if outcome.code not in codes:
            self.faults.append(f"{where} exited with {outcome.code}, not {' or '.join(map(str, codes))}")
        error_lines = [line for line in outcome.err.splitlines() if line.startswith("bertfam: error: ")]
        if "Traceback" in outcome.err or len(error_lines) != (outcome.code in (1, 2)):
            self.faults.append(
                f"{where}.err has {len(error_lines)} lines of error" + ", and a traceback" * ("Traceback" in outcome.err)
            )
        if outcome.resumed is not None or outcome.step:
            resumed = outcome.resumed or 0
            if resumed != before:
                self.faults.append(f"{where} resumes from {resumed}, but {before} was complete")
            self.redone = max(self.redone, self._last_step - resumed)
            self._last_step = max(outcome.step, resumed)
        if built and "tokenising" in outcome.err and f"which has {plural(built, 'document')} already" not in outcome.err:
            self.faults.append(f"{where} does not continue a token cache of {built} documents")
        self.reached = max(self.reached, outcome.step)
        if self.newest() < before:
            self.faults.append(f"{where}: {before} was complete before it, and {self.newest()} is after")
        if outcome.code == 75:
            self.stops.append(outcome.step)
        return outcome

    def finish(self, reference: Undisturbed | None = None, tolerance: float = 0.0) -> "Scenario":
        """Run it to its end, and compare it with an undisturbed run."""
        if not self.outcomes or self.outcomes[-1].code != 0:
            self.launch(0)
        reference = reference or self.workspace.undisturbed
        self.faults += differences(self.model_dir, reference, self.stops, name=self.folder.name, tolerance=tolerance)
        return self

    def check_redone(self, limit: int = _LARGEST_LOSS) -> None:
        """Check that no more updates were repeated than lie between a save and the one before."""
        if self.redone > limit:
            self.faults.append(f"{self.folder.name}: {self.redone} steps were repeated")


def differences(
    model_dir: Path, reference: Undisturbed, stops: Sequence[int] = (), *, name: str, tolerance: float = 0.0
) -> list[str]:
    """Return all differences of a finished run from an undisturbed one, in words.

    Args:
      model_dir: the finished run.
      reference: the undisturbed run.
      stops: steps after which a signal has stopped the finished run.
      name: name of the finished run.
      tolerance: largest difference of two numbers.
    """
    if newest(model_dir) != reference.steps:
        return [f"{name} ends at step {newest(model_dir)}"]
    faults = list[str]()
    actual = arrays(model_dir, reference.steps)
    if actual.keys() != reference.arrays.keys():
        faults.append(f"{name} has other arrays")
    elif unlike := [key for key in actual if not _same(actual[key], reference.arrays[key], tolerance)]:
        faults.append(f"{name}: {len(unlike)} of {len(actual)} arrays differ, {unlike[0]} for one")
    faults += [f"{name}: {fault}" for fault in _metrics_faults(metrics(model_dir), reference, stops, tolerance)]
    if _contents(model_dir / "cache") != _contents(reference.model_dir / "cache"):
        faults.append(f"{name} has another token cache")
    if remaining := leftovers(model_dir):
        faults.append(f"{name}: {', '.join(remaining)} is left over")
    return faults


def _metrics_faults(lines: list[dict], reference: Undisturbed, stops: Sequence[int], tolerance: float) -> list[str]:
    faults = list[str]()
    actual, expected = by_step(lines), reference.metrics
    if len(actual) != len(lines):
        faults.append("metrics.jsonl has a line twice")
    # A stop ends an interval; the rest of the interval is shorter.
    extra = {(step, "train") for step in stops} - expected.keys()
    shorter = {min(key for key in expected if key[1] == "train" and key >= stop) for stop in extra}
    if wrong := sorted(actual.keys() ^ (expected.keys() | extra)):
        faults.append(f"metrics.jsonl lacks, or has besides, {wrong[:3]}")
    for key in (actual.keys() & expected.keys()) - shorter:
        values, expected_values = actual[key], expected[key]
        if values.keys() != expected_values.keys() or not all(
            _same(values[name], expected_values[name], tolerance) for name in expected_values
        ):
            return [*faults, f"metrics.jsonl has {json.dumps(values)}, not {json.dumps(expected_values)}"]
    return faults


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
    """Return the files of a MODEL_DIR that no finished run has."""
    hidden = [path for path in model_dir.rglob("*") if path.name.startswith(".") or path.suffix in (".new", ".partial")]
    odd = [path for path in (model_dir / "checkpoints").iterdir() if not path.name.isdigit()]
    return [str(path.relative_to(model_dir)) for path in sorted({*hidden, *odd})]

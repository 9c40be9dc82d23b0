"""SIGKILL in `bertfam finetune`: runs with patience and a best checkpoint, alone and one for each of several seeds."""

import csv
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from campaign_rows import Row
from model_folders import arrays, whole
from phases import read
from scenarios import Undisturbed, Workspace, differences
from signalled_process import SignalPlan, durations, run, run_here

from bertfam.training.checkpoints import newest, selection
from bertfam.training.checkpoints.retention import Keep

KILLS = 5
PACE = "0.2"  # seconds after each update, which would be short otherwise
SWEEP = "--seeds=0,1"
FLAGS = (
    *("--patience=2", "--batch_size=16", "--length=16"),
    "--gin.Run.log_every=2",
)
_KEEP = Keep(best="label_loss")


def write_labelled_texts(folder: Path) -> None:
    """Write train.tsv and dev.tsv: names of Python's functions in a sentence, by whether the function makes or reads a thing."""
    verbs = {"makes": ("returns", "builds", "creates", "opens"), "reads": ("prints", "shows", "counts", "checks")}
    subjects = ("a list", "the file", "an object", "a module", "the class", "a string", "the table", "a number")
    rows = [(f"it {verb} {subject}", label) for subject in subjects for label, own in verbs.items() for verb in own]
    for name, chosen in (("train", [row for index, row in enumerate(rows) if index % 5]), ("dev", rows[::5])):
        with open(folder / f"{name}.tsv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator="\n").writerows([("text", "label"), *chosen])


@dataclass(frozen=True)
class FineTuning:
    """Command line of fine-tuning, and the folder of its runs.

    Attributes:
      folder: folder with train.tsv and dev.tsv, in which each run has a folder.
      init_from: the model that it starts from.
      flags: flags of training.
      short: True to run undisturbed processes in this one.
    """

    folder: Path
    init_from: Path
    flags: tuple[str, ...] = FLAGS
    short: bool = False

    @classmethod
    def of(cls, workspace: Workspace, name: str, *flags: str) -> "FineTuning":
        """Return the fine-tuning of a workspace's undisturbed run on labelled texts, which are written into a new folder."""
        folder = workspace.folder / name
        folder.mkdir()
        write_labelled_texts(folder)
        # At the higher rate the model overfits, and patience ends the run. At the lower one the last checkpoint is the best.
        training = ("--epochs=4", "--learning_rate=1e-4") if workspace.short else ("--epochs=8", "--learning_rate=3e-3")
        return cls(folder, workspace.undisturbed.model_dir, (*FLAGS, *training, *flags), workspace.short)

    def words(self, model_dir: Path) -> list[str]:
        """Return the command line."""
        files = (f"--train={self.folder / 'train.tsv'}", f"--validation={self.folder / 'dev.tsv'}")
        return ["finetune", f"--init_from={self.init_from}", *files, *self.flags, f"--model_dir={model_dir}"]

    def undisturbed(self, **environment: str) -> tuple[Path, float]:
        """Train without a kill; return MODEL_DIR and the seconds, 0 in the short form."""
        model_dir = self.folder / "undisturbed"
        words = self.words(model_dir)
        outcome = run_here(words) if self.short else run(words, self.folder, "undisturbed", environment, None)
        assert outcome.code == 0, outcome.err
        return model_dir, 0.0 if self.short else durations(read((self.folder / "undisturbed.marks").read_text()))["all"]

    def kill(self, row: Row, name: str, plans: Iterator[SignalPlan], undisturbed: Path, **environment: str) -> None:
        """Train, with a kill for each plan until the run ends before it; compare the end with the undisturbed one."""
        model_dir = self.folder / name
        if self.short:
            shutil.copytree(undisturbed / "cache", model_dir / "cache")
        for number, plan in enumerate(plans, 1):
            outcome = run(self.words(model_dir), self.folder, f"{name}.{number}", environment, plan)
            row.codes[outcome.code] += 1
            if outcome.code != 137:
                break
            row.times += 1
            row.hits.update(outcome.hits)
            row.deaths.append(f"step {outcome.step}: {outcome.phases}")
        last = (
            run_here(self.words(model_dir)) if self.short else run(self.words(model_dir), self.folder, f"{name}.last", {}, None)
        )
        row.codes[last.code] += 1
        if last.code:
            row.faults.append(f"{name} ends with {last.code}: {last.err.splitlines()[-1:]}")
        else:
            row.faults += compare_all(model_dir, undisturbed)


def compare_all(model_dir: Path, undisturbed: Path) -> list[str]:
    """Return the differences of all runs under a folder from undisturbed ones, in their last and their best checkpoints."""
    faults = list[str]()
    for path in sorted(config.parent for config in undisturbed.rglob("config.gin")):
        own = model_dir / path.relative_to(undisturbed)
        steps = newest(path)
        assert steps is not None
        faults += differences(own, Undisturbed(path, steps, {}), name=str(own.relative_to(model_dir.parent)))
        if whole(own) != whole(path):
            faults.append(f"{own} keeps the steps {whole(own)}, and not {whole(path)}")
        elif not all(_equal(arrays(own, step), arrays(path, step)) for step in whole(path) if step != steps):
            faults.append(f"{own} has another best checkpoint")
        if selection.best(own, _KEEP) != selection.best(path, _KEEP):
            faults.append(f"{own} has step {selection.best(own, _KEEP)} for --step=best")
    return faults


def _equal(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def random_kills(workspace: Workspace, name: str, *flags: str) -> Row:
    """Kill fine-tuning `KILLS` times at random moments of its whole time, in as many runs as these take."""
    row, rng = Row(f"SIGKILL in {name}"), workspace.random(name)
    tuned = FineTuning.of(workspace, name.replace(" ", "-"), *flags)
    undisturbed, seconds = tuned.undisturbed(PACE=PACE)
    number = 0
    while row.times < KILLS:
        number += 1
        delays = (rng.uniform(0, 0.7 * seconds) for _ in range(KILLS - row.times))
        tuned.kill(row, f"killed-{number}", (SignalPlan(delay=delay) for delay in delays), undisturbed, PACE=PACE)
        if number == 4 * KILLS:
            row.faults.append(f"of {KILLS} kills only {row.times} came before the end")
            break
    return row


def kill_rows(workspace: Workspace) -> list[Callable[[], Row]]:
    """Return the tasks of kills in fine-tuning."""
    return [partial(random_kills, workspace, "fine-tuning"), partial(random_kills, workspace, "a sweep of seeds", SWEEP)]


def kill_at_the_end(workspace: Workspace) -> Row:
    """Return the row of a run that is killed as it writes its last scores, before it deletes checkpoints."""
    row = Row("SIGKILL in fine-tuning")
    tuned = FineTuning.of(workspace, "fine-tuning")
    undisturbed, _ = tuned.undisturbed()
    steps = newest(undisturbed)
    assert steps is not None
    for number in range(1, KILLS + 1):
        plans = iter([SignalPlan("logging eval", steps, delay=0.45)])
        tuned.kill(row, f"killed-{number}", plans, undisturbed, STRETCH="logging:0.3")
        if row.times:  # on a busy machine the signal may come after the end
            break
    return row

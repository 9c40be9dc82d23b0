"""Disturbances other than kills at any moment; each gives a row of the table."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial

import xla
from campaign_rows import Row
from model_folders import CannotMount, cut, disk, remount, whole
from scenarios import BOUNDARY_STEP, CHECKPOINT_EVERY, STEPS, Scenario, Workspace
from signalled_process import SignalPlan


def send_sigterm(workspace: Workspace, times: int) -> Row:
    """Send SIGTERM in a step, an evaluation, a save, and so on."""
    row, rng = Row("SIGTERM", times), workspace.random("SIGTERM")
    scenario = Scenario(workspace, "SIGTERM").with_cache()
    for number in range(times):
        phase = ("training", "evaluating", "saving")[number % 3]
        least = scenario.reached + rng.randint(1, max(1, (STEPS - scenario.reached) // times))
        outcome = scenario.launch(75, plan=SignalPlan(phase, least, rng.uniform(0, 0.1), signal.SIGTERM))
        if outcome.code == 75 and scenario.newest() != outcome.step:
            scenario.faults.append(f"it stopped after step {outcome.step}, and {scenario.newest()} is saved")
    scenario.finish()
    if scenario.redone:
        scenario.faults.append(f"{scenario.redone} steps were repeated")
    row.add(scenario)
    return row


def _late_scenario(workspace: Workspace, name: str, step: int = STEPS - CHECKPOINT_EVERY, **options) -> Scenario:
    """Return a scenario that starts as the undisturbed run was when `step` was saved."""
    scenario = Scenario(workspace, name, **options)
    cut(workspace.undisturbed.model_dir, scenario.model_dir, step)
    return scenario


def damage_checkpoint(workspace: Workspace, name: str, apply_damage: Callable, message: str) -> Row:
    """Damage the newest checkpoint, which must be named; the one before must be used."""
    row, rng = Row(name, 1), workspace.random(name)
    scenario = _late_scenario(workspace, name.replace(" ", "-"))
    last = scenario.newest()
    checkpoint = scenario.model_dir / "checkpoints" / str(last)
    files = sorted(path for path in checkpoint.glob("*/**/*") if path.is_file() and path.stat().st_size)
    apply_damage(rng, checkpoint, rng.choice(files))
    outcome = scenario.launch(0)
    lines = [line for line in outcome.err.splitlines() if line.startswith(f"bertfam: warning: {checkpoint} is not used (")]
    if len(lines) != 1 or message not in lines[0]:
        scenario.faults.append(f"{scenario.folder.name}/1.err does not name what is damaged ({message})")
    scenario.finish()
    row.add(scenario)
    row.redone = last - (outcome.resumed or 0)
    return row


def _truncate(rng, checkpoint, path) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _flip(rng, checkpoint, path) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


DAMAGES = {
    "a truncated file": (_truncate, " bytes of "),
    "a deleted file": (lambda rng, checkpoint, path: path.unlink(), " is missing"),
    "a flipped bit": (_flip, " has other bytes than were written"),
    "a missing manifest": (lambda rng, checkpoint, path: (checkpoint / "digests.json").unlink(), "no digests.json"),
}


def full_disk(workspace: Workspace) -> Row:
    """Leave no room for a checkpoint: one line of error, older checkpoints stay, and with room the run resumes."""
    row = Row("a full disk", 1)
    try:
        with disk(workspace.folder / "full", 64) as folder:
            scenario = _late_scenario(workspace, "full-disk", at=folder)
            (folder / "filling").write_bytes(bytes(shutil.disk_usage(folder).free - 100_000))
            before = whole(scenario.model_dir)
            scenario.launch(2)
            if "(No space left on device)" not in scenario.outcomes[-1].err:
                scenario.faults.append("no message says that the disk is full")
            if whole(scenario.model_dir) != before:
                scenario.faults.append("older checkpoints were lost")
            (folder / "filling").unlink()
            row.add(scenario.finish())
    except CannotMount as error:
        row.skipped = str(error)
    return row


def read_only(workspace: Workspace) -> Row:
    """Make the folder read-only: one line of error."""
    row = Row("a read-only folder", 1)
    try:
        with disk(workspace.folder / "read-only", 64) as folder:
            scenario = _late_scenario(workspace, "read-only-folder", at=folder)
            remount(folder, "ro")
            scenario.launch(2)
            if "(Read-only file system)" not in scenario.outcomes[-1].err:
                scenario.faults.append("no message says that the folder cannot be written")
            remount(folder, "rw")
            row.add(scenario.finish())
    except CannotMount as error:
        row.skipped = str(error)
    return row


def kill_at_stage_boundary(workspace: Workspace) -> Row:
    """Kill right after the last step of a stage, before and when it is saved."""
    row = Row("SIGKILL between two stages", 2)
    scenario = Scenario(workspace, "between-two-stages").with_cache()
    scenario.launch(137, DIE=f"{BOUNDARY_STEP}:SIGKILL:{BOUNDARY_STEP - CHECKPOINT_EVERY}")
    scenario.launch(137, DIE=f"{BOUNDARY_STEP + 1}:SIGKILL:{BOUNDARY_STEP}")
    scenario.finish()
    scenario.check_redone()
    if [outcome.resumed for outcome in scenario.outcomes[1:]] != [BOUNDARY_STEP - CHECKPOINT_EVERY, BOUNDARY_STEP]:
        scenario.faults.append("it did not resume from the end of the stage")
    row.add(scenario)
    return row


def raise_on_nan(workspace: Workspace) -> Row:
    """Make a loss NaN, which must end the run each time; without NaN the run resumes."""
    row, rng = Row("NaN, raise", 2), workspace.random("NaN")
    step = rng.randrange(CHECKPOINT_EVERY, STEPS - 1)
    scenario = Scenario(workspace, "raise").with_cache()
    for _ in range(2):
        outcome = scenario.launch(1, NAN=str(step))
        if f"the update that leads to step {step + 1} has loss nan" not in outcome.err:
            scenario.faults.append(f"raise/{len(scenario.outcomes)}.err does not name step {step + 1}")
        if scenario.newest() > step:
            scenario.faults.append(f"step {scenario.newest()} was saved, after the loss of NaN")
    row.add(scenario.finish())
    return row


SKIP = "--gin.Run.non_finite='skip'"


def skip_nan(workspace: Workspace) -> Row:
    """Skip losses of NaN, and the same ones after a kill."""
    row, rng = Row("NaN, skip", 1), workspace.random("NaN")
    first, second = rng.randrange(2, 10), BOUNDARY_STEP + rng.randrange(3)
    nan_environment = {"NAN": f"{first},{second}"}
    reference = workspace.undisturbed_run("skip-undisturbed", SKIP, **nan_environment)
    scenario = Scenario(workspace, "skip", SKIP, environment=nan_environment).with_cache()
    row.times += 3
    for least in (first + 1, second - 3, second + 1):
        scenario.launch(137, plan=SignalPlan("training", least, rng.uniform(0, 0.1)))
    scenario.finish(reference)
    scenario.check_redone()
    if (skipped := reference.arrays["['rest']['skipped']"]) != 2:
        scenario.faults.append(f"the state counts {skipped} skipped steps, not 2")
    row.add(scenario)
    return row


def change_mesh(workspace: Workspace, axis: str) -> Row:
    """Kill on one device and resume on two, and the other way round."""
    row, rng = Row(f"SIGKILL, and on with {axis}=2", 2), workspace.random(axis)
    one, two = xla.device_environment(), xla.device_environment(2)
    scenario = Scenario(workspace, f"on-two-{axis}").with_cache()
    scenario.launch(137, plan=SignalPlan("training", rng.randint(6, 15)), **one)
    scenario.flags = (f"--gin.MeshShape.{axis}=2",)
    scenario.launch(137, plan=SignalPlan("training", rng.randint(21, 30)), **two)
    if axis == "data":
        scenario.flags = ()
        scenario.launch(0, **one)
    else:
        scenario.launch(0, **two)
    scenario.finish(tolerance=1e-5)
    scenario.check_redone()
    row.add(scenario)
    return row


def other_rows(workspace: Workspace) -> list[Callable[[], Row]]:
    """Return the tasks of all disturbances other than kills."""
    return [
        partial(kill_at_stage_boundary, workspace),
        partial(send_sigterm, workspace, 4),
        *(partial(damage_checkpoint, workspace, name, *options) for name, options in DAMAGES.items()),
        partial(full_disk, workspace),
        partial(read_only, workspace),
        partial(raise_on_nan, workspace),
        partial(skip_nan, workspace),
        *(partial(change_mesh, workspace, axis) for axis in ("data", "fsdp")),
    ]

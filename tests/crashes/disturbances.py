"""All that a run is put through but kills at any moment, a row of the table each."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial

import xla
from model_folders import CannotMount, cut, disk, remount, whole
from rows import Row
from stories import BOUNDARY_STEP, CHECKPOINT_EVERY, STEPS, Ground, Story
from victims import Aim


def signals(ground: Ground, times: int) -> Row:
    """SIGTERM in a step, an evaluation, a save, and so on."""
    row, chance = Row("SIGTERM", times), ground.random("SIGTERM")
    story = Story(ground, "SIGTERM").with_cache()
    for number in range(times):
        phase = ("training", "evaluating", "saving")[number % 3]
        least = story.reached + chance.randint(1, max(1, (STEPS - story.reached) // times))
        ended = story.go(75, aim=Aim(phase, least, chance.uniform(0, 0.1), signal.SIGTERM))
        if ended.code == 75 and story.newest() != ended.step:
            story.faults.append(f"it stopped after step {ended.step}, and {story.newest()} is saved")
    story.finish()
    if story.redone:
        story.faults.append(f"{story.redone} steps were made again")
    row.add(story)
    return row


def _late(ground: Ground, name: str, step: int = STEPS - CHECKPOINT_EVERY, **options) -> Story:
    """The undisturbed run as it was when `step` was saved."""
    story = Story(ground, name, **options)
    cut(ground.undisturbed.model_dir, story.model_dir, step)
    return story


def damage(ground: Ground, name: str, damages: Callable, told: str) -> Row:
    """The newest checkpoint has changed: it is named, and the one before is used."""
    row, chance = Row(name, 1), ground.random(name)
    story = _late(ground, name.replace(" ", "-"))
    last = story.newest()
    checkpoint = story.model_dir / "checkpoints" / str(last)
    files = sorted(path for path in checkpoint.glob("*/**/*") if path.is_file() and path.stat().st_size)
    damages(chance, checkpoint, chance.choice(files))
    ended = story.go(0)
    lines = [line for line in ended.err.splitlines() if line.startswith(f"bertfam: warning: {checkpoint} is not used (")]
    if len(lines) != 1 or told not in lines[0]:
        story.faults.append(f"{story.folder.name}/1.err does not name what is damaged ({told})")
    story.finish()
    row.add(story)
    row.redone = last - (ended.resumed or 0)
    return row


def _truncate(chance, checkpoint, path) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def _flip(chance, checkpoint, path) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


DAMAGES = {
    "a truncated file": (_truncate, " bytes of "),
    "a deleted file": (lambda chance, checkpoint, path: path.unlink(), " is missing"),
    "a flipped bit": (_flip, " has other bytes than were written"),
    "a missing manifest": (lambda chance, checkpoint, path: (checkpoint / "digests.json").unlink(), "no digests.json"),
}


def full_disk(ground: Ground) -> Row:
    """No room for a checkpoint: one line, the older ones stay, and with room it goes on."""
    row = Row("a full disk", 1)
    try:
        with disk(ground.folder / "full", 64) as folder:
            story = _late(ground, "full-disk", at=folder)
            (folder / "filling").write_bytes(bytes(shutil.disk_usage(folder).free - 100_000))
            before = whole(story.model_dir)
            story.go(2)
            if "(No space left on device)" not in story.ends[-1].err:
                story.faults.append("it is not told that the disk is full")
            if whole(story.model_dir) != before:
                story.faults.append("older checkpoints were lost")
            (folder / "filling").unlink()
            row.add(story.finish())
    except CannotMount as error:
        row.skipped = str(error)
    return row


def read_only(ground: Ground) -> Row:
    """A folder that cannot be written: one line."""
    row = Row("a read-only folder", 1)
    try:
        with disk(ground.folder / "read-only", 64) as folder:
            story = _late(ground, "read-only-folder", at=folder)
            remount(folder, "ro")
            story.go(2)
            if "(Read-only file system)" not in story.ends[-1].err:
                story.faults.append("it is not told that the folder cannot be written")
            remount(folder, "rw")
            row.add(story.finish())
    except CannotMount as error:
        row.skipped = str(error)
    return row


def boundary(ground: Ground) -> Row:
    """Killed right after the last step of a stage: before, and when, that is saved."""
    row = Row("SIGKILL between two stages", 2)
    story = Story(ground, "between-two-stages").with_cache()
    story.go(137, DIE=f"{BOUNDARY_STEP}:SIGKILL:{BOUNDARY_STEP - CHECKPOINT_EVERY}")
    story.go(137, DIE=f"{BOUNDARY_STEP + 1}:SIGKILL:{BOUNDARY_STEP}")
    story.finish()
    story.check_redone()
    if [ended.resumed for ended in story.ends[1:]] != [BOUNDARY_STEP - CHECKPOINT_EVERY, BOUNDARY_STEP]:
        story.faults.append("it did not go on from the end of the stage")
    row.add(story)
    return row


def raises(ground: Ground) -> Row:
    """A loss that is no number ends the run, each time; without it the run goes on."""
    row, chance = Row("NaN, raise", 2), ground.random("NaN")
    step = chance.randrange(CHECKPOINT_EVERY, STEPS - 1)
    story = Story(ground, "raise").with_cache()
    for _ in range(2):
        ended = story.go(1, NAN=str(step))
        if f"the update that leads to step {step + 1} has loss nan" not in ended.err:
            story.faults.append(f"raise/{len(story.ends)}.err does not name step {step + 1}")
        if story.newest() > step:
            story.faults.append(f"step {story.newest()} was saved, behind the loss that is no number")
    row.add(story.finish())
    return row


SKIP = "--gin.Run.non_finite='skip'"


def skips(ground: Ground) -> Row:
    """Losses that are no numbers are passed over, the same ones after a kill."""
    row, chance = Row("NaN, skip", 1), ground.random("NaN")
    first, second = chance.randrange(2, 10), BOUNDARY_STEP + chance.randrange(3)
    spoilt = {"NAN": f"{first},{second}"}
    like = ground.undisturbed_run("skip-undisturbed", SKIP, **spoilt)
    story = Story(ground, "skip", SKIP, environment=spoilt).with_cache()
    row.times += 3
    for least in (first + 1, second - 3, second + 1):
        story.go(137, aim=Aim("training", least, chance.uniform(0, 0.1)))
    story.finish(like)
    story.check_redone()
    if (skipped := like.arrays["['rest']['skipped']"]) != 2:
        story.faults.append(f"the state counts {skipped} skipped steps, not 2")
    row.add(story)
    return row


def other_mesh(ground: Ground, axis: str) -> Row:
    """Killed on one device, finished on two; and the other way round."""
    row, chance = Row(f"SIGKILL, and on with {axis}=2", 2), ground.random(axis)
    one, two = xla.devices(), xla.devices(2)
    story = Story(ground, f"on-two-{axis}").with_cache()
    story.go(137, aim=Aim("training", chance.randint(6, 15)), **one)
    story.flags = (f"--gin.MeshShape.{axis}=2",)
    story.go(137, aim=Aim("training", chance.randint(21, 30)), **two)
    if axis == "data":
        story.flags = ()
        story.go(0, **one)
    else:
        story.go(0, **two)
    story.finish(tolerance=1e-5)
    story.check_redone()
    row.add(story)
    return row


def other_rows(ground: Ground) -> list[Callable[[], Row]]:
    """Everything but the kills."""
    return [
        partial(boundary, ground),
        partial(signals, ground, 4),
        *(partial(damage, ground, name, *how) for name, how in DAMAGES.items()),
        partial(full_disk, ground),
        partial(read_only, ground),
        partial(raises, ground),
        partial(skips, ground),
        *(partial(other_mesh, ground, axis) for axis in ("data", "fsdp")),
    ]

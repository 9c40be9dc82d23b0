"""All that a run is put through, a row of the table each."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from model_folders import CannotMount, cut, disk, remount, whole
from stories import BOUNDARY_STEP, CHECKPOINT_EVERY, STEPS, Ground, Story
from victims import BOUNDARY, CACHE, EVALUATION, HITS, SAVE, START, STEP, Aim


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


TARGETS = {"importing": START, "compiling": BOUNDARY, "training": STEP, "evaluating": EVALUATION}
TARGETS |= dict.fromkeys(("tokenising", "finishing"), CACHE)
TARGETS |= dict.fromkeys(("writing", "manifest", "renaming", "tidying", "removing"), SAVE)
# Where a story is struck next.
Chooser = Callable[[Story], Aim]


def kills(ground: Ground, name: str, choosers: Sequence[Chooser], *, each=99, cached=True, stretch="") -> Row:
    """Kills a run again and again, at each moment until its target was hit.

    Where it is finished, or has been killed `each` times, another one begins.
    """
    row = Row(name)
    waiting, number = list(choosers), 0
    while waiting:
        number += 1
        story = Story(ground, f"{name.replace(' ', '-')}-{number}", environment={"STRETCH": stretch})
        if cached:
            story.with_cache()
        for _ in range(each):
            if not waiting:
                break
            aim = waiting[0](story)
            ended = story.go(0, 137, aim=aim)
            if ended.code != 137:
                break
            row.times += 1
            if aim.target is None or aim.target in ended.hits:
                waiting.pop(0)
        story.finish()
        story.check_redone()
        row.add(story)
        if row.times >= 4 * len(choosers) or number > len(choosers):
            row.faults += [f"{len(waiting)} targets were never hit"] * bool(waiting)
            break
    return row


def anywhen(ground: Ground, chance) -> Chooser:
    """At any time of a run."""
    return lambda story: Aim(delay=chance.uniform(0, ground.undisturbed.seconds["all"]))


def starting(ground: Ground, chance) -> Chooser:
    """At any time before the first step, of a run that has its token cache."""
    return lambda story: Aim(delay=chance.uniform(0, ground.undisturbed.seconds["starting"]), target=START)


def during(ground: Ground, chance, phase: str, least=lambda story: 0, longest: float | None = None) -> Chooser:
    """At any time of a phase, once `least(story)` updates are made."""
    seconds = longest or ground.undisturbed.seconds.get(phase, 0.05)
    return lambda story: Aim(phase, least(story), chance.uniform(0, seconds), target=TARGETS.get(phase))


def kill_rows(ground: Ground, count: int) -> list[Callable[[], Row]]:
    """At least `count` kills, spread over all that can be hit."""

    def share(part: float) -> int:
        return max(1, round(count * part))

    def few(story: Story) -> int:
        return story.newest() + chance.randint(1, 2 * CHECKPOINT_EVERY - 1)

    def new(story: Story) -> int:
        return story.reached + chance.randint(0, 1)

    def row(name, *choosers, **options):
        return partial(kills, ground, f"SIGKILL {name}", choosers, **options)

    chance = ground.random("kills")
    building = (during(ground, chance, "tokenising", longest=0.8), during(ground, chance, "tokenising", longest=0.4))
    ending = [during(ground, chance, phase, new, 0.2) for phase in ("manifest", "renaming", "tidying", "removing")]
    files = ("config.gin", "plan.json", "fingerprint.json", "metrics.jsonl")
    return [
        row("at random", *[anywhen(ground, chance)] * share(0.14)),
        row("in start-up", *[starting(ground, chance)] * share(0.14)),
        row(
            "as a cache is built",
            *[(*building, during(ground, chance, "finishing", longest=0.3))[n % 3] for n in range(share(0.14))],
            each=3,
            cached=False,
            stretch="tokenising:0.3,finishing:0.1",
        ),
        row("in a step", *[during(ground, chance, "training", few)] * share(0.14)),
        row("in an evaluation", *[during(ground, chance, "evaluating", new)] * share(0.14)),
        row("as a checkpoint is written", *[during(ground, chance, "writing", new)] * share(0.14)),
        row(
            "as a checkpoint ends",
            *[ending[n % 4] for n in range(share(0.16))],
            stretch="manifest:0.1,renaming:0.1,tidying:0.1,removing:0.1",
        ),
        row(
            "at the stage boundary",
            during(ground, chance, "compiling", lambda story: BOUNDARY_STEP),
            during(ground, chance, "compiling", lambda story: BOUNDARY_STEP, 0.1),
        ),
        row(
            "as a file is replaced",
            *[during(ground, chance, f"replacing {name}", longest=0.2) for name in files],
            stretch="replacing:0.1",
        ),
    ]


def total(rows: Sequence[Row], least: int) -> Row:
    """All kills together, of which each thing must have been hit by so many."""
    row = Row("all SIGKILLs", times=sum(row.kills for row in rows))
    for other in rows:
        row.hits.update(other.hits)
        row.codes.update({137: other.kills})
        row.redone = max(row.redone, other.redone)
    row.faults = [f"{hit} was hit {row.hits[hit]} times" for hit in HITS if hit != BOUNDARY and row.hits[hit] < least]
    return row


def everything(ground: Ground) -> Row:
    """One run that is killed once in each way."""
    chance = ground.random("everything")
    return kills(
        ground,
        "SIGKILL in everything",
        [
            during(ground, chance, "importing"),
            during(ground, chance, "tokenising", longest=0.6),
            during(ground, chance, "training", lambda story: 6),
            during(ground, chance, "evaluating", lambda story: 12),
            during(ground, chance, "writing", lambda story: 20),
            during(ground, chance, "removing", lambda story: 25, 0.2),
        ],
        cached=False,
        stretch="tokenising:0.3,removing:0.1",
    )


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
    story.go(137, DIE=f"{BOUNDARY_STEP}:SIGKILL:0")
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
    one = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    two = {"XLA_FLAGS": f"{one['XLA_FLAGS']} --xla_force_host_platform_device_count=2"}
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

"""SIGKILL, at moments of every kind."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from random import Random

from rows import Row
from stories import BOUNDARY_STEP, CHECKPOINT_EVERY, STEPS, Ground, Story
from victims import BOUNDARY, CACHE, EVALUATION, HITS, SAVE, START, STEP, Aim

TARGETS = {"importing": START, "compiling": BOUNDARY, "training": STEP, "evaluating": EVALUATION}
TARGETS |= dict.fromkeys(("tokenising", "finishing", "replacing cache"), CACHE)
TARGETS |= dict.fromkeys(("writing", "manifest", "renaming", "tidying", "removing"), SAVE)
# Where a story is struck next, by chance.
Chooser = Callable[[Story, Random], Aim]


def kills(ground: Ground, name: str, choosers: Sequence[Chooser], *, each=99, cached=True, stretch="") -> Row:
    """Kills a run again and again, at each moment until its target was hit.

    Where it is finished, or has been killed `each` times, another one begins.
    """
    row, chance = Row(name), ground.random(name)
    waiting, number = list(choosers), 0
    while waiting:
        number += 1
        story = Story(ground, f"{name.replace(' ', '-')}-{number}", environment={"STRETCH": stretch})
        if cached:
            story.with_cache()
        for _ in range(each):
            if not waiting:
                break
            aim = waiting[0](story, chance)
            ended = story.go(0, 137, aim=aim)
            if ended.code != 137:
                break
            row.times += 1
            if aim.target is None or aim.target in ended.hits:
                waiting.pop(0)
        story.finish()
        story.check_redone()
        row.add(story)
        if row.times >= 4 * len(choosers) or number >= 2 * len(choosers):
            row.faults += [f"{len(waiting)} targets were never hit"] * bool(waiting)
            break
    return row


def anywhen(story: Story, chance: Random) -> Aim:
    """At any time of a run, most of which have less to do than the undisturbed one."""
    return Aim(delay=chance.uniform(0, 0.7 * story.ground.undisturbed.seconds["all"]))


def starting(story: Story, chance: Random) -> Aim:
    """At any time before the first step, of a run that has its token cache."""
    return Aim(delay=chance.uniform(0, story.ground.undisturbed.seconds["starting"]), target=START)


def during(phase: str, least: Callable[[Story, Random], int] | int = 0, longest: float | None = None) -> Chooser:
    """At any time of a phase, once `least` updates are made."""

    def choose(story: Story, chance: Random) -> Aim:
        seconds = longest or story.ground.undisturbed.seconds[phase]
        made = least if isinstance(least, int) else least(story, chance)
        return Aim(phase, made, chance.uniform(0, seconds), target=TARGETS.get(phase))

    return choose


def few(story: Story, chance: Random) -> int:
    """Some updates from where a story goes on."""
    return story.newest() + chance.randint(1, 2 * CHECKPOINT_EVERY - 1)


def new(story: Story, chance: Random) -> int:
    """Where no update was made yet, or where the last was made."""
    return story.reached + chance.randint(0, 1)


FIRST, MORE = during("tokenising", longest=0.3), during("tokenising", 1, 0.8)
BUILDING = (FIRST, MORE, during("finishing", longest=0.3), MORE, during("replacing cache", longest=0.2))
ENDING = tuple(during(phase, new, 0.2) for phase in ("manifest", "renaming", "tidying", "removing"))
FILES = ("config.gin", "plan.json", "fingerprint.json", "tokenizer.json")


def kill_rows(ground: Ground, count: int) -> list[Callable[[], Row]]:
    """At least `count` kills, spread over all that can be hit."""
    share = max(1, round(count * 0.14))

    def of(choosers: Sequence[Chooser]) -> list[Chooser]:
        return list(islice(cycle(choosers), share))

    def row(name: str, *choosers: Chooser, **options) -> Callable[[], Row]:
        return partial(kills, ground, f"SIGKILL {name}", choosers, **options)

    return [
        row("at random", *of([anywhen])),
        row("in start-up", *of([starting])),
        row(
            "as a cache is built",
            *of(BUILDING),
            each=3,
            cached=False,
            stretch="tokenising:0.3,finishing:0.1,replacing:0.1",
        ),
        row("in a step", *of([during("training", few)])),
        row("in an evaluation", *of([during("evaluating", new)]), during("evaluating", STEPS)),
        row("as a checkpoint is written", *of([during("writing", new)]), during("writing", STEPS)),
        row(
            "as a checkpoint ends",
            *of(ENDING),
            during("removing", STEPS, 0.2),
            stretch="manifest:0.1,renaming:0.1,tidying:0.1,removing:0.1",
        ),
        row("at the stage boundary", during("compiling", BOUNDARY_STEP), during("compiling", BOUNDARY_STEP, 0.1)),
        row(
            "as scores are written",
            *(during("telling eval", least, 0.8) for least in (BOUNDARY_STEP, STEPS, STEPS)),
            stretch="telling:0.2",
        ),
        row(
            "as a file is replaced",
            *(during(f"replacing {name}", longest=0.2) for name in FILES),
            during("training", CHECKPOINT_EVERY),  # from then on there are metrics
            during("replacing metrics.jsonl", longest=0.2),
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
    return kills(
        ground,
        "SIGKILL in everything",
        [during("importing"), FIRST, during("training", 6), during("evaluating", 12), during("writing", 20)],
        cached=False,
        stretch="tokenising:0.3,writing:0.2",
    )

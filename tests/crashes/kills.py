"""SIGKILL, at moments of every kind."""

from collections.abc import Callable, Sequence
from functools import partial

from rows import Row
from stories import BOUNDARY_STEP, CHECKPOINT_EVERY, STEPS, Ground, Story
from victims import BOUNDARY, CACHE, EVALUATION, HITS, SAVE, START, STEP, Aim

TARGETS = {"importing": START, "compiling": BOUNDARY, "training": STEP, "evaluating": EVALUATION}
TARGETS |= dict.fromkeys(("tokenising", "finishing", "replacing cache"), CACHE)
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

    def last(phase: str, longest: float | None = None) -> Chooser:
        return during(ground, chance, phase, lambda story: STEPS, longest)

    def row(name, *choosers, **options):
        return partial(kills, ground, f"SIGKILL {name}", choosers, **options)

    chance = ground.random("kills")
    building = (
        during(ground, chance, "tokenising", longest=0.3),
        during(ground, chance, "tokenising", lambda story: 1, 0.8),
        during(ground, chance, "finishing", longest=0.3),
        during(ground, chance, "tokenising", lambda story: 1, 0.8),
        during(ground, chance, "replacing cache", longest=0.2),
    )
    ending = [during(ground, chance, phase, new, 0.2) for phase in ("manifest", "renaming", "tidying", "removing")]
    files = ("config.gin", "plan.json", "fingerprint.json", "tokenizer.json")
    return [
        row("at random", *[anywhen(ground, chance)] * share(0.14)),
        row("in start-up", *[starting(ground, chance)] * share(0.14)),
        row(
            "as a cache is built",
            *[building[n % len(building)] for n in range(share(0.14))],
            each=3,
            cached=False,
            stretch="tokenising:0.3,finishing:0.1,replacing:0.1",
        ),
        row("in a step", *[during(ground, chance, "training", few)] * share(0.14)),
        row("in an evaluation", *[during(ground, chance, "evaluating", new)] * share(0.12), last("evaluating")),
        row("as a checkpoint is written", *[during(ground, chance, "writing", new)] * share(0.12), last("writing")),
        row(
            "as a checkpoint ends",
            *[ending[n % 4] for n in range(share(0.14))],
            last("removing", 0.2),
            stretch="manifest:0.1,renaming:0.1,tidying:0.1,removing:0.1",
        ),
        row(
            "at the stage boundary",
            during(ground, chance, "compiling", lambda story: BOUNDARY_STEP),
            during(ground, chance, "compiling", lambda story: BOUNDARY_STEP, 0.1),
        ),
        row(
            "as scores are written",
            during(ground, chance, "telling eval", lambda story: BOUNDARY_STEP, 0.8),
            during(ground, chance, "telling eval", lambda story: STEPS, 0.8),
            during(ground, chance, "telling eval", lambda story: STEPS, 0.8),
            stretch="telling:0.2",
        ),
        row(
            "as a file is replaced",
            *[during(ground, chance, f"replacing {name}", longest=0.2) for name in files],
            during(ground, chance, "training", lambda story: CHECKPOINT_EVERY),  # from then on there are metrics
            during(ground, chance, "replacing metrics.jsonl", longest=0.2),
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
        ],
        cached=False,
        stretch="tokenising:0.3,writing:0.2",
    )

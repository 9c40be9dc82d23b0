"""SIGKILL at moments of every kind."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from random import Random

from campaign_rows import Row
from scenarios import BOUNDARY_STEP, CHECKPOINT_EVERY, EVAL_EVERY, STEPS, Scenario, Workspace
from signalled_process import BOUNDARY, CACHE, EVALUATION, HITS, SAVE, START, STEP, SignalPlan

TARGETS = {"importing": START, "compiling": BOUNDARY, "training": STEP, "evaluating": EVALUATION}
TARGETS |= dict.fromkeys(("tokenising", "finishing", "replacing cache"), CACHE)
TARGETS |= dict.fromkeys(("writing", "manifest", "renaming", "tidying", "removing"), SAVE)
# Chooses at random when a scenario gets its next signal.
Chooser = Callable[[Scenario, Random], SignalPlan]


def kills(
    workspace: Workspace, name: str, choosers: Sequence[Chooser], *, kills_per_run=99, cached=True, stretch="", pace=0.0
) -> Row:
    """Kill a run again and again, at each moment until its target was hit.

    Another run starts when one has finished or has been killed `kills_per_run` times. Each update waits `pace` seconds.
    """
    row, rng = Row(name), workspace.random(name)
    remaining, number = list(choosers), 0
    while remaining:
        number += 1
        scenario = Scenario(workspace, f"{name.replace(' ', '-')}-{number}", environment={"STRETCH": stretch, "PACE": str(pace)})
        if cached:
            scenario.with_cache()
        for _ in range(kills_per_run):
            if not remaining:
                break
            plan = remaining[0](scenario, rng)
            outcome = scenario.launch(0, 137, plan=plan)
            if outcome.code != 137:
                break
            row.times += 1
            if plan.targets <= outcome.hits:
                remaining.pop(0)
        scenario.finish()
        scenario.check_redone()
        row.add(scenario)
        if row.times >= 4 * len(choosers) or number >= 2 * len(choosers):
            row.faults += [f"{len(remaining)} targets were never hit"] * bool(remaining)
            break
    return row


def at_any_time(scenario: Scenario, rng: Random) -> SignalPlan:
    """Choose any time of a run; most runs have less to do than the undisturbed one."""
    return SignalPlan(delay=rng.uniform(0, 0.7 * scenario.workspace.undisturbed.seconds["all"]))


def before_first_step(scenario: Scenario, rng: Random) -> SignalPlan:
    """Choose any time before the first step of a run that has its token cache."""
    return SignalPlan(delay=rng.uniform(0, scenario.workspace.undisturbed.seconds["starting"]), targets=frozenset({START}))


def during(phase: str, least: Callable[[Scenario, Random], int] | int = 0, longest: float | None = None) -> Chooser:
    """Return a chooser of any time of a phase, after `least` updates."""

    def choose(scenario: Scenario, rng: Random) -> SignalPlan:
        seconds = longest or scenario.workspace.undisturbed.seconds[phase]
        min_updates = least if isinstance(least, int) else least(scenario, rng)
        targets = frozenset({TARGETS[phase]} if phase in TARGETS else ())
        return SignalPlan(phase, min_updates, rng.uniform(0, seconds), targets=targets)

    return choose


def few_steps_later(scenario: Scenario, rng: Random) -> int:
    """Return a step some updates after the one that the scenario resumes from."""
    return scenario.newest() + rng.randint(1, 2 * CHECKPOINT_EVERY - 1)


def last_or_next_step(scenario: Scenario, rng: Random) -> int:
    """Return the last step that was made, or the one after it."""
    return scenario.reached + rng.randint(0, 1)


FIRST, MORE = during("tokenising", longest=0.3), during("tokenising", 1, 0.8)
BUILDING = (FIRST, MORE, during("finishing", longest=0.3), MORE, during("replacing cache", longest=0.2))
ENDING = tuple(during(phase, last_or_next_step, 0.2) for phase in ("manifest", "renaming", "tidying", "removing"))
FILES = ("config.gin", "plan.json", "fingerprint.json", "tokenizer.json")


def kill_rows(workspace: Workspace, count: int) -> list[Callable[[], Row]]:
    """Return the tasks of at least `count` kills, spread over all parts of a run."""
    share = max(1, round(count * 0.14))

    def repeat(choosers: Sequence[Chooser]) -> list[Chooser]:
        return list(islice(cycle(choosers), share))

    def row(name: str, *choosers: Chooser, **options) -> Callable[[], Row]:
        return partial(kills, workspace, f"SIGKILL {name}", choosers, **options)

    return [
        row("at random", *repeat([at_any_time])),
        row("in start-up", *repeat([before_first_step])),
        row(
            "as a cache is built",
            *repeat(BUILDING),
            kills_per_run=3,
            cached=False,
            stretch="tokenising:0.3,finishing:0.1,replacing:0.1",
        ),
        row("in a step", *repeat([during("training", few_steps_later)])),
        row("in an evaluation", *repeat([during("evaluating", last_or_next_step)]), during("evaluating", STEPS)),
        row("as a checkpoint is written", *repeat([during("writing", last_or_next_step)]), during("writing", STEPS)),
        row(
            "as a checkpoint ends",
            *repeat(ENDING),
            during("removing", STEPS, 0.2),
            stretch="manifest:0.1,renaming:0.1,tidying:0.1,removing:0.1",
        ),
        row("at the stage boundary", during("compiling", BOUNDARY_STEP), during("compiling", BOUNDARY_STEP, 0.1)),
        row(
            "as scores are written",
            *(during("logging eval", least, 0.8) for least in (BOUNDARY_STEP, STEPS, STEPS)),
            stretch="logging:0.2",
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
    """Return the row of all kills together, which must have hit each part of a run `least` times."""
    row = Row("all SIGKILLs", times=sum(row.kills for row in rows))
    for other in rows:
        row.hits.update(other.hits)
        row.codes.update({137: other.kills})
        row.redone = max(row.redone, other.redone)
    row.faults = [f"{hit} was hit {row.hits[hit]} times" for hit in HITS if hit != BOUNDARY and row.hits[hit] < least]
    return row


def one_kill_of_each_kind(workspace: Workspace) -> Row:
    """Return the row of one run that is killed at its start, in its cache build, in an evaluation, and in a step and a save."""

    def in_step_and_save(scenario: Scenario, rng: Random) -> SignalPlan:
        return SignalPlan("training", 2 * CHECKPOINT_EVERY + 1, rng.uniform(0, 0.1), targets=frozenset({STEP, SAVE}))

    return kills(
        workspace,
        "SIGKILL in everything",
        [during("importing", longest=0.1), FIRST, during("evaluating", EVAL_EVERY, 0.3), in_step_and_save],
        kills_per_run=6,  # a target that is missed may lie behind, so that only another run can hit it
        cached=False,
        stretch="tokenising:0.3,writing:1",
        pace=0.2,
    )

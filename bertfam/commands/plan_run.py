"""Implementation of `bertfam plan`: compiles the programs of a run for slices, and reports memory, cost and fit."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.commands import flags, plan_search
from bertfam.data import vocabularies
from bertfam.errors import UserError, warn
from bertfam.planning.advice import Advice, Builder, advice_text, advise, least_devices, most_rows
from bertfam.planning.choices import Choices, choose, with_choices
from bertfam.planning.programs import KINDS, TRAINING, Job, Kind, Program, compile_programs, jobs, largest_bytes
from bertfam.planning.report import Row, largest_text, predicted_text, predicted_times, tables
from bertfam.planning.report import row as make_row
from bertfam.planning.shardings import shardings, shardings_text
from bertfam.planning.slices import Slice
from bertfam.planning.tracing import traces_for
from bertfam.plurals import plural
from bertfam.sharding.chips import memory_bytes
from bertfam.training.run import Run
from bertfam.training.run_plan import duration, execution_settings, execution_text

_LARGEST = 10  # arrays of a program that are named


@dataclass(frozen=True)
class Planned:
    """Programs of the run on a slice.

    Attributes:
      slice: the slice.
      run: the run, with a choice for the slice in place of each "auto".
      choices: the choices.
      jobs: the programs.
      compiled: those that were compiled to confirm a choice, by name.
    """

    slice: Slice
    run: Run
    choices: Choices
    jobs: list[Job]
    compiled: Mapping[str, Program]


@dataclass(frozen=True)
class Results:
    """Results of a plan.

    Attributes:
      plans: the slices, with what was chosen for each.
      rows: a row for each program on each slice.
      shardings: shardings of every parameter, moment and feature, by slice.
      advice: advice by slice, as a value and as text, for the slices on which a training step does not fit.
      most_rows: largest number of rows per device, by slice.
    """

    plans: list[Planned]
    rows: list[Row]
    shardings: dict[str, Any]
    advice: dict[str, tuple[Advice | None, str]]
    most_rows: dict[str, int]


def run(args: argparse.Namespace, slices: Sequence[Slice]) -> int:
    """Plan for the slices; return the exit status."""
    build = _make_builder(args)
    if args.search:
        return plan_search.search(args, build, slices[0], _report)
    run = build(())
    plans = _lay_out(run, slices, args.program)
    split = {plan.slice.name: shardings(plan.jobs[0].trainer) for plan in plans if args.shardings and plan.jobs}
    rows = _compile([(plan, job) for plan in plans for job in plan.jobs])
    if not args.json:
        _print_tables(plans, rows, split)
    advice = {} if args.no_advice else _advise(build, plans, rows, 60 * args.advice_minutes)
    if not args.json:
        _print_each(text for _, text in advice.values())
    most = _find_most_rows(plans) if args.most_rows else {}
    if args.json:
        _print_json(Results(plans, rows, split, advice, most), run, plans[0].jobs[0], show_shardings=args.shardings)
    else:
        length = run.stages[-1].length
        _print_each(
            f"{name}: at most {plural(count, 'row')} of {length} tokens per device fit at once (as compiled, to an eighth)"
            for name, count in most.items()
        )
    return 0


def _lay_out(run: Run, slices: Sequence[Slice], programs: Sequence[Kind] | None) -> list[Planned]:
    """Lay the programs out on every slice; raises UserError for sizes that do not divide, before anything is compiled."""
    plans = []
    for slice in slices:
        try:
            plans.append(_plan(run, slice, programs or KINDS))
        except UserError as error:
            raise UserError(f"{slice.name}: {error}") from error
    compiled = {job.kind for plan in plans for job in plan.jobs}
    if missing := [kind for kind in programs or () if kind not in compiled]:
        raise UserError(f"the run has no program to {' or '.join(missing)}; remove --program={missing[0]}")
    return plans


def _plan(run: Run, slice: Slice, kinds: Sequence[Kind]) -> Planned:
    """Choose every "auto" of the run for a slice; keep the programs that were compiled for it, and for no other choice."""
    devices, compiled = slice.devices(), dict[Run, dict[str, Program]]()

    def required(candidate: Run) -> int:
        remat, count = candidate.objective.execution.remat, candidate.microbatch_count
        _report(f"{slice.name}: compiling remat {remat}, microbatches {count} to see whether it fits")
        compiled[candidate] = compile_programs(candidate, candidate.mesh.build(devices), TRAINING, _LARGEST)
        return largest_bytes(compiled[candidate])

    choices = choose(run, devices, memory_bytes(devices[0]), required)
    chosen = with_choices(run, choices)
    return Planned(slice, chosen, choices, jobs(chosen, chosen.mesh.build(devices), kinds), compiled.get(chosen, {}))


def _print_json(results: Results, run: Run, job: Job, *, show_shardings: bool) -> None:
    leaves = jax.tree.leaves(job.trainer.abstract_state.params)
    model = {"parameters": sum(leaf.size for leaf in leaves), "vocab_size": run.objective.model.vocab_size}
    advice = {name: advice and dataclasses.asdict(advice) for name, (advice, _) in results.advice.items()}
    result = model | {"programs": results.rows, "advice": advice, "most_rows": results.most_rows}
    result["execution"] = {
        plan.slice.name: {
            "values": execution_settings(plan.run),
            "reasons": {name: choice.reason for name, choice in plan.choices.items()},
        }
        for plan in results.plans
    }
    print(json.dumps(result | ({"shardings": results.shardings} if show_shardings else {})))


def _print_tables(plans: Sequence[Planned], rows: Sequence[Row], shardings: Mapping[str, Any]) -> None:
    """Print what was chosen, the shardings and the compiled programs, before searches that take minutes."""
    for name, table in shardings.items():
        print(f"-- {name}\n{shardings_text(table)}\n")
    for plan in plans:
        reasons = {name: choice.reason for name, choice in plan.choices.items()}
        print(f"{plan.slice.name}: {execution_text(execution_settings(plan.run), reasons)}")
    print(f"\n{tables(rows)}")
    for row in rows:
        if not row["fits"]:
            print(f"\n{largest_text(row)}")
    sys.stdout.flush()


def _print_each(texts: Iterable[str]) -> None:
    for text in texts:
        print(f"\n{text}", flush=True)


def _report(line: str) -> None:
    """Report progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def _make_builder(args: argparse.Namespace) -> Builder:
    """Return a function that builds the run from its gin files and additional lines of gin.

    The vocabulary size is from the flags, else from the configuration, else from the family's published models.
    """
    if args.vocab and args.vocab_size is not None:
        raise UserError("--vocab and --vocab_size both set the vocabulary size; give one of them")
    if args.vocab_size is not None and args.vocab_size < 1:
        raise UserError(f"--vocab_size={args.vocab_size} must be at least 1")
    run: Run = flags.load_files(args).build("Run")
    if None in run.objective.teachers.values():
        raise UserError(
            f"{type(run.objective).__name__} has no teacher: plan the config.gin that bertfam distill wrote, or bind the "
            "teacher in the same way"
        )
    model: Any = run.objective.model
    size = args.vocab_size
    vocabulary = vocabularies.load(args.vocab) if args.vocab else None
    if vocabulary is None and size is None and model.vocab_size is None:
        size = model.published_vocab_size
        if size is None:
            raise UserError(f"the vocabulary size of {type(model).__name__} is unknown: give --vocab_size=N or --vocab=DIR")
        warn([f"using the vocabulary size {size:,} of the family's published models; set it by --vocab_size=N or --vocab=DIR"])

    def build(lines: Sequence[str]) -> Run:
        run: Run = flags.load_files(args, lines).build("Run")
        return run.fitted(vocabulary) if vocabulary is not None else run.sized(size or model.vocab_size)

    return build


def _compile(jobs: Sequence[tuple[Planned, Job]]) -> list[Row]:
    """Compile the programs that are not yet, and report the progress on stderr."""
    rows: list[Row] = []
    start, done = time.monotonic(), 0
    count = sum(job.name not in plan.compiled for plan, job in jobs)
    for plan, job in jobs:
        program = plan.compiled.get(job.name)
        if not program:
            left = f", about {duration((time.monotonic() - start) / done * (count - done))} left" if done else ""
            _report(f"[{done + 1}/{count}] {plan.slice.name}: {job.name}{left}")
        if times := predicted_times(job):  # before minutes of compiling
            _report(f"{plan.slice.name}: {predicted_text(job.name, times)}")
        if not program:
            program, done = job.compile(_LARGEST), done + 1
        rows.append(make_row(program, plan.slice))
    took = duration(time.monotonic() - start)
    _report(f"compiled {plural(count, 'program')} in {took}")
    return rows


def _advise(
    build: Builder, plans: Sequence[Planned], rows: Sequence[Row], seconds: float
) -> dict[str, tuple[Advice | None, str]]:
    """Return advice by slice, as a value and as text, for the slices on which a training step does not fit."""
    result = {}
    for plan in plans:
        slice, choices = plan.slice, plan.choices
        devices = slice.devices()
        memory = memory_bytes(devices[0])

        def build_chosen(lines: Sequence[str], choices: Choices = choices) -> Run:
            return with_choices(build(lines), choices)

        if memory and any(row["slice"] == slice.name and row["kind"] == "train" and not row["fits"] for row in rows):
            _report(f"{slice.name}: searching for a change that fits, {duration(seconds)} and one compilation at most")
            with traces_for(devices[0].platform):
                found = advise(build_chosen, devices, memory, _report, seconds)
                least = None if found.advice or not found.complete else least_devices(plan.run, memory)
            result[slice.name] = found.advice, advice_text(found, slice.name, len(devices), memory, least)
    return result


def _find_most_rows(plans: Sequence[Planned]) -> dict[str, int]:
    """Return the largest number of rows per device, by slice; warn about a slice whose memory is unknown."""
    result = {}
    for plan in plans:
        slice, devices = plan.slice, plan.slice.devices()
        if memory := memory_bytes(devices[0]):
            _report(f"{slice.name}: searching for the most rows that fit")
            with traces_for(devices[0].platform):
                result[slice.name] = most_rows(plan.run, devices, memory, _report)
        else:
            warn([f"{slice.name}: the memory of {devices[0].device_kind} is unknown, so --most_rows is skipped"])
    return result

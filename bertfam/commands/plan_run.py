"""Body of `bertfam plan`: compiles the programs of a run for slices, and reports what they need."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from bertfam.commands import flags, plan_search
from bertfam.data import vocabularies
from bertfam.errors import UserError, warn
from bertfam.planning.advice import Advice, advice_text, advise, least_devices, most_rows
from bertfam.planning.programs import KINDS, Job, Kind, jobs
from bertfam.planning.report import Row, largest_text, tables
from bertfam.planning.report import row as make_row
from bertfam.planning.shardings import shardings, shardings_text
from bertfam.planning.slices import Slice
from bertfam.sharding.chips import memory_bytes
from bertfam.training.run import Run
from bertfam.training.summary import duration

Builder = Callable[[Sequence[str]], Run]


@dataclass(frozen=True)
class Planned:
    """Programs of the run on a slice."""

    slice: Slice
    jobs: list[Job]


@dataclass(frozen=True)
class Results:
    """Results of a plan.

    Attributes:
      rows: a row for each program on each slice.
      shardings: the split of every parameter, moment and feature, by slice.
      advice: advice by slice, as a value and as text, for the slices on which a training step does not fit.
      most_rows: the most rows a device by slice.
    """

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
    planned = _lay_out(run, slices, args.program)
    split = {one.slice.name: shardings(one.jobs[0].trainer) for one in planned if args.shardings and one.jobs}
    rows = _compile([(one.slice, job) for one in planned for job in one.jobs])
    advice = {} if args.no_advice else _advise(build, slices, rows)
    most = _find_most_rows(run, slices) if args.most_rows else {}
    results = Results(rows, split, advice, most)
    if args.json:
        _print_json(results, run, planned[0].jobs[0], show_shardings=args.shardings)
    else:
        _print_text(results, run)
    return 0


def _lay_out(run: Run, slices: Sequence[Slice], programs: Sequence[Kind] | None) -> list[Planned]:
    """Lay the programs out on every slice; raises UserError for sizes that do not divide, before anything is compiled."""
    planned = []
    for slice in slices:
        devices = slice.devices()
        try:
            planned.append(Planned(slice, jobs(run, run.mesh.build(devices), programs or KINDS)))
        except UserError as error:
            raise UserError(f"{slice.name}: {error}") from error
    compiled = {job.kind for one in planned for job in one.jobs}
    if missing := [kind for kind in programs or () if kind not in compiled]:
        raise UserError(f"the run has no program to {' or '.join(missing)}; leave --program={missing[0]} out")
    return planned


def _print_json(results: Results, run: Run, job: Job, *, show_shardings: bool) -> None:
    leaves = jax.tree.leaves(job.trainer.abstract_state.params)
    model = {"parameters": sum(leaf.size for leaf in leaves), "vocab_size": run.objective.model.vocab_size}
    advice = {name: advice and dataclasses.asdict(advice) for name, (advice, _) in results.advice.items()}
    result = model | {"programs": results.rows, "advice": advice, "most_rows": results.most_rows}
    print(json.dumps(result | ({"shardings": results.shardings} if show_shardings else {})))


def _print_text(results: Results, run: Run) -> None:
    for name, table in results.shardings.items():
        print(f"-- {name}\n{shardings_text(table)}\n")
    print(tables(results.rows))
    for row in results.rows:
        if not row["fits"]:
            print(f"\n{largest_text(row)}")
    for _, text in results.advice.values():
        print(f"\n{text}")
    for name, count in results.most_rows.items():
        print(f"\n{name}: as compiled, {count:,} rows of {run.stages[-1].length} a device fit at once (the most, to an eighth)")


def _report(line: str) -> None:
    """Report progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def _make_builder(args: argparse.Namespace) -> Builder:
    """Return a function that builds the run from its gin files and some more lines of gin.

    The vocabulary has the size that the flags give, or else the configuration's, or else that of the family's published models.
    """
    if args.vocab and args.vocab_size is not None:
        raise UserError("--vocab and --vocab_size both say how many tokens there are; give one of them")
    if args.vocab_size is not None and args.vocab_size < 1:
        raise UserError(f"--vocab_size={args.vocab_size} must be at least 1")
    run: Run = flags.load_files(args).build("Run")
    if None in run.objective.teachers.values():
        raise UserError(
            f"{type(run.objective).__name__} has no teacher: plan the config.gin that bertfam distill has written, or bind the "
            "teacher as it does"
        )
    model: Any = run.objective.model
    size = args.vocab_size
    if args.vocab:
        size = vocabularies.load(args.vocab).size
    elif size is None and model.vocab_size is None:
        size = model.published_vocab_size
        if size is None:
            raise UserError(f"{type(model).__name__} has no vocabulary of its own: give --vocab_size=N or --vocab=DIR")
        warn([f"taking the {size:,} tokens of the family's published models; --vocab_size=N or --vocab=DIR for others"])

    def build(lines: Sequence[str]) -> Run:
        run: Run = flags.load_files(args, lines).build("Run")
        return run.sized(size or model.vocab_size)

    return build


def _compile(jobs: Sequence[tuple[Slice, Job]]) -> list[Row]:
    """Compile the programs, and report the progress on stderr."""
    rows: list[Row] = []
    began = time.monotonic()
    for done, (slice, job) in enumerate(jobs):
        left = f", about {duration((time.monotonic() - began) / done * (len(jobs) - done))} left" if done else ""
        _report(f"[{done + 1}/{len(jobs)}] {slice.name}: {job.name}{left}")
        rows.append(make_row(job.compile(largest=10), slice))
    took = duration(time.monotonic() - began)
    _report(f"compiled {len(jobs)} program{'s' * (len(jobs) > 1)} in {took}")
    return rows


def _advise(build: Builder, slices: Sequence[Slice], rows: Sequence[Row]) -> dict[str, tuple[Advice | None, str]]:
    """Return advice by slice, as a value and as text, for the slices on which a training step does not fit."""
    found = {}
    for slice in slices:
        devices = slice.devices()
        memory = memory_bytes(devices[0])
        if memory and any(row["slice"] == slice.name and row["kind"] == "train" and not row["fits"] for row in rows):
            _report(f"{slice.name}: looking for a change that fits")
            advice = advise(build, devices, memory, _report)
            least = None if advice else least_devices(build(()), memory)
            found[slice.name] = advice, advice_text(advice, slice.name, len(devices), memory, least)
    return found


def _find_most_rows(run: Run, slices: Sequence[Slice]) -> dict[str, int]:
    """Return the most rows a device by slice; a slice whose memory is not known gets a warning instead."""
    found = {}
    for slice in slices:
        devices = slice.devices()
        if memory := memory_bytes(devices[0]):
            _report(f"{slice.name}: looking for the most rows that fit")
            found[slice.name] = most_rows(run, devices, memory, _report)
        else:
            warn([f"{slice.name}: nobody knows the memory of {devices[0].device_kind}, nor how many rows fit"])
    return found

"""`bertfam plan`: memory, communication and least step time of a run on slices that are not at hand."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags, plan_search
from bertfam.errors import UserError, warn
from bertfam.planning.slices import HERE, Slice, parse, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bertfam.planning.advice import Advice
    from bertfam.planning.programs import Job
    from bertfam.planning.report import Row
    from bertfam.training.run import Run

SUMMARY = "compile a run for any TPU slice ahead of time and report memory, cost and fit"
EXAMPLE = """\
  bertfam plan --gin_file=runs/bert_base.gin --gin_file=models/bert_tiny.gin --slice=v5e-4 --gin.BATCH_SIZE=8
  bertfam plan --gin_file=runs/bert_base.gin --gin_file=meshes/fsdp.gin --slice=v5e-16 --slice=v5p-128 --slice=2xv5e-256

The step of training (one for each length of rows), a step of evaluation, and for models that write text the greedy decoding of 8
prompts a device are compiled by the compiler that the slice's machines use; nothing is run, and no text is read. Bytes are the
compiler's; FLOPs are counted from the model's sizes; times are lower bounds, of published speeds, and no measurements.
Names count as Google's do: v5e-16 (or v5litepod-16) and v6e-256 chips, v5p-128 TensorCores, which are 64 chips; 2xv5e-256 is two
slices. The compiler's words for them are v5e:4x4, v5p:4x4x4 and 2xv5e:4x4, of TPU7x tpu7x:4x4x4. --slice=here compiles for the
devices of this machine. TPUs need `pip install 'bertfam[tpu]'`, which brings their compiler, and no TPU.
The status is 0 when all was compiled, whether it fits or not: "fits" of --json tells."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_config(parser)
    group = parser.add_argument_group("what to plan")
    group.add_argument(
        "--slice",
        action="append",
        required=True,
        metavar="NAME",
        help=f"a slice, as v5e-16, v5p-128, 2xv5e-256 or v5e:4x4, or {HERE}; repeatable",
    )
    group.add_argument(
        "--vocab_size", type=int, metavar="N", help="tokens of the vocabulary (default: as in the family's published models)"
    )
    group.add_argument("--vocab", type=flags.folder, metavar="DIR", help="vocabulary folder, whose size is taken")
    group.add_argument(
        "--program",
        action="append",
        choices=("train", "evaluate", "decode"),
        help="compile only this; repeatable (default: all that the run has)",
    )
    group.add_argument(
        "--shardings", action="store_true", help="also print how every parameter, moment and feature is split over the mesh"
    )
    parser.add_argument(
        "--no_advice",
        action="store_true",
        help="look for no change with which a training step fits that does not (some compiling)",
    )
    parser.add_argument(
        "--most_rows",
        action="store_true",
        help="also find the most rows a device, at once, of the last stage that fit, to an eighth (some compiling)",
    )
    group = parser.add_argument_group("the fastest layout")
    group.add_argument(
        "--search",
        action="store_true",
        help="estimate all meshes, recomputations and numbers of microbatches, compile the best five, and write the fastest",
    )
    group.add_argument("--output", type=flags.path, metavar="FILE", help="gin file to write, for --gin_file; with --search")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Plan; return the exit status."""
    slices = _slices(args.slice)
    plan_search.check(args, slices)
    prepare(slices)

    # -- The run
    import dataclasses
    import json

    make = _maker(args)
    if args.search:
        return plan_search.search(args, make, slices[0], _tell)
    run = make(())

    # -- Its programs on every slice; whatever does not divide is told before anything is compiled
    import jax

    from bertfam.planning.programs import KINDS, jobs
    from bertfam.planning.report import largest_text, tables
    from bertfam.planning.shardings import shardings, shardings_text

    kinds = args.program or KINDS
    planned = []
    for slice in slices:
        devices = slice.devices()
        try:
            planned.append((slice, jobs(run, run.mesh.build(devices), kinds)))
        except UserError as error:
            raise UserError(f"{slice.name}: {error}") from error
    compiled = {job.kind for _, found in planned for job in found}
    if missing := [kind for kind in args.program or () if kind not in compiled]:
        raise UserError(f"the run has no program to {' or '.join(missing)}; leave --program={missing[0]} out")
    split = {slice.name: shardings(found[0].trainer) for slice, found in planned if args.shardings and found}

    # -- Compiling
    rows = _compiled([(slice, job) for slice, found in planned for job in found])

    # -- What would make the training steps fit that do not
    advised = {} if args.no_advice else _advised(make, slices, rows)
    most = _most_rows(run, slices) if args.most_rows else {}

    # -- Told
    if args.json:
        leaves = jax.tree.leaves(planned[0][1][0].trainer.abstract_state.params)
        model = {"parameters": sum(leaf.size for leaf in leaves), "vocab_size": run.objective.model.vocab_size}
        advice = {name: advice and dataclasses.asdict(advice) for name, (advice, _) in advised.items()}
        print(
            json.dumps(
                model | {"programs": rows, "advice": advice, "most_rows": most} | ({"shardings": split} if args.shardings else {})
            )
        )
        return 0
    for name, table in split.items():
        print(f"-- {name}\n{shardings_text(table)}\n")
    print(tables(rows))
    for row in rows:
        if not row["fits"]:
            print(f"\n{largest_text(row)}")
    for _, text in advised.values():
        print(f"\n{text}")
    for name, found in most.items():
        print(f"\n{name}: as compiled, {found:,} rows of {run.stages[-1].length} a device fit at once (the most, to an eighth)")
    return 0


def _tell(line: str) -> None:
    """How far it is."""
    print(line, file=sys.stderr, flush=True)


def _slices(names: Sequence[str]) -> list[Slice]:
    found = [parse(name) for name in dict.fromkeys(names)]
    if len(found) > 1 and any(each.is_here for each in found):
        raise UserError(
            f"--slice={HERE} uses the accelerators that are here and other slices none: plan them one after the other"
        )
    return found


def _maker(args: argparse.Namespace) -> Callable[[Sequence[str]], Run]:
    """What gives the run, with lines of gin added to its files, and with the size of a vocabulary: that which is given, the
    configuration's own, or the family's."""
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
        from bertfam.data import vocabularies

        size = vocabularies.load(args.vocab).size
    elif size is None and model.vocab_size is None:
        size = model.published_vocab_size
        if size is None:
            raise UserError(f"{type(model).__name__} has no vocabulary of its own: give --vocab_size=N or --vocab=DIR")
        warn([f"taking the {size:,} tokens of the family's published models; --vocab_size=N or --vocab=DIR for others"])

    def make(lines: Sequence[str]) -> Run:
        run: Run = flags.load_files(args, lines).build("Run")
        return run.sized(size or model.vocab_size)

    return make


def _compiled(found: Sequence[tuple[Slice, Job]]) -> list[Row]:
    """Compile all, and report how far it is on stderr."""
    from bertfam.planning.report import row
    from bertfam.training.summary import duration

    rows: list[Row] = []
    began = time.monotonic()
    for done, (slice, job) in enumerate(found):
        left = f", about {duration((time.monotonic() - began) / done * (len(found) - done))} left" if done else ""
        _tell(f"[{done + 1}/{len(found)}] {slice.name}: {job.name}{left}")
        rows.append(row(job.compile(largest=10), slice))
    took = duration(time.monotonic() - began)
    _tell(f"compiled {len(found)} program{'s' * (len(found) > 1)} in {took}")
    return rows


def _advised(
    make: Callable[[Sequence[str]], Run], slices: Sequence[Slice], rows: Sequence[Row]
) -> dict[str, tuple[Advice | None, str]]:
    """By the slice that a training step does not fit: what is advised, and that in words."""
    from bertfam.planning.advice import advice_text, advise, least_devices
    from bertfam.sharding.chips import memory_bytes

    found = {}
    for slice in slices:
        devices = slice.devices()
        memory = memory_bytes(devices[0])
        if memory and any(row["slice"] == slice.name and row["kind"] == "train" and not row["fits"] for row in rows):
            _tell(f"{slice.name}: looking for a change that fits")
            advice = advise(make, devices, memory, _tell)
            least = None if advice else least_devices(make(()), memory)
            found[slice.name] = advice, advice_text(advice, slice.name, len(devices), memory, least)
    return found


def _most_rows(run: Run, slices: Sequence[Slice]) -> dict[str, int]:
    """By slices whose memory is known; of others it is told that it is not."""
    from bertfam.planning.advice import most_rows
    from bertfam.sharding.chips import memory_bytes

    found = {}
    for slice in slices:
        devices = slice.devices()
        if memory := memory_bytes(devices[0]):
            _tell(f"{slice.name}: looking for the most rows that fit")
            found[slice.name] = most_rows(run, devices, memory, _tell)
        else:
            warn([f"{slice.name}: nobody knows the memory of {devices[0].device_kind}, nor how many rows fit"])
    return found

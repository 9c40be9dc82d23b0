"""What training steps cost on TPU slices by their compiled programs, against what is on record: no TPU is needed.

    python -m benchmarks.tpu_golden small             # two small models, also a test
    python -m benchmarks.tpu_golden large             # make tpu-golden
    python -m benchmarks.tpu_golden large --update    # records what is found

Of every case: FLOPs, memory and bytes sent by kind of collective and mesh axes, of one chip and step; and no array may be
gathered that is not a parameter's, but for those that the case allows. Under the jax and libtpu on record costs must be those on
record, under others within a half (two releases were a quarter apart), but for temporaries, which are each compiler's own; else
each difference is told in a line, and the exit status is 1. The small models are compiled with the compiler's least effort: it
is quicker, and keeps their arrays in HBM, where those of larger models are.
"""

import argparse
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam.planning import slices

if TYPE_CHECKING:
    from bertfam.planning.hlo.collectives import Collective

RECORDS = Path(__file__).parent / "tpu_golden"
TEMPORARIES = "bytes of temporaries"
TOLERANCE = 0.5
# Differences of fewer bytes are of no account under other versions.
SMALL_BYTES = 2**16


@dataclass(frozen=True)
class Case:
    """A step on a slice.

    Attributes:
      run_file: of a run; its first stage is compiled.
      vocabulary: pieces.
      slice: by name.
      bindings: in gin, on top of the file's.
      gathers: modules that gather what is no parameter, which is known of.
    """

    run_file: str
    vocabulary: int
    slice: str
    bindings: tuple[str, ...]
    gathers: tuple[str, ...] = ()


def _mesh(**sizes: int) -> tuple[str, ...]:
    return tuple(f"MeshShape.{axis} = {size}" for axis, size in ({"data": 1} | sizes).items())


def _batch(rows: int) -> str:
    return f"BATCH_SIZE = {rows}"


SMALL = {
    "bert, fsdp 2 x tensor 2": Case(
        "runs/bert_base.gin",
        500,
        "v5e-4",
        (
            *_mesh(fsdp=2, tensor=2),
            "BertConfig.num_layers = 3",
            "BertConfig.hidden_size = 96",
            "BertConfig.num_heads = 4",
            "BertConfig.feed_forward_size = 320",
            "BertConfig.dropout_rate = 0.0",
            "BertConfig.attention_dropout_rate = 0.0",
            _batch(24),
            "Stage.length = 48",
        ),
    ),
    "gpt2, data 2 x fsdp 2": Case(
        "runs/gpt2_small.gin",
        500,
        "v5e-4",
        (
            *_mesh(data=2, fsdp=2),
            "Gpt2Config.num_layers = 3",
            "Gpt2Config.hidden_size = 96",
            "Gpt2Config.num_heads = 4",
            "Gpt2Config.feed_forward_size = 320",
            _batch(24),
            "Stage.length = 48",
        ),
    ),
}
LARGE = {
    "bert_base, data 16": Case("runs/bert_base.gin", 30_522, "v5e-16", _mesh(data=16)),
    "roberta_base, fsdp 16": Case("runs/roberta_base.gin", 50_265, "v5e-16", (*_mesh(fsdp=16), _batch(256))),
    "gpt2_small, fsdp 4 x tensor 4": Case("runs/gpt2_small.gin", 50_257, "v5e-16", (*_mesh(fsdp=4, tensor=4), _batch(64))),
    "t5_1_1_base, data 2 x fsdp 8": Case("runs/t5_1_1_base.gin", 32_100, "v5p-32", (*_mesh(data=2, fsdp=8), _batch(256))),
    "modernbert_base, data 8 x sequence 2": Case(
        "runs/modernbert_base.gin",
        50_368,
        "v5p-32",
        (*_mesh(data=8, sequence=2), "Ramp.first_batch_size = 64", _batch(128)),
        ("attention",),  # keys and values of the other tokens
    ),
    "electra_small, data 16, ZeRO-1": Case(
        "runs/electra_small.gin", 30_522, "v5e-16", (*_mesh(data=16), "MeshShape.zero1 = True")
    ),
}
SETS = {"small": SMALL, "large": LARGE}


def measure(case: Case) -> tuple[dict[str, int], list[str]]:
    """Costs by name, and in words each array that is gathered and should not be."""
    from bertfam.config.build import load
    from bertfam.planning.hlo.collectives import by_axes, collectives
    from bertfam.planning.programs import jobs

    run = load([case.run_file], case.bindings).build("Run").sized(case.vocabulary)
    mesh = run.mesh.build(slices.parse(case.slice).devices())
    job = jobs(run, mesh, {"train"})[0]
    program = job.compile()
    if program.compiled is None:
        return {}, [f"it does not fit: {program.too_large}"]
    state, stage = job.trainer.abstract_state, job.trainer.stages[job.stage]
    needs = program.memory
    found = collectives(program.text, mesh)
    costs = {
        "FLOPs": job.flops // mesh.size,
        "bytes of parameters": needs.parameters,
        "bytes of the optimizer": needs.optimizer,
        TEMPORARIES: needs.gradients + needs.temporaries,
    }
    for kind, of_axes in by_axes(found).items():
        costs |= {f"bytes of {kind} over {' x '.join(axes)}": count for axes, count in of_axes.items()}
    rows = stage.batch_size // (mesh.size // mesh.shape["tensor"])
    return costs, unexpected(found, state.params, rows * run.stages[job.stage].length, case.gathers)


def unexpected(found: Iterable["Collective"], params: Any, tokens: int, allowed: Iterable[str] = ()) -> list[str]:
    """In words, each all-gather of numbers that are no parameter's, and more than one for each token of a chip.

    Args:
      found: the program's collectives.
      params: as `jax.ShapeDtypeStruct`s with shardings.
      tokens: of one chip.
      allowed: modules whose gathers are known of.
    """
    import jax

    from bertfam.planning.hlo.allocations import module

    sizes = set()
    for leaf in jax.tree.leaves(params):
        over_tensor = math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))
        parts = {part for part in range(1, over_tensor + 1) if over_tensor % part == 0}
        one = {math.prod(leaf.shape[stacked:]) // part for part in parts for stacked in (0, 1)}
        sizes |= {size * joined for size in one for joined in (1, 2, 3)}  # queries, keys and values; the two of a gated unit
    told = []
    for each in found:
        place = module(each.op_name)
        for shape in each.shape.strip("()").split(", "):
            count = math.prod(int(size) for size in shape[shape.index("[") + 1 : -1].split(",") if size)
            known = count in sizes or count <= tokens or any(part in place for part in allowed)
            if each.kind == "all-gather" and shape.startswith(("f", "bf")) and not known:
                told.append(f"{shape} is gathered over {' x '.join(each.axes)}, and is no parameter's: {each.op_name}")
    return told


def differences(found: Mapping[str, int], recorded: Mapping[str, int], *, exact: bool) -> list[str]:
    """In words, each cost that is another than on record."""
    told = []
    for name in sorted({*found, *recorded}):
        now, before = found.get(name, 0), recorded.get(name, 0)
        near = name == TEMPORARIES or abs(now - before) <= max(TOLERANCE * before, SMALL_BYTES)
        if now != before and (exact or not near):
            told.append(f"{name}: {now:,} and not {before:,}")
    return told


def compilers() -> str:
    """The versions of what compiles."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))


def main() -> int:
    """Compiles, and compares or records."""
    parser = argparse.ArgumentParser(description="what training steps cost on TPU slices, against what is on record")
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--update", action="store_true", help="put what is found on record")
    args = parser.parse_args()
    cases = SETS[args.set]
    slices.prepare([slices.parse(case.slice) for case in cases.values()])
    if args.set == "small":
        os.environ["JAX_EXEC_TIME_OPTIMIZATION_EFFORT"] = "-1"
    path = RECORDS / f"{args.set}.json"
    record = {} if args.update else json.loads(path.read_text())
    exact = record.get("compilers") == compilers()
    costs, wrong = {}, []
    for name, case in cases.items():
        began = time.monotonic()
        costs[name], found = measure(case)
        if not args.update:
            found += differences(costs[name], record["costs"].get(name, {}), exact=exact)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        wrong += [f"{name}: {line}" for line in found]
    if args.update:
        path.write_text(json.dumps({"compilers": compilers(), "costs": costs}, indent=2) + "\n")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong and not exact and not args.update:
        print(f"compiled by {compilers()}, and on record are those of {record['compilers']}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

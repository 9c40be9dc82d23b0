"""Costs of training steps compiled for TPU slices, compared with recorded costs; no TPU is needed.

    python -m benchmarks.tpu_golden small             # a small model, also run as a test
    python -m benchmarks.tpu_golden large             # make tpu-golden
    python -m benchmarks.tpu_golden large --update    # record the costs

The costs of a case, for one chip and step, are FLOPs, memory and bytes sent, by kind of collective and mesh axes. Only parameters
may be gathered, and arrays that the case allows. With the recorded versions of jax and libtpu, costs must equal the record. With
others they must be within a half of it (two releases differed by a quarter), except temporaries, which depend on the compiler.
Each difference is reported in a line, and the exit status is 1 if there is any. Each "auto" of a run is chosen for the slice, as
`bertfam pretrain` chooses it there. The small model is compiled with the compiler's least effort, which is faster and keeps its
arrays in HBM like those of larger models.
"""

import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam.arguments import ScriptParser
from bertfam.planning import slices

if TYPE_CHECKING:
    import jax

    from bertfam.planning.hlo.collectives import Collective
    from bertfam.training.run import Run

RECORDS = Path(__file__).parent / "tpu_golden"
TEMPORARIES = "bytes of temporaries"
TOLERANCE = 0.5
# Differences of fewer bytes are ignored with other versions.
SMALL_BYTES = 2**16


@dataclass(frozen=True)
class Case:
    """Training step on a slice.

    Attributes:
      run_file: run file, whose first stage is compiled.
      vocabulary: vocabulary size.
      slice: name of the slice.
      bindings: gin bindings over those of the file.
      gathers: modules that may gather other arrays than parameters.
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
        # Keys and values of the other tokens, and gradients of the masked tokens that other chips predict.
        ("attention", "MaskedLmHead/dense"),
    ),
    "electra_small, data 16, ZeRO-1": Case(
        "runs/electra_small.gin", 30_522, "v5e-16", (*_mesh(data=16), "MeshShape.zero1 = True")
    ),
}
SETS = {"small": SMALL, "large": LARGE}


def chosen_run(case: Case, devices: Sequence["jax.Device"]) -> "Run":
    """Build the sized run of a case, with each "auto" chosen for the devices of its slice."""
    from bertfam.config.build import load
    from bertfam.planning.choices import choose, with_choices
    from bertfam.sharding.chips import memory_bytes

    run = load([case.run_file], case.bindings).build("Run").sized(case.vocabulary)
    return with_choices(run, choose(run, devices, memory_bytes(devices[0])))


def measure(run: "Run", devices: Sequence["jax.Device"], gathers: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """Return the costs by name, and a description of each unexpected gather; `gathers` is that of the `Case`."""
    from bertfam.planning.hlo.collectives import by_axes, collectives
    from bertfam.planning.programs import jobs

    mesh = run.mesh.build(devices)
    job = jobs(run, mesh, {"train"})[0]
    program = job.compile()
    if program.compiled is None:
        return {}, [f"it does not fit: {program.too_large}"]
    state, stage = job.trainer.abstract_state, job.trainer.stages[job.stage]
    memory = program.memory
    sent = collectives(program.text, mesh)
    costs = {
        "FLOPs": job.flops // mesh.size,
        "bytes of parameters": memory.parameters,
        "bytes of the optimizer": memory.optimizer,
        TEMPORARIES: memory.gradients + memory.temporaries,
    }
    for kind, by_axis in by_axes(sent).items():
        costs |= {f"bytes of {kind} over {' x '.join(axes)}": count for axes, count in by_axis.items()}
    rows = stage.batch_size // (mesh.size // mesh.shape["tensor"])
    return costs, unexpected(sent, state.params, rows * run.stages[job.stage].length, gathers)


def unexpected(found: Iterable["Collective"], params: Any, tokens: int, allowed: Iterable[str] = ()) -> list[str]:
    """Describe each all-gather of an array of floats that is no parameter and has more elements than a chip has tokens.

    Args:
      found: collectives of the program.
      params: parameters as `jax.ShapeDtypeStruct`s with shardings.
      tokens: number of tokens of one chip.
      allowed: modules that may gather other arrays.
    """
    import jax

    from bertfam.planning.hlo.allocations import module

    sizes = set()
    for leaf in jax.tree.leaves(params):
        over_tensor = math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))
        parts = {part for part in range(1, over_tensor + 1) if over_tensor % part == 0}
        one = {math.prod(leaf.shape[stacked:]) // part for part in parts for stacked in (0, 1)}
        sizes |= {size * joined for size in one for joined in (1, 2, 3)}  # queries, keys and values; both kernels of a gated unit
    descriptions = []
    for collective in found:
        place = module(collective.op_name)
        for shape in collective.shape.strip("()").split(", "):
            count = math.prod(int(size) for size in shape[shape.index("[") + 1 : -1].split(",") if size)
            known = count in sizes or count <= tokens or any(part in place for part in allowed)
            if collective.kind == "all-gather" and shape.startswith(("f", "bf")) and not known:
                axes = " x ".join(collective.axes)
                descriptions.append(f"{shape} is gathered over {axes}, but is no parameter: {collective.op_name}")
    return descriptions


def differences(found: Mapping[str, int], recorded: Mapping[str, int], *, exact: bool) -> list[str]:
    """Describe each cost that differs from the recorded one."""
    descriptions = []
    for name in sorted({*found, *recorded}):
        now, before = found.get(name, 0), recorded.get(name, 0)
        near = name == TEMPORARIES or abs(now - before) <= max(TOLERANCE * before, SMALL_BYTES)
        if now != before and (exact or not near):
            descriptions.append(f"{name}: {now:,} and not {before:,}")
    return descriptions


def compilers() -> str:
    """Return the versions of jax and libtpu."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))


def main() -> int:
    """Compile the cases and compare or record their costs; return the exit status."""
    parser = ScriptParser(description="compare the costs of training steps on TPU slices with the recorded ones")
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--update", action="store_true", help="record the costs instead of comparing them")
    args = parser.parse_args()
    cases = SETS[args.set]
    slices.prepare([slices.parse(case.slice) for case in cases.values()])
    if args.set == "small":
        os.environ["JAX_EXEC_TIME_OPTIMIZATION_EFFORT"] = "-1"
    from bertfam.training.run_plan import execution_settings, execution_text  # after the environment variables are set

    path = RECORDS / f"{args.set}.json"
    record = {} if args.update else json.loads(path.read_text())
    exact = record.get("compilers") == compilers()
    costs, wrong = {}, []
    for name, case in cases.items():
        start, devices = time.monotonic(), slices.parse(case.slice).devices()
        run = chosen_run(case, devices)
        costs[name], faults = measure(run, devices, case.gathers)
        if not args.update:
            faults += differences(costs[name], record["costs"].get(name, {}), exact=exact)
        print(f"{name}: {time.monotonic() - start:.0f} s, {execution_text(execution_settings(run), {})}", flush=True)
        wrong += [f"{name}: {line}" for line in faults]
    if args.update:
        path.write_text(json.dumps({"compilers": compilers(), "costs": costs}, indent=2) + "\n")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong and not exact and not args.update:
        print(f"compiled by {compilers()}; the recorded costs are those of {record['compilers']}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

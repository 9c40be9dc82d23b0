"""Memory of training steps: the estimate of `bertfam plan --slice=here` and the peak that the device reports.

    python -m benchmarks.memory

Each model runs in a process of its own, since a device reports only its peak memory.
"""

import sys
from functools import partial

import jax

from benchmarks import synthetic
from benchmarks.measurement import table
from benchmarks.processes import Job, print_result, run_all, wait_for_turn
from bertfam.arguments import ScriptParser
from bertfam.config import load
from bertfam.planning.programs import jobs
from bertfam.training.run import Run

_VOCABULARY = 32_000
_FAST = ("Execution.dtype = 'bfloat16'", "Execution.layers = 'unroll'", "Run.mesh = @MeshShape()")
# name -> gin files, bindings
MODELS: dict[str, tuple[list[str], list[str]]] = {
    "BERT-base, 256 x 128": (["runs/bert_base.gin"], ["Run.stages = (@Stage(),)", "BATCH_SIZE = 256"]),
    "ModernBERT-base, 32 x 1,024": (["runs/modernbert_base.gin"], ["Run.stages = (@Stage(),)", "BATCH_SIZE = 32"]),
    "GPT-2 small, 32 x 1,024": (["runs/gpt2_small.gin"], ["BATCH_SIZE = 32"]),
    "T5 1.1 base, 64 x 512": (["runs/t5_1_1_base.gin"], ["BATCH_SIZE = 64"]),
    "BERT-large, 64 x 512, scan, remat": (
        ["runs/bert_base.gin", "models/bert_large.gin"],
        [
            *("Run.stages = (@Stage(),)", "Stage.length = 512", "BATCH_SIZE = 64"),
            *("Execution.layers = 'scan'", "Execution.remat = 'full'"),
        ],
    ),
}


def measure(name: str, steps: int) -> dict[str, float | str]:
    """Plan and run updates of one model on this device; return the planned and the measured bytes."""
    files, bindings = MODELS[name]
    run: Run = load(files, [*_FAST, *bindings]).build("Run").sized(_VOCABULARY)
    (job,) = jobs(run, run.mesh.build(jax.devices()[:1]), ["train"])
    program, trainer = job.compile(), job.trainer
    assert program.compiled is not None, program.too_large
    wait_for_turn()
    stage = trainer.stages[0]
    state = trainer.new_state()
    rows = jax.device_put(synthetic.rows(stage.features, stage.batch_size, _VOCABULARY), stage.shardings)
    for _ in range(steps):
        state, _ = program.compiled(state, rows)
    jax.block_until_ready(state)
    peak = (jax.devices()[0].memory_stats() or {})["peak_bytes_in_use"]
    return {"planned": program.memory.total, "measured": peak, "device": jax.devices()[0].device_kind}


def main() -> int:
    """Measure each model and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5, help="number of updates (default: %(default)s)")
    parser.add_argument("--model", choices=MODELS, help="measure this model in this process and print JSON")
    args = parser.parse_args()
    if args.model:
        return print_result(partial(measure, args.model, args.steps))
    lines, device = [], ""
    jobs = [Job(name, ["benchmarks.memory", f"--steps={args.steps}", f"--model={name}"]) for name in MODELS]
    for job, figures in run_all(jobs, together=1):
        device = figures["device"]
        sizes = [f"{figures[kind] / 2**30:.2f}" for kind in ("planned", "measured")]
        lines.append([job.name, *sizes, f"{figures['planned'] / figures['measured'] - 1:+.1%}"])
    if not lines:
        return 1
    print(f"one {device}, jax {jax.__version__}\n")
    print(table(["model, rows", "planned GiB", "measured GiB", "planned / measured - 1"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Training steps on packed rows of synthetic tokens, and on unpacked ones: time and peak memory.

    python -m benchmarks.packed_rows --json packed_rows.json

Packed rows have segments of 300 tokens on average and no padding; unpacked rows are one segment. Layers are unrolled, in
bfloat16, without dropout. Each case is a process of its own, since a device reports only its peak memory.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from benchmarks import synthetic
from benchmarks.attention_backends import segments
from benchmarks.measurement import seconds_of_update, table
from bertfam.arguments import ScriptParser, output_file
from bertfam.config import load
from bertfam.training.trainer import Trainer

_SETTINGS = (
    "Run.stages = (@Stage(),)",
    "Run.mesh = @MeshShape()",
    "Execution.dtype = 'bfloat16'",
    "Execution.layers = 'unroll'",
)
_BERT = (
    ("runs/bert_base.gin", "objectives/mlm.gin"),
    ("BATCH_SIZE = 64", "Stage.length = 512", "BertConfig.dropout_rate = 0.0", "BertConfig.attention_dropout_rate = 0.0"),
    30_522,
)
_MODERNBERT = (("runs/modernbert_base.gin",), ("ModernBertConfig.attention_output_dropout_rate = 0.0",), 50_368)
# name -> gin files, bindings, size of the vocabulary, bindings of the case
CASES = {
    "BERT-base, 64 x 512, unpacked": (*_BERT, ("TextData.rows = @FullSentences()",)),
    "BERT-base, 64 x 512, packed": (*_BERT, ("TextData.rows = @Packed()",)),
    "ModernBERT-base, 32 x 1,024, packed": (*_MODERNBERT, ("BATCH_SIZE = 32", "Stage.length = 1024")),
    "ModernBERT-base, 4 x 8,192, packed": (*_MODERNBERT, ("BATCH_SIZE = 4", "Stage.length = 8192")),
}


def make_rows(trainer: Trainer, vocabulary: int) -> dict[str, Any]:
    """Return a batch of synthetic rows, packed if the run has packed rows, on the devices."""
    stage = trainer.stages[0]
    rows = synthetic.rows(stage.features, stage.batch_size, vocabulary)
    if "encoder_positions" in rows:
        ids = segments(np.random.default_rng(0), *rows["encoder_segment_ids"].shape)
        starts = np.concatenate([np.ones_like(ids[:, :1]), np.diff(ids)], axis=1) > 0
        places = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
        positions = places - np.maximum.accumulate(np.where(starts, places, 0), axis=1)
        rows |= {"encoder_segment_ids": ids, "encoder_positions": positions.astype(np.int32)}
    return jax.device_put(rows, stage.shardings)


def measure(name: str, steps: int, more: list[str]) -> dict[str, Any]:
    """Compile and time updates of one case."""
    files, bindings, vocabulary, own = CASES[name]
    run = load([*files], [*_SETTINGS, *bindings, *own, *more]).build("Run").sized(vocabulary)
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    state, rows = trainer.new_state(), make_rows(trainer, vocabulary)
    median = seconds_of_update(trainer.lower_step(0).compile(), state, rows, steps)
    device = jax.devices()[0]
    return {
        "case": name,
        "milliseconds": 1e3 * median,
        "tokens_per_second": rows["encoder_segment_ids"].size / median,
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "device": device.device_kind,
        "jax": jax.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def main() -> int:
    """Measure each case and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="updates between two readings of the clock (default: %(default)s)")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further binding of every case")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--case", choices=CASES, help="measure this case in this process and print JSON")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case, args.steps, args.gin)))
        return 0
    figures = []
    for name in CASES:
        flags = [f"--steps={args.steps}", *(f"--gin={binding}" for binding in args.gin), f"--case={name}"]
        command = [sys.executable, "-m", "benchmarks.packed_rows", *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures.append(json.loads(done.stdout.splitlines()[-1]))
        if args.json:
            args.json.write_text(json.dumps(figures, indent=1) + "\n")
    lines = []
    for one in figures:
        peak = f"{one['peak_bytes'] / 2**30:.1f}" if one["peak_bytes"] else "-"
        lines.append([one["case"], f"{one['milliseconds']:.1f}", f"{one['tokens_per_second'] / 1e3:,.0f}", peak])
    print(f"one {figures[0]['device']}, jax {figures[0]['jax']}\n")
    print(table(["model, rows", "ms a step", "k tokens/s", "peak GiB"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

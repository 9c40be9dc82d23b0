"""Memory, time and loss of a GPT-2 training step with all logits at once, and with chunked logits.

    python -m benchmarks.cross_entropy --model gpt2_small --rows 32 --length 1024

Each variant runs in a process of its own, since a device reports only its peak memory.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from typing_extensions import override

from benchmarks.measurement import table
from bertfam.arguments import ScriptParser
from bertfam.config import load
from bertfam.corruption.next_tokens import NextTokens
from bertfam.data.rows.running_text import Chunks
from bertfam.data.text_data import TextData
from bertfam.layers.execution import Execution
from bertfam.models.language_model import logits
from bertfam.objectives.causal_lm import CausalLm
from bertfam.objectives.objective import LossOut, Sum, masked_cross_entropy
from bertfam.sharding.mesh import MeshShape
from bertfam.training.run import Run
from bertfam.training.stages import Stage
from bertfam.training.trainer import Trainer

_VOCABULARY = 50_257


@dataclass(frozen=True)
class Whole(CausalLm):
    """Causal language model that computes all logits of a batch at once."""

    @override
    def loss(self, params: Any, carry: Any, aux: Any, batch: Any, *, key: Any, train: bool) -> LossOut:
        hidden = self.decoded(params, batch, key=key, train=train)[0]
        all_logits = logits(self.model, params, hidden, self.execution)
        loss, accuracy = masked_cross_entropy(all_logits, batch["decoder_target_tokens"], batch["decoder_loss_weights"])
        return LossOut({"lm": loss}, carry, {"lm_loss": Sum(loss, accuracy.weight), "lm_accuracy": accuracy})


VARIANTS = {"whole": Whole, "chunked": CausalLm}


def measure(args: argparse.Namespace) -> None:
    """Measure one variant and print the figures as JSON."""
    model = load([f"models/{args.model}.gin", "objectives/causal_lm.gin", "runs/defaults.gin"], ["TRAIN_STEPS=1"])
    config = model.build("Run").objective.model
    objective = VARIANTS[args.variant](config, execution=Execution("bfloat16", "unroll")).sized(_VOCABULARY)
    stage = Stage(10_000, args.length, args.rows)
    trainer = Trainer(
        Run(objective, TextData(rows=Chunks(), corruption=NextTokens()), (stage,)), MeshShape().build(jax.devices()[:1])
    )
    tokens = np.random.default_rng(0).integers(0, _VOCABULARY, (args.rows, args.length + 1), np.int32)
    ones = np.ones((args.rows, args.length))
    rows = {"decoder_input_tokens": tokens[:, :-1], "decoder_target_tokens": tokens[:, 1:], "decoder_segment_ids": ones}
    features = trainer.stages[0].features
    batch = {
        name: jax.device_put((rows | {"decoder_loss_weights": ones})[name].astype(spec.dtype), trainer.stages[0].shardings[name])
        for name, spec in features.items()
    }
    state = trainer.new_state()
    step, _ = trainer.compile_step(0)
    seconds = []
    for number in range(args.steps):
        began = time.monotonic()
        state, metrics = step(state, batch, number)
        jax.block_until_ready(state)
        seconds.append(time.monotonic() - began)
    stats = jax.devices()[0].memory_stats() or {}
    loss = metrics["lm_loss"]
    figures = {
        "peak": stats.get("peak_bytes_in_use"),
        "seconds": float(np.median(seconds[len(seconds) // 3 :])),
        "loss": float(loss.total / loss.weight),
        "device": jax.devices()[0].device_kind,
    }
    print(json.dumps(figures))


def main() -> int:
    """Measure each variant and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--model", default="gpt2_small", help="file of gin_configs/models (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="number of timed updates (default: %(default)s)")
    parser.add_argument("--variant", choices=VARIANTS, help="measure this variant in this process and print JSON")
    args = parser.parse_args()
    if args.variant:
        measure(args)
        return 0
    lines = []
    for variant in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.cross_entropy", *sys.argv[1:], f"--variant={variant}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        peak = f"{figures['peak'] / 2**30:.2f}" if figures["peak"] else "-"
        rate = args.rows * args.length / figures["seconds"]
        lines.append([variant, peak, f"{figures['seconds'] * 1e3:.1f}", f"{rate / 1e3:,.0f}", f"{figures['loss']:.5f}"])
    print(f"{args.model}, {args.rows} rows of {args.length} tokens, on {figures['device']}, jax {jax.__version__}\n")
    print(table(["logits", "peak GiB", "ms a step", "k tokens/s", f"loss after {args.steps} updates"], lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Overhead of the training loop over its bare jitted step on a single batch, measured alternately in one process.

    python -m benchmarks.loop --steps 500
    python -m benchmarks.loop --steps 600 --cache books --gin_file runs/bert_base.gin

Without a run file the model is a small BERT. Of a run file the first stage is measured.
"""

import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from benchmarks.measurement import machine, table, versions
from bertfam.arguments import ScriptParser, output_file
from bertfam.config import load
from bertfam.data import vocabularies
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import builder
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.models.bert import BertConfig
from bertfam.multihost.preemption import Stop
from bertfam.objectives.bert import MlmNsp
from bertfam.planning.choices import choose, with_choices
from bertfam.sharding.chips import memory_bytes
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.hooks.standard import make_hooks
from bertfam.training.logs.metrics import MetricsWriter
from bertfam.training.logs.phase_timer import EVALUATING, SAVING, TRAINING, WAITING
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.loop import train
from bertfam.training.run import Run
from bertfam.training.stages import Stage, StagedBatches
from bertfam.training.state import TrainState
from bertfam.training.trainer import Trainer

_VOCABULARY_SIZE = 4096
_LOOP = (TRAINING, WAITING, SAVING)  # phases of the loop; compiling and evaluating are reported separately


def python_docs(folder: Path) -> TokenCache:
    """Build a token cache of the documentation of the installed packages, with a vocabulary of its own."""
    corpus = PythonDocs()
    sentences = (sentence for document in corpus.documents("train") for sentence in document)
    return builder.build({"text": corpus}, WordPiece.train(sentences, size=_VOCABULARY_SIZE), folder)


class Loop:
    """Small run whose steps can be made by the training loop or by the bare step."""

    def __init__(self, run: Run, folder: Path, cache: TokenCache) -> None:
        """Read the vocabulary of the token cache and compile the step."""
        self.vocabulary, self.cache = vocabularies.load(cache.vocabulary_directory), cache
        run, device = run.sized(self.vocabulary.size), jax.devices()[0]
        run = with_choices(run, choose(run, [device], memory_bytes(device)))
        self.trainer = Trainer(run, run.mesh.build([device]))
        stage = run.stages[0]
        sizes = (self.cache, self.vocabulary.token_ids, stage.length, stage.batch_size)
        self.source = StagedBatches(run.stages, [run.data.training(*sizes, run.seed, 0)])
        self.held_out = run.data.held_out(*sizes, at_most=run.most_eval_batches)
        self.checkpoints = Checkpoints(folder, keep=Keep(newest=2))
        self.writer = MetricsWriter(folder, 0)
        self.batch = self.trainer.stages[0].batch(self.source, 0)
        self.step, _ = self.trainer.compile_step(0)

    def looped(self, state: TrainState, steps: int) -> tuple[TrainState, dict[str, float]]:
        """Run `steps` steps of the loop; return the state and the seconds of each phase."""
        run, start = self.trainer.run, int(state.step)
        stop, before = Stop(), self.trainer.phase_timer.seconds()
        remaining = iter(range(1, steps))
        stop.reasons.append(lambda: next(remaining, None) is None)
        hooks = make_hooks(self.trainer, self.checkpoints, [self.held_out], self.vocabulary, self.writer, Stop(), {})
        log = ProgressLog(self.writer, self.trainer.phase_timer, start, run.total_steps, run.log_every, run.flops_after)
        state = train(self.trainer, state, self.source, log, hooks, stop)
        with self.trainer.phase_timer.during(SAVING):
            self.checkpoints.wait()
        now = self.trainer.phase_timer.seconds()
        assert int(state.step) == start + steps
        return state, {name: now[name] - before.get(name, 0.0) for name in now}

    def bare(self, state: TrainState, steps: int) -> tuple[TrainState, float]:
        """Run `steps` bare steps on one batch; return the state and the seconds."""
        jax.block_until_ready(state)
        start, first = time.monotonic(), int(state.step)
        for number in range(first, first + steps):
            state, _ = self.step(state, self.batch, number)
        jax.block_until_ready(state)
        return state, time.monotonic() - start


def _small_run(hidden_size: int) -> Run:
    model = BertConfig(
        num_layers=2,
        hidden_size=hidden_size,
        num_heads=max(hidden_size // 64, 1),
        feed_forward_size=4 * hidden_size,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )
    stages = (Stage(1, length=64, batch_size=64),)
    return Run(objective=MlmNsp(model), data=TextData(), stages=stages, checkpoint_every=100, eval_every=250, eval_batches=4)


def _run(gin_file: str, bindings: Sequence[str]) -> Run:
    run: Run = load([gin_file], ["Run.stages = (@Stage(),)", *bindings]).build("Run")
    return run


def main() -> int:
    """Measure and print the table; return the exit status."""
    parser = ScriptParser(prog="python -m benchmarks.loop", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=500, metavar="N", help="steps of the loop and of the bare step, over all rounds (500)"
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="number of rounds, each of which measures both (10)")
    parser.add_argument(
        "--hidden_size", type=int, default=128, metavar="N", help="hidden size of the model, which has two layers (128)"
    )
    parser.add_argument(
        "--cache", metavar="DIR", help="token cache of a corpus named text (documentation of the installed packages)"
    )
    parser.add_argument("--gin_file", metavar="FILE", help="run file to measure on the text of --cache (the small BERT)")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="further binding of --gin_file; repeatable")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures of all rounds to this file")
    args = parser.parse_args()
    steps = args.steps // args.rounds
    if args.gin_file and not args.cache:
        parser.error("--gin_file requires --cache, the text of the run")
    run = _run(args.gin_file, args.gin) if args.gin_file else _small_run(args.hidden_size)
    run = replace(run, stages=(replace(run.stages[0], steps=4 * (args.steps + steps)),))
    report: dict[str, Any] = {
        "command": f"python -m benchmarks.loop {shlex.join(sys.argv[1:])}".strip(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "device": jax.devices()[0].device_kind,
        "versions": versions(("jax", "jaxlib", "orbax-checkpoint")),
        "rounds": [],
    }
    print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items() if name != "rounds"), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cache = TokenCache(args.cache) if args.cache else python_docs(Path(folder) / "cache")
        loop = Loop(run, Path(folder), cache)
        state = loop.trainer.new_state()
        state, _ = loop.bare(state, steps)  # warm-up
        for turn in range(args.rounds):
            state, looped = loop.looped(state, steps)
            state, bare = loop.bare(state, steps)
            report["rounds"].append({"steps": steps, "bare": bare, "loop": looped})
            print(f"round {turn + 1} of {args.rounds}", file=sys.stderr, flush=True)
        loop.checkpoints.close()
        loop.writer.close()
    print(f"\n{_table(report['rounds'])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _table(rounds: list[dict[str, Any]]) -> str:
    steps = sum(turn["steps"] for turn in rounds)
    bare = sum(turn["bare"] for turn in rounds)
    lines = [["bare step", "one batch", f"{1e3 * bare / steps:.2f}", ""]]
    for name in (*_LOOP, EVALUATING):
        seconds = sum(turn["loop"].get(name, 0.0) for turn in rounds)
        lines.append(["loop", name, f"{1e3 * seconds / steps:.2f}", f"{seconds / bare:.1%}"])
    whole = [sum(turn["loop"].get(name, 0.0) for name in _LOOP) for turn in rounds]
    lines.append(["loop", ", ".join(_LOOP), f"{1e3 * sum(whole) / steps:.2f}", f"{sum(whole) / bare:.1%}"])
    middle = statistics.median(loop / turn["bare"] for loop, turn in zip(whole, rounds, strict=True))
    lines.append(["loop", "the same, median of the rounds", "", f"{middle:.1%}"])
    return table(["program", "work", "ms a step", "of the bare step"], lines)


if __name__ == "__main__":
    sys.exit(main())

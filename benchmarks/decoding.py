"""Decoding with bertfam and with transformers' `generate` (static cache, compiled), on one device: new tokens per second.

    python -m benchmarks.decoding --json decoding.jsonl

GPT-2 small and T5 1.1 base with random weights in bfloat16, on CPUs in float32, read prompts of 128 tokens and write 128 new
ones, greedily and by a search with 5 beams. No text ends before. Each model, strategy, batch and side is a process of its own.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import sides
from benchmarks.measurement import table
from benchmarks.processes import Job, print_result, wait_for_turn
from benchmarks.training_step import OURS, origin
from bertfam.arguments import ScriptParser, output_file
from bertfam.config import load
from bertfam.decoding.decode import Source, decode, divided_on_cpu
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits, Strategy
from bertfam.layers.execution import Execution
from bertfam.models.language_model import LanguageModelConfig, init_language_model

# name -> run file, size of the vocabulary
MODELS = {"gpt2": ("runs/gpt2_small.gin", 50_257), "t5-1.1-base": ("runs/t5_1_1_base.gin", 32_128)}
STRATEGIES: dict[str, Strategy] = {"greedy": Greedy(), "beam": BeamSearch(beams=5)}
BATCHES = (1, 8, 64)
_ROUNDS = 3


def config_of(name: str, bindings: Sequence[str] = ()) -> LanguageModelConfig:
    """Return the config of a model of `MODELS`; MODEL in a binding is its class: MODEL.num_layers=2."""
    file, vocabulary = MODELS[name]
    model = type(load([file], []).build("Run").objective.model).__name__
    run = load([file], [binding.replace("MODEL.", f"{model}.", 1) for binding in bindings]).build("Run")
    config: LanguageModelConfig = run.sized(vocabulary).objective.model
    return config


def prompts_of(args: argparse.Namespace, vocabulary: int, batch: int) -> np.ndarray:
    """Return the same random tokens, int32[batch, length], for both sides."""
    return np.random.default_rng(0).integers(100, vocabulary, (batch, args.prompt)).astype(np.int32)


def time_calls(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds of the first call, which compiles, and the median of those after the turn of this process came."""
    start = time.perf_counter()
    call()
    first = time.perf_counter() - start
    wait_for_turn()
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return first, float(np.median(seconds))


def measure(name: str, strategy: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure bertfam in this process."""
    config = config_of(name, args.gin)
    execution = Execution(dtype="float32" if jax.default_backend() == "cpu" else "bfloat16", layers="unroll")
    params = jax.tree.map(lambda leaf: leaf.astype(execution.dtype), nn.unbox(init_language_model(config, jax.random.key(0))))
    params = divided_on_cpu(params)
    tokens = prompts_of(args, config.require_vocab_size, batch)
    real = jnp.ones(batch, bool)
    prompts, source = Prompts(jnp.asarray(tokens), jnp.zeros(batch, jnp.int32), real), None
    if config.kind == "encoder_decoder":
        source = Source(jnp.asarray(tokens), jnp.ones_like(tokens))
        prompts = Prompts(jnp.zeros((batch, 1), jnp.int32), jnp.zeros(batch, jnp.int32), real)
    limits, ends = Limits(max_new_tokens=args.new_tokens), Ends(ids=(), fill=0)

    def call() -> None:
        options: dict[str, Any] = {"strategy": STRATEGIES[strategy], "limits": limits, "ends": ends}
        jax.block_until_ready(decode(params, prompts, source, None, config=config, texts=1, execution=execution, **options))

    first, seconds = time_calls(call)
    device = jax.devices()[0]
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return _figures(name, strategy, batch, args, OURS, first, seconds, device.device_kind, peak)


def _figures(
    name: str,
    strategy: str,
    batch: int,
    args: argparse.Namespace,
    side: str,
    first: float,
    seconds: float,
    device: str,
    peak: int | None,
) -> dict[str, Any]:
    case = {"model": name, "strategy": strategy, "batch": batch, "side": side, "device": device}
    rates = {"seconds": seconds, "tokens_per_second": batch * args.new_tokens / seconds, "first_seconds": first}
    return case | rates | {"peak_bytes": peak} | origin()


def measure_peer(name: str, strategy: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Measure transformers in this process."""
    import torch
    import transformers

    from benchmarks.step_peer import PEER, config_for_huggingface

    config = config_of(name, args.gin)
    device = args.peer_device
    kind = transformers.AutoModelForSeq2SeqLM if config.kind == "encoder_decoder" else transformers.AutoModelForCausalLM
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model = kind.from_config(config_for_huggingface(config)).to(device, dtype).eval()
    beams = getattr(STRATEGIES[strategy], "beams", 1)
    settings = transformers.GenerationConfig(
        max_new_tokens=args.new_tokens,
        min_new_tokens=args.new_tokens,
        num_beams=beams,
        do_sample=False,
        cache_implementation="static",
        pad_token_id=0,
        decoder_start_token_id=0,
        disable_compile=args.torch_compile == "none",
    )
    tokens = torch.from_numpy(prompts_of(args, config.require_vocab_size, batch)).long().to(device)

    def call() -> None:
        with torch.inference_mode():
            made = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=settings)
        assert made.shape[1] >= args.new_tokens
        if device == "cuda":
            torch.cuda.synchronize()

    first, seconds = time_calls(call)
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return _figures(name, strategy, batch, args, PEER, first, seconds, where, peak)


def _parser() -> ScriptParser:
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, action="append", help="only this model; repeatable (default: all)")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append", help="only this strategy; repeatable (default: all)")
    parser.add_argument("--batch", type=int, action="append", help="only this batch size; repeatable (default: 1, 8, 64)")
    parser.add_argument("--prompt", type=int, default=128, metavar="N", help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--new_tokens", type=int, default=128, metavar="N", help="new tokens (default: %(default)s)")
    parser.add_argument("--no_peers", action="store_true", help="measure bertfam alone")
    sides.add_flags(parser)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="append all figures to this file, a line of JSON each")
    parser.add_argument("--one", nargs=4, metavar=("MODEL", "STRATEGY", "BATCH", "SIDE"), help=argparse.SUPPRESS)
    return parser


def _jobs(args: argparse.Namespace) -> list[Job]:
    measured = [OURS] if args.no_peers or not sides.has_peer(args.peer_device) else [OURS, sides.PEER]
    sizes = [f"--prompt={args.prompt}", f"--new_tokens={args.new_tokens}"]
    return [
        sides.job(
            f"{name}, {strategy}, {batch}", ["benchmarks.decoding", *sizes, "--one", name, strategy, str(batch), side], side, args
        )
        for name in args.model or MODELS
        for strategy in args.strategy or STRATEGIES
        for batch in args.batch or BATCHES
        for side in measured
    ]


def table_of(records: Sequence[dict[str, Any]]) -> str:
    """Format figures as a Markdown table; the last column has the peer's time in ours."""
    cases = [tuple(one[key] for key in ("model", "strategy", "batch")) for one in records]
    ours = {case: one["seconds"] for case, one in zip(cases, records, strict=True) if one["side"] == OURS}
    lines = []
    for case, one in zip(cases, records, strict=True):
        times = f"{one['seconds'] / ours[case]:.2f}" if one["side"] != OURS and case in ours else ""
        peak = "-" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**30:.1f}"
        rates = [f"{one['tokens_per_second']:,.0f}", f"{one['first_seconds']:.0f}", peak, times]
        lines.append([*map(str, case), one["side"], *rates])
    packages = ", ".join(f"{name} {version}" for name, version in records[0]["versions"].items())
    head = ["model", "strategy", "batch", "side", "tokens/s", "first call s", "peak GiB", "x ours"]
    return f"one {records[0]['device']}, {packages}, {records[0]['date'][:10]}\n\n{table(head, lines)}"


def main() -> int:
    """Measure each case and print the table; return the exit status."""
    parser = _parser()
    args = parser.parse_args()
    sides.check_flags(parser, args)
    if args.one:
        name, strategy, batch, side = args.one
        return print_result(partial(measure if side == OURS else measure_peer, name, strategy, int(batch), args))
    records = [*sides.recorded(sides.measure_all(_jobs(args), args), args.json)]
    if not records:
        return 1
    print(table_of(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())

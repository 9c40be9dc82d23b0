"""Latency and throughput of classifiers of texts: bertfam's predictor and transformers in PyTorch, with the same random weights.

    python -m benchmarks.serving --json serving.jsonl

BERT-base and DistilBERT, which has 6 of its 12 layers, read rows of 16, 64 and 128 tokens, one at a time and 32 at a time. A call
starts from token ids in NumPy and ends with outputs in NumPy. Both sides are in one process and are timed in turns.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import numpy as np

from benchmarks import sides
from benchmarks.measurement import machine, table
from benchmarks.training_step import OURS, origin
from bertfam.arguments import ScriptParser, output_file
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts
from bertfam.features import RowShape
from bertfam.finetuning.predictor import Predictor
from bertfam.interop.huggingface import family_of, to_tensors
from bertfam.layers.execution import DTYPES, ComputeDtype, Execution
from bertfam.models.bert import BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.objectives.fine_tuning.heads import Classification
from bertfam.objectives.fine_tuning.objective import FineTuning

MODELS: dict[str, Any] = {"bert-base": BertConfig(vocab_size=30_522), "distilbert": DistilBertConfig(vocab_size=30_522)}
LENGTHS, BATCHES = (16, 64, 128), (1, 32)
_HEAD = Classification(("no", "yes"))
_MOST_CALLS, _LEAST_CALLS = 50, 3  # of a side in a round
_TOLERANCE = 1e-3  # of outputs in float32
Call = Callable[[], np.ndarray]


class Times(NamedTuple):
    """Times of the calls of a side.

    Attributes:
      seconds: of each call.
      cpu_seconds: CPU time of this process in each.
    """

    seconds: list[float]
    cpu_seconds: list[float]


def rows_of(batch: int, length: int, vocabulary: int) -> dict[str, np.ndarray]:
    """Make full rows of random tokens: int32[batch, length] by feature."""
    tokens = np.random.default_rng(0).integers(5, vocabulary, (batch, length)).astype(np.int32)
    return {
        "encoder_input_tokens": tokens,
        "encoder_segment_ids": np.ones_like(tokens),
        "encoder_token_type_ids": np.zeros_like(tokens),
        "sequence_start_positions": np.zeros((batch, 1), np.int32),
    }


def random_params(objective: FineTuning) -> Any:
    """Draw the parameters of a classifier."""
    return nn.meta.unbox(jax.jit(lambda key: objective.init(key, RowShape(min(LENGTHS), 0))[0])(jax.random.key(0)))


def predictor_of(objective: FineTuning, params: Any) -> Predictor:
    """Return bertfam's predictor; no text is tokenised, so it has no vocabulary."""
    return Predictor(objective, params, cast(Any, None), None, LabelledTexts(), BertConfig.max_length, 0)


def our_call(predictor: Predictor, rows: dict[str, np.ndarray]) -> Call:
    """Return the call of bertfam's predictor."""
    return lambda: next(predictor.batch_outputs(rows, len(rows["encoder_input_tokens"])))[1]


def peer_model(config: Any, params: Any, dtype: ComputeDtype, device: str, mode: str) -> Any:
    """Return transformers' classifier with these parameters, compiled unless the mode is "none"."""
    import torch
    import transformers

    family = family_of(config)
    content = {**family.config_to_huggingface(config), **_HEAD.huggingface()}
    settings = transformers.AutoConfig.for_model(**content)
    model = transformers.AutoModelForSequenceClassification.from_config(settings)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in to_tensors(family, config, params).items()}
    model.load_state_dict(tensors)
    model = model.eval().to(device, getattr(torch, dtype))
    return model if mode == "none" else torch.compile(model, mode=None if mode == "default" else mode, dynamic=False)


def peer_call(model: Any, rows: Mapping[str, np.ndarray], device: str) -> Call:
    """Return the call of transformers' classifier."""
    import torch

    def call() -> np.ndarray:
        with torch.inference_mode():
            tokens, mask = (
                torch.from_numpy(rows[name]).to(device, torch.int64) for name in ("encoder_input_tokens", "encoder_segment_ids")
            )
            outputs: np.ndarray = model(input_ids=tokens, attention_mask=mask).logits.float().cpu().numpy()
            return outputs

    return call


def time_in_turns(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, Times]:
    """Time the calls of each side, in turns of about `seconds` each."""
    times = {side: Times([], []) for side in calls}
    for _ in range(rounds):
        for side, call in calls.items():
            begin, count = time.perf_counter(), 0
            while count < _LEAST_CALLS or (count < _MOST_CALLS and time.perf_counter() - begin < seconds):
                start, cpu_start = time.perf_counter(), time.process_time()
                call()
                times[side].seconds.append(time.perf_counter() - start)
                times[side].cpu_seconds.append(time.process_time() - cpu_start)
                count += 1
    return times


def measure(name: str, dtype: ComputeDtype, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure both sides of a model, and yield the figures of each shape and side."""
    config = MODELS[name]
    objective = FineTuning(config, _HEAD, execution=Execution(dtype=dtype))
    params = random_params(objective)
    device = jax.devices()[0]
    model, predictor = None, predictor_of(objective, params)
    if args.peers:
        model = peer_model(config, jax.device_get(params), dtype, args.peer_device, args.torch_compile)
    for length in args.length or LENGTHS:
        for batch in args.batch or BATCHES:
            rows = rows_of(batch, length, config.require_vocab_size)
            calls = {OURS: our_call(predictor, rows)}
            if model is not None:
                calls[sides.PEER] = peer_call(model, rows, args.peer_device)
            firsts, outputs = {}, {}
            for side, call in calls.items():
                start = time.perf_counter()
                outputs[side] = call()
                firsts[side] = time.perf_counter() - start
                call()  # of PyTorch, which records CUDA graphs in it
            difference = max(float(np.abs(found - outputs[OURS]).max()) for found in outputs.values())
            if dtype == "float32" and args.peer_device == "cpu" and difference > _TOLERANCE:
                raise ValueError(f"{name}, {batch} x {length}: outputs differ by {difference:.2g}")
            for side, times in time_in_turns(calls, args.rounds, args.seconds).items():
                yield {
                    "model": name,
                    "dtype": dtype,
                    "batch": batch,
                    "length": length,
                    "side": side,
                    "seconds": float(np.median(times.seconds)),
                    "seconds_p90": float(np.quantile(times.seconds, 0.9)),
                    "cpu_seconds": float(np.median(times.cpu_seconds)),
                    "calls": len(times.seconds),
                    "first_seconds": firsts[side],
                    "difference": difference,
                    "device": device.device_kind,
                } | origin()


def _measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for dtype in args.dtype or (["float32"] if args.peer_device == "cpu" else ["bfloat16"]):
        for name in args.model or MODELS:
            for record in measure(name, dtype, args):
                case = f"{name}, {dtype}, {record['batch']} x {record['length']}, {record['side']}"
                print(f"{case}: {1e3 * record['seconds']:.2f} ms", file=sys.stderr, flush=True)
                yield record


def table_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Format figures as a Markdown table; the last column has the peer's median in ours, or its CPU time on a CPU."""
    lines = []
    ours = {}
    for one in records:
        case = tuple(one[key] for key in ("model", "dtype", "batch", "length"))
        compared = "cpu_seconds" if one["device"] == "cpu" else "seconds"
        if one["side"] == OURS:
            ours[case] = one[compared]
        times = f"{one[compared] / ours[case]:.2f}" if one["side"] != OURS and case in ours else ""
        milliseconds = [f"{1e3 * one[key]:.2f}" for key in ("seconds", "seconds_p90", "cpu_seconds")]
        rate = f"{one['batch'] / one['seconds']:,.0f}"
        lines.append([f"{case[0]}, {case[1]}", one["side"], f"{case[2]} x {case[3]}", *milliseconds, rate, times])
    head = ["model", "side", "rows", "median ms", "p90 ms", "CPU ms", "texts/s", "x ours"]
    packages = ", ".join(f"{name} {version}" for name, version in records[0]["versions"].items())
    where, host = records[0]["device"], machine()
    load = f"{host['processor']}, {host['usable_cores']} cores, load {host['load_before']}"
    return f"{where} ({load}), {packages}, {records[0]['date'][:10]}\n\n{table(head, lines)}"


def _parser() -> ScriptParser:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, action="append", help="only this model; repeatable (default: both)")
    add("--length", type=int, action="append", help="only rows of this length; repeatable (default: 16, 64, 128)")
    add("--batch", type=int, action="append", help="only this batch size; repeatable (default: 1, 32)")
    dtypes = "dtype of the products; repeatable (default: float32 on CPUs, bfloat16 elsewhere)"
    add("--dtype", choices=tuple(DTYPES), action="append", help=dtypes)
    add("--rounds", type=int, default=5, help="turns of each side (default: %(default)s)")
    add("--seconds", type=float, default=0.3, help="of a turn, of 3 to 50 calls (default: %(default)g)")
    modes = 'mode of the peer\'s torch.compile, or "none" (default: none on CPUs, reduce-overhead elsewhere)'
    add("--torch_compile", choices=("none", "default", "reduce-overhead", "max-autotune"), help=modes)
    add("--no_peers", action="store_true", help="measure bertfam alone")
    add("--json", type=output_file, metavar="FILE", help="append all figures to this file, a line of JSON each")
    return parser


def main() -> int:
    """Measure both sides and print the table; return the exit status."""
    # JAX would leave PyTorch a quarter of a GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parser = _parser()
    args = parser.parse_args()
    if min(args.rounds, *(args.length or [1]), *(args.batch or [1])) < 1:
        parser.error("--rounds, --length and --batch must be at least 1")
    args.peer_device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    args.torch_compile = args.torch_compile or ("none" if args.peer_device == "cpu" else "reduce-overhead")
    args.peers = not args.no_peers and sides.has_peer(args.peer_device)
    records = [*sides.recorded(_measured(args), args.json)]
    print(table_of(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())

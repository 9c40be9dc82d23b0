"""Time of a fine-tuned model's outputs: as stored in floats, quantised, and as ONNX files in onnxruntime.

    python -m benchmarks.quantized_inference cola cola-int8 cola-onnx/model.onnx

It prints the processor time of all threads for a call, which other programs disturb less than elapsed time, and the elapsed time
of the fastest call.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertfam.arguments import ScriptParser
from bertfam.finetuning.predictor import open_predictor

LENGTH = 32


def rows(batch: int, low: int = 1000, high: int = 20000) -> dict[str, np.ndarray]:
    """Return random rows of `LENGTH` tokens without padding."""
    tokens = np.random.default_rng(0).integers(low, high, (batch, LENGTH)).astype(np.int32)
    ones = np.ones_like(tokens)
    starts = np.zeros((batch, 1), np.int32)
    features = {"encoder_input_tokens": tokens, "encoder_segment_ids": ones, "encoder_token_type_ids": 0 * ones}
    return features | {"sequence_start_positions": starts}


def of_folder(folder: str, batch: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Return the call that computes the outputs of a model folder."""
    predictor = open_predictor(folder)
    params, placed = predictor._divided, jax.device_put(batch)
    return lambda: jax.block_until_ready(predictor._apply(params, placed))


def of_onnx(path: str, batch: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Return the call that computes the outputs of an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    values = {"input_ids": "encoder_input_tokens", "attention_mask": "encoder_segment_ids"}
    values |= {"token_type_ids": "encoder_token_type_ids"}
    read = {entry.name: batch[values[entry.name]].astype(np.int64) for entry in session.get_inputs()}
    return lambda: session.run(None, read)


def measure(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the median processor time and the least elapsed time of a call, in milliseconds."""
    call()
    spent, elapsed = [], []
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        call()
        spent.append(time.process_time() - cpu)
        elapsed.append(time.perf_counter() - wall)
    return 1e3 * float(np.median(spent)), 1e3 * min(elapsed)


def main() -> None:
    """Measure every model with one row and with 32."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="model folders and ONNX files")
    args = parser.parse_args()
    print(f"{'model':<32} rows  processor ms  fastest ms")
    for name in args.models:
        for batch, repeats in ((1, 100), (32, 20)):
            make = of_onnx if Path(name).suffix == ".onnx" else of_folder
            spent, elapsed = measure(make(name, rows(batch)), repeats)
            print(f"{name:<32} {batch:>4}  {spent:>12.1f}  {elapsed:>10.1f}", flush=True)


if __name__ == "__main__":
    main()

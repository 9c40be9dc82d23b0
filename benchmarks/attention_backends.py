"""Time, error and reproducibility of attention, forward and backward, by backend and by peer.

    python -m benchmarks.attention_backends --lengths 128,1024,8192 --json attention.json

Each batch has the same number of tokens, in rows of each length. The works are attention to all tokens (full), to previous ones
(causal), within the segments of packed rows, 300 tokens on average (packed), there within 64 tokens on each side (window), and
the patterns of BigBird-base and Longformer-base with 16 global tokens. The error is that of the output or of a gradient,
whichever is largest, relative to the reference in float32, in rows of up to 2,048 tokens.
Peers that are not installed, or refuse a work, are left out.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.attention_peers import DISTRIBUTIONS, Run, peers
from benchmarks.measurement import table, versions
from bertfam.arguments import ScriptParser, output_file
from bertfam.kernels.attention.choice import BACKENDS
from bertfam.kernels.attention.interface import Inputs, Request
from bertfam.kernels.attention.patterns import CAUSAL, FULL, BlockSparse, GlobalTokens, Pattern, Window
from bertfam.kernels.attention.reference import Reference

_MEAN_SEGMENT, _SHORTEST_SEGMENT = 300, 8
_LONGEST_CHECKED = 2048
_GLOBAL_TOKENS = 16
_MOST_MILLISECONDS = 15.0  # expected time from which a backend is left out
_REPEATS = 5


@dataclass(frozen=True)
class Work:
    """Attention that the entrants of a row of the table compute."""

    name: str
    pattern: Pattern
    packed: bool


WORKS = {
    work.name: work
    for work in (
        Work("full", FULL, packed=False),
        Work("causal", CAUSAL, packed=False),
        Work("packed", FULL, packed=True),
        Work("window", Window(64, 64), packed=True),
        Work("bigbird", BlockSparse(), packed=False),
        Work("longformer", GlobalTokens(Window(256, 256), _GLOBAL_TOKENS), packed=False),
    )
}


def segments(random: np.random.Generator, rows: int, length: int) -> np.ndarray:
    """Return segment ids int32[rows, length] of rows without padding."""
    ids = np.zeros((rows, length), np.int32)
    for row in ids:
        place, number = 0, 1
        while place < length:
            size = int(np.clip(random.exponential(_MEAN_SEGMENT), _SHORTEST_SEGMENT, 4 * _MEAN_SEGMENT))
            row[place : place + size] = number
            place, number = place + size, number + 1
    return ids


def make_inputs(args: argparse.Namespace, work: Work, length: int) -> tuple[Inputs, jax.Array]:
    """Return random inputs of a work, and the gradient of its output."""
    random, rows = np.random.default_rng(0), max(args.tokens // length, 1)
    shape = rows, length, args.heads, args.head_dim
    query, key, value, gradient = (jnp.asarray(random.standard_normal(shape, np.float32), args.dtype) for _ in range(4))
    ids = segments(random, rows, length) if work.packed else np.ones((rows, length), np.int32)
    blocks = -(-length // BlockSparse().block)
    random_blocks = random.integers(0, blocks, (args.heads, max(blocks - 2, 1), BlockSparse().random), np.int32)
    global_tokens = np.zeros((rows, length), bool)
    global_tokens[:, :_GLOBAL_TOKENS] = True
    arrays = {"random_blocks": jnp.asarray(random_blocks), "global_tokens": jnp.asarray(global_tokens)}
    return Inputs(query, key, value, jnp.asarray(ids), arrays=arrays), gradient


def entrants(work: Work, request: Request, segment_ids: np.ndarray) -> dict[str, Run]:
    """Return the backends and the peers that can do a work."""
    runs: dict[str, Run] = {}
    for name, backend in BACKENDS.items():
        if name != "reference" and not backend.clashes(request) and backend.cost(request) < _MOST_MILLISECONDS:
            runs[name] = lambda inputs, backend=backend: backend.run(inputs, request)[0]  # type: ignore[misc]
    if request.platform == "gpu" and isinstance(work.pattern, Window):
        runs |= peers(work.pattern, segment_ids if work.packed else None)
    return runs


def results(run: Run, inputs: Inputs, gradient: jax.Array) -> tuple[jax.Array, ...]:
    """Return the output, and the gradients of queries, keys and values."""
    output, pull_back = jax.vjp(
        lambda *arrays: run(inputs._replace(query=arrays[0], key=arrays[1], value=arrays[2])), *inputs[:3]
    )
    return output, *pull_back(gradient)


def error(outputs: Sequence[jax.Array], inputs: Inputs, gradient: jax.Array, request: Request) -> float:
    """Return the largest relative error of the first row's results."""
    assert inputs.arrays is not None
    arrays = {**inputs.arrays, "global_tokens": inputs.arrays["global_tokens"][:1]}
    query, key, value = (array[:1].astype(jnp.float32) for array in inputs[:3])
    exact = Inputs(query, key, value, inputs.segment_ids[:1], arrays=arrays)
    reference = replace(request, dtype="float32")
    with jax.default_matmul_precision("highest"):
        run = jax.jit(lambda inputs, gradient: results(lambda one: Reference().run(one, reference)[0], inputs, gradient))
        expected = run(exact, gradient[:1].astype(jnp.float32))
    pairs = [(np.float64(one[:1]), np.float64(other)) for one, other in zip(outputs, expected, strict=True)]
    return float(max(np.linalg.norm(one - other) / np.linalg.norm(other) for one, other in pairs))


def measure(run: Run, inputs: Inputs, gradient: jax.Array, request: Request, steps: int) -> dict[str, Any]:
    """Time one entrant and compare its results with the reference's, and with those of a second run."""
    compiled = jax.jit(lambda inputs, gradient: results(run, inputs, gradient)).lower(inputs, gradient).compile()
    first, second = (jax.block_until_ready(compiled(inputs, gradient)) for _ in range(2))
    same = all(np.array_equal(np.float32(one), np.float32(other)) for one, other in zip(first, second, strict=True))
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        for _ in range(steps):
            last = compiled(inputs, gradient)
        jax.block_until_ready(last)
        seconds.append((time.perf_counter() - start) / steps)
    figures = {"milliseconds": 1e3 * statistics.median(seconds), "same_bits": same}
    if request.length <= _LONGEST_CHECKED:
        figures["error"] = error(first, inputs, gradient, request)
    return figures


def _figures(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each work, length and entrant."""
    for work in (WORKS[name] for name in args.works):
        for length in args.lengths:
            request = Request(args.dtype, length, args.head_dim, work.pattern, packed=work.packed).here()
            if type(request.pattern) is not type(work.pattern):
                continue  # all tokens, in rows that are too short for the pattern
            inputs, gradient = make_inputs(args, work, length)
            for name, run in entrants(work, request, np.asarray(inputs.segment_ids)).items():
                if args.entrants and name not in args.entrants:
                    continue
                print(f"{work.name}, rows of {length}: {name}", file=sys.stderr, flush=True)
                try:
                    measured = measure(run, inputs, gradient, request, args.steps)
                except Exception as error:  # a peer may refuse a work in any way; a backend says so before it runs
                    if name in BACKENDS:
                        raise
                    print(f"{name} failed: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr, flush=True)
                    continue
                yield {"work": work.name, "entrant": name, "length": length} | measured


def _lines(figures: Sequence[dict[str, Any]], lengths: Sequence[int]) -> list[list[str]]:
    lines = []
    for work, name in dict.fromkeys((one["work"], one["entrant"]) for one in figures):
        own = {one["length"]: one for one in figures if (one["work"], one["entrant"]) == (work, name)}
        times = [f"{own[length]['milliseconds']:.2f}" if length in own else "-" for length in lengths]
        errors = [one["error"] for one in own.values() if "error" in one]
        same = "yes" if all(one["same_bits"] for one in own.values()) else "no"
        lines.append([work, name, *times, f"{max(errors):.2%}" if errors else "-", same])
    return lines


def main() -> int:
    """Measure and print the table; return the exit status."""
    parser = ScriptParser(description=__doc__)
    lengths = [128, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--works", type=lambda text: text.split(","), default=list(WORKS), metavar="NAME,NAME")
    parser.add_argument("--entrants", type=lambda text: text.split(","), metavar="NAME,NAME", help="only these (default: all)")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], default=lengths, metavar="N,N")
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of a batch (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=12, help="attention heads (default: %(default)s)")
    parser.add_argument("--head_dim", type=int, default=64, help="width of a head (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of queries, keys and values (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="runs between two readings of the clock (default: %(default)s)")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all figures to this file")
    args = parser.parse_args()
    if unknown := sorted(set(args.works) - WORKS.keys()):
        parser.error(f"--works: {', '.join(unknown)} is not one of {', '.join(WORKS)}")
    report: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.attention_backends", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": jax.devices()[0].device_kind,
        "versions": versions(("jax", "jaxlib", *DISTRIBUTIONS)),
    }
    print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items()), flush=True)
    report["figures"] = figures = []
    for figure in _figures(args):
        figures.append(figure)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")
    head = ["attention", "backend or peer", *(f"{length:,}" for length in args.lengths), "error", "same bits"]
    print(f"\nms for {args.tokens:,} tokens, forward and backward, in rows of\n\n{table(head, _lines(figures, args.lengths))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

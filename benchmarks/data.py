"""Speed of building rows from text, compared with Hugging Face datasets and seqio on the same cores in one run.

python -m benchmarks.data --input 'books/*.txt.gz' --input_format paragraphs --vocab vocab --json data.json
"""

import argparse
import importlib.util
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.data_entrants import (
    BERTFAM,
    DATASETS,
    SEEK_STEP,
    Inputs,
    build_entrants,
    packing_entrants,
    row_entrants,
    seek_entrants,
)
from benchmarks.measurement import Entrant, Measured, machine, measure, run_job, table, versions
from bertfam import __version__
from bertfam.arguments import ScriptParser, output_file, output_folder
from bertfam.data import vocabularies
from bertfam.data.corpora.formats import INPUT_FORMATS, InputFormat
from bertfam.data.corpora.input_files import identity
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.errors import UserError
from bertfam.subprocesses import cores

_PACKAGES = ("numpy", "tokenizers", "sentencex", "datasets", "pyarrow", "transformers", "torch", "seqio", "tensorflow")
_VOCABULARY_SIZE = 8192
Column = tuple[str, Callable[[Measured], str]]


@dataclass(frozen=True)
class Benchmark:
    """Table of a benchmark: its entrants, the compared figure (the higher the better, unless it is seconds), and its columns."""

    title: str
    entrants: Callable[[Inputs], list[Entrant]]
    compared: str
    columns: tuple[Column, ...]


def _figure(name: str, form: str = ",.0f", scale: float = 1) -> Callable[[Measured], str]:
    return lambda measured: format(measured.figure(name) * scale, form) if name in measured.runs[0] else ""


def _fill(measured: Measured) -> str:
    length = measured.entrant.arguments["length"]
    return f"{measured.figure('tokens_per_row') / length:.1%}"


def _first_epoch(measured: Measured) -> str:
    rows = measured.figure("rows")
    return f"{rows / (measured.figure('prepare_seconds') + rows / measured.figure('rows_per_second')):,.0f}"


def _planned(name: str) -> Callable[[Measured], str]:
    def show(measured: Measured) -> str:
        if "documents" not in measured.runs[0]:  # a stream, which plans nothing in advance
            return ""
        amounts = {
            "documents": measured.figure("documents"),
            "tokens": measured.figure("rows") * measured.figure("tokens_per_row"),
        }
        return f"{amounts[name] / measured.figure('prepare_seconds'):,.0f}"

    return show


_ROW_COLUMNS: tuple[Column, ...] = (
    ("rows/s", _figure("rows_per_second")),
    ("real tokens/s", _figure("tokens_per_second")),
    ("filled", _fill),
    ("prepare s", _figure("prepare_seconds", ".3f")),
    ("rows an epoch", _figure("rows")),
    ("rows/s, first epoch", _first_epoch),
)
_PLAN_COLUMNS: tuple[Column, ...] = (
    ("planned documents/s", _planned("documents")),
    ("planned tokens/s", _planned("tokens")),
)
BENCHMARKS = {
    "build": Benchmark(
        "Text to cache",
        build_entrants,
        "tokens_per_second",
        (
            ("tokens/s", _figure("tokens_per_second")),
            ("seconds", _figure("seconds", ".2f")),
            ("tokens", _figure("tokens")),
            ("documents", _figure("documents")),
            ("disk MiB", _figure("disk_bytes", ",.0f", 2**-20)),
        ),
    ),
    "rows": Benchmark("Cache to finished rows, one thread", row_entrants, "tokens_per_second", _ROW_COLUMNS),
    "packing": Benchmark(
        "Packing into rows of 512, one thread", packing_entrants, "tokens_per_second", _ROW_COLUMNS + _PLAN_COLUMNS
    ),
    "seek": Benchmark(
        f"From nothing opened to the batch of step {SEEK_STEP:,}, in a new process, one thread",
        seek_entrants,
        "seconds",
        (
            ("ms", _figure("seconds", ",.1f", 1000)),
            ("of it opening, planning ms", _figure("prepare_seconds", ",.1f", 1000)),
            ("another step ms", _figure("next_seconds", ",.2f", 1000)),
        ),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the tables; return the exit status."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if not 1 <= args.processes <= cores():
        parser.error(f"--processes={args.processes}: each process needs a core of its own, and there are {cores()}")
    if args.repeats < 1 or args.batch_size < 1:
        parser.error("--repeats and --batch_size must be at least 1")
    try:
        return _run(args, shlex.join(["python", "-m", "benchmarks.data", *(sys.argv[1:] if arguments is None else arguments)]))
    except UserError as error:
        parser.error(str(error))


def _run(args: argparse.Namespace, command: str) -> int:
    peers = _has_peers() and not args.without_peers
    with tempfile.TemporaryDirectory(prefix="bertfam-benchmark-", dir=args.folder) as folder:
        inputs = _inputs(args, Path(folder), peers)
        report: dict[str, Any] = {
            "command": command,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": {"bertfam": __version__, **versions(_PACKAGES)},
            "text": {
                "files": len(inputs.files),
                "bytes_on_disk": sum(Path(file).stat().st_size for file in inputs.files),
                "input_format": inputs.input_format,
                "vocabulary_size": vocabularies.load(inputs.vocabulary).size,
            },
            "batch_size": args.batch_size,
            "repeats": args.repeats,
            "benchmarks": {},
        }
        names = [name for name in BENCHMARKS if name in (args.only or BENCHMARKS)]
        _prepare(inputs, names)
        print("\n".join(f"{name}: {json.dumps(value)}" for name, value in report.items() if name != "benchmarks"))
        for name in names:
            benchmark = BENCHMARKS[name]
            entrants = [entrant for entrant in benchmark.entrants(inputs) if peers or not entrant.peer]
            results = measure(entrants, args.repeats, inputs.folder)
            print(f"\n{benchmark.title}\n\n{_table(benchmark, results)}", flush=True)
            report["benchmarks"][name] = [result.as_json() for result in results]
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _parser() -> ScriptParser:
    parser = ScriptParser(prog="python -m benchmarks.data", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--input", action="append", metavar="GLOB", help="text; repeatable; default: the documentation of installed packages"
    )
    parser.add_argument("--input_format", choices=tuple(INPUT_FORMATS), default="sentences", help="format of the files")
    parser.add_argument(
        "--vocab", metavar="DIR", help=f"WordPiece vocabulary; default: {_VOCABULARY_SIZE} pieces learnt from --input"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=cores(),
        metavar="N",
        help="processes of the parallel builds, one core each (default: all cores)",
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(BENCHMARKS), help="run only this benchmark; repeatable; default: all"
    )
    parser.add_argument("--batch_size", type=int, default=256, metavar="ROWS", help="rows of a batch (256)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="measured runs, after a warm-up run (3)")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="duration of each measurement of a rate (3)")
    parser.add_argument("--without_peers", action="store_true", help="measure bertfam alone")
    parser.add_argument("--folder", type=output_folder, metavar="DIR", help="parent of the temporary folder")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the figures of all runs to this file")
    return parser


def _has_peers() -> bool:
    missing = [name for name in ("datasets", "transformers", "torch", "seqio") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"measuring without peers: {', '.join(missing)} not installed (pip install 'bertfam[benchmarks]')", file=sys.stderr)
    return not missing


def _inputs(args: argparse.Namespace, folder: Path, peers: bool) -> Inputs:
    """Find the text and write the vocabulary, which all entrants read, into the folder."""
    input_format: InputFormat = args.input_format if args.input else "sentences"
    patterns = args.input or [str(PythonDocs().extract() / "train.txt.gz")]
    corpus = TextFiles(train=tuple(patterns), input_format=input_format, validation_fraction=0.0)
    if args.vocab:
        vocabulary = vocabularies.load(args.vocab)
    else:
        sentences = (sentence for document in corpus.documents("train") for sentence in document)
        vocabulary = WordPiece.train(sentences, size=_VOCABULARY_SIZE)
    vocabulary.save(folder / "vocab")
    files = tuple(map(identity, corpus.files("train")))
    return Inputs(folder, files, input_format, str(folder / "vocab"), args.processes, args.batch_size, args.seconds, peers)


def _prepare(inputs: Inputs, names: Sequence[str]) -> None:
    """Build the caches that rows are made from, without timing it."""
    if set(names) <= {"build"}:
        return
    run_job(inputs.builder(BERTFAM, inputs.processes, inputs.cache), inputs.folder)
    if inputs.peers and {"rows", "seek"} & set(names):
        run_job(inputs.builder(DATASETS, inputs.processes, inputs.tokenised), inputs.folder)
    if inputs.peers and "seek" in names:
        arguments = {"tokenised": inputs.tokenised, "vocabulary": inputs.vocabulary, "length": 128}
        output = {"output": f"{inputs.tokenised}_blocks"}
        run_job(Entrant(DATASETS, "blocks", "benchmarks.data_huggingface:save_blocks", arguments | output), inputs.folder)


def _table(benchmark: Benchmark, results: Sequence[Measured]) -> str:
    head = ["program", "work", *(name for name, _ in benchmark.columns), "spread", "peak MiB", "x best peer"]
    lines = [
        [
            result.entrant.program,
            result.entrant.work,
            *(show(result) for _, show in benchmark.columns),
            f"{result.spread(benchmark.compared):.0%}",
            f"{result.peak_memory / 2**20:,.0f}",
            _ratio(result, results, benchmark.compared),
        ]
        for result in results
    ]
    return table(head, lines)


def _ratio(result: Measured, results: Sequence[Measured], name: str) -> str:
    """Compute the speed relative to the fastest peer at the same work."""
    peers = [other.figure(name) for other in results if other.entrant.peer and other.entrant.work == result.entrant.work]
    if result.entrant.peer or not peers:
        return ""
    return f"{min(peers) / result.figure(name):.1f}" if name == "seconds" else f"{result.figure(name) / max(peers):.1f}"


if __name__ == "__main__":
    sys.exit(main())

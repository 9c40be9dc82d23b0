"""Tables of docs/planning.md: models that fit TPU slices, and changes that make them fit, from `bertfam plan`.

    python -m benchmarks.plans --output=plans
    python -m benchmarks.plans --output=plans --only=bert_base --only=gpt2_xl --slice=v5e-16

Each plan is made in a process of its own and kept in OUTPUT. The same command line again continues where it was stopped, and
prints the tables of all finished plans. No TPU is needed. Compiling a step takes minutes on two cores.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measurement
from bertfam.arguments import ScriptParser, output_folder
from bertfam.planning.report import mesh_text, milliseconds

SLICES = ("v5e-16", "v6e-64", "v5p-128", "v5e-256", "2xv5e-128")
_ALL = ("--gin_file=meshes/fsdp.gin",)
_SIXTEEN = ("--gin.MeshShape.fsdp=16",)
# Slices of 256 chips, over which some batch sizes of ModernBERT's ramp do not divide.
_MOST = ("v5e-256", "2xv5e-128")
_GIB = 2**30


@dataclass(frozen=True)
class Study:
    """Run to plan.

    Attributes:
      title: title in the table.
      flags: flags of its files, changes and mesh.
      slices: names of the slices.
    """

    title: str
    flags: tuple[str, ...]
    slices: tuple[str, ...] = SLICES


def _study(title: str, run: str, model: str, changes: Sequence[str], slices: tuple[str, ...] = SLICES) -> Study:
    return Study(title, (f"--gin_file=runs/{run}.gin", f"--gin_file=models/{model}.gin", *changes), slices)


def _roberta(rows: int, remat: str) -> Study:
    flags = ("--gin_file=runs/roberta_base.gin", f"--gin.BATCH_SIZE={256 * rows}", f'--gin.Execution.remat="{remat}"')
    return Study(f"RoBERTa-base, {rows} rows a chip, remat {remat}", flags, ("v5e-256",))


STUDIES = {
    "bert_base": _study("BERT-base", "bert_base", "bert_base", _SIXTEEN),
    "bert_large": _study("BERT-large", "bert_base", "bert_large", _SIXTEEN),
    "albert_xxlarge": _study("ALBERT-xxlarge", "albert_base", "albert_xxlarge", _SIXTEEN),
    "modernbert_large": _study("ModernBERT-large", "modernbert_base", "modernbert_large", _SIXTEEN),
    "modernbert_large_256": _study(
        "ModernBERT-large, `Ramp.multiple = 256`",
        "modernbert_base",
        "modernbert_large",
        (*_SIXTEEN, "--gin.Ramp.multiple=256"),
        _MOST,
    ),
    "modernbert_large_long": _study(
        "ModernBERT-large, long rows", "modernbert_base_long", "modernbert_large", _SIXTEEN, ("v5p-128",)
    ),
    # 576 rows are too few for 256 chips.
    "modernbert_large_long_256": _study(
        "ModernBERT-large, long rows",
        "modernbert_base_long",
        "modernbert_large",
        (*_SIXTEEN, "--gin.MeshShape.sequence=4"),
        ("v5e-256",),
    ),
    "gpt2_xl": _study("GPT-2 XL", "gpt2_small", "gpt2_xl", _SIXTEEN),
    "t5_1_1_xxl": _study("T5 1.1 XXL", "t5_1_1_base", "t5_1_1_xxl", _ALL),
    "palm_62b": _study("PaLM 62B", "palm_8b", "palm_62b", _ALL),
} | {f"roberta_{rows}_{remat}": _roberta(rows, remat) for remat in ("none", "full") for rows in (8, 16, 32, 64, 128)}


def main(argv: Sequence[str] | None = None) -> None:
    """Make the missing plans and print the tables."""
    parser = ScriptParser(description=__doc__)
    parser.add_argument("--output", type=output_folder, required=True, help="folder of the plans")
    parser.add_argument("--only", action="append", choices=tuple(STUDIES), help="only this run; repeatable")
    parser.add_argument("--slice", action="append", choices=SLICES, help="only this slice; repeatable")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.only or STUDIES:
        for slice in STUDIES[name].slices:
            if slice in (args.slice or SLICES):
                plan(args.output, name, slice)
    roberta = [name for name in STUDIES if name.startswith("roberta")]
    others = [name for name in STUDIES if name not in roberta]
    print("\n\n".join([table(args.output, others), advised(args.output, others), table(args.output, roberta)]))


def plan(output: Path, name: str, slice: str) -> None:
    """Write the output of `bertfam plan`, or its refusal, unless the file exists."""
    file = output / f"{name}-{slice}.json"
    if file.exists():
        return
    words = ["plan", *STUDIES[name].flags, f"--slice={slice}", "--program=train", "--json"]
    print(f"{name} on {slice}", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, "-m", "bertfam", *words], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        raise SystemExit(done.stderr)
    refused = {"refused": done.stderr.strip().splitlines()[-1].removeprefix("bertfam: error: ")}
    file.write_text(done.stdout if done.returncode == 0 else json.dumps(refused))


def table(output: Path, names: Sequence[str]) -> str:
    """Format the finished plans as a Markdown table."""
    head = ("model", "slice", "chips", "mesh", "step, rows x tokens", "rows a chip", "GiB a chip", "fits", "at least*", "binds")
    return measurement.table(head, [line for name in names for line in _lines(output, name)])


def advised(output: Path, names: Sequence[str]) -> str:
    """Format as a Markdown table the changes that make runs fit which do not."""
    lines = []
    for name in names:
        for slice, answer in _answers(output, name):
            for advice in answer.get("advice", {}).values():
                limit = answer["programs"][0]["memory_limit"] / _GIB
                changes = "<br>".join(f"`{line}`" for line in advice["lines"]) if advice else "no change that was tried"
                lines.append(
                    (STUDIES[name].title, slice, changes, f"{advice['bytes'] / _GIB:.2f} of {limit:.2f}" if advice else "")
                )
    return measurement.table(("model", "slice", "fits with", "GiB a chip"), lines)


def _answers(output: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for slice in STUDIES[name].slices:
        file = output / f"{name}-{slice}.json"
        if file.exists():
            yield slice, json.loads(file.read_text())


def _lines(output: Path, name: str) -> Iterator[tuple[str, ...]]:
    study = STUDIES[name]
    for slice, answer in _answers(output, name):
        if "refused" in answer:
            why = answer["refused"].removeprefix(f"{slice}: ").partition(", which")[0]
            yield study.title, slice, "", "", "", "", "", f"refused: {why}", "", ""
            continue
        for row in answer["programs"]:
            least = row["bound"]
            yield (
                study.title,
                slice,
                str(row["chips"]),
                mesh_text(row["mesh"]),
                f"{row['rows']} x {row['length']}",
                f"{row['rows_per_device']:g}",
                f"{row['memory']['total'] / _GIB:.2f} of {row['memory_limit'] / _GIB:.2f}",
                "yes" if row["fits"] else "no",
                milliseconds(least["seconds"]) if least else "",
                least["binds"] if least else "",
            )


if __name__ == "__main__":
    main()

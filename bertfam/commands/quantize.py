"""`bertfam quantize`: a model whose kernels and word tables are integers."""

from __future__ import annotations

import argparse

from bertfam.commands import flags
from bertfam.commands.finetune import add_records, check_format
from bertfam.errors import UserError

SUMMARY = "make a quantised model folder: int8 or int4 in the place of float32"
EXAMPLE = """\
  bertfam quantize --model_dir=cola --output=cola-int8
  bertfam quantize --model_dir=cola --activations=static --calibration=train.tsv --text=sentence --output=cola-static
  bertfam quantize --model_dir=cola --activations=none --bits=4 --output=cola-int4
  bertfam predict --model_dir=cola-int8 --input=dev.tsv --text=sentence --label=label
The output is a model folder of about a quarter of the size (int4: less), which predict, evaluate, embed, fill, generate and
bertfam.load read as any other. It is not trained further: `bertfam finetune --quantize` trains one to be quantised."""

_OF_TEXTS = ("text", "limit", "length", "record_format", "no_header", "record_encoding")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    parser.add_argument("--output", type=flags.folder, required=True, metavar="DIR", help="model folder to create")
    parser.add_argument(
        "--activations",
        choices=("dynamic", "static", "none"),
        default="dynamic",
        help="int8 ranges of inputs of products: dynamic: computed for each token; static: the greatest of --calibration; "
        "none: inputs stay floats, and kernels are dequantised before the product (default: dynamic)",
    )
    parser.add_argument(
        "--bits", choices=("8", "4"), default="8", help="bits of the kernels; 4 with --activations=none (default: 8)"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="PATTERN",
        help="parameters that stay float32, besides biases, norms, heads and the tables of positions and types, which always do: "
        "--keep='encoder/layers/feed_forward/*' --keep='*/word/table'; repeatable",
    )
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)
    group = parser.add_argument_group("texts of --activations=static")
    group.add_argument(
        "--calibration", type=flags.files, action="append", default=[], metavar="GLOB", help="files of texts; repeatable"
    )
    group.add_argument("--text", metavar="COLUMN", help="column of the text (default: text)")
    add_records(group)
    group.add_argument("--limit", type=int, metavar="N", help="texts that are read, the first ones (default: 512)")
    group.add_argument("--length", type=int, metavar="TOKENS", help="where texts are cut (default: 128)")


def main(args: argparse.Namespace) -> int:
    """Quantise; return the exit status."""
    from bertfam.interop.folders import check_output
    from bertfam.kernels.quantized_product import qwix_library
    from bertfam.storage.files import check_unused

    flags.check_model_dir(args)
    check_output("--output", args.output, args.model_dir)
    check_unused(args.output)
    _check_flags(args)
    args.text, args.limit, args.length = args.text or "text", args.limit or 512, args.length or 128
    qwix_library()
    from bertfam.commands import quantize_run

    return quantize_run.quantize(args)


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go together, and numbers out of range."""
    if args.bits == "4" and args.activations != "none":
        raise UserError(f"--bits=4: products of int4 are computed in floats; give --activations=none, not {args.activations}")
    if bool(args.calibration) != (args.activations == "static"):
        raise UserError(
            "--activations=static requires --calibration=FILE, texts to measure the ranges on"
            if args.activations == "static"
            else f"--calibration is of --activations=static, and they are {args.activations}: leave it out"
        )
    for name in ("limit", "length"):
        if (number := getattr(args, name)) is not None and number < 1:
            raise UserError(f"--{name}={number} is less than 1")
    if not args.calibration and (given := [name for name in _OF_TEXTS if getattr(args, name)]):
        flag = given[0].removeprefix("record_")
        raise UserError(
            f"--{flag} is of the texts of --activations=static --calibration=FILE: give these two flags, or leave --{flag} out"
        )
    check_format(args, "texts")

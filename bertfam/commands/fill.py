"""`bertfam fill`: prediction of the masked tokens of a text."""

import argparse

from bertfam.commands import flags

SUMMARY = "fill the [MASK]s of a text"
EXAMPLE = '  bertfam fill --model_dir=runs/quickstart/model "The array has the same [MASK] as the input."'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "text", type=flags.text, nargs="+", metavar="TEXT", help="a text with one [MASK] or more; several texts may be given"
    )
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    flags.add_step(parser)
    parser.add_argument("--top_k", type=int, default=5, metavar="K", help="candidates per mask (default: 5)")
    flags.add_module_import(parser)
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Fill the masks and print the candidates; return the exit status."""
    import dataclasses
    import json

    from bertfam.errors import UserError

    if args.top_k < 1:
        raise UserError(f"--top_k={args.top_k} is less than 1")
    flags.check_model_dir(args)

    from bertfam.api import load_networks
    from bertfam.decoding.fill import fill, select_masked_lm
    from bertfam.pages.visible import visible

    flags.prepare_model(args)
    filled = fill(select_masked_lm(load_networks(args.model_dir, step=flags.step_of(args))), args.text, args.top_k)
    if args.json:
        results = [
            {"text": text, "masks": [dataclasses.asdict(mask) for mask in masks]}
            for text, masks in zip(args.text, filled, strict=True)
        ]
        print(json.dumps(results, ensure_ascii=False))
        return 0
    for text, masks in zip(args.text, filled, strict=True):
        print(text)
        for mask in masks:
            print("  " + "  ".join(f"{visible(one.token)} {one.probability:.1%}" for one in mask.predictions))
    return 0

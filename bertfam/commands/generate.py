"""`bertfam generate`: text that a decoder writes after a prompt, or an encoder-decoder in answer to it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags

if TYPE_CHECKING:
    from bertfam.decoding.strategies import Limits, Strategy

SUMMARY = "generate text from prompts"
EXAMPLE = """
  bertfam generate --model_dir=runs/gpt2/model "The array has" --strategy=sample --num_return=3 --seed=1
  bertfam generate --model_dir=runs/gpt2/model --prompts=prompts.txt --strategy=beam --max_new_tokens=60 --json
"""

# strategy -> flags that only it has, each the name of the field that it sets
_FIELDS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "beam": ("beams", "length_penalty", "early_stopping"),
    "sample": ("temperature", "top_k", "top_p", "seed"),
}
_EARLY_STOPPING: dict[str, Any] = {"false": False, "true": True, "never": "never"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "prompt",
        type=flags.text,
        nargs="*",
        metavar="PROMPT",
        help="what a decoder goes on from, or an encoder-decoder answers; several may be given; an empty one ('') is a decoder's "
        "own beginning",
    )
    parser.add_argument(
        "--prompts", type=flags.path, metavar="FILE", help="a text file with one prompt a line, instead of PROMPT"
    )
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint of the run (default: the newest)")
    parser.add_argument(
        "--strategy",
        choices=tuple(_FIELDS),
        default="greedy",
        help="greedy: the likeliest token each time; beam: a beam search with 5 beams and --no_repeat_ngrams=2; sample: drawn, "
        "with --top_k=50 --top_p=0.95; flags below change these (default: greedy)",
    )
    parser.add_argument("--max_new_tokens", type=int, default=40, metavar="N", help="where a text is cut (default: 40)")
    parser.add_argument("--min_new_tokens", type=int, default=0, metavar="N", help="a text does not end before (default: 0)")
    parser.add_argument("--no_repeat_ngrams", type=int, metavar="N", help="no run of N tokens stands twice; 0: any may")
    parser.add_argument(
        "--num_return", type=int, default=1, metavar="N", help="texts of each prompt, the best first (default: 1)"
    )
    parser.add_argument("--batch_size", type=int, default=8, metavar="N", help="prompts at a time (default: 8)")
    group = parser.add_argument_group("sample")
    group.add_argument("--temperature", type=float, metavar="T", help="divides the logits (default: 1)")
    group.add_argument("--top_k", type=int, metavar="K", help="draw from the K likeliest tokens; 0: from all")
    group.add_argument("--top_p", type=float, metavar="P", help="draw from the fewest tokens with probability P; 1: from all")
    group.add_argument(
        "--seed", type=int, metavar="N", help="the same seed gives the same text of a prompt, alone or in company (default: 0)"
    )
    group = parser.add_argument_group("beam")
    group.add_argument("--beams", type=int, metavar="N", help="open texts of a prompt")
    group.add_argument(
        "--length_penalty",
        type=float,
        metavar="X",
        help="texts are ranked by log-probability / length ** X: above 0 favours long ones (default: 1)",
    )
    group.add_argument(
        "--early_stopping",
        choices=tuple(_EARLY_STOPPING),
        help="true: stop at as many ended texts as beams; false: when no open text would be better if it ended now; never: when "
        "none can become better (default: false)",
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Write and print; return the exit status."""
    import dataclasses
    import json

    from bertfam.errors import UserError

    prompts = _prompts(args)
    strategy, limits = _options(args)

    import jax

    from bertfam.api import LanguageModel, load
    from bertfam.sharding.mesh import MeshShape

    model = load(args.model_dir, step=args.step)
    if not isinstance(model, LanguageModel):
        raise UserError(f"{args.model_dir} holds an encoder, which writes no text; a masked language model is for bertfam fill")
    mesh = MeshShape().build() if len(jax.devices()) > 1 else None
    written = model.generate(prompts, strategy, limits, texts=args.num_return, batch_size=args.batch_size, mesh=mesh)
    if args.json:
        results = [
            {
                "prompt": prompt,
                "texts": [dataclasses.asdict(text) | {"log_probability": text.log_probability} for text in texts],
            }
            for prompt, texts in zip(prompts, written, strict=True)
        ]
        print(json.dumps(results, ensure_ascii=False))
        return 0
    several = sum(map(len, written)) > 1
    for number, text in enumerate(text for texts in written for text in texts):
        print("\n---\n" * bool(number and several) + text.text)
    return 0


def _prompts(args: argparse.Namespace) -> list[str]:
    from pathlib import Path

    from bertfam.errors import UserError

    if bool(args.prompt) == bool(args.prompts):
        raise UserError("give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two")
    if args.prompt:
        return args.prompt
    try:
        text = Path(args.prompts).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"--prompts={args.prompts} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--prompts={args.prompts} is not UTF-8 at byte {error.start}; convert it") from error
    if not text:
        raise UserError(f"--prompts={args.prompts} is empty; write one prompt a line")
    # No other character ends a line, as U+2028 would by splitlines.
    return text.removesuffix("\n").split("\n")


def _options(args: argparse.Namespace) -> tuple[Strategy, Limits]:
    """The named strategy with what the flags change of it."""
    import dataclasses

    from bertfam.decoding.strategies import PRESETS, Limits
    from bertfam.errors import UserError

    preset = PRESETS[args.strategy]
    for name, fields in _FIELDS.items():
        for flag in fields:
            if name != args.strategy and getattr(args, flag) is not None:
                raise UserError(
                    f"--{flag} is of --strategy={name}, and the strategy is {args.strategy}; give the one or the other"
                )
    changes = {field: value for field in _FIELDS[args.strategy] if (value := getattr(args, field)) is not None}
    if "early_stopping" in changes:
        changes["early_stopping"] = _EARLY_STOPPING[changes["early_stopping"]]
    ngrams = preset.no_repeat_ngrams if args.no_repeat_ngrams is None else args.no_repeat_ngrams
    return dataclasses.replace(preset.strategy, **changes), Limits(args.max_new_tokens, args.min_new_tokens, ngrams)

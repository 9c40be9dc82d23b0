"""`bertfam generate`: generation of text by a causal LM or an encoder-decoder."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.errors import UserError

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
        help="text that a causal LM continues, or the input of an encoder-decoder; several may be given; with '' a "
        "causal LM starts a text of its own",
    )
    parser.add_argument(
        "--prompts",
        type=flags.path,
        metavar="FILE",
        help="text file with one prompt per line, plain or compressed (.gz, .zst), instead of PROMPT",
    )
    parser.add_argument(
        "--model_dir", type=flags.folder, required=True, metavar="DIR", help="folder of a run, or a Hugging Face folder"
    )
    flags.add_step(parser)
    flags.add_module_import(parser)
    parser.add_argument(
        "--strategy",
        choices=tuple(_FIELDS),
        default="greedy",
        help="greedy: the likeliest token at each step; beam: search with 5 beams and --no_repeat_ngrams=2; sample: sampling "
        "with --top_k=50 --top_p=0.95; the flags below change these settings (default: greedy)",
    )
    parser.add_argument(
        "--max_new_tokens", type=int, default=40, metavar="N", help="maximum number of new tokens per text (default: 40)"
    )
    parser.add_argument(
        "--min_new_tokens",
        type=int,
        default=0,
        metavar="N",
        help="minimum number of new tokens before a text may end (default: 0)",
    )
    parser.add_argument("--no_repeat_ngrams", type=int, metavar="N", help="do not repeat any N-gram of tokens; 0: no restriction")
    parser.add_argument("--num_return", type=int, default=1, metavar="N", help="texts per prompt, the best first (default: 1)")
    parser.add_argument("--batch_size", type=int, default=8, metavar="N", help="prompts per batch (default: 8)")
    group = parser.add_argument_group("sample")
    group.add_argument("--temperature", type=float, metavar="T", help="divides the logits (default: 1)")
    group.add_argument("--top_k", type=int, metavar="K", help="sample from the K likeliest tokens; 0: from all")
    group.add_argument(
        "--top_p", type=float, metavar="P", help="sample from the fewest tokens whose probabilities sum to P; 1: from all"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="random seed; a prompt's text does not depend on the other prompts (default: 0)"
    )
    group = parser.add_argument_group("beam")
    group.add_argument("--beams", type=int, metavar="N", help="number of beams per prompt")
    group.add_argument(
        "--length_penalty",
        type=float,
        metavar="X",
        help="texts are ranked by log-probability / length ** X: above 0 favours long ones (default: 1)",
    )
    group.add_argument(
        "--early_stopping",
        choices=tuple(_EARLY_STOPPING),
        help="true: stop once as many texts as beams have ended; false: once no open text would score better if it ended now; "
        "never: when none can become better (default: false)",
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Generate texts and print them; return the exit status."""
    import dataclasses
    import json
    import sys

    from bertfam.errors import is_terminal
    from bertfam.pages.visible import without_controls

    prompts = _prompts(args)
    strategy, limits = _options(args)
    flags.check_model_dir(args)

    import jax

    from bertfam.api import FineTunedModel, LanguageModel, load
    from bertfam.sharding.mesh import MeshShape

    flags.prepare_model(args)
    _check_reads_no_passages(args.model_dir)
    model = load(args.model_dir, step=flags.step_of(args))
    if isinstance(model, FineTunedModel):
        raise UserError(f"{args.model_dir} was fine-tuned to predict labels of texts: use bertfam predict")
    if not isinstance(model, LanguageModel):
        raise UserError(
            f"{args.model_dir} holds an encoder, which cannot generate text; use bertfam fill for a masked language model"
        )
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
        shown = without_controls(text.text) if is_terminal(sys.stdout) else text.text
        print("\n---\n" * bool(number and several) + shown)
    return 0


def _check_reads_no_passages(model_dir: str) -> None:
    """Raise UserError if the model of a run generates from passages, which a prompt alone does not have."""
    from bertfam.objectives.retrieval.rag import Rag
    from bertfam.storage.paths import to_path
    from bertfam.training.model_dir import read_run

    if (to_path(model_dir) / "config.gin").is_file() and isinstance(read_run(model_dir).objective, Rag):
        raise UserError(
            f"{model_dir} answers questions from passages, which generate does not retrieve: use `bertfam predict "
            f"--model_dir={model_dir} --input=QUESTIONS.jsonl --output=ANSWERS.jsonl`"
        )


def _prompts(args: argparse.Namespace) -> list[str]:
    from pathlib import Path

    from bertfam.data.corpora.text_lines import read_lines

    if bool(args.prompt) == bool(args.prompts):
        raise UserError("give prompts as words of the command line, or a file of them by --prompts=FILE, one of the two")
    if args.prompt:
        return args.prompt
    if not Path(args.prompts).exists():
        raise UserError(
            f"--prompts={args.prompts} cannot be read: No such file or directory; a prompt itself is given without --prompts"
        )
    prompts = list(read_lines(args.prompts, strip=False))
    if not prompts:
        raise UserError(f"--prompts={args.prompts} is empty; write one prompt a line")
    return prompts


def _options(args: argparse.Namespace) -> tuple[Strategy, Limits]:
    """Return the named strategy and limits with the changes that the flags make."""
    import dataclasses

    from bertfam.decoding.strategies import PRESETS, Limits

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

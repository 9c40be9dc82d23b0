"""`bertfam analyze attention`: the attention of a model on a text, as an HTML page."""

import argparse
import re

from bertfam.commands import flags
from bertfam.commands.analyze_heads import add_model
from bertfam.errors import UserError

SUMMARY = "draw the attention of a model on a text, as an HTML page"
EXAMPLE = """\
  bertfam analyze attention --model_dir=runs/quickstart/model --text="The list is sorted in place." --output=page.html
  bertfam analyze attention --model_dir=minilm --text="Who wrote it?" --text_pair="She wrote it." --output=pair.html
  bertfam analyze attention --model_dir=t5 --text="translate: It works." --target="Es geht." --output=t5.html
The page needs no network: lines between tokens, a map of each head, and the products of queries and keys."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    group = parser.add_argument_group("text")
    group.add_argument("--text", type=flags.text, required=True, metavar="TEXT", help="text that the model reads")
    group.add_argument("--text_pair", type=flags.text, metavar="TEXT", help="second text of a pair, for encoders")
    group.add_argument("--target", type=flags.text, metavar="TEXT", help="text of the decoder, for encoder-decoders")
    group = parser.add_argument_group("page")
    group.add_argument("--output", type=flags.path, required=True, metavar="FILE", help="HTML page to write")
    group.add_argument("--layers", metavar="N,N,...", help="layers that the page shows, from 1 (default: all)")


def main(args: argparse.Namespace) -> int:
    """Write the page; return the exit status."""
    if args.length is not None and args.length < 1:
        raise UserError(f"--length={args.length} is less than 1")
    layers = _layers(args.layers)
    flags.check_output_file(args, "output")
    flags.check_model_dir(args)
    from bertfam.analysis.attention_page import page
    from bertfam.analysis.attention_parts import attention_parts
    from bertfam.analysis.subject import open_subject
    from bertfam.errors import warn
    from bertfam.models.network import DESCRIPTIONS
    from bertfam.storage.files import new_file

    flags.prepare_model(args)
    subject = open_subject(args.model_dir, step=flags.step_of(args), network=args.network, length=args.length)
    description = DESCRIPTIONS[subject.kind]
    for flag, kind in (("text_pair", "encoder"), ("target", "encoder_decoder")):
        if getattr(args, flag) is not None and subject.kind != kind:
            raise UserError(f"--{flag} does not go with {description}; leave it out")
    if subject.whole is not None and args.target is None:
        raise UserError(f"the model is {description}: give --target=TEXT, the text of its decoder")
    texts = [text for text in (args.text, args.text_pair) if text is not None]
    content = page(f"Attention of {args.model_dir}", parts := attention_parts(subject, *texts, target=args.target), layers)
    if subject.row(*texts).is_cut:
        warn([f"the text is cut after {subject.length} tokens"])
    with new_file(args.output) as path:
        path.write_text(content, encoding="utf-8")
    sizes = ", ".join(f"{part.name} {len(part.query_tokens.pieces)} x {len(part.key_tokens.pieces)} tokens" for part in parts)
    print(f"wrote {args.output}: {sizes}, {len(content) / 1e6:.1f} MB")
    return 0


def _layers(words: str | None) -> list[int] | None:
    """Return the layers of --layers."""
    if words is None:
        return None
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", words):
        raise UserError(f"--layers={words} is no list of numbers; write --layers=1,2")
    return sorted({int(word) for word in words.split(",")})

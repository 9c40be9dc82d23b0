"""`bertfam analyze neighbours`: nearest neighbours of a word in its context, and of its mean over contexts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.analyze_heads import add_model
from bertfam.commands.representation_flags import add_numbers, check_numbers, sentences
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.analysis.representations.neighbours import Space

SUMMARY = "find the nearest neighbours of a word in its context, and of its mean vector over contexts"
EXAMPLE = """\
  bertfam analyze neighbours --model_dir=minilm --input='books/*.txt.gz' --text="He sat by the [bank] of the river." --word=bank
--text has one word in brackets, whose neighbours are words of other sentences. --word is the mean of a word over its contexts,
and its neighbours are the means of other words."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    flags.add_files(parser)
    group = parser.add_argument_group("words, one or more")
    group.add_argument(
        "--text",
        type=flags.text,
        action="append",
        default=[],
        metavar="TEXT",
        help="sentence with a [word] in brackets; repeatable",
    )
    group.add_argument("--word", type=flags.text, action="append", default=[], metavar="WORD", help="word; repeatable")
    group.add_argument("--layer", type=int, metavar="N", help="layer of the vectors, 0 for the embeddings (default: the last)")
    group.add_argument("--count", type=int, default=5, metavar="N", help="neighbours of each (default: 5)")
    group.add_argument(
        "--min_count", type=int, default=5, metavar="N", help="occurrences that a neighbour of --word has at least (default: 5)"
    )
    group.add_argument(
        "--contexts",
        type=int,
        default=100,
        metavar="N",
        help="sentences with each of the words, beside those of --limit, drawn at random (default: 100)",
    )
    add_numbers(group, limit=1000)
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Print the neighbours; return the exit status."""
    import json

    if not (args.text or args.word):
        raise UserError('nothing to find: give --text="He sat by the [bank] of the river." or --word=bank')
    check_numbers(args, contexts=1, count=1, min_count=1, layer=0)
    flags.check_model_dir(args)
    from bertfam.analysis.representations.neighbours import Space, marked_word
    from bertfam.analysis.representations.samples import contexts, sample, sampled_words
    from bertfam.analysis.subject import open_subject
    from bertfam.pages.visible import without_controls

    marked = [marked_word(text) for text in args.text]
    flags.prepare_model(args)
    subject = open_subject(args.model_dir, step=flags.step_of(args), network=args.network, length=args.length)
    last = subject.model.config.num_layers
    layer = last if args.layer is None else args.layer
    if layer > last:
        raise UserError(f"--layer={layer} is more than {last}, the last layer of the model")
    words = [text[word.start : word.end] for text, word in marked] + args.word
    own, _ = contexts(sentences(args), {word.lower() for word in words}, args.contexts)
    texts = list(dict.fromkeys([*sample(sentences(args), args.limit), *own]))
    space = Space(subject, texts, sampled_words(texts), layer, args.batch_size)
    report = {"model": str(args.model_dir), "layer": layer, "sentences": len(texts), "words": len(space)}
    report |= _found(space, marked, args)
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        print("\n".join(without_controls(line) for line in _lines(report)))
    return 0


def _found(space: Space, marked: list[Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return the neighbours of each text and word."""
    from bertfam.analysis.representations.neighbours import in_brackets

    in_context = [
        {"text": in_brackets(text, word), "neighbours": [one._asdict() for one in space.near_occurrence(text, word, args.count)]}
        for text, word in marked
    ]
    of_words = []
    for word in args.word:
        count, near = space.near_word(word, args.count, args.min_count)
        of_words.append({"word": word, "contexts": count, "neighbours": [one._asdict() for one in near]})
    return {"in_context": in_context, "of_words": of_words}


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"layer {report['layer']}, {report['words']:,} words in {report['sentences']:,} sentences"]
    for found in report["in_context"]:
        lines += ["", found["text"], *(f"  {one['cosine']:.2f}  {one['text']}" for one in found["neighbours"])]
    for found in report["of_words"]:
        near = ", ".join(f"{one['text']} {one['cosine']:.2f}" for one in found["neighbours"])
        lines += ["", f"{found['word']}, mean of {found['contexts']:,} contexts: {near or 'no word is so frequent'}"]
    return lines

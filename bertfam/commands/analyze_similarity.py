"""`bertfam analyze similarity`: word similarity by each layer, as Spearman's correlation with human judgements."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.analyze_heads import add_model
from bertfam.commands.representation_flags import check_numbers, sentences

if TYPE_CHECKING:
    from bertfam.analysis.representations.similarity import Pair
    from bertfam.analysis.subject import Subject

SUMMARY = "correlate cosines of words with human judgements of similarity, in each layer"
EXAMPLE = """\
  bertfam analyze similarity --model_dir=minilm --pairs=simlex.txt --pairs=men.txt --input='books/*.txt.gz'
  bertfam analyze similarity --model_dir=word2vec --pairs=EN-WS-353-ALL.txt.gz --input='books/*.txt.gz'
A line of --pairs is two words and a score. The vector of a word is the mean over contexts from --input. Pairs are left out, and
counted, if a word of theirs has no context there or is unknown to the model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    flags.add_files(parser)
    group = parser.add_argument_group("words")
    group.add_argument(
        "--pairs", type=flags.path, action="append", required=True, metavar="FILE", help="pairs of words with scores; repeatable"
    )
    group.add_argument(
        "--contexts", type=int, default=10, metavar="N", help="contexts of each word at most, drawn at random (default: 10)"
    )
    group.add_argument("--batch_size", type=int, default=16, metavar="N", help="sentences at a time (default: 16)")
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Print a table of layers and sets of pairs; return the exit status."""
    import json

    check_numbers(args, contexts=1)
    flags.check_model_dir(args)
    from bertfam.analysis.representations.similarity import names_of, read_pairs
    from bertfam.analysis.subject import open_subject
    from bertfam.pages.visible import without_controls
    from bertfam.studies.study_plan import aligned

    flags.prepare_model(args)
    sets = {name: read_pairs(path) for name, path in names_of(args.pairs).items()}
    subject = open_subject(args.model_dir, step=flags.step_of(args), network=args.network, length=args.length)
    found = _measure(subject, sets, args)
    if args.json:
        print(json.dumps({"model": str(args.model_dir), "sets": found}))
        return 0
    print(f"Spearman's correlation, mean of at most {args.contexts} contexts of each word")
    print("\n".join(without_controls(row).rstrip() for row in aligned(_table(found))))
    return 0


def _measure(subject: Subject, sets: dict[str, list[Pair]], args: argparse.Namespace) -> dict[str, Any]:
    from bertfam.analysis.representations.samples import contexts
    from bertfam.analysis.representations.similarity import correlations, static_vectors

    words = {word for pairs in sets.values() for pair in pairs for word in pair[:2]}
    texts, occurrences = contexts(sentences(args), sorted(words), args.contexts)
    static = static_vectors(subject, texts, occurrences, args.batch_size)
    return {name: correlations(pairs, static) for name, pairs in sets.items()}


def _table(sets: dict[str, Any]) -> list[list[str]]:
    layers = max(len(found["spearman"]) for found in sets.values())
    rows = [["layer", *sets], ["pairs", *(f"{found['pairs']:,}" for found in sets.values())]]
    rows.append(["left out", *(f"{found['left_out']:,}" for found in sets.values())])
    for layer in range(layers):
        scores = (found["spearman"][layer] if found["spearman"] else None for found in sets.values())
        rows.append([str(layer) if layer else "embeddings", *("-" if score is None else f"{score:.3f}" for score in scores)])
    return rows

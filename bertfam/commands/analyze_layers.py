"""`bertfam analyze layers`: anisotropy and self-similarity of each layer, and the similarity of layers by CKA."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.analyze_heads import add_model
from bertfam.commands.representation_flags import add_numbers, check_numbers, sentences
from bertfam.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from bertfam.analysis.subject import Subject

SUMMARY = "compare the layers of a model, or of two, by CKA, and measure their anisotropy and self-similarity"
EXAMPLE = """\
  bertfam analyze layers --model_dir=minilm --input='books/*.txt.gz'
  bertfam analyze layers --model_dir=runs/books/model --step=500 --other=runs/books/model --input='books/*.txt.gz'
Vectors are those of words in their contexts. CKA is linear and debiased; it compares models of any width and vocabulary."""

_MOST_WORDS = 20_000  # whose kernels take 1.6 GB a layer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    parser.add_argument(
        "--other", type=flags.folder, metavar="DIR", help="second model, whose layers are compared with the first's"
    )
    parser.add_argument("--other_step", type=int, metavar="N", help="checkpoint of --other (default: the newest)")
    flags.add_files(parser)
    group = parser.add_argument_group("words")
    group.add_argument("--words", type=int, default=2000, metavar="N", help="words, drawn at random (default: 2000)")
    add_numbers(group, limit=1000)
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Print the tables; return the exit status."""
    import json

    check_numbers(args, words=10)
    if args.words > _MOST_WORDS:
        raise UserError(f"--words={args.words} is more than {_MOST_WORDS:,}; lower it, as CKA compares every two words")
    if args.other_step is not None and args.other is None:
        raise UserError(f"--other_step={args.other_step} is a checkpoint of --other, which is missing")
    flags.check_model_dir(args)
    from bertfam.analysis.representations.samples import sample, sampled_words
    from bertfam.analysis.subject import open_subject
    from bertfam.interop.folders import check_is_model

    if args.other:
        check_is_model(args.other)
    flags.prepare_model(args)
    subjects = [open_subject(args.model_dir, step=flags.step_of(args), network=args.network, length=args.length)]
    if args.other:
        subjects.append(open_subject(args.other, step=args.other_step, length=args.length))
    texts = sample(sentences(args), args.limit)
    words = sampled_words(texts, args.words)
    names = [texts[word.text][word.start : word.end].lower() for word in words]
    found = [_vectors(subject, texts, words, args.batch_size) for subject in subjects]
    report = {"model": str(args.model_dir), **({"other": str(args.other)} if args.other else {}), **_measure(found, names)}
    print(json.dumps(report) if args.json else "\n".join(_lines(report)))
    return 0


def _vectors(subject: Subject, texts: list[str], words: list[Any], batch_size: int) -> dict[int, np.ndarray]:
    """Return the vectors float32[layers + 1, embed] of the words that the model reads whole, by number."""
    from bertfam.analysis.representations.word_vectors import vectors

    parts = vectors(subject, texts, words, batch_size, "reading texts")
    return {int(number): vector for numbers, own in parts for number, vector in zip(numbers, own, strict=True)}


def _measure(found: list[dict[int, np.ndarray]], names: list[str]) -> dict[str, Any]:
    """Measure the words that all models read whole."""
    import numpy as np

    from bertfam.analysis.representations import geometry

    shared = sorted(set.intersection(*map(set, found)))
    if len(shared) < 10:
        raise UserError(f"{len(shared)} of the words are known to the model and read whole, too few to compare: give more text")
    words = [names[number] for number in shared]
    # [layers + 1, words, embed] each
    layers = [np.stack([own[number] for number in shared], axis=1) for own in found]
    measured = []
    for layer in layers[0]:
        similarity, repeated = geometry.self_similarity(layer, words)
        measured.append({"anisotropy": geometry.anisotropy(layer), "self_similarity": similarity})
    return {
        "words": len(words),
        "repeated_words": repeated,
        "layers": measured,
        "cka": geometry.aligned(layers[0], layers[-1]).tolist(),
    }


def _lines(report: dict[str, Any]) -> list[str]:
    from bertfam.plurals import plural
    from bertfam.studies.study_plan import aligned

    first = [
        ["layer", "anisotropy", "self-similarity", "less anisotropy"],
        *(
            [_name(number), *map(_cell, (own["anisotropy"], own["self_similarity"], _excess(own)))]
            for number, own in enumerate(report["layers"])
        ),
    ]
    cka = [["", *map(_name, range(len(report["cka"][0])))]]
    cka += [[_name(number), *(f"{value:.2f}" for value in row)] for number, row in enumerate(report["cka"])]
    of = f" (rows) and of {report['other']} (columns)" if "other" in report else ""
    return [
        f"{plural(report['words'], 'word')}, with several occurrences of {plural(report['repeated_words'], 'different word')}",
        *aligned(first),
        "",
        f"CKA of the layers of {report['model']}{of}",
        *aligned(cka),
    ]


def _excess(layer: dict[str, Any]) -> float | None:
    return None if layer["self_similarity"] is None else layer["self_similarity"] - layer["anisotropy"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _name(layer: int) -> str:
    return str(layer) if layer else "embeddings"

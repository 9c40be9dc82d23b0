"""`bertfam retrieve`: the passages of an index that fit questions best."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertfam.commands import flags

if TYPE_CHECKING:
    from bertfam.embedding.towers import Towers
    from bertfam.retrieval.index import Index

SUMMARY = "find the passages of an index that fit questions best"
EXAMPLE = """\
  bertfam retrieve --index=index "Who wrote the Iliad?" --k=3
The score is the inner product of the vectors of the question and the passage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("question", type=flags.text, nargs="+", metavar="QUESTION", help="a question; several may be given")
    parser.add_argument("--index", type=flags.path, required=True, metavar="DIR", help="folder that bertfam index wrote")
    parser.add_argument("--k", type=int, default=5, metavar="N", help="passages of each question (default: 5)")
    parser.add_argument(
        "--model_dir", type=flags.folder, metavar="DIR", help="where the model of the index lies now (default: where it lay)"
    )
    add_search(parser)
    flags.add_module_import(parser)
    flags.add_json(parser)


def add_search(parser: argparse._ActionsContainer) -> None:
    """Declare the flag about how an index is searched."""
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="search by jax.lax.approx_max_k, which is faster on TPUs and finds 95%% of the best passages there; exact elsewhere",
    )


def open_index(args: argparse.Namespace) -> tuple[Index, Towers]:
    """Open the complete index of --index, and the model that it was made with."""
    from bertfam.embedding.towers import reopen_towers
    from bertfam.retrieval.index import NAME, Index

    index = Index.open(args.index)
    index.check_complete()
    flags.prepare_model(args)
    return index, reopen_towers(index.source.get("model") or {}, index.folder / NAME, args.model_dir)


def main(args: argparse.Namespace) -> int:
    """Search and print; return the exit status."""
    import json

    from bertfam.errors import UserError

    if args.k < 1:
        raise UserError(f"--k={args.k} is less than 1")

    from bertfam.pages.visible import visible
    from bertfam.retrieval.search import DeviceIndex

    index, towers = open_index(args)
    vectors = towers.query.embed(args.question).vectors
    found = DeviceIndex(index.vectors()).search(vectors, args.k, approximate=args.approximate)
    texts = index.texts_of(set(found.passages.flatten().tolist()))
    results = [
        [
            {"passage": passage, "score": score, "text": texts[passage]}
            for passage, score in zip(passages.tolist(), scores.tolist(), strict=True)
        ]
        for passages, scores in zip(found.passages, found.scores, strict=True)
    ]
    if args.json:
        rows = [{"question": one, "passages": own} for one, own in zip(args.question, results, strict=True)]
        print(json.dumps(rows, ensure_ascii=False))
        return 0
    for question, own in zip(args.question, results, strict=True):
        print(visible(question))
        for rank, result in enumerate(own, 1):
            print(f"  {rank:>2}  {result['score']:.4f}  {visible(result['text'])}")
    return 0

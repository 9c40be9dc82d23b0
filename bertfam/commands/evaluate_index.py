"""Body of `bertfam evaluate --index`: recall of an index of passages for questions."""

import argparse
import json

from bertfam.commands.retrieve import open_index
from bertfam.data.corpora.input_files import find_files
from bertfam.data.corpora.labelled.open_questions import read_questions
from bertfam.errors import UserError
from bertfam.evaluation.passage_recall import CUTOFFS, at_random, recall
from bertfam.plurals import plural
from bertfam.retrieval.bm25 import bm25
from bertfam.retrieval.search import DeviceIndex


def main(args: argparse.Namespace) -> int:
    """Search an index for the passages of questions and print the scores; return the exit status."""
    questions = [question for path in find_files(tuple(args.questions)) for question in read_questions(path)]
    if not questions:
        raise UserError(f"--questions={args.questions[0]} has no question with an answer")
    found, towers = open_index(args)
    texts, passages = [question.question for question in questions], list(found.texts())
    vectors = towers.query.embed(texts, args.batch_size or 32, progress="embedding questions").vectors
    most = max(CUTOFFS)
    rankings = {"index": DeviceIndex(found.vectors()).search(vectors, most, approximate=args.approximate).passages}
    if args.baselines:
        rankings |= {"BM25": bm25(passages, texts, most), "random": at_random(len(texts), len(passages), most)}
    scores = {name: recall(questions, passages, ranking) for name, ranking in rankings.items()}
    if args.json:
        print(json.dumps({"questions": len(questions), "passages": len(passages), "scores": scores}))
        return 0
    print(f"{args.index}: {plural(len(passages), 'passage')} by {towers.source['folder']}, {towers.query.settings.description}")
    print(f"{plural(len(questions), 'question')} with an answer")
    print(" " * 8 + "".join(f"{name:>11}" for name in scores["index"]))
    for name, values in scores.items():
        print(f"  {name:<6}" + "".join(f"{value:>11.4f}" for value in values.values()))
    return 0

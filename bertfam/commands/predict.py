"""`bertfam predict`: labels of texts by a fine-tuned model, from file to file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.finetune import add_records
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.data.corpora.labelled_files import LabelledFiles
    from bertfam.finetuning.predictor import Predictor

SUMMARY = "predict the labels of texts with a fine-tuned model"
EXAMPLE = """\
  bertfam predict --model_dir=classifier --input=new.tsv --output=predictions.tsv
  bertfam predict --model_dir=classifier --input=dev.tsv --label=label --json
The columns of the texts are those of `bertfam finetune`, unless flags name others. The output has one line per text, in the order
of the input: the predicted class and its probability, or the predicted number. The same command again resumes after an
interruption. With --label, the column of the true labels, the scores of the predictions are printed (they need
'bertfam[finetune]'): accuracy, F1 and Matthews' correlation, or Pearson's and Spearman's correlation."""

_AT_ONCE = 2048  # texts between two writes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint of the run (default: the newest)")
    flags.add_average(parser)
    flags.add_module_import(parser)
    group = parser.add_argument_group("texts")
    group.add_argument(
        "--input", type=flags.files, action="append", default=[], required=True, metavar="GLOB", help="files of texts; repeatable"
    )
    group.add_argument("--text", metavar="COLUMN", help="column of the text (default: that of the training files)")
    group.add_argument("--text_pair", metavar="COLUMN", help="column of the second text (default: that of the training files)")
    group.add_argument("--label", metavar="COLUMN", help="column of the true labels, against which predictions are scored")
    add_records(group)
    group = parser.add_argument_group("predictions")
    group.add_argument("--output", type=flags.path, metavar="FILE", help="file to write: .tsv, .csv or .jsonl")
    group.add_argument("--probabilities", action="store_true", help="write the probability of each class, too")
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="texts at a time (default: 32)")
    group.add_argument("--json", action="store_true", help="print the scores as JSON")


def main(args: argparse.Namespace) -> int:
    """Predict; return the exit status."""
    _check_flags(args)
    flags.check_model_dir(args, huggingface=False)

    from bertfam.finetuning.predictions import PredictionFile
    from bertfam.finetuning.predictor import open_predictor

    flags.import_modules(args)
    predictor = open_predictor(args.model_dir, args.step, average=args.average)
    corpus = _corpus(args, predictor)
    output: Any = nullcontext()
    if args.output:
        source = {"model": str(args.model_dir), "step": predictor.step, "text": corpus.fingerprint(), "average": args.average}
        head = predictor.objective.head
        output = closing(PredictionFile(args.output, head, source, probabilities=args.probabilities))
    with output as file:
        count, labels, outputs = _predict(args, predictor, corpus, file)
        if file:
            file.finish()
            print(f"wrote {args.output}: {count:,} predictions of step {predictor.step:,}")
    if args.label:
        _print_scores(args, predictor, outputs, labels)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that go against each other, before anything is read."""
    if not args.output and not args.label:
        raise UserError("nothing would be left of the predictions: give --output=FILE, or --label=COLUMN for their scores")
    if args.output:
        flags.check_output_file(args, "output")
    if args.probabilities and not args.output:
        raise UserError("--probabilities are written to --output: give that too, or leave it out")
    if args.json and not args.label:
        raise UserError("--json prints scores: give --label=COLUMN with it, or name the output .jsonl")
    if args.batch_size < 1:
        raise UserError(f"--batch_size={args.batch_size} is less than 1")


def _corpus(args: argparse.Namespace, predictor: Predictor) -> LabelledFiles:
    """Return the files of --input, with the columns of the training files where flags name no others."""
    import dataclasses

    from bertfam.data.corpora.labelled_files import LabelledFiles

    trained = predictor.corpus or LabelledFiles(("none",))
    if predictor.corpus is None and not args.text:
        raise UserError(f"{args.model_dir} does not say which columns it was trained on: name the text's with --text=COLUMN")
    return dataclasses.replace(
        trained,
        train=tuple(args.input),
        validation=(),
        validation_fraction=0.0,
        input_format=args.record_format,
        text=args.text or trained.text,
        text_pair=args.text_pair or trained.text_pair,
        label=args.label,
        header=not args.no_header and (trained.header or bool(args.text)),
        encoding=args.record_encoding or trained.encoding,
    )


def _predict(args: argparse.Namespace, predictor: Predictor, corpus: LabelledFiles, file: Any) -> tuple[int, list[Any], Any]:
    """Predict all texts and append the predictions to the file, if any; return their number, the labels and the outputs."""
    import numpy as np
    from tqdm import tqdm

    records, count = _records(corpus), 0
    labels, kept = list[Any](), list[np.ndarray]()
    with tqdm(desc="predicting", unit=" texts", disable=None, leave=False) as progress:
        while chunk := list(islice(records, _AT_ONCE)):
            begin = count
            count += len(chunk)
            done = 0 if file is None else max(0, min(file.done - begin, len(chunk)))
            progress.update(len(chunk))
            first = 0 if args.label else done  # scores need the outputs of all texts
            if first == len(chunk):
                continue
            outputs = predictor.outputs([texts for texts, _ in chunk[first:]], args.batch_size)
            if file is not None and done < len(chunk):
                file.append(outputs[done - first :])
            if args.label:
                labels += [label for _, label in chunk]
                kept.append(outputs)
    return count, labels, np.concatenate(kept) if kept else None


def _records(corpus: LabelledFiles) -> Iterator[tuple[list[str], str | None]]:
    """Yield the texts of each record, and the numbers of its label if it has one."""
    for path in corpus.files("train"):
        for where, texts, label in corpus.records(path):
            yield texts, None if corpus.label is None else corpus.numbers(label, where)


def _print_scores(args: argparse.Namespace, predictor: Predictor, outputs: Any, labels: list[str]) -> None:
    import json

    import numpy as np

    from bertfam.finetuning.scores import describe, score

    if not labels:
        raise UserError(f"--input={args.input[0]} has no texts to score")
    true = np.array([line.split() for line in labels], np.float32)
    scores = score(predictor.objective.head, outputs, true)
    if args.json:
        print(json.dumps({"texts": len(labels), "step": predictor.step, **scores}))
    else:
        print("\n".join([f"{len(labels):,} texts, step {predictor.step:,}", *describe(scores)]))

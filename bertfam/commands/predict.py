"""`bertfam predict`: labels of texts by a fine-tuned model, from file to file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from bertfam.commands import flags
from bertfam.commands.finetune import add_records, check_format
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.data.corpora.labelled_files import LabelledFiles
    from bertfam.data.corpora.tagged_files import TaggedFiles
    from bertfam.finetuning.prediction_file import PredictionFile
    from bertfam.finetuning.predictions import Records
    from bertfam.finetuning.predictor import Predictor

SUMMARY = "predict the labels of texts with a fine-tuned model"
EXAMPLE = """\
  bertfam predict --model_dir=classifier --input=new.tsv --output=predictions.tsv
  bertfam predict --model_dir=classifier --input=dev.tsv --label=label --json
The columns of the texts are those of `bertfam finetune`, unless flags name others. The output has one line per text, in the order
of the input: the predicted class and its probability, or the predicted number; of words one line per word. The same command again
resumes after an interruption. With --label, the column of the true labels, the scores of the predictions are printed (they need
'bertfam[finetune]'): accuracy, F1 and Matthews' correlation, Pearson's and Spearman's correlation, or F1 of entities."""

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
    group.add_argument(
        "--output", type=flags.path, metavar="FILE", help="file to write: .tsv, .csv or .jsonl; of words .conll or .jsonl"
    )
    group.add_argument("--probabilities", action="store_true", help="write the probability of each class, too")
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="texts at a time (default: 32)")
    group.add_argument("--json", action="store_true", help="print the scores as JSON")


def main(args: argparse.Namespace) -> int:
    """Predict; return the exit status."""
    _check_flags(args)
    flags.check_model_dir(args, huggingface=False)

    from bertfam.finetuning.predictor import open_predictor

    flags.import_modules(args)
    predictor = open_predictor(args.model_dir, args.step, average=args.average)
    check_format(args, tagging=predictor.objective.head.labels_words)
    corpus = _tagged(args, predictor) if predictor.objective.head.labels_words else _labelled(args, predictor)
    records, output = _open_output(args, predictor, corpus)
    with output as file:
        count, labels, outputs = _predict(args, predictor, corpus, records, file)
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


def _labelled(args: argparse.Namespace, predictor: Predictor) -> LabelledFiles:
    """Return the files of --input, with the columns of the training files where flags name no others."""
    import dataclasses

    from bertfam.data.corpora.labelled_files import LabelledFiles

    trained = predictor.corpus
    if not isinstance(trained, LabelledFiles):
        raise UserError(f"{args.model_dir} was not trained on labelled files, whose columns its predictions would read")
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


def _tagged(args: argparse.Namespace, predictor: Predictor) -> TaggedFiles:
    """Return the files of --input, with the columns of the training files where flags name no others."""
    import dataclasses

    from bertfam.data.corpora.tagged_files import TaggedFiles

    trained = predictor.corpus
    if not isinstance(trained, TaggedFiles):
        raise UserError(f"{args.model_dir} was not trained on tagged files, whose columns its predictions would read")
    if args.probabilities:
        raise UserError("--probabilities are of texts, and this model labels words; leave it out")
    return dataclasses.replace(
        trained,
        train=tuple(args.input),
        validation=(),
        validation_fraction=0.0,
        input_format=args.record_format,
        words=args.text or trained.words,
        tags=args.label or trained.tags,
        tagged=bool(args.label),
        encoding=args.record_encoding or trained.encoding,
    )


def _open_output(
    args: argparse.Namespace, predictor: Predictor, corpus: LabelledFiles | TaggedFiles
) -> tuple[Records | None, AbstractContextManager[Any]]:
    """Open the file of --output, if there is one; also return the form of its records."""
    from bertfam.finetuning.prediction_file import PredictionFile
    from bertfam.finetuning.predictions import records_of

    if not args.output:
        return None, nullcontext()
    records = records_of(predictor.objective.head, args.output, probabilities=args.probabilities)
    source = {"model": str(args.model_dir), "step": predictor.step, "text": corpus.fingerprint(), "average": args.average}
    source |= {"probabilities": args.probabilities}
    return records, closing(PredictionFile(args.output, source, header=records.header, end=records.end))


def _predict(
    args: argparse.Namespace,
    predictor: Predictor,
    corpus: LabelledFiles | TaggedFiles,
    records: Records | None,
    file: PredictionFile | None,
) -> tuple[int, list[Any], list[Any]]:
    """Predict all texts and append the records to the file, if any; return their number, the labels and the outputs."""
    from tqdm import tqdm

    texts, count = _texts(corpus), 0
    labels, kept = list[Any](), list[Any]()
    with tqdm(desc="predicting", unit=" texts", disable=None, leave=False) as progress:
        while chunk := list(islice(texts, _AT_ONCE)):
            begin = count
            count += len(chunk)
            done = 0 if file is None else max(0, min(file.done - begin, len(chunk)))
            progress.update(len(chunk))
            first = 0 if args.label else done  # scores need the outputs of all texts
            if first == len(chunk):
                continue
            parts = [words for words, _ in chunk[first:]]
            of_words = predictor.objective.head.labels_words
            outputs: Any = (predictor.word_outputs if of_words else predictor.outputs)(parts, args.batch_size)
            if file is not None and records is not None and done < len(chunk):
                new = outputs[done - first :]
                file.append(records.of_words(parts[done - first :], new) if of_words else records.of_texts(new))
            if args.label:
                labels += [label for _, label in chunk]
                kept += list(outputs)
    return count, labels, kept


def _texts(corpus: LabelledFiles | TaggedFiles) -> Iterator[tuple[list[str], Any]]:
    """Yield the texts, or words, of each record, and its label or tags if it has any."""
    from bertfam.data.corpora.labelled_files import LabelledFiles

    for path in corpus.files("train"):
        for where, texts, label in corpus.records(path):
            if isinstance(corpus, LabelledFiles) and label is not None:
                label = corpus.numbers(label, where)
            yield texts, label


def _print_scores(args: argparse.Namespace, predictor: Predictor, outputs: list[Any], labels: list[Any]) -> None:
    import json

    import numpy as np

    from bertfam.finetuning.scores import describe, score, score_tags

    if not labels:
        raise UserError(f"--input={args.input[0]} has no texts to score")
    head = predictor.objective.head
    if head.labels_words:
        scores = score_tags(head, outputs, labels)
    else:
        scores = score(head, np.stack(outputs), np.array([line.split() for line in labels], np.float32))
    if args.json:
        print(json.dumps({"texts": len(labels), "step": predictor.step, **scores}))
    else:
        print("\n".join([f"{len(labels):,} texts, step {predictor.step:,}", *describe(scores)]))

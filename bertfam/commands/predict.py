"""`bertfam predict`: labels or target texts by a fine-tuned model, from file to file."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from bertfam.commands import benchmark_flags, flags
from bertfam.commands.finetune import add_records, check_format
from bertfam.errors import UserError, warn

if TYPE_CHECKING:
    from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
    from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
    from bertfam.data.corpora.labelled.target_files import TargetFiles
    from bertfam.finetuning.benchmarks.task import BenchmarkTask
    from bertfam.finetuning.inference import Inference, RagInference, TargetInference
    from bertfam.finetuning.prediction_file import PredictionFile
    from bertfam.finetuning.predictor import Predictor
    from bertfam.finetuning.rag_predictor import RagPredictor
    from bertfam.finetuning.target_predictor import TargetPredictor

SUMMARY = "predict labels, or generate target texts, with a fine-tuned model"
EXAMPLE = """\
  bertfam predict --model_dir=classifier --input=new.tsv --output=predictions.tsv
  bertfam predict --model_dir=classifier --input=dev.tsv --label=label --json
  bertfam predict --model_dir=cola --task_name=glue/cola --data_dir=GLUE --output=submission
The columns of the texts are those of `bertfam finetune`, unless flags name others. The output has one line per text, in the order
of the input: the predicted class and its probability, or the predicted number; of words one line per word. The same command again
resumes after an interruption. With --label, the column of the true labels, the scores of the predictions are printed (they need
'bertfam[finetune]'): accuracy, F1 and Matthews' correlation, Pearson's and Spearman's correlation, or F1 of entities.
--model_dir may be a Hugging Face folder with a classifier of texts or words or with answers, such as
BertForSequenceClassification; its classes are those of config.json, and its texts stand in the column "text" unless --text names
another.
A model that was trained on targets generates them, greedily or with --beams=N, and one of `finetune --rag` answers questions from
passages, scored by --label=answer. With --target, the column of the true ones, exact
match, BLEU and chrF are printed."""

_Files = TypeVar("_Files", "LabelledFiles", "TaggedFiles", "TargetFiles")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    flags.add_model_dir(parser)
    flags.add_step(parser)
    flags.add_average(parser)
    flags.add_module_import(parser)
    group = parser.add_argument_group("texts")
    group.add_argument(
        "--input", type=flags.files, action="append", default=[], metavar="GLOB", help="files of texts; repeatable"
    )
    benchmark_flags.add(
        group,
        "in place of --input: prints its published scores on the held-out texts, or with --output=DIR writes the predictions for "
        "its texts without labels in the format of its server",
    )
    group.add_argument("--text", metavar="COLUMN", help="column of the text (default: that of the training files)")
    group.add_argument("--text_pair", metavar="COLUMN", help="column of the second text (default: that of the training files)")
    group.add_argument(
        "--label", metavar="COLUMN", help="column of the true labels, against which predictions are scored; of questions: answers"
    )
    group.add_argument("--target", metavar="COLUMN", help="column of the true targets, against which generated ones are scored")
    add_records(group)
    group = parser.add_argument_group("predictions")
    group.add_argument(
        "--output", type=flags.path, metavar="FILE", help="file to write: .tsv, .csv or .jsonl; of words .conll or .jsonl"
    )
    group.add_argument("--probabilities", action="store_true", help="write the probability of each class, too")
    group.add_argument(
        "--no_answer_threshold",
        type=float,
        metavar="MARGIN",
        help="of questions: how much better no answer must score than the best one to be predicted (default: 0, and never in a "
        "Hugging Face folder that transformers wrote)",
    )
    group.add_argument(
        "--beams", type=int, metavar="N", help="of targets: search for the likeliest text with N beams (default: greedily)"
    )
    group.add_argument(
        "--rag", choices=("sequence", "token"), help="of models with passages: the marginal to decode (default: that of training)"
    )
    group.add_argument(
        "--passages", type=int, metavar="K", help="of models with passages: passages of each question (default: as in training)"
    )
    group.add_argument("--batch_size", type=int, default=32, metavar="N", help="texts at a time (default: 32)")
    group.add_argument("--json", action="store_true", help="print the scores as JSON")


def main(args: argparse.Namespace) -> int:
    """Predict; return the exit status."""
    task = benchmark_flags.find_task(args, "input", "probabilities")
    if task is None:
        _check_flags(args)
    if args.batch_size < 1:
        raise UserError(f"--batch_size={args.batch_size} is less than 1")
    flags.check_model_dir(args)

    from bertfam.plurals import plural

    flags.prepare_model(args)
    predictor = _open_predictor(args)
    if task is not None:
        _predict_task(args, predictor, task)
        _warn_of_cut(predictor)
        return 0
    inference = _open_inference(args, predictor)
    if args.label or args.target:
        inference.check_scores()
    with _open_output(args, inference) as file:
        count, items, outputs = _predict(args, inference, file)
        if file:
            file.finish()
            print(f"wrote {args.output}: {plural(count, 'prediction')}{_of_step(predictor)}")
    _warn_of_cut(predictor)
    if args.label or args.target:
        _print_scores(args, inference, items, outputs)
    return 0


def _open_predictor(args: argparse.Namespace) -> Predictor | TargetPredictor | RagPredictor:
    """Open the model of --model_dir; raise UserError if it is a Hugging Face folder without a classifier, or with --step."""
    from bertfam.finetuning.predictor import open_fine_tuned
    from bertfam.finetuning.published import has_classifier, open_published
    from bertfam.interop.folders import is_huggingface

    if not is_huggingface(args.model_dir):
        return open_fine_tuned(args.model_dir, flags.step_of(args), average=args.average)
    if args.step is not None or args.average:
        flag = "--average" if args.average else f"--step={args.step}"
        raise UserError(f"{flag}: {args.model_dir} is a Hugging Face folder, which has one set of parameters; leave it out")
    if not has_classifier(args.model_dir):
        raise UserError(
            f"{args.model_dir} has no classifier of texts, words or answers (architectures in config.json): fine-tune it by "
            f"`bertfam finetune --init_from={args.model_dir} --train=FILE`"
        )
    return open_published(args.model_dir)


def _of_step(predictor: Predictor | TargetPredictor | RagPredictor) -> str:
    return "" if predictor.step is None else f" of step {predictor.step:,}"


def _warn_of_cut(predictor: Predictor | TargetPredictor | RagPredictor) -> None:
    """Warn about texts that did not fit into rows."""
    from bertfam.plurals import plural

    if cut := predictor.counts["cut"]:
        texts, length = plural(predictor.counts["read"], "text"), predictor.text_length
        warn([f"{cut:,} of {texts} do not fit into rows of {length} tokens, and their {predictor.cut_part} were cut off"])


def _check_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that go against each other, before anything is read."""
    if not args.input:
        raise UserError("no texts: name files with --input=GLOB, or a benchmark task with --task_name and --data_dir")
    if not args.output and not (args.label or args.target):
        raise UserError(
            "nothing would be left of the predictions: give --output=FILE, or --label=COLUMN (--target=COLUMN) for their scores"
        )
    if args.output:
        flags.check_output_file(args, "output")
    if args.probabilities and not args.output:
        raise UserError("--probabilities are written to --output: give that too, or leave it out")
    if args.json and not (args.label or args.target):
        raise UserError("--json prints scores: give --label=COLUMN or --target=COLUMN with it, or name the output .jsonl")


def _predict_task(args: argparse.Namespace, predictor: Predictor | TargetPredictor | RagPredictor, task: BenchmarkTask) -> None:
    """Print the scores of a benchmark task, or write the predictions that its server accepts."""
    from bertfam.finetuning.benchmarks import registry
    from bertfam.finetuning.benchmarks.scoring import score_task
    from bertfam.finetuning.benchmarks.submission import write_submission
    from bertfam.finetuning.rag_predictor import RagPredictor
    from bertfam.finetuning.target_predictor import TargetPredictor
    from bertfam.plurals import plural

    if isinstance(predictor, TargetPredictor | RagPredictor):
        raise UserError(f"--task_name is of labels, and {args.model_dir} generates texts: name texts with --input instead")
    trained = registry.of_corpus(predictor.corpus)
    if trained and task not in trained:
        warn(
            [
                f"--task_name={task.name}: {args.model_dir} was fine-tuned on {trained[0].name}, whose classes may mean other "
                f"things; name the model of {task.name} unless that is meant"
            ]
        )
    if args.output:
        if args.json:
            raise UserError("--json prints scores, and with --task_name --output=DIR holds predictions alone; leave one out")
        for path, count in write_submission(predictor, task, args.data_dir, args.output, args.batch_size):
            print(f"wrote {path}: {plural(count, 'prediction')}{_of_step(predictor)}")
        return
    scored = score_task(predictor, task.locate(args.data_dir), args.batch_size)
    _print(args, scored.texts, predictor.step, scored.scores)


def _open_inference(args: argparse.Namespace, predictor: Predictor | TargetPredictor | RagPredictor) -> Any:
    """Return the kind of prediction of the model's head, for the files of --input."""
    from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
    from bertfam.data.corpora.labelled.question_files import QuestionFiles
    from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
    from bertfam.finetuning.inference import QuestionInference, TextInference, WordInference
    from bertfam.finetuning.published import files_of
    from bertfam.finetuning.rag_predictor import RagPredictor
    from bertfam.finetuning.target_predictor import TargetPredictor

    if isinstance(predictor, RagPredictor):
        return _open_rag(args, predictor)
    for name in ("rag", "passages"):
        if getattr(args, name):
            raise UserError(f"--{name} is of models that read passages, and {args.model_dir} reads none; leave it out")
    if isinstance(predictor, TargetPredictor):
        return _open_targets(args, predictor)
    for name in ("target", "beams"):
        if getattr(args, name):
            raise UserError(f"--{name} is of models that generate targets, and {args.model_dir} predicts labels; leave it out")
    trained, own = (
        _in_files(args, predictor) or files_of(predictor.objective.head, tuple(args.input)),
        (predictor, args.batch_size),
    )
    if isinstance(trained, LabelledFiles):
        check_format(args, "texts")
        if args.probabilities and not trained.classes:
            raise UserError("--probabilities are of classes, and this model predicts numbers; leave it out")
        return TextInference(*own, _labelled(args, trained), args.output, args.probabilities)
    if args.probabilities:
        raise UserError("--probabilities are those of classes of texts, which this model does not predict; leave it out")
    if isinstance(trained, TaggedFiles):
        check_format(args, "words")
        return WordInference(*own, _tagged(args, trained), args.output)
    if isinstance(trained, QuestionFiles):
        check_format(args, "questions", allowed=("label",))
        corpus = QuestionFiles(tuple(args.input), answered=bool(args.label), validation_fraction=0.0)
        if args.no_answer_threshold is not None and predictor.step is None:
            predictor = _with_no_answer(predictor)
        return QuestionInference(predictor, args.batch_size, corpus, args.output, args.no_answer_threshold or 0.0)
    raise UserError(
        f"{args.model_dir} chooses among several texts, whose columns are not known here; use bertfam.load(...).predict"
    )


def _with_no_answer(predictor: Predictor) -> Predictor:
    """Return a predictor of answers that may predict none."""
    import dataclasses

    from bertfam.objectives.fine_tuning.heads import SpanExtraction

    objective = dataclasses.replace(predictor.objective, head=SpanExtraction(has_no_answer=True))
    return dataclasses.replace(predictor, objective=objective)


def _open_rag(args: argparse.Namespace, predictor: RagPredictor) -> RagInference:
    """Return the prediction of answers from passages, for the questions of --input."""
    import dataclasses

    from bertfam.decoding.strategies import BeamSearch, Greedy
    from bertfam.finetuning.inference import RagInference

    check_format(args, "answers", allowed=("label",))
    for name in ("probabilities", "target"):
        if getattr(args, name):
            raise UserError(f"--{name} does not go with answers from passages, whose true ones --label scores; leave it out")
    changes = {"marginal": args.rag, "passages": args.passages}
    objective = dataclasses.replace(predictor.objective, **{name: value for name, value in changes.items() if value is not None})
    corpus = dataclasses.replace(predictor.corpus, train=tuple(args.input), validation=(), validation_fraction=0.0)
    strategy = Greedy() if args.beams is None else BeamSearch(args.beams)
    predictor = dataclasses.replace(predictor, objective=objective)
    return RagInference(predictor, args.batch_size, corpus, args.output, strategy, answered=bool(args.label))


def _open_targets(args: argparse.Namespace, predictor: TargetPredictor) -> TargetInference:
    """Return the prediction of target texts for the files of --input."""
    from bertfam.decoding.strategies import BeamSearch, Greedy
    from bertfam.finetuning.inference import TargetInference

    check_format(args, "targets")
    if args.probabilities:
        raise UserError("--probabilities are of classes, and this model generates texts; leave it out")
    trained = _in_files(args, predictor)
    columns: dict[str, Any] = {"text": args.text or trained.text, "target": args.target}
    corpus = _with_input(args, trained, header=_has_header(args, trained), skip_empty=False, **columns)
    strategy = Greedy() if args.beams is None else BeamSearch(args.beams)
    return TargetInference(predictor, args.batch_size, corpus, args.output, strategy)


def _in_files(args: argparse.Namespace, predictor: Predictor | TargetPredictor | RagPredictor) -> Any:
    """Return the corpus that the model was trained on; in the place of a seqio task the files of --input with its columns."""
    from bertfam.data.seqio_tasks.labelled_tasks import TaskRecords

    return predictor.corpus.in_files(tuple(args.input)) if isinstance(predictor.corpus, TaskRecords) else predictor.corpus


def _has_header(args: argparse.Namespace, trained: LabelledFiles | TargetFiles) -> bool:
    """Return True if the first line of --input names columns, as in training or because flags have names of columns."""
    # Files without a header have numbered columns.
    named = [name for name in (args.text, args.text_pair, args.label, args.target) if name and not name.isdecimal()]
    return not args.no_header and (trained.header or bool(named))


def _labelled(args: argparse.Namespace, trained: LabelledFiles) -> LabelledFiles:
    """Return the files of --input, with the columns of the training files where flags name no others."""
    columns: dict[str, Any] = {
        "text": args.text or trained.text,
        "text_pair": args.text_pair or trained.text_pair,
        "label": args.label,
    }
    return _with_input(args, trained, header=_has_header(args, trained), skip_empty=False, **columns)


def _tagged(args: argparse.Namespace, trained: TaggedFiles) -> TaggedFiles:
    """Return the files of --input, with the columns of the training files where flags name no others."""
    words, tags = args.text or trained.words, args.label or trained.tags
    return _with_input(args, trained, words=words, tags=tags, tagged=bool(args.label))


def _with_input(args: argparse.Namespace, trained: _Files, **columns: Any) -> _Files:
    """Return the training files with those of --input, all of them, and with other columns in their place."""
    import dataclasses

    files: dict[str, Any] = {"train": tuple(args.input), "validation": (), "validation_fraction": 0.0}
    read: dict[str, Any] = {"input_format": args.record_format, "encoding": args.record_encoding or trained.encoding}
    return dataclasses.replace(trained, **files, **read, **columns)


def _open_output(args: argparse.Namespace, inference: Inference) -> AbstractContextManager[Any]:
    """Open the file of --output, if there is one."""
    from bertfam.finetuning.prediction_file import PredictionFile

    if not args.output:
        return nullcontext()
    source = {"model": str(args.model_dir), "step": inference.predictor.step, "text": inference.corpus.fingerprint()}
    source |= {
        name: getattr(args, name) for name in ("average", "probabilities", "no_answer_threshold", "beams", "rag", "passages")
    }
    file = PredictionFile(args.output, source, header=inference.header, end=inference.end, conversion=inference.conversion)
    return closing(file)


def _predict(args: argparse.Namespace, inference: Inference, file: PredictionFile | None) -> tuple[int, list[Any], list[Any]]:
    """Predict all texts and append the records to the file, if any; return their number, and for scores items and outputs."""
    from tqdm import tqdm

    remaining, count = inference.items(), 0
    items, kept = list[Any](), list[Any]()
    with tqdm(desc="predicting", unit=" texts", disable=None, leave=False) as progress:
        while chunk := list(islice(remaining, inference.at_once)):
            begin = count
            count += len(chunk)
            done = 0 if file is None else max(0, min(file.done - begin, len(chunk)))
            progress.update(len(chunk))
            first = 0 if args.label or args.target else done  # scores need the outputs of all texts
            if first == len(chunk):
                continue
            outputs = inference.predict(chunk[first:])
            if file is not None and done < len(chunk):
                file.append(inference.records(chunk[done:], outputs[done - first :]))
            if args.label or args.target:
                items += chunk
                kept += list(outputs)
    return count, items, kept


def _print_scores(args: argparse.Namespace, inference: Inference, items: list[Any], outputs: list[Any]) -> None:
    if not items:
        raise UserError(f"--input={args.input[0]} has no texts to score")
    _print(args, len(items), inference.predictor.step, inference.scores(items, outputs))


def _print(args: argparse.Namespace, texts: int, step: int | None, scores: dict[str, float]) -> None:
    import json

    from bertfam.finetuning.scores import describe
    from bertfam.storage.json_values import json_value

    if args.json:
        print(json.dumps(json_value({"texts": texts, "step": step, **scores})))
    else:
        title = f"{texts:,} texts" + ("" if step is None else f", step {step:,}")
        print("\n".join([title, *describe(scores)]))

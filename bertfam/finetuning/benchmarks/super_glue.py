"""Tasks of SuperGLUE (Wang et al. 2019), in the layout of its download."""

from collections.abc import Mapping
from typing import Any

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.finetuning.benchmarks.questions import AnswerSets, Cloze, Questions
from bertfam.finetuning.benchmarks.task import BenchmarkTask, TestFile

_BOOLEAN, _NUMBERS, _ENTAILMENT = ("false", "true"), ("0", "1"), ("entailment", "not_entailment")
_NLI = {"text": "premise", "text_pair": "hypothesis"}


def _task(
    folder: str,
    *metrics: str,
    columns: dict[str, Any],
    classes: tuple[str, ...],
    further: tuple[TestFile, ...] = (),
    labels: Mapping[str, Any] | None = None,
    questions: Questions | None = None,
) -> BenchmarkTask:
    layout = LabelledFiles((f"{folder}/train.jsonl",), (f"{folder}/val.jsonl",), **columns)
    test = TestFile(f"{folder}.jsonl", LabelledFiles((f"{folder}/test.jsonl",), label=None, **columns), labels or {})
    name, tests = f"superglue/{folder.lower()}", (test, *further)
    return BenchmarkTask(name, (layout,), metrics, tests=tests, classes=classes, questions=questions)


def _diagnostic(name: str, columns: dict[str, Any]) -> TestFile:
    return TestFile(f"{name}.jsonl", LabelledFiles((f"{name}/{name}.jsonl",), label=None, **columns))


TASKS = (
    _task("BoolQ", "accuracy", columns={"text": "question", "text_pair": "passage"}, classes=_BOOLEAN),
    _task(
        "COPA",
        "accuracy",
        columns={"text": "{premise} What was the {question}?", "choices": ("choice1", "choice2")},
        classes=_NUMBERS,
        labels={"0": 0, "1": 1},
    ),
    # A text is a passage with a question and one of its answers.
    _task(
        "MultiRC",
        *("f1a", "exact_match"),
        columns={"input_format": "multirc", "text": "passage", "text_pair": "{question} {answer}"},
        classes=_NUMBERS,
        questions=AnswerSets(),
    ),
    # A text is a passage with a query, in which an entity of the passage stands.
    _task(
        "ReCoRD",
        *("f1", "exact_match"),
        columns={"input_format": "record", "text": "passage", "text_pair": "query"},
        classes=_BOOLEAN,
        questions=Cloze(),
    ),
    _task(
        "WSC",
        "accuracy",
        columns={"input_format": "wsc", "text": "marked"},
        classes=_BOOLEAN,
        labels={"false": "False", "true": "True"},
    ),
    _task("CB", "macro_f1", "accuracy", columns=_NLI, classes=("contradiction", "entailment", "neutral")),
    _task(
        "RTE",
        "accuracy",
        columns=_NLI,
        classes=_ENTAILMENT,
        further=(_diagnostic("AX-b", {"text": "sentence1", "text_pair": "sentence2"}), _diagnostic("AX-g", _NLI)),
    ),
    # The word whose two uses are compared stands before the first one.
    _task("WiC", "accuracy", columns={"text": "{word}: {sentence1}", "text_pair": "sentence2"}, classes=_BOOLEAN),
)

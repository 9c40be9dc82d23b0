"""Tasks of SuperGLUE (Wang et al. 2019) that are labels of a text or of a pair, in the layout of its download.

COPA, MultiRC, ReCoRD and WSC, which are choices between answers or words, are not among them.
"""

from typing import Any

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.finetuning.benchmarks.task import BenchmarkTask, TestFile

_BOOLEAN, _ENTAILMENT = ("false", "true"), ("entailment", "not_entailment")
_NLI = {"text": "premise", "text_pair": "hypothesis"}


def _task(
    folder: str, *metrics: str, columns: dict[str, Any], classes: tuple[str, ...], further: tuple[TestFile, ...] = ()
) -> BenchmarkTask:
    layout = LabelledFiles((f"{folder}/train.jsonl",), (f"{folder}/val.jsonl",), **columns)
    test = TestFile(f"{folder}.jsonl", LabelledFiles((f"{folder}/test.jsonl",), label=None, **columns))
    return BenchmarkTask(f"superglue/{folder.lower()}", (layout,), metrics, tests=(test, *further), classes=classes)


def _diagnostic(name: str, columns: dict[str, Any]) -> TestFile:
    return TestFile(f"{name}.jsonl", LabelledFiles((f"{name}/{name}.jsonl",), label=None, **columns))


TASKS = (
    _task("BoolQ", "accuracy", columns={"text": "question", "text_pair": "passage"}, classes=_BOOLEAN),
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

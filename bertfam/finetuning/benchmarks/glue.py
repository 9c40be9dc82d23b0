"""Tasks of GLUE (Wang et al. 2019), in the layout of its download."""

from typing import Any

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.finetuning.benchmarks.task import BenchmarkTask, TestFile

_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")


def _task(name: str, folder: str, *metrics: str, test: dict[str, Any], classes: tuple[str, ...], **columns: Any) -> BenchmarkTask:
    """Return the task of a folder with train.tsv, dev.tsv and test.tsv, whose columns `test` names where they differ."""
    layout = LabelledFiles((f"{folder}/train.tsv",), (f"{folder}/dev.tsv",), **columns)
    texts = {"text": layout.text, "text_pair": layout.text_pair, "label": None} | test
    tests = (TestFile(f"{folder}.tsv", LabelledFiles((f"{folder}/test.tsv",), **texts)),)
    return BenchmarkTask(f"glue/{name}", (layout,), metrics, tests=tests, classes=classes)


def _pair(name: str, folder: str, first: str, second: str, classes: tuple[str, ...]) -> BenchmarkTask:
    return _task(name, folder, "accuracy", test={}, classes=classes, text=first, text_pair=second)


def _mnli() -> BenchmarkTask:
    pair: dict[str, Any] = {"text": "sentence1", "text_pair": "sentence2"}
    files = {"MNLI-m": "MNLI/test_matched", "MNLI-mm": "MNLI/test_mismatched", "AX": "diagnostic/diagnostic"}
    return BenchmarkTask(
        "glue/mnli",
        (LabelledFiles(("MNLI/train.tsv",), ("MNLI/dev_matched.tsv",), label="gold_label", **pair),),
        ("accuracy",),
        further={"mismatched": ("MNLI/dev_mismatched.tsv",)},
        tests=tuple(TestFile(f"{name}.tsv", LabelledFiles((f"{path}.tsv",), label=None, **pair)) for name, path in files.items()),
        classes=_NLI,
    )


def _stsb() -> BenchmarkTask:
    pair: dict[str, Any] = {"text": "sentence1", "text_pair": "sentence2"}
    numbered: dict[str, Any] = {"text": "6", "text_pair": "7", "label": "5", "kind": "number", "header": False, "ragged": True}
    return BenchmarkTask(
        "glue/stsb",
        (
            LabelledFiles(("STS-B/train.tsv",), ("STS-B/dev.tsv",), label="score", kind="number", **pair),
            # The files of the STS benchmark (Cer et al. 2017), some of whose lines end with the sources of the texts.
            LabelledFiles(("STS-B/sts-train.tsv",), ("STS-B/sts-dev.tsv",), **numbered),
            LabelledFiles(("STS-B/sts-train.csv",), ("STS-B/sts-dev.csv",), "tsv", **numbered),
        ),
        ("pearson", "spearman"),
        tests=(TestFile("STS-B.tsv", LabelledFiles(("STS-B/test.tsv",), label=None, **pair)),),
    )


TASKS = (
    _task(
        "cola",
        "CoLA",
        "mcc",
        test={"text": "sentence", "header": True},
        classes=_BINARY,
        text="4",
        label="2",
        header=False,
    ),
    _task("sst2", "SST-2", "accuracy", test={}, classes=_BINARY, text="sentence"),
    _task(
        "mrpc",
        "MRPC",
        *("f1", "accuracy"),
        test={},
        classes=_BINARY,
        text="#1 String",
        text_pair="#2 String",
        label="Quality",
    ),
    _stsb(),
    _task(
        "qqp",
        "QQP",
        *("f1", "accuracy"),
        test={},
        classes=_BINARY,
        text="question1",
        text_pair="question2",
        label="is_duplicate",
        ragged=True,  # some published lines are cut off
    ),
    _mnli(),
    _pair("qnli", "QNLI", "question", "sentence", _ENTAILMENT),
    _pair("rte", "RTE", "sentence1", "sentence2", _ENTAILMENT),
    _pair("wnli", "WNLI", "sentence1", "sentence2", _BINARY),
)

"""Minimal pairs of sentences as multiple choice: which of two sentences is grammatical."""

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.finetuning.benchmarks.task import BenchmarkTask


def _pairs(name: str) -> LabelledFiles:
    return LabelledFiles((name,), input_format="minimal_pairs", text="question", choices=("first", "second"))


# `bertfam evaluate --suite=blimp` scores the same pairs without training.
TASKS = (
    BenchmarkTask(
        "grammar/blimp",  # Warstadt et al. 2020; a tenth of the pairs is held out
        (_pairs("data/*.jsonl"), _pairs("*.jsonl")),
        ("accuracy",),
        classes=("0", "1"),
    ),
)

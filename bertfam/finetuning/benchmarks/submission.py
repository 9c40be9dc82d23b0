"""Files of predictions in the formats of the servers of GLUE and SuperGLUE."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bertfam.errors import UserError
from bertfam.finetuning.benchmarks.questions import Questions
from bertfam.finetuning.benchmarks.task import BenchmarkTask, TestFile, read_layout
from bertfam.finetuning.predictions import predictions
from bertfam.finetuning.predictor import Predictor
from bertfam.storage.files import check_file, write_text


def write_submission(
    predictor: Predictor, task: BenchmarkTask, data_dir: str, folder: str | Path, batch_size: int = 32
) -> list[tuple[Path, int]]:
    """Write the predictions for the published texts without labels; return each file and the number of its predictions.

    A file NAME.tsv has the header "index", "prediction", and NAME.jsonl an object with "idx" and "label" per line; texts are
    counted from 0. Numbers have three decimals. Questions of several texts have lines of their own (`Questions.lines`).

    Args:
      predictor: A model that was fine-tuned on the task.
      task: The task.
      data_dir: The folder of its files.
      folder: The folder to write into; it is created.
      batch_size: Texts at a time.

    Raises:
      UserError: If the model predicts other classes, files are missing, or a file exists.
    """
    classes = getattr(predictor.objective.head, "classes", ())
    if sorted(classes) != sorted(task.classes):
        known, own = (", ".join(names) or "numbers" for names in (task.classes, classes))
        raise UserError(f"--task_name={task.name} has the labels {known}, and the model predicts {own}; name its model")
    tests, folder = task.locate_tests(data_dir), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for test in tests:
        check_file(folder / test.submission)
    return [(folder / test.submission, _write(predictor, test, task.questions, folder, batch_size)) for test in tests]


def _write(predictor: Predictor, test: TestFile, questions: Questions | None, folder: Path, batch_size: int) -> int:
    texts = [own for path in test.layout.files("train") for _, own, _ in test.layout.records(path)]
    outputs = [np.zeros((0, predictor.objective.head.outputs), np.float32)]
    with tqdm(total=len(texts), desc=test.submission, unit=" texts", disable=None, leave=False) as progress:
        for begin in range(0, len(texts), 64 * batch_size):
            outputs.append(predictor.outputs(texts[begin : begin + 64 * batch_size], batch_size))
            progress.update(len(outputs[-1]))
    whole = np.concatenate(outputs)
    if questions:
        lines = list(questions.lines(list(read_layout(test.layout)), whole))
    else:
        names = [row[0] for row in predictions(predictor.objective.head, whole)]
        lines = list(_lines([test.labels.get(name, name) for name in names], test.submission))
    write_text(folder / test.submission, "".join(lines))
    return len(texts)


def _lines(labels: list[Any], name: str) -> Iterator[str]:
    if name.endswith(".jsonl"):
        yield from (json.dumps({"idx": index, "label": label}) + "\n" for index, label in enumerate(labels))
        return
    yield "index\tprediction\n"
    yield from (f"{index}\t{f'{label:.3f}' if isinstance(label, float) else label}\n" for index, label in enumerate(labels))

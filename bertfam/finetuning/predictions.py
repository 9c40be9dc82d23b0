"""Predictions of a head, as values and as records of a file."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.heads import ClassHead, Head, OneClassHead

PredictionFormat = Literal["tsv", "csv", "jsonl", "conll"]
_LINE_ENDS = re.compile("\r\n|[\r\n]")
_OF_TEXTS: tuple[PredictionFormat, ...] = ("tsv", "csv", "jsonl")


def predictions(head: Head, outputs: np.ndarray, *, probabilities: bool = False) -> list[list[Any]]:
    """Return what outputs float32[texts, outputs] predict: the name of a class and its probability, names, or a number.

    Args:
      head: The head.
      outputs: float32[texts, outputs], or float32[words, outputs].
      probabilities: Add the probability of each class.
    """
    if not isinstance(head, ClassHead):
        return [[float(value)] for value in outputs[:, 0]]
    classes, shares = head.classes, head.probabilities(outputs)
    if isinstance(head, OneClassHead):
        best = shares.argmax(axis=1).tolist()
        rows: list[list[Any]] = [[classes[index], float(share[index])] for index, share in zip(best, shares, strict=True)]
    else:
        rows = [[[name for name, value in zip(classes, row, strict=True) if value > 0]] for row in outputs]
    if probabilities:
        rows = [row + [float(share) for share in own] for row, own in zip(rows, shares, strict=True)]
    return rows


@dataclass(frozen=True)
class Records:
    """Form of the records of a file: a line per text, or a line per word with a blank line after each sentence.

    Attributes:
      head: The head that makes the predictions.
      format: Format of the file.
      probabilities: Write the probability of each class, too.
    """

    head: Head
    format: PredictionFormat
    probabilities: bool = False

    @property
    def header(self) -> str:
        """Line before the first record; "" where there is none."""
        return cell_line(self._columns(), self.format) if self.format in ("tsv", "csv") and not self.head.labels_words else ""

    @property
    def end(self) -> str:
        """Text with which a record ends."""
        return "\n\n" if self.head.labels_words and self.format != "jsonl" else "\n"

    def of_texts(self, outputs: np.ndarray) -> list[str]:
        """Return the records of texts with outputs float32[texts, outputs]."""
        rows = predictions(self.head, outputs, probabilities=self.probabilities)
        if self.format == "jsonl":
            return [json_line(dict(zip(self._columns(), row, strict=True))) for row in rows]
        return [cell_line([_cell(value) for value in row], self.format) for row in rows]

    def of_words(self, sentences: Sequence[Sequence[str]], outputs: Sequence[np.ndarray]) -> list[str]:
        """Return the records of sentences of words, with outputs float32[words, outputs] each."""
        tags = [[str(row[0]) for row in predictions(self.head, own)] for own in outputs]
        if self.format == "jsonl":
            return [json_line({"tokens": list(words), "tags": own}) for words, own in zip(sentences, tags, strict=True)]
        lines = [
            [f"{' '.join(word.split())}\t{tag}\n" for word, tag in zip(*pair, strict=True)]
            for pair in zip(sentences, tags, strict=True)
        ]
        return ["".join(own) + "\n" for own in lines]

    def _columns(self) -> list[str]:
        names = ["prediction", "probability"] if isinstance(self.head, OneClassHead) else ["prediction"]
        return names + [f"probability of {name}" for name in self.head.class_names if self.probabilities]


def cell_line(cells: Sequence[str], format: PredictionFormat) -> str:
    """Return a line of tsv or csv; line ends in cells, and in tsv all white space, become spaces."""
    if format == "tsv":
        return "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
    line = io.StringIO()
    # Python before 3.13 does not quote a cell with a CR, which ends a line for other readers.
    csv.writer(line, lineterminator="\n").writerow([_LINE_ENDS.sub(" ", cell) for cell in cells])
    return line.getvalue()


def records_of(head: Head, path: str, *, probabilities: bool) -> Records:
    """Return the form of the records that a file name's extension denotes; raise UserError if it denotes none."""
    return Records(head, prediction_format(path, ("conll", "jsonl") if head.labels_words else _OF_TEXTS), probabilities)


def prediction_format(path: str, known: Sequence[PredictionFormat] = _OF_TEXTS) -> PredictionFormat:
    """Return the format that a file name's extension denotes; raise UserError if it is none of those known."""
    for kind in get_args(PredictionFormat):
        if path.lower().endswith(f".{kind}") and kind in known:
            return kind
    names = " or ".join(f".{kind}" for kind in known)
    raise UserError(f"--output={path}: the name must end in {names}, which says how predictions are written")


def json_line(value: dict[str, Any]) -> str:
    """Return a line of JSON."""
    return json.dumps(value, ensure_ascii=False) + "\n"


_CELLS: dict[type, Callable[[Any], str]] = {float: lambda value: f"{value:.6g}", list: ",".join, str: str}


def _cell(value: Any) -> str:
    return _CELLS[type(value)](value)

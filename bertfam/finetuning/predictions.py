"""File of predictions, one line per text in the order of the input; an interrupted command resumes it.

Lines are appended to .NAME.partial, beside .NAME.partial.json, which says what they were predicted from. The complete file is
moved to NAME.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.heads import Classification, Head, MultiLabelClassification
from bertfam.storage.files import check_file, write_text

PredictionFormat = Literal["tsv", "csv", "jsonl"]


def prediction_format(path: str) -> PredictionFormat:
    """Return the format that a file name's extension denotes; raise UserError if it denotes none."""
    for kind in get_args(PredictionFormat):
        if path.lower().endswith(f".{kind}"):
            return kind  # type: ignore[no-any-return]
    raise UserError(f"--output={path}: the name must end in .tsv, .csv or .jsonl, which says how predictions are written")


class PredictionFile:
    """File of predictions that is complete or absent.

    Attributes:
      done: Number of texts whose predictions an interrupted command has written already.
    """

    def __init__(self, path: str | Path, head: Head, source: dict[str, Any], *, probabilities: bool) -> None:
        """Open the file.

        Args:
          path: The file to write.
          head: The head that makes the predictions.
          source: Everything that determines the predictions, as JSON; another source starts over.
          probabilities: Write the probability of each class, too.

        Raises:
          UserError: If the file exists or cannot be created.
        """
        self._path, self._head, self._probabilities = Path(path), head, probabilities
        check_file(self._path, flag="--output")
        self._format = prediction_format(str(path))
        self._partial = self._path.with_name(f".{self._path.name}.partial")
        self._record = self._path.with_name(f".{self._path.name}.partial.json")
        text = json.dumps(source, sort_keys=True)
        is_same = self._record.is_file() and self._partial.is_file() and self._record.read_text("utf-8") == text
        if not is_same:
            self._partial.unlink(missing_ok=True)
            write_text(self._record, text)
        lines = self._whole_lines()
        header = 0 if self._format == "jsonl" else 1
        self.done = max(0, lines - header)
        self._file = open(self._partial, "a", encoding="utf-8", newline="")
        if header and not lines:
            self._file.write(self._joined(self._columns()))

    def append(self, outputs: np.ndarray) -> None:
        """Append the predictions of float32[texts, outputs]."""
        rows = predictions(self._head, outputs, probabilities=self._probabilities)
        if self._format == "jsonl":
            lines = [json.dumps(dict(zip(self._columns(), row, strict=True)), ensure_ascii=False) + "\n" for row in rows]
        else:
            lines = [self._joined([_cell(value) for value in row]) for row in rows]
        self._file.write("".join(lines))
        self._file.flush()

    def close(self) -> None:
        """Close the file, which stays partial."""
        self._file.close()

    def finish(self) -> None:
        """Move the complete file to its place."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self._path)
        self._record.unlink()

    def _columns(self) -> list[str]:
        head = self._head
        names = ["prediction", "probability"] if isinstance(head, Classification) else ["prediction"]
        if self._probabilities and isinstance(head, Classification | MultiLabelClassification):
            names += [f"probability of {name}" for name in head.classes]
        return names

    def _joined(self, cells: Sequence[str]) -> str:
        """Return a line of tsv or csv."""
        if self._format == "tsv":
            return "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue()

    def _whole_lines(self) -> int:
        """Count the lines that are written completely, and remove the rest of one that is not."""
        if not self._partial.is_file():
            return 0
        content = self._partial.read_bytes()
        whole = content.rfind(b"\n") + 1
        os.truncate(self._partial, whole)
        # Names of classes have no line ends, so that each line is a prediction.
        return content.count(b"\n", 0, whole)


def predictions(head: Head, outputs: np.ndarray, *, probabilities: bool = False) -> list[list[Any]]:
    """Return what outputs float32[texts, outputs] predict: the name of a class and its probability, names, or a number.

    Args:
      head: The head.
      outputs: float32[texts, outputs].
      probabilities: Add the probability of each class.
    """
    if isinstance(head, Classification):
        shares = _softmax(outputs)
        best = shares.argmax(axis=1)
        rows: list[list[Any]] = [
            [head.classes[index], float(share[index])] for index, share in zip(best.tolist(), shares, strict=True)
        ]
    elif isinstance(head, MultiLabelClassification):
        shares = 1 / (1 + np.exp(-outputs.astype(np.float64)))
        rows = [[[name for name, value in zip(head.classes, row, strict=True) if value > 0]] for row in outputs]
    else:
        return [[float(value)] for value in outputs[:, 0]]
    if probabilities:
        rows = [row + [float(share) for share in own] for row, own in zip(rows, shares, strict=True)]
    return rows


def _softmax(outputs: np.ndarray) -> np.ndarray:
    exponentials = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    shares: np.ndarray = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


_CELLS: dict[type, Callable[[Any], str]] = {float: lambda value: f"{value:.6g}", list: ",".join, str: str}


def _cell(value: Any) -> str:
    return _CELLS[type(value)](value)

"""Files of labelled texts: sentences, or pairs of sentences, with classes or numbers."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, get_args

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.labelled.benchmark_records import BenchmarkFormat
from bertfam.data.corpora.labelled.labelled_corpus import LabelKind, LabelledCorpus
from bertfam.data.corpora.labelled.records import RecordFormat, read_records
from bertfam.data.corpora.text_lines import check_encoding
from bertfam.errors import UserError


@dataclass(frozen=True)
class LabelledFiles(LabelledCorpus, FileCorpus):
    """Labelled texts in files of records, plain, gzipped or zstd-compressed, or Parquet; see `records.read_records`.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: "tsv", "csv", "jsonl" or "parquet", or the layout of a benchmark (`read_benchmark`); None: as the extension of
        each file says.
      text, text_pair, label, kind, classes, skip_empty, choices: See `LabelledCorpus`.
      header: True if the first line of a tsv or csv file names its columns; otherwise their names are "1", "2", ...
      encoding: Any codec of Python.
      ragged: True if some lines of a tsv or csv file, as published, have fewer cells than the first line, which are left out, or
        more, whose further cells are ignored.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: RecordFormat | BenchmarkFormat | None = None
    text: str = "text"
    text_pair: str | None = None
    label: str | None = "label"
    kind: LabelKind = "class"
    classes: tuple[str, ...] = ()
    header: bool = True
    encoding: str = "utf-8"
    ragged: bool = False
    validation_fraction: float = 0.1
    skip_empty: bool = False
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_paths()
        check_encoding(self.encoding)
        formats = (None, *get_args(RecordFormat), *get_args(BenchmarkFormat))
        for name, allowed in (("input_format", formats), ("kind", get_args(LabelKind))):
            if getattr(self, name) not in allowed:
                known = ", ".join(map(repr, allowed))
                raise UserError(f"LabelledFiles.{name} is {getattr(self, name)!r}: it must be one of {known}")
        self.check_columns()

    def records(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], Any]]:
        """Yield the place, the texts and the label of each record of a file; see `interpret`."""
        options: dict[str, Any] = {"header": self.header, "ragged": self.ragged, "columns": self.columns}
        return self.interpret(read_records(path, self.input_format, self.encoding, **options))

    @override
    def training_records(self) -> Iterator[tuple[str, list[str], Any]]:
        return chain.from_iterable(map(self.records, self.files("train")))

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        return self.lines_of(self.records(path))

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("input_format", "text", "text_pair", "label", "header")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings |= {"kind": "labelled_files", "label_kind": self.kind, "classes": list(self.classes)}
        settings |= {name: True for name in ("ragged", "skip_empty") if getattr(self, name)}  # as without them otherwise
        settings |= {"choices": list(self.choices)} if self.choices else {}
        return settings | {"encoding": check_encoding(self.encoding)} | self.file_settings()

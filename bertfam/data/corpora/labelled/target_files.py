"""Files of texts with target texts, which a fine-tuned encoder-decoder or causal LM generates."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.labelled.records import RecordFormat, read_records
from bertfam.data.corpora.labelled.target_corpus import TargetCorpus
from bertfam.data.corpora.text_lines import check_encoding
from bertfam.errors import UserError


@dataclass(frozen=True)
class TargetFiles(TargetCorpus, FileCorpus):
    """Texts with targets in files of records, plain, gzipped or zstd-compressed, or Parquet; see `records.read_records`.

    `PairFiles` are pairs of pretraining, which may lack inputs or targets.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: "tsv", "csv", "jsonl" or "parquet"; None: as the extension of each file says.
      text, target, joined, skip_empty: See `TargetCorpus`.
      header: True if the first line of a tsv or csv file names its columns; otherwise their names are "1", "2", ...
      encoding: Any codec of Python.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: RecordFormat | None = None
    text: str = "text"
    target: str | None = "target"
    joined: bool = False
    header: bool = True
    encoding: str = "utf-8"
    skip_empty: bool = False
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_paths()
        check_encoding(self.encoding)
        if self.input_format not in (None, *get_args(RecordFormat)):
            known = ", ".join(map(repr, get_args(RecordFormat)))
            raise UserError(f"TargetFiles.input_format is {self.input_format!r}: it must be one of {known}, or None")
        self.check_columns()

    def records(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the text and the target of each record of a file; see `interpret`."""
        options: dict[str, Any] = {"header": self.header, "columns": self.columns}
        return self.interpret(read_records(path, self.input_format, self.encoding, **options))

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        return self.lines_of(self.records(path))

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("input_format", "text", "target", "joined", "header", "skip_empty")
        settings: dict[str, Any] = {"kind": "target_files", **{name: getattr(self, name) for name in names}}
        return settings | {"encoding": check_encoding(self.encoding)} | self.file_settings()

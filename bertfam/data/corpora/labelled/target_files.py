"""Files of texts with target texts, which a fine-tuned encoder-decoder or causal LM generates."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.labelled.records import RecordFormat, columns_of, fill, read_records, text_of
from bertfam.data.corpora.text_lines import check_encoding
from bertfam.errors import UserError


@dataclass(frozen=True)
class TargetFiles(FileCorpus):
    """Texts with targets in plain, gzipped or zstd-compressed files of records; see `records.read_records` for the formats.

    Each record is a pair of its own. White space around texts and targets is stripped. `PairFiles` are pairs of pretraining,
    which may lack inputs or targets.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: "tsv", "csv" or "jsonl"; None: as the extension of each file says.
      text: Column of the text. A name with braces adds to it, or joins columns: "summarize: {article}".
      target: Column of the target; None: the texts have no targets.
      joined: True if a target continues its text, as in a causal LM.
      header: True if the first line of a tsv or csv file names its columns; otherwise their names are "1", "2", ...
      encoding: Any codec of Python.
      skip_empty: Leave out records with an empty text or target.
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
        if self.text == self.target:
            raise UserError(f"the column {self.text!r} is named twice: text and target are columns of their own")

    @property
    @override
    def pairs(self) -> bool:
        return True

    @property
    @override
    def joins_pairs(self) -> bool:
        return self.joined

    def filled(self, text: str | Mapping[str, str]) -> str:
        """Return a text, or texts by column, as the model reads it: in the place of the columns of `text`.

        Raises:
          UserError: If the columns are others.
        """
        columns = columns_of((), self.text, "texts", "--text") or [self.text]
        texts = {columns[0]: text} if isinstance(text, str) else text
        if texts.keys() != set(columns):
            raise UserError(f"the model reads the columns {', '.join(columns)}: give a text of each, {{{columns[0]!r}: ...}}")
        return fill(texts, self.text) if columns != [self.text] else texts[self.text]

    def records(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the text and the target of each record; the target is None without one.

        Raises:
          UserError: If a text or a target is missing, or no string, or is empty and not to be left out.
        """
        for where, record in read_records(path, self.input_format, self.encoding, header=self.header):
            columns = dict.fromkeys(columns_of(record, self.text, where, "--text") or [self.text], "--text")
            columns |= {} if self.target is None else {self.target: "--target"}
            values = {name: text_of(record, name, where, flag) for name, flag in columns.items()}
            if empty := next((name for name, value in values.items() if not value), None):
                if self.skip_empty:
                    continue
                raise UserError(f"{where}: the column {empty!r} is empty; drop such records, or leave them out by --skip_empty")
            text = values[self.text] if self.text in values else fill(values, self.text)
            yield where, text, None if self.target is None else values[self.target]

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        for _, text, target in self.records(path):
            yield [text, target or ""]

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("input_format", "text", "target", "joined", "header", "skip_empty")
        settings: dict[str, Any] = {"kind": "target_files", **{name: getattr(self, name) for name in names}}
        return settings | {"encoding": check_encoding(self.encoding)} | self.file_settings()

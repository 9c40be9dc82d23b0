"""Text files of any format and encoding."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.corpora.file_corpus import FileCorpus, is_held_out
from bertfam.data.corpora.formats import INPUT_FORMATS, Format, InputFormat, fix_by_name
from bertfam.data.corpora.input_files import InputFile
from bertfam.data.corpora.sentences import check_language, split_sentences
from bertfam.data.corpora.text_lines import check_encoding
from bertfam.errors import UserError, warn_once

_OBJECT = re.compile(r"\s*\{\s*\".*\}\s*", re.DOTALL)  # of JSON, which a whole parse of a long line would only confirm

# `bertfam.data.sources`, the old path of this module, offered all of these.
__all__ = ["Corpus", "FileCorpus", "Part", "TextFiles", "is_held_out"]


@dataclass(frozen=True)
class TextFiles(FileCorpus):
    """Files of text, local or in a store: plain, gzipped or zstd-compressed, of any encoding, or Parquet tables.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: One of `INPUT_FORMATS`.
      text_field: The field or column that holds the text, in JSON lines and Parquet; `outer.inner` for one in an object.
      encoding: Any codec of Python; Parquet has its own.
      language: For the sentence splitter, see `bertfam.data.corpora.sentences.LANGUAGES`.

    Raises:
      UserError: If a setting is invalid (on construction), or a path or its content is (on reading).
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: InputFormat = "sentences"
    text_field: str = "text"
    encoding: str = "utf-8"
    language: str = "en"
    validation_fraction: float = 0.01

    def __post_init__(self) -> None:
        self.check_paths()
        if self.input_format not in INPUT_FORMATS:
            raise UserError(f"input_format {self.input_format!r} is unknown: use one of {', '.join(INPUT_FORMATS)}")
        if self.text_field != "text" and not self._format.fields:
            raise UserError(f"text_field {self.text_field!r} goes with jsonl and parquet: {self.input_format} has no fields")
        if check_encoding(self.encoding) != "utf-8" and not self._format.encoded:
            raise UserError(f"encoding {self.encoding!r} does not go with {self.input_format}, whose strings are UTF-8")
        check_language(self.language)

    @property
    def _format(self) -> Format:
        return INPUT_FORMATS[self.input_format]

    @override
    def fingerprint(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"kind": "text_files", "input_format": self.input_format}
        if self._format.fields:
            settings["text_field"] = self.text_field
        if self._format.encoded:
            settings["encoding"] = check_encoding(self.encoding)
        if self._format.splits:
            settings |= {"language": self.language, "sentencex": version("sentencex")}
        return settings | self.file_settings()

    @override
    def sentences(self, lines: list[str]) -> list[str]:
        if not self._format.splits:
            return lines
        return [sentence for line in lines for sentence in split_sentences(line, self.language)]

    @override
    def files(self, split: str) -> list[InputFile]:
        # Warns of the first file whose name says that it is no plain text, which is read.
        paths = super().files(split)
        if not self._format.fields and (path := next(filter(fix_by_name, paths), None)):
            warn_once(f"{path} is read as plain text, input_format {self.input_format!r}: {fix_by_name(path)}")
        return paths

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        documents = self._format.read(path, self.encoding, self.text_field)
        return documents if self._format.fields or fix_by_name(path) else _plain(path, documents)


def _plain(path: str | os.PathLike[str], documents: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the documents of plain text; warn of a file whose first line is a JSON object."""
    for number, document in enumerate(documents):
        if not number and document and _OBJECT.fullmatch(document[0]):
            fix = "give --input_format=jsonl if each line is one"
            warn_once(f"{path}:1 is a JSON object, and is read as plain text, with its names and quotation marks; {fix}")
        yield document

"""Where text comes from: what a `Corpus` is, and text files that people bring.

A document is a list of sentences; a sentence is a stripped, non-empty line of text. Documents never span files.
"""

import functools
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from bertfam.data.corpora.formats import INPUT_FORMATS, Format, InputFormat, named_format
from bertfam.data.corpora.input_files import file_fingerprints, find_files
from bertfam.data.corpora.sentences import check_language, split_sentences
from bertfam.data.corpora.splits import SPLITS
from bertfam.data.corpora.text_lines import check_encoding
from bertfam.errors import UserError, warn


@dataclass(frozen=True)
class Part:
    """What one machine reads of a split.

    Attributes:
      name: tells the parts of a split apart: a path, say.
      size: in bytes, or in another unit that is the same for all parts; 0 where it is not known.
    """

    name: str = ""
    size: int = 0


class Corpus(ABC):
    """Anything that yields documents.

    Reading (`texts`) and splitting into sentences (`sentences`) are apart, so that one process reads and many split.

    Attributes:
      units: whether its phrases and entities are marked: it is a `MarkedText`.
      reads_seqio: True if reading it imports TensorFlow, which only a child process may do.
    """

    units: ClassVar[bool] = False
    reads_seqio: ClassVar[bool] = False

    @property
    def pairs(self) -> bool:
        """Whether its documents are pairs: two lines each, inputs and targets, either of which may be empty."""
        return False

    @property
    def bare(self) -> "Corpus":
        """Where the text is from: itself, unless it only adds something to another."""
        return self

    @abstractmethod
    def texts(self, split: str) -> Iterator[list[str]]:
        """Stripped non-blank lines of each document of "train" or "validation", always in the same order.

        None when the split is empty.
        """

    def parts(self, split: str) -> list[Part]:
        """What `texts` can be cut into for many machines: one part, unless a subclass has more."""
        return [Part()]

    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        """`texts` of one of the `parts`; those of all parts, in their order, are those of the split."""
        return self.texts(split)

    def sentences(self, lines: list[str]) -> list[str]:
        """The sentences of a document, from the lines that `texts` gives: these themselves, unless a subclass splits them.

        A pure function that goes with the corpus to other processes (both are pickled).
        """
        return lines

    def documents(self, split: str) -> Iterator[list[str]]:
        """The sentences of each document of a split, in the order of `texts`; one without sentences is left out."""
        return filter(None, map(self.sentences, self.texts(split)))

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What decides the documents (files, sizes, digests, settings), as JSON; equal if and only if they are."""


class FileCorpus(Corpus):
    """Documents in files.

    Without `validation` files, documents are held out by a hash of their own text: a document is held out when its
    hash falls below `validation_fraction`. The choice does not depend on the order or the number of files, and equal
    documents land on the same side. The fraction is an expectation: a corpus of a few documents may hold out none, and
    then "validation" is simply empty and there is nothing to evaluate on (give `validation` files, or a larger
    fraction).

    Attributes:
      train: paths or globs (`**` goes into folders); each file is read once, sorted within a glob.
      validation: paths or globs of held-out files.
      validation_fraction: share of documents held out of `train` when there are no `validation` files, 0 to 1.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    validation_fraction: float

    @abstractmethod
    def read(self, path: Path) -> Iterator[list[str]]:
        """The documents of a file, streamed; raises UserError where it cannot be read."""

    def check_paths(self) -> None:
        """Makes tuples of single paths; raises UserError for settings that cannot be."""
        for field in ("train", "validation"):
            value = getattr(self, field)
            object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(value))
        if not self.train:
            raise UserError("no training text: give at least one file or glob")
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"validation_fraction is {self.validation_fraction}: it must be at least 0 and below 1")

    def files(self, split: str) -> list[Path]:
        """The files that `split` is read from, in reading order; raises UserError for a path that names none."""
        _check_split(split)
        train = find_files(self.train)
        if not self.validation:
            return train
        validation = find_files(self.validation)
        shared = set(map(os.path.realpath, train)) & set(map(os.path.realpath, validation))
        if shared:
            raise UserError(f"{min(shared)} is both training and validation text: leave it out of one of them")
        return train if split == "train" else validation

    def texts(self, split: str) -> Iterator[list[str]]:
        """Lines of the documents of "train" or "validation", streamed.

        Raises:
          UserError: a file cannot be read, or nothing is in any file.
        """
        files = self.files(split)
        found = False
        for path in files:
            for lines in self.read(path):
                found = True
                if self._belongs(lines, split):
                    yield lines
        if not found:
            names = ", ".join(map(str, files[:3])) + (", ..." if len(files) > 3 else "")
            raise UserError(f"{names}: no document in {'it' if len(files) == 1 else 'them'}, only blank lines or nothing")

    def parts(self, split: str) -> list[Part]:
        """The files, with their sizes on disk; none where nothing is held out."""
        if split == "validation" and not self.validation and not self.validation_fraction:
            return []
        try:
            return [Part(str(path), path.stat().st_size) for path in self.files(split)]
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error

    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        """`texts` of one file; raises UserError where it cannot be read."""
        return (lines for lines in self.read(Path(part.name)) if self._belongs(lines, split))

    def file_settings(self) -> dict[str, Any]:
        """What `fingerprint` says of the files and of what is held out; raises UserError where a file cannot be read."""
        settings: dict[str, Any] = {} if self.validation else {"validation_fraction": self.validation_fraction}
        settings["train"] = file_fingerprints(self.files("train"))
        settings["validation"] = file_fingerprints(self.files("validation")) if self.validation else []
        return settings

    def _belongs(self, lines: list[str], split: str) -> bool:
        """Whether a document that is in the files of a split is in the split."""
        return bool(self.validation) or is_held_out(lines, self.validation_fraction) == (split == "validation")


@dataclass(frozen=True)
class TextFiles(FileCorpus):
    """Files of text: plain, gzipped or zstd-compressed, of any encoding, or Parquet tables.

    Attributes:
      train, validation, validation_fraction: see `FileCorpus`.
      input_format: one of `INPUT_FORMATS`.
      text_field: the field or column that holds the text, in JSON lines and Parquet.
      encoding: of the text, any codec of Python's; Parquet has its own.
      language: for the sentence splitter, see `bertfam.data.corpora.sentences.LANGUAGES`.

    Raises:
      UserError: a setting is wrong (when made); a path or its content is (when read).
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

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and digests of the files, and the settings that decide what a document and a sentence is.

        Raises:
          UserError: a file cannot be read.
        """
        settings: dict[str, Any] = {"kind": "text_files", "input_format": self.input_format}
        if self._format.fields:
            settings["text_field"] = self.text_field
        if self._format.encoded:
            settings["encoding"] = check_encoding(self.encoding)
        if self._format.splits:
            settings |= {"language": self.language, "sentencex": version("sentencex")}
        return settings | self.file_settings()

    def sentences(self, lines: list[str]) -> list[str]:
        """The lines themselves, or the sentences in them, as `input_format` says."""
        if not self._format.splits:
            return lines
        return [sentence for line in lines for sentence in split_sentences(line, self.language)]

    def files(self, split: str) -> list[Path]:
        """See `FileCorpus.files`; warns of the first whose name says that it holds fields, where they are not read."""
        found = super().files(split)
        if not self._format.fields and (path := next(filter(named_format, found), None)):
            _warn_of_name(path, self.input_format)
        return found

    def read(self, path: Path) -> Iterator[list[str]]:
        """See `FileCorpus.read`."""
        return self._format.read(path, self.encoding, self.text_field)


def is_held_out(lines: list[str], fraction: float) -> bool:
    """Whether a document is among the `fraction` that is held out, by a hash of its text alone."""
    if not fraction:
        return False
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


@functools.cache
def _warn_of_name(path: Path, input_format: InputFormat) -> None:
    """Once in a process."""
    fix = f"give --input_format={named_format(path)} if it is what its name says"
    warn([f"{path} is read as plain text, input_format {input_format!r}: {fix}"])


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: one of {SPLITS}")

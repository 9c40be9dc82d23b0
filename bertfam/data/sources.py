"""Where text comes from: what a `Corpus` is, and text files that people bring.

A document is a list of sentences; a sentence is a stripped, non-empty line of text. Documents never span files.
"""

import glob
import gzip
import hashlib
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from bertfam.data.sentences import check_language, split_sentences
from bertfam.data.splits import SPLITS
from bertfam.errors import UserError

InputFormat = Literal["sentences", "paragraphs", "lines"]
INPUT_FORMATS: dict[InputFormat, str] = {
    "sentences": "a sentence a line, a blank line ends a document (the default, BERT's published format)",
    "paragraphs": "a paragraph a line, split into sentences, a blank line ends a document",
    "lines": "a document a line, split into sentences",
}

_BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 20
_DIGESTED = 1 << 30  # bytes that a fingerprint reads, at most


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
    """

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


@dataclass(frozen=True)
class TextFiles(Corpus):
    """Plain or gzipped UTF-8 text files.

    Without `validation` files, documents are held out by a hash of their own text: a document is held out when its
    hash falls below `validation_fraction`. The choice does not depend on the order or the number of files, and equal
    documents land on the same side. The fraction is an expectation: a corpus of a few documents may hold out none, and
    then "validation" is simply empty and there is nothing to evaluate on (give `validation` files, or a larger
    fraction).

    Attributes:
      train: paths or globs (`**` goes into folders); each file is read once, sorted within a glob.
      validation: paths or globs of held-out files.
      input_format: one of `INPUT_FORMATS`.
      language: for the sentence splitter, see `bertfam.data.sentences.LANGUAGES`.
      validation_fraction: share of documents held out of `train` when there are no `validation` files, 0 to 1.

    Raises:
      UserError: a setting is wrong (when made); a path or its content is (when read).
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: InputFormat = "sentences"
    language: str = "en"
    validation_fraction: float = 0.01

    def __post_init__(self) -> None:
        for field in ("train", "validation"):
            value = getattr(self, field)
            object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(value))
        if not self.train:
            raise UserError("no training text: give at least one file or glob")
        if self.input_format not in INPUT_FORMATS:
            raise UserError(f"input_format {self.input_format!r} is unknown: use one of {', '.join(INPUT_FORMATS)}")
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"validation_fraction is {self.validation_fraction}: it must be at least 0 and below 1")
        check_language(self.language)

    def files(self, split: str) -> list[Path]:
        """The files that `split` is read from, in reading order; raises UserError for a path that names none."""
        _check_split(split)
        train = find_files(self.train)
        if not self.validation:
            return train
        validation = find_files(self.validation)
        shared = {path.resolve() for path in train} & {path.resolve() for path in validation}
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
            for lines in self._read(path):
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
        return (lines for lines in self._read(Path(part.name)) if self._belongs(lines, split))

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and digests of the files, and the settings that decide what a document and a sentence is.

        Raises:
          UserError: a file cannot be read.
        """
        settings: dict[str, Any] = {"kind": "text_files", "input_format": self.input_format}
        if self.input_format != "sentences":
            from importlib.metadata import version

            settings |= {"language": self.language, "sentencex": version("sentencex")}
        if not self.validation:
            settings["validation_fraction"] = self.validation_fraction
        settings["train"] = file_fingerprints(self.files("train"))
        settings["validation"] = file_fingerprints(self.files("validation")) if self.validation else []
        return settings

    def sentences(self, lines: list[str]) -> list[str]:
        """The lines themselves, or the sentences in them, as `input_format` says."""
        if self.input_format == "sentences":
            return lines
        return [sentence for line in lines for sentence in split_sentences(line, self.language)]

    def _read(self, path: Path) -> Iterator[list[str]]:
        return read_documents(path, line_is_document=self.input_format == "lines")

    def _belongs(self, lines: list[str], split: str) -> bool:
        """Whether a document that is in the files of a split is in the split."""
        return bool(self.validation) or is_held_out(lines, self.validation_fraction) == (split == "validation")


def is_held_out(lines: list[str], fraction: float) -> bool:
    """Whether a document is among the `fraction` that is held out, by a hash of its text alone."""
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def find_files(patterns: tuple[str, ...]) -> list[Path]:
    """Files that paths and globs name: patterns in the order given, sorted within a glob, each file once.

    Raises:
      UserError: a pattern names no file, or a folder.
    """
    found: dict[Path, Path] = {}  # resolved -> as named
    for pattern in patterns:
        if "://" in pattern:
            raise UserError(f"{pattern}: text is read from local files only: copy it here, or mount the bucket")
        path = Path(os.path.expanduser(pattern))
        if path.is_dir():
            raise UserError(f"{pattern} is a folder: name the files in it, as {os.path.join(pattern, '*.txt')}")
        if path.exists():  # a name that holds glob characters is meant literally when it exists
            matches = [path]
        else:
            matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if not os.path.isdir(name)]
        if not matches:
            kind = "no file matches" if glob.has_magic(pattern) else "no such file:"
            raise UserError(f"{kind} {pattern} (in {os.getcwd()})")
        for match in matches:
            found.setdefault(match.resolve(), match)
    return list(found.values())


def read_documents(path: str | os.PathLike[str], *, line_is_document: bool = False) -> Iterator[list[str]]:
    """Stripped non-blank lines of each document of one file; a document ends at a blank line or the end of the file.

    Args:
      path: a plain or gzipped (by content, not by name) UTF-8 file. CRLF, a byte order mark at the start and a missing
        final newline change nothing; a line of whitespace is blank.
      line_is_document: every line is a document of its own.

    Raises:
      UserError: not readable, not UTF-8, a damaged gzip file, a NUL byte; names the file and line.
    """
    document: list[str] = []
    for line in _read_lines(path):
        if line:
            document.append(line)
        if document and (line_is_document or not line):
            yield document
            document = []
    if document:
        yield document


def file_fingerprints(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Name without folder, size in bytes, and a SHA-256 of the bytes on disk, for each file.

    Files that together have more than 1 GiB have an equal share of it each (about a second in all, however many terabytes):
    those that are larger than their share are digested at evenly spaced blocks.
    """
    try:
        sizes = [path.stat().st_size for path in paths]
        share = _DIGESTED // max(1, len(paths)) if sum(sizes) > _DIGESTED else max(sizes, default=0)
        return [
            {"name": path.name, "size": size, "sha256": _digest(path, size, share)}
            for path, size in zip(paths, sizes, strict=True)
        ]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error


def _digest(path: Path, size: int, share: int) -> str:
    """SHA-256 of a file, or of about `share` bytes of a larger one: its begin, its end, and blocks between."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= share:
            while block := file.read(_BUFFER):
                digest.update(block)
        else:
            count = max(2, share // _BUFFER)
            length = min(_BUFFER, share // count)
            for i in range(count):
                file.seek((size - length) * i // (count - 1))
                digest.update(file.read(length))
    return digest.hexdigest()


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split {split!r}: one of {SPLITS}")


def _read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Stripped lines, blank ones as empty strings."""
    number = offset = 0  # of the line being read, in the uncompressed text
    try:
        with open(path, "rb") as raw:
            for number, line in enumerate(_open_text(raw), 1):
                if number == 1 and line.startswith(_BOM):
                    line = line[len(_BOM) :]
                    offset = len(_BOM)
                if b"\0" in line:
                    raise UserError(f"{path}:{number}: a NUL byte at offset {offset + line.index(0)}: not a text file")
                yield line.decode().strip()
                offset += len(line)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: not UTF-8 at byte offset {offset + error.start}: convert the file, as with iconv -t UTF-8"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the gzip file is cut off or damaged after line {number}: fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def _open_text(raw: BinaryIO) -> BinaryIO:
    is_gzip = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    if not is_gzip:
        return raw
    import io

    return io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER)  # type: ignore[arg-type, return-value]

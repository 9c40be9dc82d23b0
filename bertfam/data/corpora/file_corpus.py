"""Base class of corpora that are read from files, local or in a store, with held-out documents chosen by a hash."""

import dataclasses
import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from typing_extensions import override

from bertfam.data.corpora.corpus import SPLITS, Corpus, Part
from bertfam.data.corpora.input_files import InputFile, file_fingerprints, find_files, identity, size_of
from bertfam.data.corpora.read_ahead import read_in_order
from bertfam.errors import UserError
from bertfam.plurals import listed
from bertfam.storage.streams import is_address


class FileCorpus(Corpus):
    """A corpus of documents in files.

    Without `validation` files, documents are held out by a hash of their own text: a document is held out if its
    hash falls below `validation_fraction`. The choice does not depend on the order or the number of files, and equal
    documents land in the same split. The fraction is an expectation: a corpus of a few documents may hold out none. Then
    "validation" is empty and there is nothing to evaluate on; give `validation` files, or a larger fraction.

    Attributes:
      train: Paths, addresses (gs://, s3://, ...) or globs (`**` descends into folders); each file is read once, sorted within a
        glob.
      validation: Paths or globs of held-out files.
      validation_fraction: Share of documents held out of `train` when there are no `validation` files, 0 to 1.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    validation_fraction: float

    @abstractmethod
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        """Yield the documents of a file; raise UserError if it cannot be read."""

    @override
    def without_held_out(self) -> "FileCorpus":
        return dataclasses.replace(self, validation_fraction=0.0)  # type: ignore[type-var]  # subclasses are dataclasses

    @property
    @override
    def is_in_files(self) -> bool:
        return True

    def check_paths(self) -> None:
        """Convert single paths to tuples and validate the settings; raise UserError for invalid ones."""
        for field in ("train", "validation"):
            value = getattr(self, field)
            object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(value))
        if not self.train:
            raise UserError("no training text: give at least one file or glob")
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"validation_fraction is {self.validation_fraction}: it must be at least 0 and below 1")

    def files(self, split: str) -> list[InputFile]:
        """Return the files of a split in reading order; raise UserError for a path that matches none."""
        _check_split(split)
        train = find_files(self.train)
        if not self.validation:
            return train
        validation = find_files(self.validation)
        shared = set(map(identity, train)) & set(map(identity, validation))
        if shared:
            raise UserError(f"{min(shared)} is both training and validation text; remove it from one of them")
        return train if split == "train" else validation

    @override
    def texts(self, split: str) -> Iterator[list[str]]:
        files = self.files(split)
        is_empty = True
        readers = [partial(self.read, path) for path in files]
        for lines in chain.from_iterable(read_in_order(readers, ahead=any(map(is_address, files)))):
            is_empty = False
            if self._belongs(lines, split):
                yield lines
        if is_empty:
            raise UserError(f"{listed(files, 3)}: no documents, only blank lines or nothing")

    @override
    def parts(self, split: str) -> list[Part]:
        if split == "validation" and not self.validation and not self.validation_fraction:
            return []
        try:
            return [Part(str(path), size_of(path)) for path in self.files(split)]
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read: {error.strerror}") from error

    @override
    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        return (lines for lines in self.read(part.name) if self._belongs(lines, split))

    def file_settings(self) -> dict[str, Any]:
        """Return the part of `fingerprint` about files and held-out documents; raise UserError if a file cannot be read."""
        settings: dict[str, Any] = {} if self.validation else {"validation_fraction": self.validation_fraction}
        settings["train"] = file_fingerprints(self.files("train"))
        settings["validation"] = file_fingerprints(self.files("validation")) if self.validation else []
        self._check_copies(settings["train"], settings["validation"])
        return settings

    def _check_copies(self, train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> None:
        """Raise UserError if a held-out file has the bytes of a training file; the arguments are their fingerprints."""
        paths = {(file["sha256"], file["size"]): place for place, file in enumerate(train) if file["size"] and "sha256" in file}
        for place, file in enumerate(validation):
            if (copied := paths.get((file.get("sha256"), file["size"]))) is not None:
                copy, original = self.files("validation")[place], self.files("train")[copied]
                raise UserError(f"{copy} is a copy of {original}, and text is either training or validation text; remove one")

    def _belongs(self, lines: list[str], split: str) -> bool:
        """Return True if a document in the files of a split belongs to the split."""
        return bool(self.validation) or is_held_out(lines, self.validation_fraction) == (split == "validation")


def is_held_out(lines: list[str], fraction: float) -> bool:
    """Return True if a document is in the held-out `fraction`, by a hash of its text alone."""
    if not fraction:
        return False
    return _number(lines) < fraction * 2**64


def is_sampled(lines: list[str], share: float) -> bool:
    """Return True if a document is in a sample of a share of all, by a hash of its text that `is_held_out` does not use."""
    return share == 1 or _number(lines, b"sample") < share * 2**64


def _number(lines: list[str], purpose: bytes = b"") -> int:
    """Return a number in [0, 2^64) that depends on a document's text alone."""
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "big")


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, but must be one of {SPLITS}")

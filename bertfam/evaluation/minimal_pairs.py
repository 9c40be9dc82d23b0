"""Minimal pairs (BLiMP, Warstadt et al. 2020): accuracy at preferring the grammatical sentence of two similar ones."""

import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

import numpy as np

from bertfam.data.corpora.formats import replace_invalid
from bertfam.errors import UserError, printable

CHANCE = 0.5
TIE = 0.5  # what a pair of equal scores counts
_ENDING = ".jsonl"
_LONGEST_LINE = 1 << 20  # bytes
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, NotImplementedError,
    OSError,  # bzip2 data are damaged
    RuntimeError,  # the archive has a password
    OverflowError, ValueError,  # a position in the file is impossible
)  # fmt: skip
_SENTENCES = ("sentence_good", "sentence_bad")
_PHENOMENON = "linguistics_term"
# Sentences and where each is from, for messages -> their scores float64[sentences].
Score = Callable[[Sequence[str], Sequence[str]], np.ndarray]


class Pair(NamedTuple):
    """Pair of sentences, with its file and line, and the phenomenon that it is about, "" if its line names none."""

    good: str
    bad: str
    where: str
    phenomenon: str = ""


@dataclass(frozen=True)
class PairCounts:
    """Counts of the pairs in which the grammatical sentence was likelier.

    Attributes:
      pairs: number of pairs.
      better: pairs in which the grammatical sentence was likelier.
      ties: pairs with equal scores, for example because the vocabulary encodes both sentences alike.
    """

    pairs: int = 0
    better: int = 0
    ties: int = 0

    def __add__(self, more: "PairCounts") -> "PairCounts":
        return PairCounts(self.pairs + more.pairs, self.better + more.better, self.ties + more.ties)

    @property
    def accuracy(self) -> float:
        """Share of pairs with the grammatical sentence likelier; a tie counts half, so that only ties give chance."""
        return (self.better + self.ties / 2) / self.pairs

    def numbers(self) -> dict[str, float]:
        """Return the results as JSON values."""
        return {"accuracy": self.accuracy, "pairs": self.pairs, "ties": self.ties}


def read_pairs(path: Path, limit: int | None = None) -> dict[str, list[Pair]]:
    """Read all pairs by the names of their files, without .jsonl, in the order of these.

    Args:
      path: a file of JSON lines, or a folder or zip file of such files; other files in it are ignored.
      limit: number of pairs to read from the start of each file; None: all.

    Raises:
      UserError: there are none, or a line is malformed.
    """
    found = {}
    for name, lines in _files(path):
        pairs = list(islice(_pairs(f"{path}/{name}" if name else str(path), lines), limit))
        if not pairs:
            raise UserError(f"{path}/{name} has no line: give files with a pair of sentences a line")
        found[printable(PurePosixPath(name or path.name).with_suffix("").as_posix())] = pairs
    if not found:
        raise UserError(f"{path} holds no *{_ENDING}: give BLiMP's zip file, or a folder of its files")
    # Folders are part of the names only where they distinguish files.
    short = {name: name.rpartition("/")[2] for name in found}
    return {short[name]: pairs for name, pairs in found.items()} if len(set(short.values())) == len(short) else found


def by_phenomenon(files: Mapping[str, Sequence[Pair]], accuracies: Mapping[str, float]) -> dict[str, float]:
    """Return the mean accuracy of the files of each phenomenon, as the paper has it, in the order of the names.

    Args:
      files: pairs by file; a file is of the phenomenon of its first pair.
      accuracies: accuracy of each file.
    """
    grouped: dict[str, list[float]] = {}
    for name, pairs in files.items():
        if pairs[0].phenomenon:
            grouped.setdefault(pairs[0].phenomenon, []).append(accuracies[name])
    return {phenomenon: float(np.mean(grouped[phenomenon])) for phenomenon in sorted(grouped)}


def compare(pairs: Sequence[Pair], score: Score) -> PairCounts:
    """Score the sentences of all pairs and count.

    Raises:
      UserError: one cannot be scored.
    """
    values = outcomes(pairs, score)
    return PairCounts(len(pairs), int(np.sum(values == 1)), int(np.sum(values == TIE)))


def outcomes(pairs: Sequence[Pair], score: Score) -> np.ndarray:
    """Return 1 for each pair whose grammatical sentence is likelier, `TIE` for equal scores, else 0: float64[pairs].

    Raises:
      UserError: a sentence cannot be scored.
    """
    where = [pair.where for pair in pairs]
    scores = score([pair.good for pair in pairs] + [pair.bad for pair in pairs], where * 2)
    if not np.isfinite(scores).all():
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise UserError(f"{(where * 2)[first]}: the model gives a sentence the score {scores[first]}; check the training run")
    good, bad = scores[: len(pairs)], scores[len(pairs) :]
    return np.where(good == bad, TIE, (good > bad).astype(np.float64))


def _files(path: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield name and lines of each file; the name is empty if the path itself is the file."""
    if path.is_dir():
        for file in sorted(path.rglob(f"*{_ENDING}")):
            name = file.relative_to(path).as_posix()
            if _is_data(name) and file.is_file():
                yield name, _read_lines(file)
    elif path.suffix == _ENDING and path.is_file():
        yield "", _read_lines(path)
    elif path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                names = sorted(archive.namelist())
                if twice := next((name for name, after in pairwise(names) if name == after and _is_data(name)), None):
                    raise UserError(f"{path} has two files {twice}: leave one out")
                for name in names:
                    if _is_data(name):
                        with archive.open(name) as member:
                            yield name, _zip_lines(member, path, f"{path}/{name}")
        except _ZIP_ERRORS as error:
            raise _unreadable_zip(path, error) from None
    else:
        raise UserError(f"there is no {path}: give BLiMP's zip file, or a folder of its files")


def _is_data(name: str) -> bool:
    """Return True for data files, not for those that macOS adds."""
    return name.endswith(_ENDING) and not any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _read_lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from _lines(file, str(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def _zip_lines(member: IO[bytes], path: Path, name: str) -> Iterator[bytes]:
    try:
        yield from _lines(member, name)
    except _ZIP_ERRORS as error:
        raise _unreadable_zip(path, error) from None


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines of one file, one at a time, since a small archive may hold gigabytes."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise UserError(f"{name}:{number}: a line longer than {_LONGEST_LINE:,} bytes: each line must be a pair of sentences")
        yield line


def _unreadable_zip(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read as a zip file ({error}): give BLiMP's zip file, or a folder")


def _pairs(name: str, lines: Iterator[bytes]) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where} is no JSON in UTF-8 ({error}): each line must be a pair of sentences") from None
        sentences: list[Any] = [content.get(key) if isinstance(content, dict) else None for key in _SENTENCES]
        for key, sentence in zip(_SENTENCES, sentences, strict=True):
            if not (isinstance(sentence, str) and sentence.strip()):
                raise UserError(f'{where} has no text as "{key}": each line must have {" and ".join(_SENTENCES)}')
        good, bad = sentences
        phenomenon = content.get(_PHENOMENON)
        yield Pair(
            replace_invalid(good), replace_invalid(bad), where, printable(phenomenon) if isinstance(phenomenon, str) else ""
        )

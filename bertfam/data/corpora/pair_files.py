"""Files of inputs and targets: supervised text-to-text tasks (Raffel et al. 2020, section 2.4)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bertfam.data.corpora.formats import mended, read_objects, string_of
from bertfam.data.corpora.text_files import FileCorpus
from bertfam.data.corpora.text_lines import check_encoding, read_lines
from bertfam.errors import UserError

PairFormat = Literal["jsonl", "tsv"]


@dataclass(frozen=True)
class PairFiles(FileCorpus):
    """Pairs of strings in files, which may be gzipped or zstd-compressed:

        jsonl   a JSON object a line; `inputs` and `targets` name its fields
        tsv     columns with a tab between, and no quotation marks around; `inputs` and `targets` are columns, counted from 1, or
                their names in the first line

    Every pair is a document of its own. White space around inputs and targets does not count. A pair without targets teaches
    nothing and is left out of the token cache, which counts it; one without inputs stays.

    Attributes:
      train, validation, validation_fraction: see `FileCorpus`.
      input_format: "jsonl" or "tsv".
      inputs, targets: which field or column.
      prefix: what stands before each of the inputs, as "translate English to German: ".
      encoding: of the text, any codec of Python's.

    Raises:
      UserError: a setting is wrong (when made); a path or its content is (when read).
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: PairFormat = "jsonl"
    inputs: str | int = "inputs"
    targets: str | int = "targets"
    prefix: str = ""
    encoding: str = "utf-8"
    validation_fraction: float = 0.01

    def __post_init__(self) -> None:
        self.check_paths()
        check_encoding(self.encoding)
        if self.input_format not in get_args(PairFormat):
            raise UserError(f"PairFiles.input_format {self.input_format!r} is unknown: use {' or '.join(get_args(PairFormat))}")
        given = (self.inputs, self.targets)
        if self.inputs == self.targets:
            raise UserError(f"PairFiles.inputs and PairFiles.targets are both {self.inputs!r}: name two")
        if any(isinstance(name, int) for name in given) and (
            self.input_format != "tsv" or any(isinstance(n, str) for n in given)
        ):
            raise UserError(
                f"PairFiles.inputs {self.inputs!r} and PairFiles.targets {self.targets!r}: both are names, or both numbers of "
                "columns of tsv"
            )
        if any(isinstance(name, int) and name < 1 for name in given):
            raise UserError(f"PairFiles.inputs {self.inputs} and PairFiles.targets {self.targets}: columns are counted from 1")

    @property
    def pairs(self) -> bool:
        """See `Corpus.pairs`."""
        return True

    def read(self, path: Path) -> Iterator[list[str]]:
        """See `FileCorpus.read`: inputs and targets each."""
        found = self._read_jsonl(path) if self.input_format == "jsonl" else self._read_tsv(path)
        for inputs, targets in found:
            yield [mended(f"{self.prefix}{inputs.strip()}").strip(), mended(targets.strip())]

    def fingerprint(self) -> dict[str, Any]:
        """See `Corpus.fingerprint`: names, sizes and digests of the files, and all settings."""
        names = ("input_format", "inputs", "targets", "prefix")
        settings: dict[str, Any] = {"kind": "pair_files", **{name: getattr(self, name) for name in names}}
        return settings | {"encoding": check_encoding(self.encoding)} | self.file_settings()

    def _read_jsonl(self, path: Path) -> Iterator[tuple[str, str]]:
        fix = "name those of the pairs with PairFiles.inputs and PairFiles.targets"
        columns = "; for columns with a tab between set PairFiles.input_format = 'tsv'"
        for where, value in read_objects(path, self.encoding, columns):
            yield string_of(value, str(self.inputs), where, fix), string_of(value, str(self.targets), where, fix)

    def _read_tsv(self, path: Path) -> Iterator[tuple[str, str]]:
        columns = () if isinstance(self.inputs, str) else (self.inputs - 1, int(self.targets) - 1)
        for number, line in enumerate(read_lines(path, self.encoding, strip=False), 1):
            cells = line.split("\t")
            if not columns:
                columns = self._columns(cells, f"{path}:{number}")
            elif line.strip():
                if max(columns) >= len(cells):
                    raise UserError(
                        f"{path}:{number}: {len(cells)} columns with a tab between, and column {max(columns) + 1} is asked for: "
                        "mend the line, or name others with PairFiles.inputs and PairFiles.targets"
                    )
                yield cells[columns[0]], cells[columns[1]]

    def _columns(self, header: list[str], where: str) -> tuple[int, int]:
        names = [cell.strip() for cell in header]
        for name in (self.inputs, self.targets):
            if names.count(str(name)) != 1:
                raise UserError(
                    f"{where}: no column {name!r} but {', '.join(names[:5])}: name two of the first line with PairFiles.inputs "
                    "and PairFiles.targets, or where that is a pair too, set PairFiles.inputs = 1 and PairFiles.targets = 2"
                )
        return names.index(str(self.inputs)), names.index(str(self.targets))

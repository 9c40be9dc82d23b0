"""Files of inputs and targets: supervised text-to-text tasks (Raffel et al. 2020, section 2.4)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.formats import read_objects, replace_invalid, string_field
from bertfam.data.corpora.text_lines import check_encoding, read_lines
from bertfam.errors import UserError
from bertfam.plurals import listed

PairFormat = Literal["jsonl", "tsv"]


@dataclass(frozen=True)
class PairFiles(FileCorpus):
    """Pairs of strings in plain, gzipped or zstd-compressed files.

    The formats::

        jsonl   one JSON object per line; `inputs` and `targets` name its fields
        tsv     tab-separated columns without quotation marks; `inputs` and `targets` are columns, counted from 1, or their names
                in the first line

    Each pair is a document of its own. White space around inputs and targets is stripped. A pair without targets gives no loss:
    the token cache skips and counts it. A pair without inputs is kept.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: "jsonl" or "tsv".
      inputs, targets: The field or column.
      prefix: Text before each of the inputs, such as "translate English to German: ".
      encoding: Any codec of Python.

    Raises:
      UserError: If a setting is invalid (on construction), or a path or its content is (on reading).
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
            raise UserError(f"PairFiles.inputs and PairFiles.targets are both {self.inputs!r}; name two fields or columns")
        if any(isinstance(name, int) for name in given) and (
            self.input_format != "tsv" or any(isinstance(n, str) for n in given)
        ):
            raise UserError(
                f"PairFiles.inputs {self.inputs!r} and PairFiles.targets {self.targets!r} must both be names, or both be column "
                "numbers of a tsv file"
            )
        if any(isinstance(name, int) and name < 1 for name in given):
            raise UserError(f"PairFiles.inputs {self.inputs} and PairFiles.targets {self.targets}: columns are counted from 1")

    @property
    @override
    def pairs(self) -> bool:
        return True

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        pairs = self._read_jsonl(path) if self.input_format == "jsonl" else self._read_tsv(path)
        for inputs, targets in pairs:
            yield [replace_invalid(f"{self.prefix}{inputs.strip()}").strip(), replace_invalid(targets.strip())]

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("input_format", "inputs", "targets", "prefix")
        settings: dict[str, Any] = {"kind": "pair_files", **{name: getattr(self, name) for name in names}}
        return settings | {"encoding": check_encoding(self.encoding)} | self.file_settings()

    def _read_jsonl(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
        fix = "name the fields of the pairs with PairFiles.inputs and PairFiles.targets"
        columns = "; for tab-separated columns, set PairFiles.input_format = 'tsv'"
        for where, value in read_objects(path, self.encoding, columns):
            yield string_field(value, str(self.inputs), where, fix), string_field(value, str(self.targets), where, fix)

    def _read_tsv(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
        columns = () if isinstance(self.inputs, str) else (self.inputs - 1, int(self.targets) - 1)
        for number, line in enumerate(read_lines(path, self.encoding, strip=False), 1):
            cells = line.split("\t")
            if not columns:
                columns = self._columns(cells, f"{path}:{number}")
            elif line.strip():
                if max(columns) >= len(cells):
                    raise UserError(
                        f"{path}:{number}: {len(cells)} tab-separated columns, but column {max(columns) + 1} is required; "
                        "fix the line, or name other columns with PairFiles.inputs and PairFiles.targets"
                    )
                yield cells[columns[0]], cells[columns[1]]

    def _columns(self, header: list[str], where: str) -> tuple[int, int]:
        names = [cell.strip() for cell in header]
        for name in (self.inputs, self.targets):
            if names.count(str(name)) != 1:
                raise UserError(
                    f"{where}: no column {name!r} but {listed(names, 5)}; name two columns of the first line with "
                    "PairFiles.inputs and PairFiles.targets; if that line is a pair too, use column numbers "
                    "(PairFiles.inputs = 1, PairFiles.targets = 2)"
                )
        return names.index(str(self.inputs)), names.index(str(self.targets))

"""Files of sentences whose words have tags: named entities, parts of speech."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

from typing_extensions import override

from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.formats import ends_in, replace_invalid
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN, name_of
from bertfam.data.corpora.labelled.records import RecordFormat, field_of, read_records
from bertfam.data.corpora.text_lines import check_encoding, read_lines
from bertfam.errors import UserError
from bertfam.plurals import listed, plural
from bertfam.storage.untrusted import check_class_names

TagFormat = Literal["conll", "conllu", "jsonl", "parquet"]
_LISTS = ("tokens", "tags")
_COLUMNS: dict[TagFormat, tuple[str, str]] = {"conll": ("1", "2"), "conllu": ("2", "4"), "jsonl": _LISTS, "parquet": _LISTS}
_DOCUMENT = "-DOCSTART-"
_SPACES = " \t"  # other white space, such as U+00A0 in "10 000", belongs to a word
_RUNS_OF_SPACES = re.compile(" +")


@dataclass(frozen=True)
class TaggedFiles(FileCorpus):
    """Sentences with a tag for each word, in plain, gzipped or zstd-compressed files, or Parquet.

    The formats::

        conll    one word per line, in columns that tabs or spaces separate; a blank line ends a sentence, and lines that begin
                 with -DOCSTART- are left out
        conllu   the same of Universal Dependencies, with ten columns; comments and the lines of several words (1-2) are left out
        jsonl    one JSON object per line, with a list of words and a list of tags
        parquet  the same lists in the columns of each row

    Each sentence is a document of its own.

    Attributes:
      train, validation, validation_fraction: See `FileCorpus`.
      input_format: "conll", "conllu", "jsonl" or "parquet"; None: as the extension of each file says, "conll" for any other.
      words, tags: Columns, counted from 1, or fields of the words and of their tags; None: 1 and 2 where there
        are no more, 2 and 4 (parts of speech) in conllu, "tokens" and "tags" in jsonl and parquet.
      tagged: False if the words have no tags.
      classes: Names of the tags, in the order of the model's outputs.
      encoding: Any codec of Python.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...] = ()
    input_format: TagFormat | None = None
    words: str | None = None
    tags: str | None = None
    tagged: bool = True
    classes: tuple[str, ...] = ()
    encoding: str = "utf-8"
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_paths()
        check_encoding(self.encoding)
        if self.input_format not in (None, *get_args(TagFormat)):
            raise UserError(
                f"TaggedFiles.input_format is {self.input_format!r}: it must be one of {', '.join(get_args(TagFormat))}"
            )
        if self.words is not None and self.words == self.tags:
            raise UserError(f"the column {self.words!r} is named twice: words and tags are columns of their own")
        check_class_names("TaggedFiles", self.classes)

    @property
    @override
    def labels(self) -> int:
        return 1

    @property
    @override
    def labels_words(self) -> bool:
        return True

    def has_lists(self, path: str | os.PathLike[str]) -> bool:
        """Return True if a file has a list of the words of each sentence, and not a line for each word."""
        return _COLUMNS[self.input_format or _format_of(path)] == _LISTS

    def records(self, path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield the place, the words and the tags of each sentence; there are no tags if the words have none."""
        input_format = self.input_format or _format_of(path)
        words, tags = (given or own for given, own in zip((self.words, self.tags), _COLUMNS[input_format], strict=True))
        read = self._lists if self.has_lists(path) else self._sentences
        for where, found in read(path, words, tags):
            yield where, [replace_invalid(word) for word, _ in found], [tag for _, tag in found] if self.tagged else []

    def training_records(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield the `records` of all training files."""
        return chain.from_iterable(map(self.records, self.files("train")))

    @override
    def read(self, path: str | os.PathLike[str]) -> Iterator[list[str]]:
        indices = {name: str(index) for index, name in enumerate(self.classes)}
        for where, words, tags in self.records(path):
            self.check_tags(tags, where)
            yield [*words, " ".join(indices[tag] for tag in tags) or " ".join([UNKNOWN] * len(words))]

    def check_tags(self, tags: Sequence[str], where: str) -> None:
        """Raise UserError if one of the tags of a sentence is none of the classes."""
        if unknown := next((tag for tag in tags if tag not in self.classes), None):
            known = listed(self.classes, 10)
            raise UserError(
                f"{where}: a word of the sentence has the tag {unknown!r}, which is not among the training tags {known}; fix it, "
                "train on it, or name another column with --label"
            )

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("input_format", "words", "tags", "tagged")
        settings: dict[str, Any] = {"kind": "tagged_files", **{name: getattr(self, name) for name in names}}
        return settings | {"classes": list(self.classes), "encoding": check_encoding(self.encoding)} | self.file_settings()

    def _lists(self, path: str | os.PathLike[str], words: str, tags: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the place, and the words with their tags, of each record; the tags are "" if the words have none."""
        columns = {words: "--text"} | ({tags: "--label"} if self.tagged else {})
        input_format: RecordFormat = "parquet" if (self.input_format or _format_of(path)) == "parquet" else "jsonl"
        for where, record in read_records(path, input_format, self.encoding, columns=columns):
            lists = [field_of(record, words, where, "--text")]
            lists += [field_of(record, tags, where, "--label")] if self.tagged else []
            for name, value in zip((words, tags), lists, strict=False):
                if not isinstance(value, list) or not value:
                    raise UserError(f"{where}: the field {name!r} is no list, or an empty one; fix or drop the record")
            if not all(isinstance(word, str) and word.strip() for word in lists[0]):
                raise UserError(f"{where}: the field {words!r} has a word that is no string, or empty; fix or drop the record")
            if self.tagged and len(lists[0]) != len(lists[1]):
                counts = f"{plural(len(lists[0]), 'word')} and {plural(len(lists[1]), 'tag')}"
                raise UserError(f"{where}: {counts}; give each word a tag")
            names = [name_of(tag, where) for tag in lists[1]] if self.tagged else [""] * len(lists[0])
            yield where, [(word.strip(), tag) for word, tag in zip(lists[0], names, strict=True)]

    def _sentences(self, path: str | os.PathLike[str], words: str, tags: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Yield the place of the first line, and the words with their tags, of each sentence of a file with columns."""
        is_conllu = (self.input_format or _format_of(path)) == "conllu"
        places = [_place(name, flag) for name, flag in ((words, "--text"), (tags, "--label"))[: 1 + self.tagged]]
        sentence: list[tuple[str, str]] = []
        start = ""
        for number, whole in enumerate(read_lines(path, self.encoding, strip=False), 1):
            where, line = f"{path}:{number}", whole.strip(_SPACES)
            if not line.strip():
                if sentence:
                    yield start, sentence
                sentence = []
                continue
            cells = line.split("\t") if "\t" in line else _RUNS_OF_SPACES.split(line)
            if line.startswith(_DOCUMENT) or (is_conllu and (line.startswith("#") or not cells[0].isdecimal())):
                continue
            if max(places) >= len(cells):
                raise UserError(
                    f"{where}: {plural(len(cells), 'column')}, and column {max(places) + 1} is required; fix the line, or name "
                    "the columns of words and tags with --text and --label"
                )
            if self.tagged and self.tags is None and not is_conllu and len(cells) > 2:
                raise UserError(
                    f"{where}: {len(cells)} columns, and the tag may be in any: name its column with --label=N, of "
                    f"{listed((f'{place} ({cell})' for place, cell in enumerate(cells, 1)), 10)}"
                )
            values = [cells[place].strip() for place in places]
            start = start if sentence else where
            sentence.append((values[0] or "_", name_of(values[1], where) if self.tagged else ""))
        if sentence:
            yield start, sentence


def _format_of(path: str | os.PathLike[str]) -> TagFormat:
    formats: tuple[TagFormat, ...] = ("conllu", "jsonl", "parquet")
    return next((kind for kind in formats if ends_in(path, f".{kind}")), "conll")


def _place(name: str, flag: str) -> int:
    """Return the index of a column that is counted from 1."""
    if not name.isdecimal() or int(name) < 1:
        raise UserError(f"{flag}={name}: columns of files of words and tags are counted from 1: {flag}=1, say")
    return int(name) - 1

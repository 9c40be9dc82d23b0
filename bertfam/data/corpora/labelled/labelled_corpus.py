"""Base class of corpora of labelled texts, and the labels of their records."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.formats import replace_invalid
from bertfam.data.corpora.labelled.records import field_of, text_of
from bertfam.errors import UserError
from bertfam.plurals import listed, plural
from bertfam.storage.untrusted import check_class_names, name_fault

_IGNORED = "-100"  # index that torch.nn.CrossEntropyLoss ignores, and that transformers gives to a word's further pieces

LabelKind = Literal["class", "classes", "number"]
UNKNOWN = "nan"  # the label of a text that has none
Record = tuple[str, Mapping[str, Any]]  # its place, and its fields by name


class LabelledCorpus(Corpus):
    """Base class of corpora whose documents are records with texts and a label.

    Each record is a document of its own. White space around texts and labels is stripped.

    Attributes:
      text, text_pair: Columns of the text and of a second one; None: there is no second one. A name with braces joins columns:
        "{title}: {body}".
      label: Column of the label; None: the texts have no labels.
      kind: Kind of label: "class", one of `classes`; "classes", any number of them, separated by commas or in a list; "number", a
        number to predict.
      classes: Names of the classes, in the order of the model's outputs.
      skip_empty: True to leave out records without a text, which are refused otherwise.
      choices: Columns of the choices of which one is right, or the one field with a list of them; `text_pair` then stands before
        each choice.
    """

    text: str
    text_pair: str | None
    label: str | None
    kind: LabelKind
    classes: tuple[str, ...]
    skip_empty: bool
    choices: tuple[str, ...]

    @abstractmethod
    def training_records(self) -> Iterator[tuple[str, list[str], Any]]:
        """Yield the place, the texts and the label of all records that are not of a validation split; see `interpret`."""

    def check_columns(self) -> None:
        """Raise UserError for columns or classes that are named twice."""
        columns = [name for name in (self.text, self.text_pair, self.label) if name is not None]
        if any(f"{{{self.label}}}" in name for name in columns):
            raise UserError(f"the column {self.label!r} is named twice: a text with its label in it would give the label away")
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise UserError(f"the column {twice!r} is named twice: text, second text and label are columns of their own")
        if twice := next((name for name in self.classes if self.classes.count(name) > 1), None):
            raise UserError(f"{type(self).__name__}.classes has {twice!r} twice")
        check_class_names(type(self).__name__, self.classes)

    @property
    @override
    def labels(self) -> int:
        return len(self.classes) if self.kind == "classes" else 1

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the texts and the label, each with the flag that names it."""
        names = {self.text: "--text", self.text_pair: "--text_pair", self.label: "--label"}
        return {name: flag for name, flag in names.items() if name is not None} | dict.fromkeys(self.choices, "--choices")

    def interpret(self, records: Iterator[Record]) -> Iterator[tuple[str, list[str], Any]]:
        """Yield the place, the texts and the label, as it stands in the record, of each record; the label is None without one."""
        for where, record in records:
            texts = [text_of(record, self.text, where, "--text")]
            if self.text_pair is not None:
                texts.append(text_of(record, self.text_pair, where, "--text_pair"))
            if self.choices:
                texts = [texts[0], *(" ".join([*texts[1:], choice]) for choice in self._choice_texts(record, where))]
            label = None if self.label is None else field_of(record, self.label, where, "--label")
            if all(texts) or not self.skip_empty:
                yield where, texts, label

    def lines_of(self, records: Iterator[tuple[str, list[str], Any]]) -> Iterator[list[str]]:
        """Yield the document of each record that `interpret` yields; raise UserError for an empty text or another label."""
        for where, texts, label in records:
            if self.label is None:
                yield [*texts, " ".join([UNKNOWN] * self.labels)]
                continue
            if empty := self.empty_column(texts):
                raise UserError(f"{where}: the column {empty!r} is empty; drop such records, or leave them out by --skip_empty")
            yield [*texts, self.numbers(label, where)]

    def empty_column(self, texts: Sequence[str]) -> str | None:
        """Return the column of the first text of a record that is empty; None if there is none."""
        others = (self.text_pair,) if not self.choices else self.choices * (len(texts) if len(self.choices) == 1 else 1)
        return next((str(name) for name, text in zip((self.text, *others), texts, strict=False) if not text), None)

    def _choice_texts(self, record: Mapping[str, Any], where: str) -> list[str]:
        """Return the choices of a record; raise UserError if it has not as many as there are classes, where these are known."""
        if len(self.choices) > 1:
            return [text_of(record, name, where, "--choices") for name in self.choices]
        (name,) = self.choices
        values = field_of(record, name, where, "--choices")
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise UserError(f"{where}: the field {name!r} is no list of strings; name a column for each choice: --choices=a,b")
        if self.classes and len(values) != len(self.classes):
            raise UserError(f"{where}: {plural(len(values), 'choice')}, and others have {len(self.classes)}; drop the record")
        return [replace_invalid(value).strip() for value in values]

    def numbers(self, label: Any, where: str) -> str:
        """Return the numbers that stand for a label in the last line of a document (see `Corpus.labels`).

        Raises:
          UserError: If it is no number, or none of the classes.
        """
        if self.kind == "number":
            return repr(number_of(label, where))
        indices = {name: index for index, name in enumerate(self.classes)}
        names = names_of(label, where) if self.kind == "classes" else [name_of(label, where)]
        if unknown := next((name for name in names if name not in indices), None):
            known = listed(self.classes, 10)
            raise UserError(
                f"{where}: the label {unknown!r} is not among the training labels {known}; fix the record, or train on it"
            )
        if self.kind == "class":
            return str(indices[names[0]])
        return " ".join("1" if name in names else "0" for name in self.classes)


def name_of(label: Any, where: str) -> str:
    """Return the name of a class; raise UserError if a label is empty or no name."""
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, list):
        raise UserError(f"{where}: the label is the list {label}; texts with several labels need --multi_label")
    if isinstance(label, float):
        fix = "drop such records" if math.isnan(label) else "write classes as strings or whole numbers"
        raise UserError(f"{where}: the label {label} is no class; {fix}, or predict numbers with --regression")
    name = str(label).strip() if isinstance(label, str | int) else ""
    if fault := name_fault(name):
        raise UserError(f"{where}: the label {name!r} has {fault}; name the column of the labels with --label, or fix the record")
    if name == _IGNORED:
        raise UserError(
            f"{where}: the label {name} marks what has no label in PyTorch; drop such records, and of words give whole words "
            "with a tag each, not a tokenizer's pieces"
        )
    if not name:
        what = "the label is empty" if isinstance(label, str) else f"the label {label!r} is no string and no whole number"
        raise UserError(f"{where}: {what}; fix the record, or drop it")
    return name


def names_of(label: Any, where: str) -> list[str]:
    """Return the names of classes: those of a JSON list, or separated by commas; there may be none."""
    if isinstance(label, str):
        label = [part for part in label.split(",") if part.strip()]
    return [name_of(part, where) for part in (label if isinstance(label, list) else [label])]


def number_of(label: Any, where: str) -> float:
    """Return the number that a label is; raise UserError if it is none."""
    try:
        number = math.nan if isinstance(label, bool) else float(label)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < 1e30:  # float32 holds it
        raise UserError(f"{where}: the label {label!r} is no number; fix the record, or train on classes (without --regression)")
    return number

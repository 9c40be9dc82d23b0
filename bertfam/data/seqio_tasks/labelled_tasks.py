"""Labelled texts, and texts with targets, of a registered seqio task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.corpora.file_corpus import is_held_out
from bertfam.data.corpora.labelled.labelled_corpus import LabelKind, LabelledCorpus, Record
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.records import columns_of
from bertfam.data.corpora.labelled.target_corpus import TargetCorpus
from bertfam.data.corpora.labelled.target_files import TargetFiles
from bertfam.data.seqio_tasks.corpus import SeqioTask, described
from bertfam.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf

_PRETOKENIZED = "_pretokenized"  # suffix of the features that seqio.preprocessors.tokenize keeps


class TaskRecords(Corpus):
    """Base class of corpora whose documents are records of a seqio task, of which features are the columns.

    The task's preprocessors up to `seqio.CacheDatasetPlaceholder` are applied, or all. A column of text whose feature has tokens
    is read from the feature NAME_pretokenized. Without a validation split, records are held out by a hash.

    Attributes:
      task: The task, with `SeqioTask.pairs`: its elements are no running text.
    """

    task: SeqioTask

    @property
    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Columns that are read, each with the flag that names it."""

    @property
    def has_lists(self) -> bool:
        """True if a label may be a vector."""
        return False

    @abstractmethod
    def documents_of(self, records: Iterator[Record]) -> Iterator[list[str]]:
        """Yield the document of each record."""

    @abstractmethod
    def in_files(self, paths: tuple[str, ...]) -> LabelledFiles | TargetFiles:
        """Return files with the same columns."""

    @property
    @override
    def bare(self) -> Corpus:
        return self.task

    @override
    def without_held_out(self) -> TaskRecords:
        return replace(self, task=self.task.without_held_out())  # type: ignore[type-var]  # subclasses are dataclasses

    @override
    def texts(self, split: str) -> Iterator[list[str]]:
        return (lines for part in self.parts(split) for lines in self.part(split, part))

    @override
    def parts(self, split: str) -> list[Part]:
        return self.task.parts(split)

    @override
    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        by_hash = not self.task.has_validation
        for lines in self.documents_of(self._records("train" if by_hash else split, part)):
            if not by_hash or is_held_out(lines, self.task.validation_fraction) == (split == "validation"):
                yield lines

    def task_records(self) -> Iterator[Record]:
        """Yield the place, and the values by column, of each record of the train split."""
        return (record for part in self.parts("train") for record in self._records("train", part))

    def _records(self, split: str, part: Part) -> Iterator[Record]:
        for where, values in self.task.examples(split, part, self._features):
            try:
                yield where, {name: _plain(value) for name, value in values.items()}
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: not UTF-8; decode it in a preprocessor of the task") from error

    def _features(self, spec: dict[str, tf.TensorSpec]) -> dict[str, str]:
        """Return the feature of each column; raise UserError if there is none, or it has tokens or other arrays."""
        task = f"--task={self.task.name}"
        flags = {name: flag for given, flag in self.columns.items() for name in columns_of(spec, given, task, flag) or [given]}
        features = {}
        for name, flag in flags.items():
            ranks = (0, 1) if flag == "--label" and self.has_lists else (0,)
            known = ((one, rank) for rank in ranks for one in (name, f"{name}{_PRETOKENIZED}") if one in spec)
            usable = (one for one, rank in known if _is_readable(spec[one], rank, with_numbers=flag == "--label"))
            if (feature := next(usable, None)) is None:
                if name not in spec:
                    raise UserError(f"{task} yields {described(spec)}, but no {name!r}; name one of them with {flag}")
                raise UserError(
                    f"{task} yields {described(spec)}: {name!r} is no string; name one with {flag}, or put "
                    "seqio.CacheDatasetPlaceholder() before the preprocessor that tokenises it"
                )
            features[name] = feature
        return features


@dataclass(frozen=True)
class LabelledTask(LabelledCorpus, TaskRecords):
    """Labelled texts of a seqio task.

    Attributes:
      task: See `TaskRecords`.
      text, text_pair, label, kind, classes, skip_empty: See `LabelledCorpus`. Labels are strings, numbers or vectors of them.
    """

    task: SeqioTask
    text: str = "inputs"
    text_pair: str | None = None
    label: str | None = "targets"
    kind: LabelKind = "class"
    classes: tuple[str, ...] = ()
    skip_empty: bool = False
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_columns()

    @property
    @override
    def has_lists(self) -> bool:
        return self.kind == "classes"

    @override
    def training_records(self) -> Iterator[tuple[str, list[str], Any]]:
        return self.interpret(self.task_records())

    @override
    def documents_of(self, records: Iterator[Record]) -> Iterator[list[str]]:
        return self.lines_of(self.interpret(records))

    @override
    def in_files(self, paths: tuple[str, ...]) -> LabelledFiles:
        names = ("text", "text_pair", "label", "kind", "classes", "choices")
        return LabelledFiles(paths, **{name: getattr(self, name) for name in names})

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("text", "text_pair", "label", "skip_empty")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings |= {"kind": "labelled_task", "label_kind": self.kind, "classes": list(self.classes)}
        return settings | {"choices": list(self.choices), "task": self.task.fingerprint()}


@dataclass(frozen=True)
class TargetTask(TargetCorpus, TaskRecords):
    """Texts with targets of a seqio task.

    Attributes:
      task: See `TaskRecords`.
      text, target, joined, skip_empty: See `TargetCorpus`.
    """

    task: SeqioTask
    text: str = "inputs"
    target: str | None = "targets"
    joined: bool = False
    skip_empty: bool = False

    def __post_init__(self) -> None:
        self.check_columns()

    @override
    def documents_of(self, records: Iterator[Record]) -> Iterator[list[str]]:
        return self.lines_of(self.interpret(records))

    @override
    def in_files(self, paths: tuple[str, ...]) -> TargetFiles:
        return TargetFiles(paths, text=self.text, target=self.target, joined=self.joined)

    @override
    def fingerprint(self) -> dict[str, Any]:
        names = ("text", "target", "joined", "skip_empty")
        settings: dict[str, Any] = {"kind": "target_task", **{name: getattr(self, name) for name in names}}
        return settings | {"task": self.task.fingerprint()}


def _is_readable(spec: tf.TensorSpec, rank: int, *, with_numbers: bool) -> bool:
    """Return True for strings, and perhaps numbers, of a rank."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank != rank:
        return False
    is_number = spec.dtype.is_integer or spec.dtype.is_floating or spec.dtype.is_bool
    return bool(spec.dtype == tf.string or (with_numbers and is_number))


def _plain(value: Any) -> Any:
    """Return a NumPy value, or bytes, as a string, a number, a boolean or a list of them."""
    if isinstance(value, bytes):
        return value.decode()
    found = value.tolist()
    return [_plain(part) if isinstance(part, bytes) else part for part in found] if isinstance(found, list) else found

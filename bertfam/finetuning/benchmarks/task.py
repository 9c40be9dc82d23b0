"""Benchmark task: the layout of its published files, its metrics, and the files of predictions that its server accepts."""

import dataclasses
import fnmatch
import glob
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.input_files import find_files
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.corpora.labelled.records import columns_of, read_records
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.corpora.text_lines import ENDINGS
from bertfam.errors import UserError
from bertfam.finetuning.benchmarks.questions import Questions
from bertfam.plurals import listed
from bertfam.storage.streams import is_address

Layout = LabelledFiles | TaggedFiles | QuestionFiles


@dataclass(frozen=True)
class TestFile:
    """Published texts without labels, and the file of predictions for them.

    Attributes:
      submission: Name of the file of predictions, which the benchmark's server expects: "CoLA.tsv".
      layout: The texts; their path is relative to the folder of the data.
      labels: What stands for each class in the file; {}: its name.
    """

    __test__ = False  # no test of pytest

    submission: str
    layout: LabelledFiles
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchmarkTask:
    """Task of a benchmark, read from its published files.

    Attributes:
      name: Its name, SUITE/TASK.
      layouts: The files as they are published, in one way or several; paths are relative to the folder of the data, and may be
        globs. The first layout whose training files are there is read.
      metrics: The published scores, the most important first: names of `bertfam.finetuning.scores`.
      further: Further held-out files, by the name of their scores: names of which the first that is there is read.
      tests: Texts to predict for a submission.
      classes: The published names of the classes, in any order; of numbers, tags and answers none.
      questions: Questions that have several texts each; None: each text is scored alone.
    """

    name: str
    layouts: tuple[Layout, ...]
    metrics: tuple[str, ...]
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tests: tuple[TestFile, ...] = ()
    classes: tuple[str, ...] = ()
    questions: Questions | None = None

    @property
    def suite(self) -> str:
        """First part of its name."""
        return self.name.partition("/")[0]

    def locate(self, data_dir: str) -> "TaskFiles":
        """Find the files in a folder.

        A file NAME.tsv may be compressed (NAME.tsv.gz), and a part of it may be there in its place under a name such as
        NAME-9k.tsv.

        Raises:
          UserError: If training files are missing; all of them are named.
        """
        for layout in self.layouts:
            train = [_find(data_dir, name) for name in layout.train]
            if not all(train):
                continue
            validation = [_find(data_dir, name) for name in layout.validation]
            missing = [name for name, path in zip(layout.validation, validation, strict=True) if not path]
            own = dataclasses.replace(layout, train=tuple(train), validation=() if missing else tuple(validation))
            self._check_columns(own)
            found = {name: [path for one in names if (path := _find(data_dir, one))] for name, names in self.further.items()}
            further = {name: paths[0] for name, paths in found.items() if paths}
            return TaskFiles(self, own, further, missing)
        raise UserError(f"--data_dir={data_dir} lacks files of {self.name}: {self.missing(data_dir)}")

    def is_read_by(self, corpus: Corpus | None) -> bool:
        """Return True if a corpus reads the training files of one of the layouts, in any folder, and the same columns."""
        for layout in self.layouts:
            if not isinstance(corpus, type(layout)) or len(corpus.train) != len(layout.train):
                continue
            found: dict[str, Any] = {"train": layout.train, "validation": layout.validation}
            found |= {} if isinstance(layout, QuestionFiles) else {"classes": layout.classes}
            is_same = dataclasses.replace(corpus, **found) == layout
            if is_same and all(map(_is_named, corpus.train, layout.train)):
                return True
        return False

    def _check_columns(self, layout: Layout) -> None:
        """Raise UserError if the first training text has not the columns of the published files."""
        if not isinstance(layout, LabelledFiles):
            return
        path = layout.files("train")[0]
        options: dict[str, Any] = {"header": layout.header, "ragged": layout.ragged}
        for where, record in islice(read_records(path, layout.input_format, layout.encoding, **options), 1):
            names = [name for name in (layout.text, layout.text_pair, layout.label, *layout.choices) if name is not None]
            columns = [column for name in names for column in columns_of(record, name, where, "text") or [name]]
            if lacking := next((name for name in columns if name not in record), None):
                raise UserError(
                    f"{where}: no column {lacking!r} but {listed(record, 8)}, so this is not the published file of {self.name}; "
                    "take that file, or name yours: bertfam finetune --train=FILE --text=COLUMN --label=COLUMN"
                )

    def missing(self, data_dir: str) -> str:
        """Name the files that a folder lacks, of each layout; "" if the training files of one of them are there."""
        lacking = [[name for name in (*one.train, *one.validation) if not _find(data_dir, name)] for one in self.layouts]
        has_one = any(all(_find(data_dir, name) for name in layout.train) for layout in self.layouts)
        return "" if has_one else ", or ".join(" and ".join(names) for names in lacking)

    def locate_tests(self, data_dir: str) -> list[TestFile]:
        """Find the texts to predict; raise UserError, which names all missing files, if there are none."""
        if not self.tests:
            raise UserError(f"{self.name} has no file of predictions to submit; name texts with --input instead")
        paths = [[_find(data_dir, name) for name in test.layout.train] for test in self.tests]
        if not any(map(all, paths)):
            names = " and ".join(name for test in self.tests for name in test.layout.train)
            raise UserError(f"--data_dir={data_dir} lacks files of {self.name}: {names}")
        return [
            dataclasses.replace(test, layout=dataclasses.replace(test.layout, train=tuple(own)))
            for test, own in zip(self.tests, paths, strict=True)
            if all(own)
        ]


class TaskFiles(NamedTuple):
    """Files of a task, found in a folder.

    Attributes:
      task: The task.
      corpus: The training and the held-out texts; without held-out files a fixed tenth of the training texts is held out.
      further: Paths of further held-out files, by the name of their scores.
      missing: Held-out files that are not there.
    """

    task: BenchmarkTask
    corpus: Layout
    further: Mapping[str, str]
    missing: Sequence[str]

    @property
    def warnings(self) -> list[str]:
        """Warning of held-out files that are not there; [] if they are."""
        if not self.missing:
            return []
        names = " and ".join(self.missing)
        return [f"{self.task.name}: no {names}; scores are those of a fixed tenth of the training texts"]


def read_layout(layout: Layout) -> Iterator[Mapping[str, Any]]:
    """Yield the records of all training files of labelled texts."""
    assert isinstance(layout, LabelledFiles)
    for path in layout.files("train"):
        for _, record in read_records(path, layout.input_format, layout.encoding, header=layout.header, ragged=layout.ragged):
            yield record


def _find(data_dir: str, name: str) -> str:
    """Return the path or glob of a file of a task; "" if there is none."""
    root = data_dir if is_address(data_dir) else glob.escape(os.path.expanduser(data_dir))
    for candidate in _candidates(name):
        try:
            found = find_files((f"{root.rstrip('/')}/{candidate}",))
        except UserError:
            continue
        if found:
            return str(found[0]) if len(found) == 1 else f"{root.rstrip('/')}/{candidate}"
    return ""


def _is_named(path: str, name: str) -> bool:
    """Return True if a path or glob is that of a file of a task, in some folder."""
    return any(fnmatch.fnmatchcase(f"/{path}", f"*/{candidate}") for candidate in _candidates(name))


def _candidates(name: str) -> list[str]:
    """Return the names, some of them globs, under which a file of a task may be in its folder."""
    stem, extension = posixpath.splitext(name)
    return [f"{one}{ending}" for one in (name, f"{stem}-*{extension}") for ending in ENDINGS]

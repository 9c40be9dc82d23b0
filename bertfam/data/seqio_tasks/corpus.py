"""Corpus of a registered seqio task; seqio and TensorFlow are imported only when text is read."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from bertfam.data.corpora.corpus import SPLITS, Corpus, Part
from bertfam.data.corpora.file_corpus import is_held_out
from bertfam.data.corpora.formats import replace_invalid
from bertfam.data.corpora.input_files import file_fingerprints
from bertfam.data.corpora.sentences import check_language, split_sentences
from bertfam.errors import UserError
from bertfam.suggest import did_you_mean

if TYPE_CHECKING:
    import seqio
    import tensorflow as tf


@dataclass(frozen=True)
class SeqioTask(Corpus):
    """Documents of a task in seqio's registry, after the preprocessors up to `seqio.CacheDatasetPlaceholder`, or all.

    An element is a document: a string, or a dict with a string `text` (a line break ends a sentence, and each line is split
    into sentences) or a vector of strings `sentences` (used unchanged). Documents come in the source's order, unshuffled.
    Without a validation split, documents are held out by a hash of their text, as in `TextFiles`.

    With `pairs` an element is a dict with the strings `inputs` and `targets`, or, if these are tokens already, with
    `inputs_pretokenized` and `targets_pretokenized`, which `seqio.preprocessors.tokenize` keeps.

    Attributes:
      name: the task's name in the registry.
      modules: modules to import first, which register the task.
      language: language of the sentence splitter, see `bertfam.data.corpora.sentences.LANGUAGES`; by default the language of the
        task's source if it has one (as `tfds.PreparedTfds` does), else English.
      validation_fraction: share of documents held out if the task has no validation split.
      pairs: True if the elements are pairs of inputs and targets.

    Raises:
      UserError: if a setting is wrong (at construction); if the task is unknown or does not yield text (when it is read).
    """

    reads_seqio: ClassVar[bool] = True

    name: str
    modules: tuple[str, ...] = ()
    language: str | None = None
    validation_fraction: float = 0.01
    pairs: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.validation_fraction < 1:
            raise UserError(f"validation_fraction is {self.validation_fraction}: it must be at least 0 and below 1")
        if self.language is not None:
            check_language(self.language)

    def check_trusted(self) -> None:
        """Raise UserError if reading the text would import a module that only a model folder names."""
        from bertfam.config.imports import check_named

        check_named(self.modules)

    @override
    def without_held_out(self) -> SeqioTask:
        return replace(self, validation_fraction=0.0)

    @override
    def texts(self, split: str) -> Iterator[list[str]]:
        return (lines for part in self.parts(split) for lines in self.part(split, part))

    @override
    def parts(self, split: str) -> list[Part]:
        # The shards of the source, usually files.
        task = self._find()
        with self._refusal(split):
            # Without any shard, reading raises an error that names the reason.
            shards = max(1, len(task.source.list_shards(_source_split(task, split))))
        return [Part(f"{number}/{shards}") for number in range(shards)]

    @override
    def part(self, split: str, part: Part) -> Iterator[list[str]]:
        task = self._find()
        by_hash = "validation" not in task.splits
        for lines in self._read(_source_split(task, split), part):
            if lines and not (by_hash and is_held_out(lines, self.validation_fraction) != (split == "validation")):
                yield lines

    @override
    def sentences(self, lines: list[str]) -> list[str]:
        if not self._split_language:
            return lines
        return [sentence for line in lines for sentence in split_sentences(line, self._split_language)]

    @cached_property
    def _split_language(self) -> str:
        """Language of the sentence splitter; "" if the elements are `sentences` or pairs."""
        if self.pairs:
            return ""
        task = self._find()
        with self._refusal("train"):
            if self._text_feature(self._dataset(task, "train").element_spec) == "sentences":
                return ""
        return self._language(task)

    def _language(self, task: seqio.Task) -> str:
        return self.language or str(getattr(task.source, "language", "en"))

    def __getstate__(self) -> dict[str, Any]:
        # Computed before pickling, so that a process that only splits sentences imports no TensorFlow.
        return self.__dict__ | {"_split_language": self._split_language}

    @override
    def fingerprint(self) -> dict[str, Any]:
        # The source is described by the corpus' fingerprint (`CorpusSource`), by sizes and digests of files (a file-based source;
        # only sizes for files that are not local), by name and version (TFDS), by the function's name (`FunctionDataSource`), or
        # else by its class. Files that a function reads, and modules that the named modules import, are not covered.
        from importlib.metadata import version

        task = self._find()
        splits = [split for split in SPLITS if split in task.splits]
        settings: dict[str, Any] = {
            "kind": "seqio_task",
            "name": self.name,
            "modules": {module: _module_digest(module) for module in self.modules},
            "seqio": version("seqio"),
            "sentencex": version("sentencex"),
            "language": self._language(task),
            "splits": splits,
            "source": _source_fingerprint(task.source, splits),
        }
        settings |= {"pairs": True} if self.pairs else {}
        return settings if "validation" in splits else settings | {"validation_fraction": self.validation_fraction}

    @property
    def has_validation(self) -> bool:
        """True if the task has a validation split."""
        return "validation" in self._find().splits

    def examples(
        self, split: str, part: Part, select: Callable[[dict[str, tf.TensorSpec]], Mapping[str, str]]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the place, and NumPy values of some features by other names, of each example of a part of the source's split.

        Args:
          split: a split of the task.
          part: one of the `parts`.
          select: function of the specification of the features that returns the feature of each name.

        Raises:
          UserError: if the task yields no dicts of features, or cannot be read.
        """
        shard, shards = map(int, part.name.split("/"))
        shown = f" of shard {part.name}" if shards > 1 else ""
        number = 0
        with self._refusal(split, lambda: f" after example {number}{shown}"):
            dataset = self._checked_dataset(split, shard, shards)
            if not isinstance(dataset.element_spec, dict):
                raise UserError(
                    f"--task={self.name} yields no dicts of features, and labelled texts need two: inputs and targets"
                )
            names = select(dataset.element_spec)
            dataset = dataset.map(lambda element: {name: element[feature] for name, feature in names.items()})
            for number, values in enumerate(dataset.as_numpy_iterator(), 1):
                yield f"--task={self.name}: example {number} of {split}{shown}", values

    def _find(self) -> seqio.Task:
        """Return the task, after importing the modules."""
        self.check_trusted()
        fill_registry(self.modules)
        import seqio

        if self.name in seqio.MixtureRegistry.names():
            raise UserError(
                f"SeqioTask.name is {self.name!r}, which is a mixture: give --task={self.name}, which reads its tasks and rates, "
                "or bind TextData.corpus = @Mixture() of its tasks"
            )
        if self.name not in (known := set(seqio.TaskRegistry.names())):
            known |= set(seqio.MixtureRegistry.names())
            longer = " or ".join(sorted(name for name in known if name.startswith(f"{self.name}_"))[:3])
            fix = "give the module that registers it with --module_import=MODULE"
            hint = f"; did you mean {longer}?" if longer else did_you_mean(self.name, known, fix)
            raise UserError(f"--task={self.name} is no registered seqio task or mixture{hint}")
        task = seqio.TaskRegistry.get(self.name)
        if "train" not in task.splits:
            raise UserError(f"--task={self.name} has no train split, only {', '.join(task.splits)}")
        return task

    def _checked_dataset(self, split: str, shard: int, shards: int) -> tf.data.Dataset:
        dataset = self._dataset(self._find(), split, shard, shards)
        if not hasattr(dataset, "element_spec"):
            kind = type(dataset).__name__
            raise UserError(f"--task={self.name}: its source or a preprocessor returns a {kind}; return a tf.data.Dataset")
        return dataset

    def _dataset(self, task: seqio.Task, split: str, shard: int = 0, shards: int = 1) -> tf.data.Dataset:
        """Return the unshuffled elements of a shard, after all preprocessors or those before the placeholder."""
        import seqio

        shard_info = seqio.ShardInfo(shard, shards) if shards > 1 else None
        dataset = task.source.get_dataset(split=split, shuffle=False, shard_info=shard_info)
        if task.supports_caching:
            return task.preprocess_precache(dataset, seed=0)
        return task.preprocess_postcache(dataset, sequence_length=None, seed=0)

    def _read(self, split: str, part: Part) -> Iterator[list[str]]:
        """Yield stripped non-blank lines of each document."""
        shard, shards = map(int, part.name.split("/"))
        read = 0
        with self._refusal(split, lambda: f" after document {read}" + (f" of shard {part.name}" if shards > 1 else "")):
            dataset = self._checked_dataset(split, shard, shards)
            if self.pairs:
                names = self._pair_features(dataset.element_spec)
                for element in dataset.map(lambda element: tuple(element[name] for name in names)).as_numpy_iterator():
                    yield [replace_invalid(text.decode()).strip() for text in element]
                    read += 1
                return
            name = self._text_feature(dataset.element_spec)
            if name:
                dataset = dataset.map(lambda element: element[name])
            for value in dataset.as_numpy_iterator():
                lines = [line.decode() for line in value] if name == "sentences" else value.decode().split("\n")
                yield [line.strip() for line in lines if line.strip()]
                read += 1

    def _pair_features(self, spec: Any) -> tuple[str, str]:
        """Return the names of the features with the inputs and the targets."""
        import tensorflow as tf

        given = spec if isinstance(spec, dict) else {"": spec}
        for names in (("inputs", "targets"), ("inputs_pretokenized", "targets_pretokenized")):
            texts = [given.get(name) for name in names]
            if all(isinstance(text, tf.TensorSpec) and text.dtype == tf.string and text.shape.rank == 0 for text in texts):
                return names
        raise UserError(
            f"--task={self.name} yields {described(given)}: SeqioTask.pairs requires the strings `inputs` and `targets`; put "
            "seqio.CacheDatasetPlaceholder() before the preprocessor that tokenises them"
        )

    @contextlib.contextmanager
    def _refusal(self, split: str, where: Callable[[], str] = str) -> Iterator[None]:
        """Convert errors of reading a split to UserError."""
        import tensorflow as tf

        try:
            yield
        except (tf.errors.OpError, ValueError, OSError) as error:
            summary = next(iter(str(error).splitlines()), "")[:300]
            raise UserError(f"--task={self.name} cannot be read{where()} of {split}: {summary}") from error

    def _text_feature(self, spec: Any) -> str:
        """Return the name of the text feature, or "" if the elements are strings themselves."""
        import tensorflow as tf

        text = {"text": 0, "sentences": 1}
        if isinstance(spec, tf.TensorSpec):
            if spec.dtype == tf.string and spec.shape.rank == 0:
                return ""
            given = f"{spec.dtype.name} of rank {spec.shape.rank}"
        else:
            named = [name for name in text if name in spec]
            if len(named) == 1 and spec[named[0]].dtype == tf.string and spec[named[0]].shape.rank == text[named[0]]:
                return named[0]
            given = described(spec)
        raise UserError(
            f"--task={self.name} yields {given}, not one string `text` or a vector of strings `sentences`; put "
            "seqio.CacheDatasetPlaceholder() after the preprocessor that makes them; for pairs of inputs and targets set "
            "SeqioTask.pairs = True"
        )


def described(spec: Mapping[str, Any]) -> str:
    """Return the features of a task with their types, as messages name them."""
    return ", ".join(f"{name} ({value.dtype.name} of rank {value.shape.rank})" for name, value in sorted(spec.items()))


def fill_registry(modules: Sequence[str]) -> None:
    """Import TensorFlow (without accelerators), bertfam's own tasks, and modules that register more tasks."""
    from bertfam.config.imports import import_module
    from bertfam.config.parse import Import, Origin

    with _tensorflow_silenced():
        import tensorflow as tf

        with contextlib.suppress(RuntimeError):  # TensorFlow has been initialised already
            tf.config.set_visible_devices([], "GPU")  # JAX may hold the memory of the GPUs
    from bertfam.data.seqio_tasks import tasks  # noqa: F401  (registers bertfam's own)

    for module in modules:
        import_module(Import(module, Origin(f"--module_import={module}")))


@contextlib.contextmanager
def _tensorflow_silenced() -> Iterator[None]:
    """Suppress TensorFlow's start-up messages on stderr, which no setting disables."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def _module_digest(module: str) -> str:
    """Return the SHA-256 digest of a module's source file, or "" if it has none."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        return ""
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _source_fingerprint(source: seqio.DataSource, splits: list[str]) -> Any:
    import seqio
    import tensorflow as tf

    from bertfam.data.seqio_tasks.text_tasks import CorpusSource

    def of_files(paths: Sequence[str]) -> list[dict[str, Any]]:
        local = [Path(path) for path in paths]
        if all(path.exists() for path in local):
            return file_fingerprints(local)
        return [{"name": path, "size": tf.io.gfile.stat(path).length} for path in paths]

    described: dict[str, Any] = {"class": type(source).__name__}
    if isinstance(source, CorpusSource):
        described["corpus"] = source.corpus.fingerprint()
    elif isinstance(source, seqio.FileDataSource):
        described["files"] = {split: of_files(source.list_shards(split)) for split in splits}
    elif isinstance(source, seqio.TfdsDataSource | seqio.FunctionDataSource):
        described["described"] = str(source)
    return described


def _source_split(task: seqio.Task, split: str) -> str:
    """Return the source's split that contains the documents of a split."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}, but must be one of {SPLITS}")
    return split if split in task.splits else "train"

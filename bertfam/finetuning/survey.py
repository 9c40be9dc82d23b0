"""Survey of labelled files before training: the classes that occur, and the number of texts."""

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.file_corpus import FileCorpus
from bertfam.data.corpora.labelled.labelled_corpus import LabelledCorpus, name_of, names_of, number_of
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.open_questions import AnswerFiles
from bertfam.data.corpora.labelled.passage_files import PassageFiles
from bertfam.data.corpora.labelled.question_files import QuestionFiles
from bertfam.data.corpora.labelled.records import record_format
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.data.corpora.labelled.target_corpus import TargetCorpus
from bertfam.data.seqio_tasks.labelled_tasks import TaskRecords
from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.retrieval.bm25 import bm25_libraries

_MANY_TEXTS, _MANY_CLASSES = 50, 0.5
_MANY_WORDS = 60  # of a sentence
_SHOWN_EMPTY = 5
_NO_LABEL = "-1"
_MOST_COMPARED = 1_000_000  # texts whose labels are compared, of some 100 bytes each
# Heads by the kind of label.
_HEADS = {"class": "Classification", "classes": "MultiLabelClassification", "tags": "Tagging"}


@dataclass(frozen=True)
class Survey:
    """Contents of labelled files.

    Attributes:
      corpus: The files; of classes with those of the training texts, in order: whole numbers by value, names by their letters.
      texts: Number of training texts.
      head: Name of the class of the head that predicts the labels; None of targets, passages and answers, which need no head.
      head_values: Values of its fields.
      warnings: Warnings about the classes.
      questions: Of passages, the number of different training questions; 0 of other texts.
      has_hard_negatives: Of passages, True if a training question has hard negatives, or some that can be mined.
    """

    corpus: LabelledCorpus | TaggedFiles | QuestionFiles | PassageFiles | AnswerFiles | TargetCorpus
    texts: int
    head: str | None
    head_values: dict[str, Any]
    warnings: Sequence[str] = ()
    questions: int = 0
    has_hard_negatives: bool = False

    @property
    def choices(self) -> int:
        """Number of choices of a text; 0 if it has none."""
        return len(self.corpus.classes) if isinstance(self.corpus, LabelledCorpus) and self.corpus.choices else 0


def survey(corpus: LabelledCorpus | TaggedFiles | QuestionFiles | PassageFiles | AnswerFiles | TargetCorpus) -> Survey:
    """Read all files, so that every mistake in them is found before anything is written.

    Raises:
      UserError: If a file cannot be read, or has a text or a label that is not of the stated kind.
    """
    if isinstance(corpus, TargetCorpus | AnswerFiles):
        found = Survey(corpus, 0, None, {})
    elif isinstance(corpus, PassageFiles):
        found = _survey_passages(corpus)
    else:
        found = _survey_questions(corpus) if isinstance(corpus, QuestionFiles) else _survey_classes(corpus)
    # Hard negatives take long to mine, and change neither the number of texts nor their splits.
    read = found.corpus
    read = dataclasses.replace(read, hard_negatives=0) if isinstance(read, PassageFiles) else read
    texts, hashes, questions = 0, set[int](), set[str]()
    for lines in read.texts("train"):
        texts += 1
        if isinstance(read, PassageFiles):
            questions.add(lines[0])
        if len(hashes) < _MOST_COMPARED:
            hashes.add(_hash_of(lines))
    if not texts:
        raise UserError(f"{_source(corpus, 'train')}: all texts are held out; give --validation files, or more")
    warnings = [*found.warnings]
    if held_out := _source(corpus, "validation"):
        counts = Counter(_hash_of(lines) in hashes for lines in read.texts("validation"))
        if counts[True]:
            are = "is a training text" if counts[True] == 1 else "are training texts"
            warnings.append(
                f"{held_out}: {counts[True]:,} of the {plural(counts.total(), 'held-out text')} {are} too, so scores "
                "are better than those of new texts; remove such texts from one of the files"
            )
    return dataclasses.replace(found, texts=texts, warnings=warnings, questions=len(questions))


def _with_classes(corpus: LabelledCorpus | TaggedFiles, classes: tuple[str, ...]) -> LabelledCorpus | TaggedFiles:
    return dataclasses.replace(corpus, classes=classes)  # type: ignore[type-var]  # subclasses are dataclasses


def _source(corpus: Corpus, split: str) -> str:
    """Return the first files, or the task, of a split; "" if it has none of its own."""
    if isinstance(corpus, TaskRecords):
        return f"--task={corpus.task.name}" if split == "train" or corpus.task.has_validation else ""
    assert isinstance(corpus, FileCorpus)
    return ", ".join(map(str, corpus.files(split)[:3])) if split == "train" or corpus.validation else ""


def _hash_of(lines: Sequence[str]) -> int:
    """Return a hash of the texts or words of a document, whose last line is its label or target."""
    return hash(tuple(lines[:-1]))


def _survey_questions(corpus: QuestionFiles) -> Survey:
    training = [question for path in corpus.files("train") for question in corpus.questions(path)]
    if not training:
        raise UserError(f"{corpus.files('train')[0]}: no questions")
    return Survey(corpus, 0, "SpanExtraction", {"has_no_answer": any(question.is_impossible for question in training)})


def _survey_passages(corpus: PassageFiles) -> Survey:
    training = [question for path in corpus.files("train") for question in corpus.questions(path)]
    if not training:
        raise UserError(f"{corpus.files('train')[0]}: no questions with an answer")
    if corpus.hard_negatives and any(question.negatives is None for question in training):
        bm25_libraries()  # one is missing at once, or never
    passages = {passage for question in training for passage in question.positives}
    is_mined = any(question.negatives is None and len(passages) > len(set(question.positives)) for question in training)
    has_hard_negatives = corpus.hard_negatives > 0 and (is_mined or any(question.negatives for question in training))
    return Survey(corpus, 0, None, {}, has_hard_negatives=has_hard_negatives)


def _survey_classes(corpus: LabelledCorpus | TaggedFiles) -> Survey:
    counts, example, inspection, sizes = Counter[str](), "", _TextInspection(), dict[int, str]()
    most, sentences = 0, dict[str, list[int]]()  # classes of a text; words of each sentence, by file
    numbers: set[float] = set()  # one or two of the labels
    for where, texts, label in corpus.training_records():
        counts.update(names := _names(corpus, label, where))
        example, most = example or where, max(most, len(names))
        if isinstance(corpus, TaggedFiles):
            sentences.setdefault(where.rpartition(":")[0], []).append(len(names))
        if isinstance(corpus, LabelledCorpus):
            inspection.add(corpus, where, texts, label)
            if corpus.kind == "number" and len(numbers) < 2:
                numbers.add(number_of(label, where))
            if corpus.choices:
                sizes.setdefault(len(texts) - 1, where)
    inspection.check_empty()
    if not example:
        raise UserError(f"{_source(corpus, 'train')}: no records")
    warnings = inspection.warnings()
    if isinstance(corpus, LabelledCorpus) and corpus.choices:
        choices = _choice_names(counts, sizes, example)
        return Survey(_with_classes(corpus, choices), 0, "MultipleChoice", {"classes": choices}, warnings)
    if isinstance(corpus, LabelledCorpus) and corpus.kind == "number":
        if len(numbers) < 2:
            raise UserError(
                f"{example.rpartition(':')[0]}: all labels are {numbers.pop():g}; a regression needs at least two values"
            )
        return Survey(corpus, 0, "Regression", {}, warnings)
    kind = "tags" if isinstance(corpus, TaggedFiles) else corpus.kind
    if isinstance(corpus, TaggedFiles):
        if len(counts) < 2:
            raise UserError(f"{example.rpartition(':')[0]}: all tags are {next(iter(counts))!r}; a tagger needs at least two")
        warnings += [
            f"no blank line ends a sentence in {path}, so its {words[0]:,} words are one: put one after each sentence"
            for path, words in sentences.items()
            if len(words) == 1 and words[0] > _MANY_WORDS and not corpus.has_lists(path)
        ]
    elif kind == "class":
        _check_classes(counts, example)
        warnings += _class_warnings(counts, corpus, example)
    elif most < 2:
        warnings += _separator_warnings(counts, example)
    classes = tuple(sorted(counts, key=_by_value(counts)))
    return Survey(_with_classes(corpus, classes), 0, _HEADS[kind], {"classes": classes}, warnings)


def _choice_names(counts: Counter[str], sizes: Mapping[int, str], example: str) -> tuple[str, ...]:
    """Return the names of the choices: 0, 1, ..., or 1, 2, ..., or A, B, ..., as the labels have them.

    Args:
      counts: Number of texts of each label.
      sizes: Place of the first text with each number of choices.
      example: Place of the first record.
    """
    count, *others = sizes
    path = example.rpartition(":")[0]
    if others:
        raise UserError(f"{sizes[others[0]]}: {plural(others[0], 'choice')}, and {sizes[count]} has {count}; drop such records")
    if count < 2:
        raise UserError(f"{path}: one choice; name a column for each with --choices=a,b, or a field with a list of them")
    numbers = tuple(map(str, range(count + 1)))
    names = (numbers[:-1], numbers[1:], tuple(string.ascii_uppercase[:count]), tuple(string.ascii_lowercase[:count]))
    for kind in names:
        if counts.keys() <= set(kind):
            return kind
    most = max(names, key=lambda kind: len(counts.keys() & set(kind)))
    wrong = next(name for name in counts if name not in most)
    raise UserError(f"{path}: the label {wrong!r} is none of {count} choices, which are {', '.join(most)}")


@dataclass
class _TextInspection:
    """Texts of training files that are probably mistakes.

    Attributes:
      empty: Place and column of each empty text.
      quoted: Place of the first text in doubled quotation marks, as csv files have them; "" if there is none.
      labels: Hash of the label of each text, by that of the text; of the first million texts.
      disputed: Places of the texts that have another label than the same text before.
    """

    empty: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    quoted: str = ""
    labels: dict[int, int] = dataclasses.field(default_factory=dict)
    disputed: list[str] = dataclasses.field(default_factory=list)

    def add(self, corpus: LabelledCorpus, where: str, texts: Sequence[str], label: Any) -> None:
        """Inspect the texts of a record."""
        if column := corpus.empty_column(texts):
            self.empty.append((where, column))
        path = where.rpartition(":")[0]
        is_tsv = isinstance(corpus, LabelledFiles) and (corpus.input_format or record_format(path)) == "tsv"
        if is_tsv and not self.quoted and any(map(_is_quoted, texts)):
            self.quoted = where
        text, own = hash(tuple(texts)), hash(str(label).strip())
        if len(self.labels) < _MOST_COMPARED and self.labels.setdefault(text, own) != own:
            self.disputed.append(where)

    def check_empty(self) -> None:
        """Raise UserError that names the first empty texts."""
        if not self.empty:
            return
        (where, column), *others = self.empty
        places = [place for place, _ in others]
        also = f" (also at {', '.join(places[: _SHOWN_EMPTY - 1])}{', ...' * (len(places) >= _SHOWN_EMPTY)})" if places else ""
        raise UserError(f"{where}: the column {column!r} is empty{also}; drop such records, or leave them out by --skip_empty")

    def warnings(self) -> list[str]:
        """Return lines about quoted texts, and about texts with several labels."""
        lines = []
        if self.quoted:
            lines.append(
                f"{self.quoted}: the text is in quotation marks with doubled ones within, which a tsv file has as they stand; if "
                "pandas wrote the file, save it as csv, where they are removed"
            )
        if self.disputed:
            count = plural(len(self.disputed), "record")
            lines.append(
                f"{self.disputed[0]}: the same text has another label before; so it is with {count} of {len(self.labels):,} "
                "different texts: no model can learn both"
            )
        return lines


def _is_quoted(text: str) -> bool:
    inner = text[1:-1]
    return len(text) > 2 and text[0] == text[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def _names(corpus: LabelledCorpus | TaggedFiles, label: Any, where: str) -> list[str]:
    """Return the names of the classes of a label, none of a number; raise UserError if it is not of the stated kind."""
    if isinstance(corpus, TaggedFiles):
        return list(label)
    if corpus.kind == "number":
        number_of(label, where)
        return []
    if corpus.kind == "classes":
        return names_of(label, where)
    if isinstance(label, list):
        raise UserError(f"{where}: the label is a list; texts with several labels need --multi_label, tagged words --tagging")
    return [name_of(label, where)]


def _check_classes(counts: Counter[str], example: str) -> None:
    """Raise UserError if labels are numbers rather than classes, or of one class only."""
    fraction = next((name for name in counts if _is_fraction(name)), None)
    path = example.rpartition(":")[0]
    if missing := next((name for name in ("nan", "NaN") if name in counts), None):
        raise UserError(f"{path}: {plural(counts[missing], 'label')} {missing!r}, which stands for no label; drop such records")
    for name in counts:
        whole = re.fullmatch(r"([+-]?\d+)\.0*", name)
        if whole and whole[1] in counts:
            raise UserError(
                f"{path}: the labels {whole[1]!r} and {name!r} are one number, and would be two classes; write one of them"
            )
    if fraction is not None:
        raise UserError(f"{path}: the label {fraction!r} is a number with a fraction: predict it with --regression")
    if len(counts) < 2:
        raise UserError(f"{path}: all labels are {next(iter(counts))!r}; a classifier needs at least two classes")
    if len(counts) > max(_MANY_TEXTS, _MANY_CLASSES * sum(counts.values())):
        raise UserError(
            f"{path}: the {sum(counts.values()):,} labels have {len(counts):,} different values, such as {min(counts)!r}; name "
            "the column of the classes with --label, or predict numbers with --regression"
        )


def _class_warnings(counts: Counter[str], corpus: LabelledCorpus, example: str) -> list[str]:
    """Return warnings about classes that are probably none, one line each.

    Args:
      counts: Number of texts of each class, in the order in which the classes occur.
      corpus: The files.
      example: Place of the first record.
    """
    lines, spellings = list[str](), dict[str, str]()
    for name in counts:
        if (other := spellings.setdefault(name.casefold(), name)) != name:
            lines.append(f"the classes {other!r} and {name!r} differ in capital letters only; write one of them if they are one")
    if _NO_LABEL in counts and all(name.isdecimal() for name in counts if name != _NO_LABEL):
        lines.append(
            f"{plural(counts[_NO_LABEL], 'text')} of the class {_NO_LABEL}, by which data sets mark texts without a label: drop "
            "them if that is meant"
        )
    first = next(iter(counts))
    has_no_header = isinstance(corpus, LabelledFiles) and not corpus.header
    if has_no_header and counts[first] == 1 and min(counts[name] for name in counts if name != first) > 1:
        lines.append(
            f"{example}: only the first line has the label {first!r}; if it is a header, leave --no_header out, and name the "
            "columns as it does"
        )
    return lines


def _separator_warnings(counts: Counter[str], example: str) -> list[str]:
    """Return a warning of names that are probably several, where no text has more than one; [] if there are none."""
    joined = [name for name in counts if len(re.findall(r"[^;|,]+", name)) > 1]
    if not joined:
        return []
    return [
        f"{example.rpartition(':')[0]}: no text has two classes, and {plural(len(joined), 'name')} such as {joined[0]!r} may be "
        "several: separate the classes of a text by commas, or write them in a JSON list"
    ]


def _is_fraction(name: str) -> bool:
    return bool(re.fullmatch(r"[+-]?\d*\.\d+(e[+-]?\d+)?", name, re.IGNORECASE)) and not float(name).is_integer()


def _by_value(names: Counter[str]) -> Any:
    """Return the sort key of classes: their value where all are whole numbers, else their letters."""
    return int if all(re.fullmatch(r"-?\d+", name) for name in names) else str

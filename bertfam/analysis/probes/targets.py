"""Sentences with labelled words, spans and pairs of spans, read from files: the targets of probes."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertfam.analysis.dependencies import read_sentences
from bertfam.data.corpora.file_corpus import is_held_out
from bertfam.data.corpora.formats import replace_invalid
from bertfam.data.corpora.labelled.records import read_records
from bertfam.data.corpora.labelled.tagged_files import TaggedFiles
from bertfam.errors import UserError
from bertfam.plurals import plural

Span = tuple[int, int]  # first word, and the one after the last
_HELD_OUT = 0.1  # share of the sentences without a file of held-out ones


class Target(NamedTuple):
    """Span, or pair of spans, and its label."""

    spans: tuple[Span, ...]
    label: str


class TargetSentence(NamedTuple):
    """Words of a sentence, and the targets in it."""

    words: list[str]
    targets: list[Target]


class Columns(NamedTuple):
    """Columns of words and tags, see `TaggedFiles`."""

    words: str | None = None
    tags: str | None = None


Reader = Callable[[str | os.PathLike[str], Columns], Iterator[TargetSentence]]


def read_targets(name: str, path: str, columns: Columns, limit: int | None = None) -> list[TargetSentence]:
    """Read the first sentences that have targets, of a task among `READERS`.

    Args:
      name: the task.
      path: the file.
      columns: columns of tagged files.
      limit: the number of sentences; None: all.

    Raises:
      UserError: the file has a mistake, or no targets.
    """
    found: list[TargetSentence] = []
    for sentence in READERS[name](path, columns):
        if len(found) == limit:
            break
        if sentence.targets:
            found.append(sentence)
    if not found:
        raise UserError(f"{path} has no {name}: name another file with --{name}")
    return found


def split_targets(name: str, sentences: Sequence[TargetSentence]) -> tuple[list[TargetSentence], list[TargetSentence]]:
    """Divide sentences into those to train on and a tenth that is held out, by a hash of their words.

    Raises:
      UserError: one of the two has none.
    """
    held_out = [is_held_out(sentence.words, _HELD_OUT) for sentence in sentences]
    pairs = list(zip(sentences, held_out, strict=True))
    train, others = ([sentence for sentence, is_out in pairs if is_out is part] for part in (False, True))
    if not train or not others:
        raise UserError(f"too few sentences to hold a tenth of them out: give --{name}_held_out=FILE")
    return train, others


def _read_tags(path: str | os.PathLike[str], columns: Columns) -> Iterator[TargetSentence]:
    """Yield sentences with a tag for each word."""
    for _, words, tags in _tagged(path, columns):
        yield TargetSentence(words, [Target(((place, place + 1),), tag) for place, tag in enumerate(tags)])


def _read_entities(path: str | os.PathLike[str], columns: Columns) -> Iterator[TargetSentence]:
    """Yield sentences with the kinds of their entities, of tags such as B-PER, I-PER and O."""
    try:
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError as error:
        raise UserError("--entities needs seqeval: pip install 'bertfam[finetune]'") from error
    for where, words, tags in _tagged(path, columns):
        if wrong := next((tag for tag in tags if tag != "O" and not (tag[:2] in ("B-", "I-") and tag[2:])), None):
            raise UserError(f"{where}: a word of the sentence has the tag {wrong!r}; entities have O, B-KIND and I-KIND")
        entities = get_entities(list(tags))
        yield TargetSentence(words, [Target(((first, last + 1),), kind) for kind, first, last in entities])


def _tagged(path: str | os.PathLike[str], columns: Columns) -> Iterator[tuple[str, list[str], list[str]]]:
    corpus = TaggedFiles((os.fspath(path),), words=columns.words, tags=columns.tags, validation_fraction=0.0)
    return corpus.records(path)


def _read_relations(path: str | os.PathLike[str], _: Columns) -> Iterator[TargetSentence]:
    """Yield sentences with the relation of each word to its syntactic head, of CoNLL-U; the root has none."""
    for words, heads, relations in read_sentences(path):
        pairs = zip(heads.tolist(), relations, strict=True)
        yield TargetSentence(
            words, [Target(((word, word + 1), (head, head + 1)), name) for word, (head, name) in enumerate(pairs) if head >= 0]
        )


def _read_edges(path: str | os.PathLike[str], _: Columns) -> Iterator[TargetSentence]:
    """Yield the sentences of JSON lines in the form of Tenney et al. (2019a)."""
    counts: set[int] = set()
    for where, record in read_records(path, "jsonl", "utf-8"):
        text, targets = record.get("text"), record.get("targets")
        if not isinstance(text, str) or not isinstance(targets, list):
            raise UserError(f"{where}: the object must have a text, and a list of targets with span1, span2 and label")
        words = replace_invalid(text).split()
        found = [_edge(target, len(words), where) for target in targets]
        counts |= {len(target.spans) for target in found}
        if len(counts) > 1:
            raise UserError(f"{where}: some targets have span2 and others have not; put them into files of their own")
        yield TargetSentence(words, found)


def _edge(target: Any, count: int, where: str) -> Target:
    """Return a target of JSON, in a sentence of `count` words."""
    if not isinstance(target, Mapping) or not isinstance(target.get("label"), str):
        raise UserError(f"{where}: a target must be an object with span1 and a label that is one string")
    spans: list[Span] = []
    for name in ("span1", "span2"):
        span: Any = target.get(name)
        if span is None and name == "span2":
            continue
        is_pair = isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)
        if not (is_pair and 0 <= span[0] < span[1] <= count):
            raise UserError(
                f"{where}: {name} is {str(span)[:40]}, and must be [FIRST, END] within the {plural(count, 'word')} of the text"
            )
        spans.append((span[0], span[1]))
    return Target(tuple(spans), replace_invalid(target["label"]))


# Name of a task, and of the flag of its file -> its reader.
READERS: dict[str, Reader] = {
    "tags": _read_tags,
    "relations": _read_relations,
    "entities": _read_entities,
    "edges": _read_edges,
}

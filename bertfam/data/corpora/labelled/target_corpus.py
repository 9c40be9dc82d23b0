"""Base class of corpora of texts with target texts."""

from abc import ABC
from collections.abc import Iterator, Mapping

from typing_extensions import override

from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.labelled.labelled_corpus import Record
from bertfam.data.corpora.labelled.records import columns_of, fill, text_of
from bertfam.errors import UserError


class TargetCorpus(Corpus, ABC):
    """Base class of corpora whose documents are records with a text and a target text.

    Each record is a pair of its own. White space around texts and targets is stripped.

    Attributes:
      text: Column of the text. A name with braces adds to it, or joins columns: "summarize: {article}".
      target: Column of the target; None: the texts have no targets.
      joined: True if a target continues its text, as in a causal LM.
      skip_empty: Leave out records with an empty text or target.
    """

    text: str
    target: str | None
    joined: bool
    skip_empty: bool

    def check_columns(self) -> None:
        """Raise UserError for a column that is named twice."""
        if self.text == self.target:
            raise UserError(f"the column {self.text!r} is named twice: text and target are columns of their own")

    @property
    @override
    def pairs(self) -> bool:
        return True

    @property
    @override
    def joins_pairs(self) -> bool:
        return self.joined

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the text and the target, each with the flag that names it."""
        return {self.text: "--text"} | ({} if self.target is None else {self.target: "--target"})

    def filled(self, text: str | Mapping[str, str]) -> str:
        """Return a text, or texts by column, as the model reads it: in the place of the columns of `text`.

        Raises:
          UserError: If the columns are others.
        """
        columns = columns_of((), self.text, "texts", "--text") or [self.text]
        texts = {columns[0]: text} if isinstance(text, str) else text
        if texts.keys() != set(columns):
            raise UserError(f"the model reads the columns {', '.join(columns)}: give a text of each, {{{columns[0]!r}: ...}}")
        return fill(texts, self.text) if columns != [self.text] else texts[self.text]

    def interpret(self, records: Iterator[Record]) -> Iterator[tuple[str, str, str | None]]:
        """Yield the place, the text and the target of each record; the target is None without one.

        Raises:
          UserError: If a text or a target is missing, or no string, or is empty and not to be left out.
        """
        target = {} if self.target is None else {self.target: "--target"}
        for where, record in records:
            columns = dict.fromkeys(columns_of(record, self.text, where, "--text") or [self.text], "--text") | target
            values = {name: text_of(record, name, where, flag) for name, flag in columns.items()}
            if empty := next((name for name, value in values.items() if not value), None):
                if self.skip_empty:
                    continue
                raise UserError(f"{where}: the column {empty!r} is empty; drop such records, or leave them out by --skip_empty")
            text = values[self.text] if self.text in values else fill(values, self.text)
            yield where, text, None if self.target is None else values[self.target]

    def lines_of(self, records: Iterator[tuple[str, str, str | None]]) -> Iterator[list[str]]:
        """Yield the document of each record that `interpret` yields."""
        return ([text, target or ""] for _, text, target in records)

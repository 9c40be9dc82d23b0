"""Word counts of a corpus, or of a sample of its documents, counted here or by Apache Beam with the same result."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.data.corpora.corpus import Corpus, Part
from bertfam.data.corpora.file_corpus import is_sampled
from bertfam.data.parallel import beam
from bertfam.data.vocabularies.learners import Learner

_WORDS = "words.json"


@dataclass(frozen=True)
class CorpusCounts:
    """Words, documents and characters of a text.

    Attributes:
      words: the number of occurrences of each word, as a `Learner` counts them.
      documents: number of documents.
      characters: number of characters.
    """

    words: Counter[str]
    documents: int
    characters: int


class CorpusCounter:
    """Counter of the words of a corpus, which can be pickled."""

    def __init__(self, corpus: Corpus, learner: Learner, share: float = 1.0) -> None:
        """Create a counter of a share of the training documents, which are drawn by their text."""
        self.corpus, self._share = corpus, share
        self._count, self._joint = learner.count, learner.joint

    def count(self, texts: Iterable[list[str]]) -> CorpusCounts:
        """Count the words of documents, given as `Corpus.texts` yields them."""
        documents = characters = 0

        def sentences() -> Iterator[str]:
            nonlocal documents, characters
            for lines in texts:
                if not is_sampled(lines, self._share) or not (document := self.corpus.sentences(lines)):
                    continue
                documents += 1
                characters += sum(map(len, document))
                yield from document[:1]
                yield from (self._joint + sentence for sentence in document[1:])

        words = self._count(sentences())
        return CorpusCounts(words, documents, characters)

    def __call__(self, folder: Path, part: Part) -> dict[str, Any]:
        """Count the words of a part of the training text and write them into a folder."""
        counts = self.count(self.corpus.part("train", part))
        (folder / _WORDS).write_text(json.dumps(counts.words), encoding="utf-8")
        return {"documents": counts.documents, "characters": counts.characters}

    def count_with_beam(self, folder: Path, options: Sequence[str]) -> CorpusCounts:
        """Count the words of the training text in a Beam pipeline, whose workers write into `folder`."""
        parts = {f"{number:06}": part for number, part in enumerate(self.corpus.parts("train"))}
        beam.write_parts(self, parts, folder, options)
        words: Counter[str] = Counter()
        documents = characters = 0
        for name in parts:
            counts = beam.read_part(folder / name)
            words.update(json.loads((folder / name / _WORDS).read_text(encoding="utf-8")))
            documents, characters = documents + counts["documents"], characters + counts["characters"]
        if not documents:
            next(self.corpus.texts("train"), None)  # raises the corpus' own error if there is no text at all
        return CorpusCounts(words, documents, characters)

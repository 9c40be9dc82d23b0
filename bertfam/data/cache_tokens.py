"""Documents to tokens, as flat arrays: what every process that builds a token cache does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bertfam.data.sources import Corpus, Part
from bertfam.data.vocabularies import Vocabulary

_BATCH_CHARACTERS = 1_000_000
_CHARACTERS_AT_ONCE = 1_000_000  # a tokenizer's own objects take many times the memory of their text


@dataclass(frozen=True)
class Batch:
    """Documents that are tokenised together, and where reading stands behind them.

    Attributes:
      texts: as `Corpus.texts` gives them.
      part: the part of the split that is being read.
      read: how many documents of it have been read.
      characters: how many characters of the split have been read.
    """

    texts: list[list[str]]
    part: int
    read: int
    characters: int


@dataclass(frozen=True)
class Block:
    """Tokenised documents.

    Attributes:
      tokens: uint[tokens].
      sentences: int64[sentences], the tokens of each, at least one.
      documents: int64[documents], the sentences of each, at least one.
      skipped: how many documents had no token at all.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    skipped: int


def batches(
    corpus: Corpus, split: str, parts: Sequence[Part], first: int = 0, read: int = 0, characters: int = 0
) -> Iterator[Batch]:
    """Documents in batches of about a million characters, from document `read` of part `first` on.

    `characters` have been read before.
    """
    texts: list[list[str]] = []
    size = 0
    for number in range(first, len(parts)):
        skipped = read if number == first else 0
        for index, lines in enumerate(islice(corpus.part(split, parts[number]), skipped, None), skipped + 1):
            texts.append(lines)
            size += sum(map(len, lines))
            if size >= _BATCH_CHARACTERS:
                characters += size
                yield Batch(texts, number, index, characters)
                texts, size = [], 0
    if texts:
        yield Batch(texts, len(parts), 0, characters + size)


def token_dtype(vocabulary: Vocabulary) -> str:
    """The smallest type that holds every id."""
    return "uint16" if vocabulary.size <= 2**16 else "uint32"


def tokenise(corpus: Corpus, vocabulary: Vocabulary, texts: Sequence[list[str]]) -> Block:
    """Tokens of documents as `Corpus.texts` gives them.

    A line that becomes no token at all is no sentence, and a document of such lines is none.
    """
    documents = [_sentences(corpus, lines) for lines in texts]
    joint = vocabulary.joint
    sentences = [joint + sentence if index else sentence for document in documents for index, sentence in enumerate(document)]
    dtype = token_dtype(vocabulary)
    tokens, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
    for some in _slices(sentences):
        encoded = vocabulary.encode_batch(some)
        tokens.append(np.concatenate(encoded).astype(dtype))
        lengths.append(np.array([len(ids) for ids in encoded], np.int64))
    length = np.concatenate(lengths)
    document = np.repeat(np.arange(len(documents)), [len(found) for found in documents])
    count = np.bincount(document[length > 0], minlength=len(documents))
    return Block(np.concatenate(tokens), length[length > 0], count[count > 0], int((count == 0).sum()))


def _sentences(corpus: Corpus, lines: list[str]) -> list[str]:
    try:
        return corpus.sentences(lines)
    except BaseException as fault:  # a panic in a library written in Rust is no Exception
        fault.add_note(f"in the document that begins with {lines[0][:60]!r}")
        raise


def _slices(sentences: list[str]) -> Iterator[list[str]]:
    begin, size = 0, 0
    for end, sentence in enumerate(sentences, 1):
        size += len(sentence)
        if size >= _CHARACTERS_AT_ONCE or end == len(sentences):
            yield sentences[begin:end]
            begin, size = end, 0

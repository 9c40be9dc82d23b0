"""Tokenisation of documents into flat arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress

import numpy as np

from bertfam.corruption.masked_lm.units import BEGINS, CONTINUES, KINDS, UNIT_BITS
from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import Corpus, Span
from bertfam.data.vocabularies import Vocabulary

_CHARACTERS_AT_ONCE = 1_000_000  # the objects of a tokenizer take many times the memory of their text


@dataclass(frozen=True)
class Block:
    """Tokenised documents.

    Attributes:
      tokens: uint[tokens].
      sentences: int64[sentences], the number of tokens of each: at least one, except for the inputs of a pair and labelled texts.
      documents: int64[documents], the number of sentences of each: at least one.
      skipped: number of documents without any token, or of pairs without a token in their targets.
      words: number of words, separated by white space, in the other documents.
      bytes: length in UTF-8 of the other documents, each as its sentences joined by spaces.
      units: uint8[tokens], the marks of `Documents.units`; None if the corpus has none.
      labels: float32[documents * labels], the labels of each document, or float32[sentences], those of each word; None if the
        corpus has none.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    skipped: int
    words: int = 0
    bytes: int = 0
    units: np.ndarray | None = None
    labels: np.ndarray | None = None


def token_dtype(vocabulary: Vocabulary) -> str:
    """Return the smallest dtype that holds every id."""
    return "uint16" if vocabulary.size <= 2**16 else "uint32"


class Tokeniser:
    """Tokenisation of documents of a corpus, which is pickled with the name of the vocabulary's folder."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, folder: str) -> None:
        """Create the function for the vocabulary that is stored in `folder`."""
        self.corpus, self.vocabulary, self._folder = corpus, vocabulary, folder

    def __call__(self, texts: Sequence[list[str]]) -> Block:
        """Return the tokens of documents."""
        return tokenise(self.corpus, self.vocabulary, texts)

    def __reduce__(self) -> tuple[Callable[..., "Tokeniser"], tuple[Corpus, str]]:
        return _load_tokeniser, (self.corpus, self._folder)


def _load_tokeniser(corpus: Corpus, folder: str) -> Tokeniser:
    return Tokeniser(corpus, _vocabulary(folder), folder)


@lru_cache(maxsize=1)
def _vocabulary(folder: str) -> Vocabulary:
    return vocabularies.load(folder)


def tokenise(corpus: Corpus, vocabulary: Vocabulary, texts: Sequence[list[str]]) -> Block:
    """Tokenise documents, as `Corpus.texts` yields them.

    A line without any token does not count as a sentence, and a document without any token is skipped.
    """
    if corpus.units:
        return tokenise_marked(corpus, vocabulary, texts)
    if corpus.pairs:
        return tokenise_pairs(vocabulary, texts, joined=corpus.joins_pairs)
    if corpus.labels_spans:
        return tokenise_spans(vocabulary, texts)[0]
    if corpus.labels:
        return tokenise_labelled(vocabulary, texts, words=corpus.labels_words)
    documents = [_sentences(corpus.sentences, lines) for lines in texts]
    joint = vocabulary.joint
    sentences = [joint + sentence if index else sentence for document in documents for index, sentence in enumerate(document)]
    return _block(documents, *_encoded(vocabulary, sentences))


def _encoded(vocabulary: Vocabulary, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated tokens uint[tokens] of sentences, and the number of tokens of each int64[sentences]."""
    dtype = token_dtype(vocabulary)
    tokens, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.int64)]
    for batch in _slices(sentences):
        ids, sizes = vocabulary.encode_flat(batch)
        tokens.append(ids.astype(dtype))
        lengths.append(sizes)
    return np.concatenate(tokens), np.concatenate(lengths)


def tokenise_pairs(vocabulary: Vocabulary, texts: Sequence[list[str]], *, joined: bool = False) -> Block:
    """Tokenise pairs: documents of two sentences, each encoded as a text of its own.

    The inputs may have no token; a pair whose targets have none is skipped. With `joined`, targets are encoded as inside a text.
    """
    joint = vocabulary.joint if joined else ""
    tokens, length = _encoded(vocabulary, [text for inputs, targets in texts for text in (inputs, joint + targets)])
    kept = np.repeat(length[1::2] > 0, 2)
    text = list(compress(chain.from_iterable(texts), kept))
    pairs = len(text) // 2
    return Block(
        tokens[np.repeat(kept, length)],
        length[kept],
        np.full(pairs, 2),
        len(texts) - pairs,
        sum(len(part.split()) for part in text),
        pairs + sum(len(part.encode()) for part in text),
    )


def tokenise_labelled(vocabulary: Vocabulary, texts: Sequence[list[str]], *, words: bool = False) -> Block:
    """Tokenise labelled documents (see `Corpus.labels`): each text is encoded alone, and none is skipped.

    With `words`, the texts are the words of a sentence, each encoded as inside a text.
    """
    joint = vocabulary.joint if words else ""
    documents = [[joint + part for part in lines[:-1]] for lines in texts]
    parts = list(chain.from_iterable(documents))
    tokens, lengths = _encoded(vocabulary, parts)
    counts = np.array([len(lines) for lines in documents], np.int64)
    count = sum(len(part.split()) for part in parts)
    size = sum(len(part.encode()) for part in parts) + (0 if joint else int((counts - 1).sum()))
    labels = np.array(" ".join(lines[-1] for lines in texts).split(), np.float32)
    return Block(tokens, lengths, counts, 0, count, size, labels=labels)


def tokenise_spans(vocabulary: Vocabulary, texts: Sequence[list[str]]) -> tuple[Block, list[np.ndarray]]:
    """Tokenise documents whose labels are spans (see `Corpus.labels_spans`).

    Returns:
      The block, whose labels are the first and the last token of each span, and the offsets int32[tokens, 2] of the tokens of
      each second text in its characters.
    """
    # Several questions are about one text.
    of_context = {context: vocabulary.encode(context) for context in dict.fromkeys(context for _, context, _ in texts)}
    questions = vocabulary.encode_batch([question for question, _, _ in texts])
    dtype, parts, labels = token_dtype(vocabulary), list[np.ndarray](), np.full((len(texts), 2), np.nan, np.float32)
    for number, ((_, context, span), question) in enumerate(zip(texts, questions, strict=True)):
        encoding = of_context[context]
        parts += [question.astype(dtype), encoding.ids.astype(dtype)]
        begin, end = map(float, span.split())
        offsets = encoding.offsets
        inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin) & (offsets[:, 1] > offsets[:, 0]))
        if begin < 0:
            labels[number] = -1
        elif inside.size:
            labels[number] = inside[0], inside[-1]
    lengths = np.array([len(part) for part in parts], np.int64)
    words = sum(len(text.split()) for lines in texts for text in lines[:2])
    size = len(texts) + sum(len(text.encode()) for lines in texts for text in lines[:2])
    tokens = np.concatenate([np.zeros(0, dtype), *parts])
    block = Block(tokens, lengths, np.full(len(texts), 2), 0, words, size, labels=labels.reshape(-1))
    return block, [of_context[context].offsets for _, context, _ in texts]


def _block(documents: Sequence[list[str]], tokens: np.ndarray, length: np.ndarray, units: np.ndarray | None = None) -> Block:
    """Return the block of documents, given as sentences, with `length` int64[sentences] tokens per sentence."""
    document = np.repeat(np.arange(len(documents)), [len(sentences) for sentences in documents])
    count = np.bincount(document[length > 0], minlength=len(documents))
    text = list(compress(chain.from_iterable(documents), length))
    words = sum(len(sentence.split()) for sentence in text)
    spaces = len(text) - np.count_nonzero(count)
    size = spaces + sum(len(sentence) if sentence.isascii() else len(sentence.encode()) for sentence in text)
    return Block(tokens, length[length > 0], count[count > 0], int((count == 0).sum()), words, int(size), units)


def tokenise_marked(corpus: Corpus, vocabulary: Vocabulary, texts: Sequence[list[str]]) -> Block:
    """Tokenise text whose phrases and entities are marked."""
    documents = [_sentences(corpus.marked_sentences, lines) for lines in texts]
    dtype, joint = token_dtype(vocabulary), vocabulary.joint
    tokens, marks, lengths = [np.zeros(0, dtype)], [np.zeros(0, np.uint8)], []
    for document in documents:
        for index, (sentence, spans) in enumerate(document):
            before = joint if index else ""
            encoding = vocabulary.encode(before + sentence)
            tokens.append(encoding.ids.astype(dtype))
            marks.append(unit_marks(encoding.offsets - len(before), spans))
            lengths.append(len(encoding.ids))
    texts_alone = [[sentence for sentence, _ in document] for document in documents]
    return _block(texts_alone, np.concatenate(tokens), np.array(lengths, np.int64), np.concatenate(marks))


def unit_marks(offsets: np.ndarray, spans: Sequence[Span]) -> np.ndarray:
    """Return the marks of a sentence's tokens as in `Documents.units`: uint8[n].

    A token belongs to a phrase or entity if they share a character; spaces do not count where offsets exclude them.

    Args:
      offsets: int32[n, 2], the first character of each token and the end.
      spans: the phrases and entities of the sentence.
    """
    marks = np.zeros(len(offsets), np.uint8)
    for kind, begin, end in spans:
        inside = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > begin))
        shift = UNIT_BITS * KINDS.index(kind)
        inside = inside[marks[inside] >> shift & 3 == 0]
        marks[inside] |= CONTINUES << shift
        marks[inside[:1]] ^= (CONTINUES ^ BEGINS) << shift
    return marks


def _sentences(split: Callable[[list[str]], list], lines: list[str]) -> list:
    """Split a document into sentences; if that fails, add the beginning of the document to the exception."""
    try:
        return split(lines)
    except BaseException as error:  # a panic of a Rust library is a BaseException
        error.add_note(f"in the document that begins with {lines[0][:60]!r}")
        raise


def _slices(sentences: list[str]) -> Iterator[list[str]]:
    begin, size = 0, 0
    for end, sentence in enumerate(sentences, 1):
        size += len(sentence)
        if size >= _CHARACTERS_AT_ONCE or end == len(sentences):
            yield sentences[begin:end]
            begin, size = end, 0

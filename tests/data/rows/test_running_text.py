"""Rows of running text compared with a plain implementation that reads one sentence at a time."""

import numpy as np
import pytest
from numbered_documents import BARE, FIRST, IDS, make_documents, random_documents

import bertfam.data.rows.running_text as text_rows
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.running_text import Chunks, ClozeBlocks, DocSentences, FullSentences, WholeDocuments
from bertfam.errors import UserError

KINDS = [FullSentences, DocSentences, Chunks, WholeDocuments]


def nested_lists(documents):
    """Return the tokens as nested lists: [documents][sentences][tokens]."""
    starts, bounds = documents.sentence_starts, documents.sentence_bounds
    return [
        [documents.tokens[starts[i] : starts[i + 1]].tolist() for i in range(bounds[d], bounds[d + 1])]
        for d in range(len(documents))
    ]


def expected_texts(kind, documents, room, separator):
    """Return the texts of all rows, built one piece at a time."""
    if kind is Chunks:
        stream = [token for document in nested_lists(documents) for token in [*sum(document, []), separator]][:-1]
        return [stream[i : i + room] for i in range(0, len(stream), room)]
    rows = []
    if kind is WholeDocuments:
        for document in nested_lists(documents):
            flat = sum(document, [])
            rows += [flat[i : i + room] for i in range(0, len(flat), room)]
        return rows
    row = []
    for document in nested_lists(documents):
        is_first = True
        for sentence in document:
            for start in range(0, len(sentence), room):
                piece = sentence[start : start + room]
                separators = [separator] if row and is_first else []
                if kind is DocSentences and is_first or len(row) + len(separators) + len(piece) > room:
                    rows += [row] * bool(row)
                    row, separators = [], []
                row = row + separators + piece
                is_first = False
    return [*rows, row]


def row_texts(rows, frame):
    """Return the tokens of each row between [CLS] and [SEP]."""
    result = []
    for tokens, segments in zip(rows["encoder_input_tokens"], rows["encoder_segment_ids"], strict=True):
        real = tokens[segments > 0].tolist()
        assert (tokens[segments == 0] == IDS.pad).all()
        if frame:
            assert real[0] == IDS.cls and real[-1] == IDS.sep
            real = real[1:-1]
        result.append(real)
    return result


@pytest.mark.parametrize("ids", [IDS, BARE], ids=["framed", "bare"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [3, 8, 33, 128])
def test_rows_equal_the_plain_implementation(kind, length, ids):
    frame = ids is IDS
    separator = ids.sep if frame else ids.eos
    documents = random_documents(length, 60)
    examples = kind().examples(documents, length, 0, ids)
    rows = examples.rows(np.arange(len(examples)), np.zeros(len(examples), np.uint64))
    contents = row_texts(rows, frame)
    assert contents == expected_texts(kind, documents, length - 2 * frame, separator)
    assert examples.lengths.tolist() == [len(text) + 2 * frame for text in contents]
    maskable = [tokens[where].tolist() for tokens, where in zip(rows["encoder_input_tokens"], rows["maskable"], strict=True)]
    assert maskable == [[token for token in text if token != separator] for text in contents]
    assert not rows["encoder_token_type_ids"].any() and rows["encoder_segment_ids"].max() == 1
    # Every token occurs exactly once.
    assert sorted(sum(maskable, [])) == list(range(FIRST, FIRST + len(documents.tokens)))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_their_order(kind):
    examples = kind().examples(random_documents(1, 40), 32, 0, IDS)
    order = np.random.default_rng(0).permutation(len(examples))
    keys = np.zeros(len(examples), np.uint64)
    whole, mixed = examples.rows(np.arange(len(examples)), keys), examples.rows(order, keys)
    assert all(np.array_equal(value[order], mixed[name]) for name, value in whole.items())
    assert all(len(value) == 0 for value in examples.rows(np.zeros(0, np.int64), keys[:0]).values())


@pytest.mark.parametrize("kind", [FullSentences, DocSentences])
def test_lanes_keep_all_text(kind, monkeypatch):
    documents = random_documents(2, 300)
    whole = kind().examples(documents, 48, 0, IDS)
    monkeypatch.setattr(text_rows, "_LANE", 500)
    monkeypatch.setattr(text_rows, "_LANES_AT_ONCE", 3)
    laned = kind().examples(documents, 48, 0, IDS)
    rows = laned.rows(np.arange(len(laned)), np.zeros(len(laned), np.uint64))
    assert rows["encoder_input_tokens"][rows["maskable"]].tolist() == list(range(FIRST, FIRST + len(documents.tokens)))
    if kind is DocSentences:
        assert np.array_equal(whole.lengths, laned.lengths)
    else:
        assert len(whole) < len(laned) < len(whole) + len(documents.tokens) / 500 + 2


def test_cloze_blocks_have_two_sentences():
    documents = make_documents([4, 3], [5], [9, 2, 2], [6, 6])
    examples = ClozeBlocks().examples(documents, 10, 0, IDS)
    rows = examples.rows(np.arange(len(examples)), np.zeros(len(examples), np.uint64))
    # Rows have 8 tokens: the second document is one sentence, and the rows of the fourth, and the first of the third, have one.
    assert row_texts(rows, True) == [[*range(FIRST, FIRST + 7)], [*range(FIRST + 20, FIRST + 25)]]
    with pytest.raises(UserError, match="toy has no block of two sentences .* --input_format=paragraphs"):
        ClozeBlocks().examples(make_documents([4], [5]), 10, 0, IDS)


def test_unknown_words_are_not_maskable():
    documents = make_documents([4, 3])
    documents.tokens[2] = IDS.unk
    rows = WholeDocuments().examples(documents, 16, 0, IDS).rows(np.zeros(1, np.int64), np.zeros(1, np.uint64))
    assert rows["maskable"][0].tolist() == [False, True, True, False, True, True, True, True, *[False] * 8]


def test_short_rows_and_missing_tokens_are_refused():
    with pytest.raises(UserError, match="length 2 is too short"):
        FullSentences().examples(make_documents([1]), 2, 0, IDS)
    with pytest.raises(UserError, match="no eos token, which a row of text requires"):
        Chunks().examples(make_documents([1]), 8, 0, TokenIds(size=20, pad=0, unk=1))

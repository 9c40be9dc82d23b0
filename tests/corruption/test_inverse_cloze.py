"""Rows of the inverse cloze task against a slow reading of each block, and the draws that they depend on."""

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption import keys
from bertfam.corruption.inverse_cloze import InverseCloze
from bertfam.corruption.token_ids import ControlToken, TextFrame, TokenIds
from bertfam.errors import UserError

CLS, SEP = 2, 3
LENGTH, QUERY, ROWS = 24, 7, 500
NOISE = InverseCloze(query_length=QUERY)


def tokens_of(before=((CLS, 0),), after=((SEP, 0),)):
    frame = TextFrame(*(tuple(ControlToken(*one) for one in part) for part in (before, (), after, ())), 1)
    return TokenIds(size=900, pad=0, unk=1, cls=CLS, sep=SEP, mask=4, special=(0, 1, 2, 3, 4), frame=frame)


def blocks(counts, seed=0):
    """Return clean rows of sentences of 1 to 8 tokens, whose number is given, and the sentences as lists."""
    generator, sentences = np.random.default_rng(seed), []
    rows = {name: np.zeros((len(counts), LENGTH), np.int32) for name in ("encoder_input_tokens", "encoder_segment_ids")}
    begins = np.zeros((len(counts), LENGTH), bool)
    for row, count in enumerate(counts):
        sizes = generator.integers(1, 9 if count < 3 else (LENGTH - 2) // count + 1, count)
        sentences.append([generator.integers(5, 900, size).tolist() for size in sizes])
        text = [CLS, *sum(sentences[-1], []), SEP]
        rows["encoder_input_tokens"][row, : len(text)], rows["encoder_segment_ids"][row, : len(text)] = text, 1
        begins[row, 1 + np.cumsum([0, *sizes[:-1]])] = True
        begins[row, 1] = row % 2  # a block may begin within a sentence
    return rows | {"sentence_begins": begins}, sentences


def texts_of(found, row):
    """Return the tokens of the query and of the block of a row."""
    segments, tokens = found["encoder_segment_ids"][row], found["encoder_input_tokens"][row]
    assert not segments[:QUERY][1:][np.diff(segments[:QUERY]) > 0].size and not tokens[segments == 0].any()
    return [tokens[segments == number].tolist() for number in (1, 2)]


def test_rows_and_statistics():
    rows, sentences = blocks(np.full(ROWS, 5))
    found = NOISE.corrupt(rows, keys.fold(0, np.arange(ROWS)), tokens_of())
    drawn, kept = [], 0
    for row, own in enumerate(sentences):
        query, block = texts_of(found, row)
        matches = [
            (number, is_kept)
            for number, sentence in enumerate(own)
            for is_kept in (False, True)
            if query == [CLS, *sentence[: QUERY - 2], SEP]
            and block == [CLS, *sum((one for place, one in enumerate(own) if is_kept or place != number), []), SEP]
        ]
        assert len(matches) == 1
        drawn.append(matches[0][0])
        kept += matches[0][1]
    expected = ROWS / 5
    assert ((np.bincount(drawn, minlength=5) - expected) ** 2 / expected).sum() < chi_square_limit(4)
    assert abs(kept - 0.1 * ROWS) < 4 * np.sqrt(ROWS * 0.1 * 0.9)
    assert {name: value.shape[1:] for name, value in found.items()} == {
        **dict.fromkeys(("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids"), (QUERY + LENGTH,)),
        "sequence_start_positions": (2,),
    }
    assert all(value.dtype == np.int32 for value in found.values())
    parts = [NOISE.corrupt({name: value[part] for name, value in rows.items()}, keys.fold(0, np.arange(ROWS)[part]), tokens_of())
             for part in (slice(0, 3), slice(3, 9))]  # fmt: skip
    for name, value in found.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), value[:9])


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_certain_draws(keep):
    rows, sentences = blocks(np.full(40, 3))
    found = InverseCloze(QUERY, keep).corrupt(rows, keys.fold(0, np.arange(40)), tokens_of())
    sizes = {len(texts_of(found, row)[1]) - 2 - sum(map(len, own)) for row, own in enumerate(sentences)}
    assert (sizes == {0}) == (keep == 1.0) and max(sizes) <= 0


def test_a_block_of_one_sentence_is_padding():
    rows, _ = blocks([1, 2, 1])
    found = NOISE.corrupt(rows, keys.fold(0, np.arange(3)), tokens_of())
    assert not any(found[name][[0, 2]].any() for name in found) and found["encoder_segment_ids"][1].any()


def test_a_frame_with_cls_at_the_end():
    rows, _ = blocks([4, 4])
    tokens = tokens_of((), ((SEP, 0), (CLS, 2)))
    found = NOISE.corrupt(rows, keys.fold(0, np.arange(2)), tokens)
    for row in range(2):
        for text, start, first in zip(texts_of(found, row), found["sequence_start_positions"][row], (0, QUERY), strict=True):
            assert text[-2:] == [SEP, CLS] and found["encoder_input_tokens"][row, first + start] == CLS == text[start]
            assert found["encoder_token_type_ids"][row, first + start] == 2


def test_mistakes():
    with pytest.raises(UserError, match="length 9 is too short for a query .* use at least 10"):
        NOISE.check(9, tokens_of())
    with pytest.raises(UserError, match=r"does not put \[CLS\] and \[SEP\] around a text"):
        NOISE.check(40, tokens_of((), ((SEP, 0),)))
    for settings, match in (((2, 0.1), "query_length is 2"), ((9, 1.5), "keep is 1.5")):
        with pytest.raises(UserError, match=match):
            InverseCloze(*settings)

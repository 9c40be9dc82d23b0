"""ELECTRA's rows compared with a slow implementation that reads one sentence after another."""

import math

import numpy as np
import pytest
from numbered_documents import FIRST, IDS, make_documents, random_documents

from bertfam.corruption.keys import bits, fold, integers, uniform
from bertfam.data.rows import two_segments
from bertfam.data.rows.two_segments import TwoSegments
from bertfam.errors import UserError

LENGTH = 48


def chunks(documents, config, length, seed):
    """Yield (first sentence, sentences, target) of every chunk, adding sentences until the chunk has enough tokens."""
    sizes = np.diff(documents.sentence_starts)
    for number, (first, end) in enumerate(zip(documents.sentence_bounds, documents.sentence_bounds[1:], strict=False)):
        chunk, begin, num_tokens = 0, first, 0
        for sentence in range(first, end):
            key = fold(seed, number, chunk)
            target = length
            if uniform(bits(key, two_segments._SHORT, 1)[:, 0])[0] < config.short_row_rate:
                target = 5 + int(integers(bits(key, two_segments._TARGET, 1)[:, 0], length - 4)[0])  # randint(5, length)
            num_tokens += sizes[sentence]
            if num_tokens >= target or sentence == end - 1:
                yield begin, sentence + 1 - begin, target
                chunk, begin, num_tokens = chunk + 1, sentence + 1, 0


def segments(sentences, target, length, single, coin):
    """Return the two segments of the published split of a chunk, except that the text keeps its order."""
    half = 100_000 if single else (target - 3) // 2
    first, second = [], []
    for sentence in sentences:
        beyond = len(first) + len(sentence) >= half
        if not second and (not first or not beyond or (len(first) < half and coin)):
            first += sentence
        else:
            second += sentence
    first = first[: length - 2]
    return first, second[: max(0, length - len(first) - 3)]


def row_of(first, second, length):
    tokens = [IDS.cls, *first, IDS.sep] + ([*second, IDS.sep] if second else [])
    types = [0] * (len(first) + 2) + [1] * (len(tokens) - len(first) - 2)
    return [values + [0] * (length - len(values)) for values in (tokens, types, [1] * len(tokens))]


@pytest.mark.parametrize("config", [TwoSegments(), TwoSegments(0.5, 0.5), TwoSegments(0.0, 1.0), TwoSegments(1.0, 0.0)])
@pytest.mark.parametrize("length", [5, 16, LENGTH])
def test_rows_equal_the_slow_implementation(config, length):
    documents = random_documents(3, 60)
    examples = config.examples(documents, length, 11, IDS)
    expected = list(chunks(documents, config, length, 11))
    assert len(examples) == len(expected) > 60
    numbers = np.arange(len(examples))
    keys = fold(2, numbers)
    rows = examples.rows(numbers, keys)
    for index, (first, count, target) in enumerate(expected):
        key = keys[index : index + 1]
        single, coin = (
            uniform(bits(key, stream, 1)[:, 0])[0] < rate
            for stream, rate in ((two_segments._SINGLE, config.single_segment_rate), (two_segments._BEYOND, 0.5))
        )
        starts = documents.sentence_starts[first : first + count + 1]
        sentences = [list(range(FIRST + a, FIRST + b)) for a, b in zip(starts, starts[1:], strict=False)]
        tokens, types, real = row_of(*segments(sentences, target, length, single, coin), length)
        assert rows["encoder_input_tokens"][index].tolist() == tokens
        assert rows["encoder_token_type_ids"][index].tolist() == types
        assert rows["encoder_segment_ids"][index].tolist() == real
        assert rows["maskable"][index].tolist() == [token >= FIRST for token in tokens]
    assert rows.keys() == {"encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids", "maskable"}


def test_shares_of_single_segments_and_of_short_rows():
    documents = make_documents(*[[8] * 500] * 40)
    examples = TwoSegments().examples(documents, 128, 0, IDS)
    numbers = np.arange(1100)
    rows = examples.rows(numbers, fold(5, numbers))
    real = rows["encoder_segment_ids"].sum(axis=1)
    # A chunk of sentences of 8 tokens fills a row unless its target is below 120; every document ends with one more.
    short = examples._target < 128
    assert abs(short.mean() - 0.05 * 123 / 124) < 4 * math.sqrt(0.05 * 0.95 / len(short))
    assert (real[~short[:1100] & (examples._count[:1100] == 16)] == 128).all()
    single = ~rows["encoder_token_type_ids"].any(axis=1)
    long = real == 128
    assert abs(single[long].mean() - 0.1) < 4 * math.sqrt(0.1 * 0.9 / long.sum())
    # A has 7 sentences (56 < 62) or, with equal probability, 8.
    has_two = long & ~single
    a_lengths = (rows["encoder_token_type_ids"] == 0)[has_two].sum(axis=1) - 2
    assert set(a_lengths) == {56, 64} and abs((a_lengths == 64).mean() - 0.5) < 4 * math.sqrt(0.25 / has_two.sum())


def test_mistakes_are_reported():
    with pytest.raises(UserError, match="length 4 is too short for two segments; use at least 5"):
        TwoSegments().examples(make_documents([3, 4]), 4, 0, IDS)
    with pytest.raises(ValueError, match=r"short_row_rate 1.5 is not in \[0, 1\]"):
        TwoSegments(short_row_rate=1.5)

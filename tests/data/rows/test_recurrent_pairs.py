"""Rows of XLNet against the published script, one row at a time."""

import dataclasses

import numpy as np
import pytest
from numbered_documents import IDS, make_documents, random_documents

from bertfam.corruption import keys
from bertfam.data.rows import recurrent_pairs
from bertfam.data.rows.recurrent_pairs import RecurrentPairs
from bertfam.errors import UserError

EOS = dataclasses.replace(IDS, eos=5, special=(*IDS.special, 5))


def stream(documents):
    """Return the tokens of the corpus with an end-of-text token after each document, and the sentence of each."""
    tokens, sentences, bounds = [], [], documents.sentence_bounds
    for document in range(len(documents)):
        for sentence in range(bounds[document], bounds[document + 1]):
            part = documents.tokens[documents.sentence_starts[sentence] : documents.sentence_starts[sentence + 1]].tolist()
            tokens += part
            sentences += [sentence] * len(part)
        tokens.append(EOS.eos)
        sentences.append(sentences[-1])
    return tokens, sentences


def expected_row(tokens, sentences, row, length, key, rate):
    """Return the tokens and types of a row of this text, as the published script's _split_a_and_b makes them."""
    kept, size = length // 2, len(tokens)
    room = length - kept - 3
    draw = {
        name: keys.bits(np.array([key]), number, 1)[0, 0]
        for name, number in (
            ("cut", recurrent_pairs._CUT),
            ("next", recurrent_pairs._NEXT),
            ("place", recurrent_pairs._PLACE),
        )
    }
    # The text, repeated; a sentence of one round is another than that of the next.
    token = lambda place: tokens[place % size]  # noqa: E731
    sentence = lambda place: (place // size, sentences[place % size])  # noqa: E731
    a_begin = (row + 1) * kept
    end, cuts = a_begin + 1, []
    while True:
        if sentence(end) != sentence(end - 1):
            if end - a_begin >= room:
                break
            cuts.append(end)
        end += 1
    a_end = cuts[int(keys.integers(draw["cut"], len(cuts)))] if cuts else end
    if not cuts or keys.uniform(draw["next"]) < rate:
        b_begin = int(keys.integers(draw["place"], size))
        b_end = b_begin + max(1, room - (a_end - a_begin))
        while sentence(b_begin - 1) == sentence(b_begin):
            b_begin -= 1
        while sentence(b_end - 1) == sentence(b_end):
            b_end += 1
    else:
        b_begin, b_end = a_end, end
    while a_end - a_begin + b_end - b_begin > room:
        if a_end - a_begin > b_end - b_begin:
            a_end -= 1
        else:
            b_end -= 1
    text = [token(place) for place in range(row * kept, a_end)]
    b = [token(place) for place in range(b_begin, b_end)]
    types = [0] * (len(text) + 1) + [1] * (len(b) + 1) + [2]
    return [*text, EOS.sep, *b, EOS.sep, EOS.cls], types


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("length", [10, 33, 64])
def test_rows_equal_those_of_the_published_script(length, rate):
    documents = random_documents(length, 12)
    examples = RecurrentPairs(rate).examples(documents, length, 0, EOS)
    numbers = np.arange(len(examples))
    row_keys = keys.fold(7, numbers)
    rows = examples.rows(numbers, row_keys)
    tokens, sentences = stream(documents)
    texts = (tokens, sentences), (tokens[::-1], sentences[::-1])
    half = len(examples) // 2
    for number in numbers:
        backwards = bool(number >= half)
        expected, types = expected_row(*texts[backwards], int(number % half), length, row_keys[number], rate)
        assert rows["encoder_input_tokens"][number].tolist() == expected, number
        assert rows["encoder_token_type_ids"][number].tolist() == types
        assert rows["encoder_reversed"][number].tolist() == [int(backwards)]
    assert (rows["encoder_segment_ids"] == 1).all()
    control = np.isin(rows["encoder_input_tokens"], (EOS.sep, EOS.cls))
    assert np.array_equal(rows["maskable"], ~control)
    # Every token of the corpus is in the first half of some row, in each direction; the last row goes on with the first token.
    for first in (rows["encoder_input_tokens"][:half], rows["encoder_input_tokens"][half:]):
        read = first[:, : length // 2].ravel()
        assert sorted(read[: len(tokens)].tolist()) == sorted(tokens)


def test_draws_of_b():
    """With sentences of one length that fit, half of the rows have a random B."""
    documents = make_documents([4] * 3000)
    examples = RecurrentPairs(bidirectional=False).examples(documents, 64, 0, EOS)
    rows = examples.rows(np.arange(len(examples)), keys.fold(1, np.arange(len(examples))))
    tokens = rows["encoder_input_tokens"]
    separators = np.argmax(tokens == EOS.sep, axis=1)
    each = np.arange(len(tokens))
    follows = tokens[each, separators + 1] - tokens[each, separators - 1]
    # A pair in order may have lost the end of A.
    in_order = (follows > 0) & (follows < 32)
    assert abs(in_order.mean() - 0.5) < 4 * 0.5 / len(tokens) ** 0.5
    assert not rows["encoder_reversed"].any()


def test_a_short_text_is_repeated():
    documents = make_documents([2, 1])
    rows = RecurrentPairs().examples(documents, 16, 0, EOS).rows(np.array([0, 1]), keys.fold(1, np.arange(2)))
    assert rows["encoder_input_tokens"][:, :8].tolist() == [[10, 11, 12, 5] * 2, [5, 12, 11, 10] * 2]


def test_too_short_rows_are_refused():
    with pytest.raises(UserError, match="length 9 is too short.* at least 10"):
        RecurrentPairs().examples(make_documents([3]), 9, 0, EOS)
    with pytest.raises(ValueError, match="random_next_rate 1.5"):
        RecurrentPairs(1.5)

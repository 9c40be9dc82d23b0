"""Selection of tokens, whole words, spans and n-grams, compared with naive implementations of the published code."""

import math
from collections import Counter

import numpy as np
import pytest
from chi_square import chi_square_limit
from noise_rows import VOCABULARIES, fraction, maskable_words, noise_rows, random_words, select_row, sort_by_draw, words_in

from bertfam.corruption import streams
from bertfam.corruption.keys import bits, fold
from bertfam.corruption.masked_lm.selection import SingleTokens, WholeWords
from bertfam.corruption.masked_lm.span_selection import WordNgrams, WordSpans
from bertfam.corruption.token_ids import TokenIds
from bertfam.corruption.words import find_words
from bertfam.errors import UserError

LENGTH, SLOTS = 64, 12
CHOICES = [SingleTokens(), WholeWords(), WordSpans(), WordNgrams()]


@pytest.fixture(scope="module", params=VOCABULARIES)
def tokens(request):
    return VOCABULARIES[request.param]


@pytest.fixture(scope="module")
def rows(tokens):
    return noise_rows(tokens, 400, LENGTH)


@pytest.fixture(scope="module")
def budgets():
    return np.random.default_rng(5).integers(1, SLOTS + 1, 400)


KEYS = fold(11, np.arange(400))


def selected_positions(chosen, row):
    return chosen.positions[row][chosen.used[row]].tolist()


def test_words_of_rows_equal_a_naive_reading(rows, tokens):
    words = find_words(rows, tokens)
    begins = words.begins()
    for row in range(400):
        stretches = words_in(rows, row, tokens)
        for word in (word for stretch in stretches for word in stretch):
            (number,) = set(words.number[row, word].tolist())
            assert words.sizes[row, number] == rows["maskable"][row, word].sum()
            assert begins[row, word].tolist() == [True] + [False] * (len(word) - 1)
        assert words.sizes[row].sum() == rows["maskable"][row].sum()
        ends = words.run_ends()[row]
        for stretch in maskable_words(rows, row, tokens):
            numbers = [int(words.number[row, word[0]]) for word in stretch]
            assert {int(ends[number]) for number in numbers} == {numbers[-1] + 1}


def test_first_word_of_a_row_needs_no_starting_piece():
    tokens = VOCABULARIES["byte_level"]
    # The row is <s> 10 11 | 40 12 </s> <s> 13 | 41 </s> with an unknown piece inside the second word.
    ids = np.array([[0, 10, 11, 40, 3, 12, 2, 0, 13, 41, 2, 1]], np.int32)
    rows = {
        "encoder_input_tokens": ids,
        "encoder_segment_ids": (ids != 1).astype(np.int32),
        "maskable": ids[:] > 3,
    }
    words = find_words(rows, tokens)
    assert words.number[0].tolist() == [0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8]
    assert words.sizes[0].tolist() == [0, 2, 2, 0, 0, 1, 1] + [0] * 5


def naive_words(rows, row, max_positions, key, tokens):
    """Run create_masked_lm_predictions with whole words: shuffle, add each word that fits, at least one if any fits."""
    words = [word for stretch in maskable_words(rows, row, tokens) for word in stretch]
    numbers = find_words(select_row(rows, row), tokens).number[0]
    by_number = {int(numbers[word[0]]): word for word in words}
    smallest = min(map(len, words), default=0)
    budget = max(max_positions, smallest) if smallest <= SLOTS else max_positions
    selected = []
    for number in sort_by_draw(by_number, random_words(key, streams.SELECTION, LENGTH), LENGTH):
        if len(selected) + len(by_number[number]) <= budget:
            selected += by_number[number]
    return sorted(selected)


def test_whole_words_equal_the_published_selection(rows, tokens, budgets):
    chosen = WholeWords().choose(rows, budgets, SLOTS, KEYS, tokens)
    for row in range(400):
        assert selected_positions(chosen, row) == naive_words(rows, row, int(budgets[row]), KEYS[row], tokens)


def test_whole_words_are_masked_completely_or_not_at_all(rows, tokens, budgets):
    chosen = WholeWords().choose(rows, budgets, SLOTS, KEYS, tokens)
    first, last = chosen.unit_bounds()
    multi_token_words = 0
    for row in range(400):
        positions = set(selected_positions(chosen, row))
        for word in (word for stretch in maskable_words(rows, row, tokens) for word in stretch):
            assert not positions & set(word) or positions >= set(word)
            multi_token_words += len(word) > 1 and word[0] in positions
            for position in positions & set(word):
                slot = chosen.positions[row].tolist().index(position) if position else 0
                assert (first[row, slot], last[row, slot]) == (word[0], word[-1])
    assert multi_token_words > 100


def test_word_above_the_budget_is_selected_if_it_is_the_only_one():
    tokens = TokenIds(size=9, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.arange(9) < 7)
    ids = np.array([[2, 5, 7, 8, 7, 3], [2, 5, 7, 5, 3, 0], [2, 1, 1, 3, 0, 0], [2, 3, 0, 0, 0, 0]], np.int32)
    rows = {"encoder_input_tokens": ids, "encoder_segment_ids": (ids > 0).astype(np.int32), "maskable": ids > 4}
    for choice in (WholeWords(), WordNgrams()):
        chosen = choice.choose(rows, np.ones(4, int), 4, KEYS[:4], tokens)
        assert [selected_positions(chosen, row) for row in range(4)] == [[1, 2, 3, 4], [3], [], []]
        # The only word of the first row does not fit into three slots.
        chosen = choice.choose(rows, np.ones(4, int), 3, KEYS[:4], tokens)
        assert [selected_positions(chosen, row) for row in range(4)] == [[], [3], [], []]


def naive_spans(rows, row, max_positions, key, tokens):
    """Run SpanBERT's masking token by token: draw anchors until the budget is reached and mask whole words from each."""
    shares = np.array([0.2 * 0.8 ** (words - 1) for words in range(1, 11)])
    limits = np.cumsum(shares / shares.sum())
    stretches = maskable_words(rows, row, tokens)
    place = {p: (s, w) for s, stretch in enumerate(stretches) for w, word in enumerate(stretch) for p in word}
    lengths, masked = random_words(key, streams.SPAN_LENGTHS, LENGTH), set()
    for rank, anchor in enumerate(sort_by_draw(place, random_words(key, streams.SELECTION, LENGTH), LENGTH)):
        if len(masked) == min(max_positions, len(place)):
            break
        if anchor in masked:
            continue
        words = next(words for words in range(1, 11) if fraction(lengths[rank]) < limits[words - 1])
        stretch, word = place[anchor]
        for position in (p for word in stretches[stretch][word : word + words] for p in word):
            if len(masked) < max_positions:
                masked.add(position)
    return sorted(masked)


def test_spans_equal_the_published_selection(rows, tokens, budgets):
    chosen = WordSpans().choose(rows, budgets, SLOTS, KEYS, tokens)
    first, last = chosen.unit_bounds()
    for row in range(400):
        positions = selected_positions(chosen, row)
        assert positions == naive_spans(rows, row, int(budgets[row]), KEYS[row], tokens)
        assert len(positions) == min(budgets[row], rows["maskable"][row].sum())
        for slot, position in enumerate(positions):
            # Adjacent spans count as one.
            begin = end = position
            while begin - 1 in positions:
                begin -= 1
            while end + 1 in positions:
                end += 1
            assert (first[row, slot], last[row, slot]) == (begin, end)


def test_span_lengths_are_geometric():
    lengths = WordSpans().lengths(bits(fold(1, np.arange(200)), 1, 500)).ravel()
    shares = 0.2 * 0.8 ** np.arange(10)
    shares /= shares.sum()
    mean, square = (shares * np.arange(1, 11)).sum(), (shares * np.arange(1, 11) ** 2).sum()
    assert round(mean, 3) == 3.797
    assert abs(lengths.mean() - mean) < 4 * math.sqrt((square - mean**2) / lengths.size)
    counts, expected = np.bincount(lengths, minlength=11)[1:], shares * lengths.size
    assert len(counts) == 10 and ((counts - expected) ** 2 / expected).sum() < chi_square_limit(9)


def test_anchors_of_spans_are_uniform():
    # With spans of one word of one token each, every set of positions is equally likely.
    tokens = TokenIds(size=9, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.ones(9, bool))
    ids = np.array([[2, 5, 6, 7, 8, 5, 3, 0]] * 5000, np.int32)
    rows = {"encoder_input_tokens": ids, "encoder_segment_ids": (ids > 0).astype(np.int32), "maskable": ids > 4}
    chosen = WordSpans(longest=1).choose(rows, np.full(5000, 2), 2, fold(1, np.arange(5000)), tokens)
    counts = Counter(map(tuple, chosen.positions.tolist()))
    assert len(counts) == 10
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < chi_square_limit(9)


def naive_ngrams(rows, row, max_positions, key, tokens):
    """Run ALBERT's masking: draw n-grams from every word in random order and shorten them to the budget."""
    stretches = maskable_words(rows, row, tokens)
    numbers = find_words(select_row(rows, row), tokens).number[0]
    place = {int(numbers[word[0]]): (s, w) for s, stretch in enumerate(stretches) for w, word in enumerate(stretch)}
    smallest = min((len(word) for stretch in stretches for word in stretch), default=0)
    budget = max(max_positions, smallest) if smallest <= SLOTS else max_positions
    lengths, masked, grams = random_words(key, streams.SPAN_LENGTHS, LENGTH), set(), []
    for rank, number in enumerate(sort_by_draw(place, random_words(key, streams.SELECTION, LENGTH), LENGTH)):
        stretch, word = place[number]
        following = stretches[stretch][word : word + 3]
        weights = [1 / n for n in range(1, len(following) + 1)]
        limits = np.cumsum(weights) / sum(weights)
        n = next(n for n in range(1, 4) if n == len(following) or fraction(lengths[rank]) < limits[n - 1])
        while n and len(masked) + sum(map(len, following[:n])) > budget:
            n -= 1
        gram = [position for word in following[:n] for position in word]
        if gram and not masked & set(gram):
            masked |= set(gram)
            grams.append((gram[0], gram[-1]))
    return sorted(masked), sorted(grams)


def test_ngrams_equal_the_published_selection(rows, tokens, budgets):
    chosen = WordNgrams().choose(rows, budgets, SLOTS, KEYS, tokens)
    first, last = chosen.unit_bounds()
    for row in range(400):
        positions, grams = naive_ngrams(rows, row, int(budgets[row]), KEYS[row], tokens)
        assert selected_positions(chosen, row) == positions
        used = chosen.used[row]
        assert sorted({*zip(first[row][used].tolist(), last[row][used].tolist(), strict=True)}) == grams


def test_ngram_lengths_follow_the_paper():
    words = bits(fold(2, np.arange(200)), 1, 300)
    for available, shares in ((1, [1.0]), (2, [2 / 3, 1 / 3]), (3, [6 / 11, 3 / 11, 2 / 11]), (50, [6 / 11, 3 / 11, 2 / 11])):
        lengths = WordNgrams().lengths(words, np.full(words.shape, available)).ravel()
        counts = np.bincount(lengths, minlength=4)[1:]
        expected = np.array(shares) * lengths.size
        assert counts.sum() == counts[: len(shares)].sum()
        assert len(shares) == 1 or ((counts[: len(shares)] - expected) ** 2 / expected).sum() < chi_square_limit(len(shares) - 1)
    assert abs(lengths.mean() - 18 / 11) < 4 * math.sqrt(0.6 / lengths.size)


def test_ngrams_of_long_texts_have_the_lengths_of_the_paper():
    # Words have one piece, and the budget of exactly one trigram never cuts the first n-gram.
    tokens = TokenIds(size=40, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=np.ones(40, bool))
    ids = np.random.default_rng(0).integers(5, 40, (6000, 32)).astype(np.int32)
    ids[:, [0, -1]] = 2, 3
    rows = {"encoder_input_tokens": ids, "encoder_segment_ids": np.ones_like(ids), "maskable": ids > 4}
    chosen = WordNgrams().choose(rows, np.full(6000, 3), 3, fold(4, np.arange(6000)), tokens)
    first, last = chosen.unit_bounds()
    whole = (last - first == 2).all(axis=1)
    # The last two of 30 words start no trigram.
    expected = 2 / 11 * 28 / 30
    assert chosen.used.all() and abs(whole.mean() - expected) < 4 * math.sqrt(expected * (1 - expected) / 6000)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: type(choice).__name__)
def test_every_selection_is_sorted_maskable_and_independent_of_other_rows(rows, tokens, budgets, choice):
    chosen = choice.choose(rows, budgets, SLOTS, KEYS, tokens)
    counts = chosen.used.sum(axis=1)
    assert chosen.positions.shape == chosen.used.shape == chosen.leads.shape == (400, SLOTS)
    assert np.all(chosen.used[:, :-1] >= chosen.used[:, 1:]) and not chosen.positions[~chosen.used].any()
    assert np.all((np.diff(chosen.positions, axis=1) > 0) | ~chosen.used[:, 1:])
    assert np.take_along_axis(rows["maskable"], chosen.positions, axis=1)[chosen.used].all()
    assert np.array_equal(counts > 0, rows["maskable"].any(axis=1)) and not counts.all()
    assert np.all(chosen.leads <= np.arange(SLOTS))
    assert np.array_equal(np.take_along_axis(chosen.leads, chosen.leads, axis=1), chosen.leads)
    # The result of a row does not depend on the other rows.
    few = np.array([399, 7, 120])
    alone = choice.choose({name: value[few] for name, value in rows.items()}, budgets[few], SLOTS, KEYS[few], tokens)
    assert all(np.array_equal(part, whole[few]) for part, whole in zip(alone, chosen, strict=True))


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: type(choice).__name__)
def test_every_maskable_token_can_be_selected(rows, tokens, choice):
    chosen = choice.choose(rows, np.full(400, LENGTH), LENGTH, KEYS, tokens)
    if not isinstance(choice, WordNgrams):  # as published, a word can remain before an n-gram that was skipped
        assert chosen.used.sum(axis=1).tolist() == rows["maskable"].sum(axis=1).tolist()
    empty = choice.choose({name: value[:0] for name, value in rows.items()}, np.zeros(0, int), SLOTS, KEYS[:0], tokens)
    assert empty.positions.shape == (0, SLOTS)


@pytest.mark.parametrize("choice", CHOICES[1:], ids=lambda choice: type(choice).__name__)
def test_vocabulary_must_mark_the_starts_of_words(rows, choice):
    tokens = TokenIds(size=60, pad=0, unk=1)
    with pytest.raises(UserError, match="does not mark the pieces that begin a word"):
        choice.choose(rows, np.ones(400, int), SLOTS, KEYS, tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordSpans(p=1.0), r"p 1.0 is not in \(0, 1\)"),
        (lambda: WordSpans(longest=0), "longest 0 is not between 1 and 1000 words"),
        (lambda: WordNgrams(longest=0), "longest 0 is not between 1 and 1000 words"),
    ],
)
def test_bad_settings_of_selections_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""BART's denoising: every noise alone and all together."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.bart.infilling import TextInfilling
from bertfam.corruption.bart.token_noise import TokenDeletion, TokenMasking, insert_masks
from bertfam.corruption.keys import fold
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError

STARTS = np.random.default_rng(9).random(2000) < 0.6
BART = TokenIds(
    size=2000, pad=1, unk=3, cls=0, sep=2, eos=2, mask=1999, special=(0, 1, 2, 3, 1999), starts_word=STARTS
)  # fmt: skip
FIRST = 10
SINGLE_NOISES = {
    "masking": Denoising(permute=0.0, tokens=TokenMasking()),
    "deletion": Denoising(permute=0.0, tokens=TokenDeletion()),
    "infilling": Denoising(permute=0.0),
    "permutation": Denoising(tokens=None),
    "rotation": Denoising(permute=0.0, tokens=None, rotate=1.0),
}
ALL_NOISES = Denoising(permute=0.7, tokens=TextInfilling(), insert=0.1, rotate=0.5)


def make_rows(sizes, length, sentence=5):
    """Return rows `<s> text </s>` of `sizes` tokens FIRST, FIRST + 1, ..., with a sentence at every `sentence` tokens."""
    sizes = np.asarray(sizes)[:, None]
    place = np.arange(length)
    inside, real = (place > 0) & (place <= sizes), (place < sizes + 2) & (sizes >= 0)
    tokens = np.where(inside, FIRST - 1 + place, np.where(place == 0, BART.cls, BART.sep))
    return {
        "encoder_input_tokens": np.where(real, tokens, BART.pad).astype(np.int32),
        "encoder_segment_ids": real.astype(np.int32),
        "maskable": inside,
        "sentence_begins": inside & ((place - 1) % sentence == 0),
    }


def apply_noise(config, rows, seed=1):
    """Return the text of each row after the noise, and check the frame and the other features."""
    result = config.corrupt(rows, fold(seed, np.arange(len(rows["maskable"]))), BART)
    inputs, counts = result["encoder_input_tokens"], result["encoder_segment_ids"].sum(axis=1)
    real = rows["encoder_segment_ids"] > 0
    assert np.array_equal(result["decoder_target_tokens"], rows["encoder_input_tokens"])
    assert np.array_equal(result["decoder_loss_weights"] > 0, real) and np.array_equal(result["decoder_segment_ids"] > 0, real)
    shifted = np.where(real, np.pad(rows["encoder_input_tokens"][:, :-1], ((0, 0), (1, 0)), constant_values=BART.eos), BART.pad)
    assert np.array_equal(result["decoder_input_tokens"], shifted)
    assert np.array_equal(result["encoder_segment_ids"] > 0, np.arange(inputs.shape[1]) < counts[:, None])
    assert (inputs[result["encoder_segment_ids"] == 0] == BART.pad).all()
    texts = []
    for row, count in enumerate(counts.tolist()):
        if count:
            assert inputs[row, 0] == BART.cls and inputs[row, count - 1] == BART.sep
        texts.append(inputs[row, 1 : max(count - 1, 1)].tolist())
    return texts


def test_every_single_noise_changes_the_text_as_specified():
    n, length = 300, 48
    sizes = np.arange(n) % (length - 1)  # empty rows, 1 and 2 tokens, and rows without free positions
    rows = make_rows(sizes, length)
    for name, config in SINGLE_NOISES.items():
        for text, size in zip(apply_noise(config, rows), sizes.tolist(), strict=True):
            whole = list(range(FIRST, FIRST + size))
            if name == "masking":
                assert len(text) == size and text.count(BART.mask) == math.ceil(0.3 * size)
                assert all(observed in (word, BART.mask) for observed, word in zip(text, whole, strict=True))
            elif name == "deletion":
                assert len(text) == size - math.ceil(0.3 * size) and text == sorted(set(text)) and set(text) <= set(whole)
            elif name == "infilling":
                kept = [token for token in text if token != BART.mask]
                assert kept == sorted(set(kept)) and set(kept) <= set(whole) and len(text) <= length - 2
                assert BART.mask in text or not size
            elif name == "permutation":
                sentences = [whole[begin : begin + 5] for begin in range(0, size, 5)]
                assert sorted(text) == whole
                assert all(_contains(text, sentence) for sentence in sentences)
            else:
                shift = text.index(FIRST) if text else 0
                assert text[shift:] + text[:shift] == whole


def _contains(text, part):
    begin = text.index(part[0])
    return text[begin : begin + len(part)] == part


@pytest.mark.parametrize("config", [*SINGLE_NOISES.values(), ALL_NOISES], ids=[*SINGLE_NOISES, "together"])
def test_noised_rows_keep_their_length_and_do_not_depend_on_other_rows(config):
    length, n = 20, 120
    sizes = np.arange(n) % (length - 1)
    sizes[7] = -2  # a row of padding
    rows = make_rows(sizes, length, sentence=3)
    texts = apply_noise(config, rows)
    assert texts[7] == [] and max(map(len, texts)) <= length - 2
    keys, few = fold(1, np.arange(n)), np.array([119, 3, 18])
    whole = config.corrupt(rows, keys, BART)
    alone = config.corrupt({name: value[few] for name, value in rows.items()}, keys[few], BART)
    assert all(np.array_equal(value, whole[name][few]) for name, value in alone.items())
    other = apply_noise(config, rows, seed=2)
    assert np.mean([a != b for a, b in zip(texts, other, strict=True)]) > 0.5


def test_shares_of_noised_tokens():
    n, size = 800, 100
    rows = make_rows(np.full(n, size), size + 2)
    words = int(STARTS[FIRST : FIRST + size].sum()) + (not STARTS[FIRST])
    filled = apply_noise(SINGLE_NOISES["infilling"], rows)
    word_starts = np.flatnonzero(STARTS[FIRST : FIRST + size] | (np.arange(size) == 0))
    for text in filled:  # exactly that many words are removed, always whole
        lost_words = {int(np.searchsorted(word_starts, token - FIRST, side="right")) - 1 for token in range(FIRST, FIRST + size)}
        lost_words -= {int(np.searchsorted(word_starts, token - FIRST, side="right")) - 1 for token in text if token != BART.mask}
        assert len(lost_words) == math.ceil(0.3 * words)
    # Half of the sentences move, and then all of them.
    for share, moving in ((0.5, 10), (1.0, 20)):
        texts = apply_noise(Denoising(permute=share, tokens=None), rows)
        orders = [[(token - FIRST) // 5 for token in text[::5]] for text in texts]
        moved = np.array([sum(a != b for a, b in enumerate(order)) for order in orders])
        # Of k sentences in a random order, k - 1 move on average and never more than k.
        assert moved.max() <= moving and abs(moved.mean() - (moving - 1)) < 5 / math.sqrt(n)
    rotated = apply_noise(Denoising(permute=0.0, tokens=None, rotate=0.4), rows)
    share = np.mean([text[0] != FIRST for text in rotated])
    assert abs(share - 0.4 * 0.99) < 5 * math.sqrt(0.24 / n)
    random = apply_noise(Denoising(permute=0.0, tokens=TokenMasking(0.5, random_share=0.2)), rows)
    replaced = sum(token != BART.mask and token != FIRST + place for text in random for place, token in enumerate(text))
    assert abs(replaced / (n * 50) - 0.2) < 5 * math.sqrt(0.16 / (n * 50)) + 0.001  # a random piece may be the token itself


def test_every_order_of_sentences_and_every_rotation_is_equally_likely():
    n = 12_000
    rows = make_rows(np.full(n, 9), 11, sentence=3)
    orders = Counter(tuple(text) for text in apply_noise(SINGLE_NOISES["permutation"], rows))
    parts = [list(range(FIRST + 3 * k, FIRST + 3 * k + 3)) for k in range(3)]
    assert set(orders) == {tuple(a + b + c) for a, b, c in permutations(parts)}
    assert sum((count - n / 6) ** 2 / (n / 6) for count in orders.values()) < chi_square_limit(5)
    first_tokens = Counter(text[0] for text in apply_noise(SINGLE_NOISES["rotation"], rows))
    assert len(first_tokens) == 9 and sum((count - n / 9) ** 2 / (n / 9) for count in first_tokens.values()) < chi_square_limit(8)


def test_row_without_a_second_sentence_is_not_permuted():
    rows = make_rows([12, 7, 1, 0], 14, sentence=99)
    assert apply_noise(SINGLE_NOISES["permutation"], rows) == [list(range(FIRST, FIRST + size)) for size in (12, 7, 1, 0)]
    rows["sentence_begins"][:] = False
    assert apply_noise(SINGLE_NOISES["permutation"], rows)[0] == list(range(FIRST, FIRST + 12))


def test_end_of_a_cut_sentence_moves_like_a_sentence():
    rows = make_rows(np.full(200, 9), 11, sentence=5)
    rows["sentence_begins"][:, 1] = False  # the row starts inside a sentence
    texts = {tuple(text) for text in apply_noise(SINGLE_NOISES["permutation"], rows)}
    one, two = tuple(range(FIRST, FIRST + 5)), tuple(range(FIRST + 5, FIRST + 9))
    assert texts == {one + two, two + one}
    half = {tuple(text) for text in apply_noise(Denoising(permute=0.5, tokens=None), rows)}
    assert half == {one + two}  # one sentence of two cannot move alone


def test_words_of_a_permuted_text_stay_whole():
    # There are two sentences of one word each; the first word has no starting piece and only starts the text.
    starts = np.arange(100) == FIRST + 2
    ids = TokenIds(size=100, pad=1, unk=3, cls=0, sep=2, eos=2, mask=99, special=(0, 1, 2, 3, 99), starts_word=starts)
    rows = make_rows(np.full(300, 6), 8, sentence=99)
    rows["sentence_begins"][:, 3] = True
    inputs = Denoising(tokens=TextInfilling(rate=0.5)).corrupt(rows, fold(1, np.arange(300)), ids)["encoder_input_tokens"]
    kept = {tuple(token for token in row if FIRST <= token < 99) for row in inputs.tolist()}
    assert kept == {(FIRST, FIRST + 1), tuple(range(FIRST + 2, FIRST + 6))}  # one of the two words is removed as a whole


def test_insertion_of_masks():
    n, length = 400, 30
    counts = np.arange(n) % (length - 1) + 2
    positions = np.arange(length)
    values = np.where(positions < counts[:, None], positions + FIRST, BART.pad).astype(np.int32)
    result, new = insert_masks(values, counts, 0.4, fold(1, np.arange(n)), BART.mask, BART.pad)
    assert np.array_equal(new, np.minimum(counts + np.ceil(0.4 * (counts - 2)), length))
    for row in range(n):
        tokens = result[row, : new[row]].tolist()
        assert [token for token in tokens if token != BART.mask] == list(range(FIRST, FIRST + counts[row]))
        assert tokens[0] == FIRST and tokens[-1] != BART.mask and (result[row, new[row] :] == BART.pad).all()


def test_missing_control_tokens_and_bad_settings_are_refused():
    for missing in ("cls", "mask"):
        ids = {"cls": 0, "sep": 2, "eos": 2, "mask": 9} | {missing: None}
        with pytest.raises(UserError, match=f"no {missing} token, which Denoising requires"):
            Denoising().check(32, TokenIds(size=10, pad=1, unk=3, **ids))
    Denoising().check(32, BART)
    for settings, message in (({"permute": 1.1}, "permute 1.1"), ({"rotate": -0.1}, "rotate"), ({"insert": 2.0}, "insert")):
        with pytest.raises(ValueError, match=message):
            Denoising(**settings)
    with pytest.raises(ValueError, match="there is no noise"):
        Denoising(permute=0.0, tokens=None)
    for noise in (TokenMasking, TokenDeletion):
        with pytest.raises(ValueError, match="rate 0"):
            noise(rate=0.0)
    with pytest.raises(ValueError, match="random_share 2"):
        TokenMasking(random_share=2.0)

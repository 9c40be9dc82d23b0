import math

import numpy as np
import pytest
from chi_square import chi_square_limit

from bertfam.corruption.keys import fold
from bertfam.corruption.random_spans import RandomSpans
from bertfam.corruption.sentinels import spans_to_sentinels
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError

T5 = TokenIds(size=32100, pad=0, unk=2, eos=1, special=(0, 1, 2), sentinels=tuple(range(32099, 31999, -1)))
SETTINGS = [(density, mean) for density in (0.1, 0.15, 0.25, 0.5) for mean in (2.0, 3.0, 5.0, 10.0)]


def published_lengths(tokens, density, mean):
    """random_spans_helper's count for raw rows of so many tokens, with the one span at least that its noise mask has."""
    noise = int(round(tokens * density))
    spans = max(int(round(noise / mean)), 1)
    return tokens - noise + spans + 1, noise + spans + 1


def published_raw_length(inputs, density, mean):
    tokens = inputs - 1
    while published_lengths(tokens + 1, density, mean)[0] <= inputs:
        tokens += 1
    if density == 0.5 and published_lengths(tokens, density, mean)[1] > inputs:
        tokens -= 1
    return tokens, published_lengths(tokens, density, mean)[1]


def rebuilt(inputs, targets):
    """The raw row from inputs and targets as Python lists, and the sentinels in the order of the inputs."""
    spans, sentinels = {}, [token for token in inputs if token in T5.sentinels]
    assert inputs.pop() == targets.pop() == T5.eos
    for token in targets:
        if token in T5.sentinels:
            assert token not in spans
            current = spans[token] = []
        else:
            current.append(token)
    raw = []
    for token in inputs:
        raw += spans[token] if token in T5.sentinels else [token]
    return raw, sentinels


def corrupted(raw, lengths, noise, input_length, target_length):
    return spans_to_sentinels(raw, lengths, noise, T5, input_length, target_length)


def test_the_paper_s_sentence():
    words = "Thank you for inviting me to your party last week .".split()
    raw = np.arange(10, 21, dtype=np.int32)[None]
    noise = np.isin(words, ["for", "inviting", "last"])[None]
    found = corrupted(raw, np.array([11]), noise, 12, 8)
    names = dict(zip(range(10, 21), words, strict=True)) | {32099: "<X>", 32098: "<Y>", 32097: "<Z>", 1: "</s>", 0: "<pad>"}
    assert " ".join(names[i] for i in found.inputs[0].tolist()) == "Thank you <X> me to your party <Y> week . </s> <pad>"
    assert " ".join(names[i] for i in found.targets[0].tolist()) == "<X> for inviting <Y> last <Z> </s> <pad>"
    assert found.input_lengths.tolist() == [11] and found.target_lengths.tolist() == [7]


def test_noise_at_the_beginning_has_the_first_sentinel():
    raw = np.array([[5, 6, 7, 8]], np.int32)
    found = corrupted(raw, np.array([4]), np.array([[True, True, False, True]]), 5, 7)
    assert found.inputs.tolist() == [[32099, 7, 32098, 1, 0]] and found.targets.tolist() == [[32099, 5, 6, 32098, 8, 1, 0]]


@pytest.mark.parametrize(
    ("inputs", "mean", "raw", "targets"),
    [(128, 3, 141, 29), (256, 3, 284, 58), (512, 3, 568, 114), (1024, 3, 1137, 229), (512, 2, 552, 126), (512, 5, 581, 105)],
)
def test_published_lengths(inputs, mean, raw, targets):
    assert RandomSpans(0.15, mean).raw_length(inputs) == (raw, targets)


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_lengths_as_counted_by_the_published_code(density, mean):
    spans = RandomSpans(density, mean)
    for inputs in (16, 30, 64, 128, 255, 512):
        assert spans.raw_length(inputs) == published_raw_length(inputs, density, mean)
    lengths = np.arange(40, 700)
    found = spans.finished_lengths(lengths)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == [
        published_lengths(n, density, mean) for n in lengths.tolist()
    ]


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_rows_have_the_counted_noise_and_rebuild(density, mean):
    spans, n, width = RandomSpans(density, mean), 120, 100
    lengths = np.arange(n) % width + 1
    raw = np.random.default_rng(0).integers(3, 32000, (n, width)).astype(np.int32)
    noise = spans.noise(lengths, width, fold(1, np.arange(n)))
    input_length, target_length = (int(part.max()) for part in spans.finished_lengths(np.arange(1, width + 1)))
    found = corrupted(raw, lengths, noise, input_length, target_length)
    count, number = spans.counts(lengths)
    for row, length in enumerate(lengths.tolist()):
        mask = noise[row, :length]
        assert not noise[row, length:].any() and mask.sum() == count[row]
        runs = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])) == 1)
        assert len(runs) == number[row]
        if length > 1:
            assert not mask[0] and mask[-1]
        inputs = found.inputs[row, : found.input_lengths[row]].tolist()
        targets = found.targets[row, : found.target_lengths[row]].tolist()
        assert (len(inputs), len(targets)) == tuple(int(part) for part in spans.finished_lengths(length))
        again, sentinels = rebuilt(inputs, targets)
        assert again == raw[row, :length].tolist()
        assert sentinels == list(T5.sentinels[: number[row]])
    assert (found.inputs[np.arange(input_length) >= found.input_lengths[:, None]] == 0).all()
    assert (found.targets[np.arange(target_length) >= found.target_lengths[:, None]] == 0).all()


def test_shortest_rows():
    counts = RandomSpans().counts(np.arange(13))
    assert counts[0].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert counts[1].tolist() == [0, 0] + [1] * 11
    raw, lengths = np.array([[7, 8], [9, 9]], np.int32), np.array([1, 0])
    found = corrupted(raw, lengths, RandomSpans().noise(lengths, 2, fold(1, np.arange(2))), 3, 2)
    assert found.inputs.tolist() == [[7, 1, 0], [0, 0, 0]] and found.targets.tolist() == [[1, 0], [0, 0]]
    assert found.input_lengths.tolist() == [2, 0] and found.target_lengths.tolist() == [1, 0]
    assert RandomSpans().noise(np.array([1, 0]), 1, fold(1, np.arange(2))).tolist() == [[False], [False]]


def test_a_row_of_noise_for_the_most_part_still_has_clear_text_before_each_span():
    lengths = np.arange(1, 60)
    spans = RandomSpans(0.8, 1.0)
    noise = spans.noise(lengths, 60, fold(1, lengths))
    assert np.array_equal(noise.sum(axis=1), spans.counts(lengths)[0])
    assert np.array_equal((np.diff(noise.astype(int), axis=1) == 1).sum(axis=1), spans.counts(lengths)[1])


def test_every_way_to_cut_is_equally_likely():
    # 9 tokens, 4 of them noise in 2 spans: 3 ways to cut the noise times 4 ways to cut the rest.
    n = 12_000
    noise = RandomSpans(0.45, 2.0).noise(np.full(n, 9), 9, fold(7, np.arange(n)))
    masks, counts = np.unique(noise, axis=0, return_counts=True)
    assert len(masks) == 12 and ((counts - n / 12) ** 2 / (n / 12)).sum() < chi_square_limit(11)


def test_noise_is_where_it_should_be_in_the_mean():
    noise = RandomSpans().noise(np.full(2000, 512), 512, fold(2, np.arange(2000)))
    assert noise.sum() == 2000 * 77
    # Spans end the row and do not begin it; in between all positions are alike.
    middle = noise[:, 20:-20].mean(axis=0)
    assert abs(middle.mean() - 0.15) < 0.005
    assert np.all(np.abs(middle - middle.mean()) < 5 * math.sqrt(0.15 * 0.85 / 2000))


def test_rows_do_not_depend_on_their_neighbours():
    lengths = np.random.default_rng(1).integers(1, 90, 200)
    whole = RandomSpans().noise(lengths, 90, fold(3, np.arange(200)))
    few = np.array([199, 3, 50])
    assert np.array_equal(RandomSpans().noise(lengths[few], 90, fold(3, few)), whole[few])
    raw = np.random.default_rng(0).integers(3, 32000, (200, 90)).astype(np.int32)
    together, apart = corrupted(raw, lengths, whole, 90, 30), corrupted(raw[few], lengths[few], whole[few], 90, 30)
    assert all(np.array_equal(one, all_[few]) for one, all_ in zip(apart, together, strict=True))


def test_sentinels_that_run_out_are_refused():
    spans = RandomSpans()
    assert [int(spans.counts(n)[1]) for n in (512, 1024, 2001, 2048)] == [26, 51, 100, 102]
    spans.check_sentinels(2001, T5)
    message = r"rows of 2048 raw tokens have 102 spans of noise and the vocabulary has 100 sentinel tokens; use at most (\d+) raw"
    with pytest.raises(UserError, match=message) as refused:
        spans.check_sentinels(2048, T5)
    fits = int(str(refused.value).split("at most ")[1].split()[0])
    assert spans.counts(fits)[1] == 100 and spans.counts(fits + 1)[1] == 101
    spans.check_sentinels(fits, T5)
    with pytest.raises(UserError, match="no sentinel tokens"):
        spans.check_sentinels(512, TokenIds(size=9, pad=0, unk=1))
    raw = np.ones((1, 2048), np.int32)
    noise = spans.noise(np.array([2048]), 2048, fold(1, 0))
    with pytest.raises(UserError, match="needs 102 sentinel tokens and the vocabulary has 100"):
        corrupted(raw, np.array([2048]), noise, 2048, 512)


def test_rows_that_do_not_fit_are_refused():
    raw, noise = np.ones((1, 20), np.int32), np.arange(20)[None] == 19
    for places, what in (((19, 9), "inputs of 21 tokens where 19"), ((21, 2), "targets of 3 tokens where 2")):
        with pytest.raises(UserError, match=what):
            corrupted(raw, np.array([20]), noise, *places)
    with pytest.raises(UserError, match="inputs of 2 tokens are too short"):
        RandomSpans().raw_length(2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, "density 0.0"),
        ({"density": 1.0}, "density 1.0"),
        ({"mean_length": 0.5}, "mean_length 0.5 is less than 1"),
    ],
)
def test_settings_of_spans_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        RandomSpans(**settings)

"""T5's objectives: inputs, targets, published lengths, sentinels and shares of noise."""

import math

import numpy as np
import pytest

from bertfam.corruption.keys import fold
from bertfam.corruption.t5.random_spans import RandomSpans
from bertfam.corruption.t5.random_tokens import Noise, RandomTokens
from bertfam.corruption.t5.span_corruption import T5_OBJECTIVES, SpanCorruption
from bertfam.corruption.t5.span_formats import ClearToSentinels, DropClear, KeepAll, NoiseToSentinels, Raw
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.running_text import Chunks
from bertfam.data.text_data import TextData
from bertfam.errors import UserError

T5 = TokenIds(size=32100, pad=0, unk=2, eos=1, special=(0, 1, 2), sentinels=tuple(range(32099, 31999, -1)))
EOS = T5.eos
WORDS = "Thank you for inviting me to your party last week .".split()
SETTINGS = [(density, mean) for density in (0.1, 0.15, 0.25, 0.5) for mean in (2.0, 3.0, 5.0, 10.0)]


def published_lengths(tokens, density, mean):
    """Return random_spans_helper's lengths for raw rows of `tokens` tokens, with at least one span as in its noise mask."""
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


def make_rows(raw, lengths):
    real = np.arange(raw.shape[1]) < lengths[:, None]
    return {"encoder_input_tokens": np.where(real, raw, 0).astype(np.int32), "encoder_segment_ids": real.astype(np.int32)}


def random_rows(n, width, lengths=None, seed=0):
    """Return rows of distinct random tokens."""
    generator = np.random.default_rng(seed)
    raw = np.stack([generator.permutation(np.arange(3, 32000))[:width] for _ in range(n)])
    return raw.astype(np.int32), np.full(n, width) if lengths is None else lengths


def real_tokens(result, side):
    """Return the real tokens of each row, and check that the rest is padding."""
    names = {
        "encoder": ("encoder_input_tokens", "encoder_segment_ids"),
        "decoder": ("decoder_target_tokens", "decoder_segment_ids"),
    }
    tokens, segments = (result[name] for name in names[side])
    assert not tokens[segments == 0].any()
    assert np.array_equal(segments, np.arange(segments.shape[1]) < segments.sum(axis=1)[:, None])
    return [row[: int(count)].tolist() for row, count in zip(tokens, segments.sum(axis=1), strict=True)]


def restore(inputs, targets):
    """Return the raw row restored from inputs and targets, and the sentinels of the inputs; each span follows its sentinel."""
    spans, sentinels = {}, [token for token in inputs if token in T5.sentinels]
    assert inputs[-1] == targets[-1] == EOS
    for token in targets[:-1]:
        if token in T5.sentinels:
            assert token not in spans
            span = spans[token] = []
        else:
            span.append(token)
    raw = []
    for token in inputs[:-1]:
        raw += spans[token] if token in T5.sentinels else [token]
    return raw, sentinels


class FixedNoise(Noise):
    """Noise with the mask of the test."""

    def __init__(self, mask):
        self.mask = np.asarray(mask)

    def counts(self, lengths):
        return RandomTokens(1.0).counts(lengths)

    def draw(self, lengths, width, row_keys):
        return np.broadcast_to(np.pad(self.mask, (0, width - len(self.mask))), (len(row_keys), width))


def corrupt_sentence(name, noise=("for", "inviting", "last"), aligned=False):
    """Return inputs and targets of T5's example as text."""
    config = T5_OBJECTIVES[name]
    targets = ClearToSentinels(aligned) if isinstance(config.targets, ClearToSentinels) else config.targets
    config = SpanCorruption(FixedNoise(np.isin(WORDS, noise)), config.inputs, targets)
    names = dict(zip(range(10, 21), WORDS, strict=True)) | {32099: "<X>", 32098: "<Y>", 32097: "<Z>", 32096: "<W>", EOS: "</s>"}
    result = config.corrupt(make_rows(np.arange(10, 26)[None], np.array([11])), fold(1, 0), T5)
    return tuple(" ".join(names.get(token, "?") for token in real_tokens(result, side)[0]) for side in ("encoder", "decoder"))


def test_objectives_corrupt_the_example_of_the_paper():
    whole = " ".join(WORDS) + " </s>"
    spans = "Thank you <X> me to your party <Y> week . </s>", "<X> for inviting <Y> last <Z> </s>"
    assert corrupt_sentence("replace_spans") == corrupt_sentence("random_spans") == spans
    assert corrupt_sentence("mass_style") == ("Thank you <X> <X> me to your party <X> week . </s>", whole)
    assert corrupt_sentence("drop_tokens") == ("Thank you me to your party week . </s>", "for inviting last </s>")
    assert corrupt_sentence("prefix_lm", WORDS[:8]) == ("Thank you for inviting me to your party </s>", "last week . </s>")
    inputs, targets = corrupt_sentence("deshuffling", WORDS)
    assert targets == whole and inputs != whole and sorted(inputs.split()) == sorted(whole.split()) and inputs.endswith(" </s>")
    inputs, targets = corrupt_sentence("bert_style")
    assert targets == whole
    assert all(token == word or word in ("for", "inviting", "last") for token, word in zip(inputs.split(), WORDS, strict=False))


def test_row_that_starts_with_noise():
    first = ("Thank", "me")
    inputs = "<X> you for inviting <Y> to your party last week . </s>"
    assert corrupt_sentence("replace_spans", first) == (inputs, "Thank <X> me <Y> </s>")  # as published in code
    assert corrupt_sentence("replace_spans", first, aligned=True) == (inputs, "<X> Thank <Y> me <Z> </s>")
    same = corrupt_sentence("replace_spans"), corrupt_sentence("replace_spans", aligned=True)
    assert same[0] == same[1]
    assert corrupt_sentence("replace_spans", ()) == (" ".join(WORDS) + " </s>", "<X> </s>")
    assert corrupt_sentence("replace_spans", WORDS) == ("<X> </s>", " ".join(WORDS) + " </s>")
    assert corrupt_sentence("replace_spans", WORDS, aligned=True) == ("<X> </s>", "<X> " + " ".join(WORDS) + " </s>")


@pytest.mark.parametrize(
    ("inputs", "mean", "raw", "targets"),
    [(128, 3, 141, 29), (256, 3, 284, 58), (512, 3, 568, 114), (1024, 3, 1137, 229), (512, 2, 552, 126), (512, 5, 581, 105)]
    + [(512, 10, 591, 99)],
)
def test_published_lengths_of_random_spans(inputs, mean, raw, targets):
    config = SpanCorruption(RandomSpans(0.15, mean))
    assert (config.raw_length(inputs), config.input_length(inputs), config.target_length(inputs)) == (raw, inputs, targets)


def test_published_lengths_of_the_other_objectives():
    places = {name: config.target_length(512) for name, config in T5_OBJECTIVES.items()}
    assert places == {
        "prefix_lm": 512, "bert_style": 512, "deshuffling": 512, "mass_style": 512,
        "replace_spans": 192, "drop_tokens": 104, "random_spans": 114,
    }  # fmt: skip
    assert {config.raw_length(512) for config in T5_OBJECTIVES.values()} == {511, 568}
    rates = {0.10: 103, 0.25: 256, 0.50: 512}
    assert {rate: SpanCorruption(RandomTokens(rate)).target_length(512) for rate in rates} == rates
    assert SpanCorruption(RandomTokens(), max_targets=150).target_length(512) == 150


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_lengths_equal_those_of_the_published_code(density, mean):
    config = SpanCorruption(RandomSpans(density, mean))
    for inputs in (16, 30, 64, 128, 255, 512):
        raw, targets = published_raw_length(inputs, density, mean)
        assert (config.raw_length(inputs), config.target_length(inputs)) == (raw, targets)
        assert config.input_length(inputs) == published_lengths(raw, density, mean)[0]


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_random_spans_fill_the_row_and_restore_the_text(density, mean):
    config = SpanCorruption(RandomSpans(density, mean))
    width = config.raw_length(64)
    raw, lengths = random_rows(40, width, np.arange(40) % 13 * (width // 12))
    lengths[:3] = width
    result = config.corrupt(make_rows(raw, lengths), fold(1, np.arange(40)), T5)
    assert result["encoder_input_tokens"].shape == (40, config.input_length(64)) and result["encoder_segment_ids"][:3].all()
    assert result["decoder_target_tokens"].shape == (40, config.target_length(64)) and result["decoder_segment_ids"][:3].all()
    for row, (inputs, targets) in enumerate(zip(real_tokens(result, "encoder"), real_tokens(result, "decoder"), strict=True)):
        if not lengths[row]:
            assert not inputs and not targets
            continue
        restored, sentinels = restore(inputs, targets)
        assert restored == raw[row, : lengths[row]].tolist()
        assert sentinels == list(T5.sentinels[: config.noise.counts(lengths[row]).spans])
        assert targets[0] == T5.sentinels[0] and targets[-2] not in T5.sentinels  # no closing sentinel


ALIGNED = {
    "tokens": SpanCorruption(RandomTokens(), targets=ClearToSentinels(aligned=True)),
    "rolled spans": SpanCorruption(RandomSpans(random_roll=True), targets=ClearToSentinels(aligned=True)),
    "rolled, mostly noise": SpanCorruption(RandomSpans(0.5, 2.0, random_roll=True), targets=ClearToSentinels(aligned=True)),
}


@pytest.mark.parametrize("kind", ALIGNED)
def test_aligned_targets_restore_the_text(kind):
    config, n = ALIGNED[kind], 400
    width = config.raw_length(64)
    raw, lengths = random_rows(n, width, np.arange(n) % width + 1)
    result = config.corrupt(make_rows(raw, lengths), fold(4, np.arange(n)), T5)
    assert result["encoder_input_tokens"].shape[1] <= 64
    begun = 0
    for row, (inputs, targets) in enumerate(zip(real_tokens(result, "encoder"), real_tokens(result, "decoder"), strict=True)):
        begun += inputs[0] == T5.sentinels[0]
        assert targets[0] == T5.sentinels[0] and restore(inputs, targets)[0] == raw[row, : lengths[row]].tolist()
    assert begun > 20  # rows that begin with noise
    assert config.notes == ()


def test_published_rows_that_begin_with_noise_do_not_say_where_their_spans_belong():
    config, n = T5_OBJECTIVES["replace_spans"], 1000
    raw, lengths = random_rows(n, config.raw_length(64))
    result = config.corrupt(make_rows(raw, lengths), fold(4, np.arange(n)), T5)
    ahead = [targets[0] not in T5.sentinels for targets in real_tokens(result, "decoder")]
    assert abs(np.mean(ahead) - 0.15) < 4 * math.sqrt(0.15 * 0.85 / n)
    (note,) = config.notes
    assert "ClearToSentinels.aligned = True" in note
    (note,) = T5_OBJECTIVES["random_spans"].notes
    assert "RandomSpans.random_roll = True" in note


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_every_objective_keeps_every_token_once(name):
    config, n, length = T5_OBJECTIVES[name], 300, 48
    width = config.raw_length(length)
    raw, lengths = random_rows(n, width, np.arange(n) % (width + 1))
    # Some ordinary tokens have the ids of control tokens, since nothing may be inferred from an id.
    raw[5::7, :3] = T5.pad, T5.eos, T5.unk
    result = config.corrupt(make_rows(raw, lengths), fold(2, np.arange(n)), T5)
    assert {name: value.dtype.name for name, value in result.items()} == {
        feature: spec.dtype for feature, spec in config.features(_shape(config, length)).items()
    }
    for feature, spec in config.features(_shape(config, length)).items():
        assert result[feature].shape == (n, *spec.shape)
    assert min(result[feature].min() for feature in result) >= 0
    for row in range(n):
        text = raw[row, : lengths[row]].tolist()
        inputs = result["encoder_input_tokens"][row, : result["encoder_segment_ids"][row].sum()].tolist()
        targets = result["decoder_target_tokens"][row, : result["decoder_segment_ids"][row].sum()].tolist()
        # The decoder's inputs are its targets shifted right by one, after the padding id, and every target counts.
        assert result["decoder_loss_weights"][row].sum() == len(targets)
        if not text:
            assert not inputs and not targets and not result["decoder_input_tokens"][row].any()
            continue
        assert result["decoder_input_tokens"][row, : len(targets)].tolist() == [T5.pad, *targets[:-1]]
        assert inputs[-1] == targets[-1] == EOS
        RESTORED_CHECKS[name](text, inputs[:-1], targets[:-1])


def _shape(config, length):
    from bertfam.data.rows.running_text import Chunks
    from bertfam.data.text_data import TextData

    return TextData(rows=Chunks(separated=False), corruption=config).shape(length)


def _check_spans(text, inputs, targets):
    """Check that the targets' noise, split at its sentinels, fills the inputs' sentinels in order."""
    sentinels = [token for token in inputs if token in T5.sentinels]
    assert sentinels == list(T5.sentinels[: len(sentinels)])
    assert [token for token in targets if token in T5.sentinels] == list(T5.sentinels[: sum(t in T5.sentinels for t in targets)])
    spans, open_span = [], []
    for token in targets:
        if token in T5.sentinels:
            spans.append(open_span)
            open_span = []
        else:
            open_span.append(token)
    spans = [span for span in [*spans, open_span] if span]
    restored = []
    for token in inputs:
        restored += spans.pop(0) if token in T5.sentinels else [token]
    assert restored == text and not spans


def _check_masked(text, inputs, targets):
    assert targets == text and all(token in (word, T5.sentinels[0]) for token, word in zip(inputs, text, strict=True))


def _check_bert_style(text, inputs, targets):
    assert targets == text and len(inputs) == len(text)
    assert not {token for token in inputs if token in T5.special[:2] and token not in text}


def _check_deshuffled(text, inputs, targets):
    assert targets == text and sorted(inputs) == sorted(text)


def _check_prefix(text, inputs, targets):
    assert inputs + targets == text and (len(text) < 2 or (inputs and targets))


def _check_dropped(text, inputs, targets):
    places = iter(range(len(text)))
    kept, dropped = list(inputs), list(targets)
    for place in places:  # the text interleaves both in their orders
        assert text[place] in (kept[:1] + dropped[:1])
        (kept if kept[:1] == [text[place]] else dropped).pop(0)
    assert not kept and not dropped


RESTORED_CHECKS = {
    "prefix_lm": _check_prefix, "bert_style": _check_bert_style, "deshuffling": _check_deshuffled, "mass_style": _check_masked,
    "replace_spans": _check_spans, "drop_tokens": _check_dropped, "random_spans": _check_spans,
}  # fmt: skip


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.25, 0.5])
def test_shares_of_noise(rate):
    n, width = 1500, 127
    raw, lengths = random_rows(40, width)
    raw, lengths = np.tile(raw, (n // 40 + 1, 1))[:n], np.full(n, width)
    keys = fold(3, np.arange(n))
    result = SpanCorruption(RandomTokens(rate)).corrupt(make_rows(raw, lengths), keys, T5)
    targets, weights = result["decoder_target_tokens"], result["decoder_loss_weights"] > 0
    noise = weights & (targets < 32000) & (targets != EOS)
    assert abs(noise.sum() / (n * width) - rate) < 5 * math.sqrt(rate * (1 - rate) / (n * width))
    # A run of clear text starts at the first token and after each span: n r (1 - r) + (1 - r)^2 runs.
    runs = (weights & (targets >= 32000)).sum(axis=1)
    expected = (width - 1) * rate * (1 - rate) + 1 - rate
    assert abs(runs.mean() - expected) < 5 * runs.std() / math.sqrt(n)


def test_bert_style_replaces_a_tenth_of_the_noise_by_random_pieces():
    n, width = 800, 511
    raw, lengths = random_rows(1, width)
    result = T5_OBJECTIVES["bert_style"].corrupt(make_rows(np.tile(raw, (n, 1)), np.full(n, width)), fold(3, np.arange(n)), T5)
    inputs = result["encoder_input_tokens"][:, :width]
    masked, random = (inputs == T5.sentinels[0]).sum(), ((inputs != T5.sentinels[0]) & (inputs != raw)).sum()
    total = masked + random
    assert abs(total / (n * width) - 0.15) < 5 * math.sqrt(0.15 * 0.85 / (n * width))
    assert abs(random / total - 0.1) < 5 * math.sqrt(0.09 / total)
    assert inputs[inputs != T5.sentinels[0]].max() < 32000 and inputs.min() > 2


def test_deshuffling_yields_every_order():
    n = 3000
    raw = np.arange(10, 14)[None].repeat(n, 0)
    result = T5_OBJECTIVES["deshuffling"].corrupt(make_rows(raw, np.full(n, 4)), fold(4, np.arange(n)), T5)
    orders, counts = np.unique(result["encoder_input_tokens"][:, :4], axis=0, return_counts=True)
    assert len(orders) == 24 and counts.min() > n / 24 - 5 * math.sqrt(n / 24)


@pytest.mark.parametrize("targets", [ClearToSentinels(), ClearToSentinels(aligned=True), DropClear()], ids=str)
def test_noise_beyond_the_target_length_stays_clear(targets):
    inputs = NoiseToSentinels() if isinstance(targets, ClearToSentinels) else T5_OBJECTIVES["drop_tokens"].inputs
    config, n = SpanCorruption(RandomTokens(0.3), inputs, targets, max_targets=20), 400
    free = SpanCorruption(RandomTokens(0.3), inputs, targets, max_targets=70)
    raw, lengths = random_rows(n, 63)
    keys = fold(5, np.arange(n))
    limited_result, free_result = (noise.corrupt(make_rows(raw, lengths), keys, T5) for noise in (config, free))
    limited_targets = real_tokens(limited_result, "decoder")
    assert max(map(len, limited_targets)) == 20 and {len(row) for row in limited_targets} >= {19, 20}
    for row, (short, long) in enumerate(zip(limited_targets, real_tokens(free_result, "decoder"), strict=True)):
        assert short == long if len(long) <= 20 else short[:-2] == long[: len(short) - 2]
        text = raw[row].tolist()
        inputs_of_row = real_tokens({name: value[row : row + 1] for name, value in limited_result.items()}, "encoder")[0]
        (_check_spans if isinstance(targets, ClearToSentinels) else _check_dropped)(text, inputs_of_row[:-1], short[:-1])


def test_too_few_sentinels_are_refused_or_leave_text_clear():
    spans = SpanCorruption()
    for length in (512, 1024, 1801):
        spans.check(length, T5)
    with pytest.raises(UserError, match=r"rows of 2048 tokens, made of 2274, may need 114 sentinels, and the vocabulary has 100"):
        spans.check(2048, T5)
    for config, length in ((spans, 2048), (SpanCorruption(RandomTokens(0.25)), 512), (SpanCorruption(RandomTokens(0.5)), 512)):
        with pytest.raises(UserError, match=r"use rows of at most (\d+), ") as refused:
            config.check(length, T5)
        fits = int(str(refused.value).split("at most ")[1].split(",")[0])
        config.check(fits, T5)
        with pytest.raises(UserError, match="sentinels"):
            config.check(fits + 1, T5)
    three_sentinels = TokenIds(size=100, pad=0, unk=2, eos=1, special=(0, 1, 2), sentinels=(99, 98, 97))
    raw, lengths = np.arange(10, 50)[None].repeat(200, 0), np.full(200, 40)
    result = SpanCorruption(RandomTokens(0.3)).corrupt(make_rows(raw, lengths), fold(6, np.arange(200)), three_sentinels)
    for row in range(200):  # after the last sentinel all text stays clear
        marks = [t for t in result["decoder_target_tokens"][row].tolist() if t >= 97]
        assert marks == [99, 98, 97][: len(marks)]
        assert set(raw[0].tolist()) <= {
            *result["encoder_input_tokens"][row].tolist(),
            *result["decoder_target_tokens"][row].tolist(),
        }
    with pytest.raises(UserError, match="no sentinel tokens"):
        T5_OBJECTIVES["mass_style"].check(64, TokenIds(size=9, pad=0, unk=1, eos=2))
    T5_OBJECTIVES["deshuffling"].check(64, TokenIds(size=9, pad=0, unk=1, eos=2))


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_corrupted_row_does_not_depend_on_other_rows(name):
    config = T5_OBJECTIVES[name]
    raw, lengths = random_rows(60, 64, np.random.default_rng(1).integers(1, 65, 60))
    whole = config.corrupt(make_rows(raw, lengths), fold(3, np.arange(60)), T5)
    few = np.array([59, 3, 20])
    alone = config.corrupt(make_rows(raw[few], lengths[few]), fold(3, few), T5)
    assert all(np.array_equal(value, whole[feature][few]) for feature, value in alone.items())
    other = config.corrupt(make_rows(raw, lengths), fold(4, np.arange(60)), T5)
    assert (other["encoder_input_tokens"] != whole["encoder_input_tokens"]).any(axis=1).mean() > 0.4


def test_short_rows_of_every_objective():
    for config in T5_OBJECTIVES.values():
        width = config.raw_length(16)
        raw, lengths = random_rows(12, width, np.arange(1, 13))
        result = config.corrupt(make_rows(raw, lengths), fold(8, np.arange(12)), T5)
        assert all(
            targets[-1] == EOS and len(targets) <= size + 2
            for targets, size in zip(real_tokens(result, "decoder"), lengths, strict=True)
        )
    # A single token is never noise of random spans; it is clear text, which a sentinel replaces.
    result = SpanCorruption().corrupt(make_rows(np.array([[7, 8]]), np.array([1])), fold(1, 0), T5)
    assert real_tokens(result, "encoder") == [[7, EOS]] and real_tokens(result, "decoder") == [[T5.sentinels[0], EOS]]
    with pytest.raises(UserError, match="rows of 2 tokens are too short"):
        SpanCorruption().raw_length(2)
    # Rows of 3 tokens are made of 2, of which no setting knows.
    with pytest.raises(UserError, match="length 3 is too short for Chunks with SpanCorruption; use at least 4"):
        TextData(rows=Chunks(), corruption=SpanCorruption()).check_length(3)


def test_first_input_of_the_decoder():
    raw = make_rows(np.arange(10, 20)[None], np.array([10]))
    for start, token in (("pad", T5.pad), ("eos", EOS)):
        result = SpanCorruption(start=start).corrupt(raw, fold(1, 0), T5)
        assert result["decoder_input_tokens"][0, 0] == token and result["decoder_loss_weights"][0, 0] == 1
    with pytest.raises(UserError, match="no cls token, which SpanCorruption.start requires"):
        SpanCorruption(start="bos").check(32, T5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_targets": 2, "noise": RandomTokens()}, "max_targets 2 is less than 3"),
        ({"max_targets": 50}, "with RandomSpans all rows have the same length"),
        ({"max_targets": 50, "noise": RandomTokens(), "targets": KeepAll()}, "it applies only to ClearToSentinels and DropClear"),
    ],
)
def test_bad_settings_of_span_corruption_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SpanCorruption(**settings)


def test_sentinels_are_numbered_per_row():
    noise = np.array([[0, 1, 0, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    raw = Raw(np.arange(10, 25).reshape(3, 5), np.ones((3, 5), bool), noise, fold(1, np.arange(3)))
    values, keep = NoiseToSentinels().write(raw, T5)
    assert values[keep].tolist() == [10, 32099, 12, 32098, 14, 32099, 16, 32098, 18, 32097, 20, 21, 22, 23, 24]

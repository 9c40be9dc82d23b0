import math

import numpy as np
import pytest

from bertfam.corruption.keys import fold
from bertfam.corruption.t5.random_spans import RandomSpans
from bertfam.corruption.t5.random_tokens import Noise, RandomTokens
from bertfam.corruption.t5.span_corruption import T5_OBJECTIVES, SpanCorruption
from bertfam.corruption.t5.span_formats import ClearToSentinels, DropClear, KeepAll, NoiseToSentinels, Raw
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError

T5 = TokenIds(size=32100, pad=0, unk=2, eos=1, special=(0, 1, 2), sentinels=tuple(range(32099, 31999, -1)))
EOS = T5.eos
WORDS = "Thank you for inviting me to your party last week .".split()
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


def rows_of(raw, lengths):
    real = np.arange(raw.shape[1]) < lengths[:, None]
    return {"encoder_input_tokens": np.where(real, raw, 0).astype(np.int32), "encoder_segment_ids": real.astype(np.int32)}


def random_rows(n, width, lengths=None, seed=0):
    """Rows of tokens of which no two in a row are the same."""
    generator = np.random.default_rng(seed)
    raw = np.stack([generator.permutation(np.arange(3, 32000))[:width] for _ in range(n)])
    return raw.astype(np.int32), np.full(n, width) if lengths is None else lengths


def tokens_of(found, side):
    """Real tokens of each row, and that padding is padding."""
    names = {
        "encoder": ("encoder_input_tokens", "encoder_segment_ids"),
        "decoder": ("decoder_target_tokens", "decoder_segment_ids"),
    }
    tokens, segments = (found[name] for name in names[side])
    assert not tokens[segments == 0].any()
    assert np.array_equal(segments, np.arange(segments.shape[1]) < segments.sum(axis=1)[:, None])
    return [row[: int(count)].tolist() for row, count in zip(tokens, segments.sum(axis=1), strict=True)]


def spans_of(inputs, targets):
    """The raw row from inputs and targets, and the sentinels of the inputs; each span is behind its own sentinel."""
    spans, sentinels = {}, [token for token in inputs if token in T5.sentinels]
    assert inputs[-1] == targets[-1] == EOS
    for token in targets[:-1]:
        if token in T5.sentinels:
            assert token not in spans
            current = spans[token] = []
        else:
            current.append(token)
    raw = []
    for token in inputs[:-1]:
        raw += spans[token] if token in T5.sentinels else [token]
    return raw, sentinels


class Given(Noise):
    """Noise that a test decides."""

    def __init__(self, mask):
        self.mask = np.asarray(mask)

    def counts(self, lengths):
        return RandomTokens(1.0).counts(lengths)

    def draw(self, lengths, width, row_keys):
        return np.broadcast_to(np.pad(self.mask, (0, width - len(self.mask))), (len(row_keys), width))


def sentence(name, noise=("for", "inviting", "last"), aligned=False):
    """Inputs and targets of T5's example, as text."""
    config = T5_OBJECTIVES[name]
    targets = ClearToSentinels(aligned) if isinstance(config.targets, ClearToSentinels) else config.targets
    config = SpanCorruption(Given(np.isin(WORDS, noise)), config.inputs, targets)
    names = dict(zip(range(10, 21), WORDS, strict=True)) | {32099: "<X>", 32098: "<Y>", 32097: "<Z>", 32096: "<W>", EOS: "</s>"}
    found = config.corrupt(rows_of(np.arange(10, 26)[None], np.array([11])), fold(1, 0), T5)
    return tuple(" ".join(names.get(token, "?") for token in tokens_of(found, side)[0]) for side in ("encoder", "decoder"))


def test_the_sentence_of_the_paper():
    whole = " ".join(WORDS) + " </s>"
    spans = "Thank you <X> me to your party <Y> week . </s>", "<X> for inviting <Y> last <Z> </s>"
    assert sentence("replace_spans") == sentence("random_spans") == spans
    assert sentence("mass_style") == ("Thank you <X> <X> me to your party <X> week . </s>", whole)
    assert sentence("drop_tokens") == ("Thank you me to your party week . </s>", "for inviting last </s>")
    assert sentence("prefix_lm", WORDS[:8]) == ("Thank you for inviting me to your party </s>", "last week . </s>")
    inputs, targets = sentence("deshuffling", WORDS)
    assert targets == whole and inputs != whole and sorted(inputs.split()) == sorted(whole.split()) and inputs.endswith(" </s>")
    inputs, targets = sentence("bert_style")
    assert targets == whole
    assert all(seen == word or word in ("for", "inviting", "last") for seen, word in zip(inputs.split(), WORDS, strict=False))


def test_a_row_that_begins_with_noise():
    first = ("Thank", "me")
    inputs = "<X> you for inviting <Y> to your party last week . </s>"
    assert sentence("replace_spans", first) == (inputs, "Thank <X> me <Y> </s>")  # as published in code
    assert sentence("replace_spans", first, aligned=True) == (inputs, "<X> Thank <Y> me <Z> </s>")
    same = sentence("replace_spans"), sentence("replace_spans", aligned=True)
    assert same[0] == same[1]
    assert sentence("replace_spans", ()) == (" ".join(WORDS) + " </s>", "<X> </s>")
    assert sentence("replace_spans", WORDS) == ("<X> </s>", " ".join(WORDS) + " </s>")
    assert sentence("replace_spans", WORDS, aligned=True) == ("<X> </s>", "<X> " + " ".join(WORDS) + " </s>")


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
def test_lengths_as_counted_by_the_published_code(density, mean):
    config = SpanCorruption(RandomSpans(density, mean))
    for inputs in (16, 30, 64, 128, 255, 512):
        raw, targets = published_raw_length(inputs, density, mean)
        assert (config.raw_length(inputs), config.target_length(inputs)) == (raw, targets)
        assert config.input_length(inputs) == published_lengths(raw, density, mean)[0]


@pytest.mark.parametrize(("density", "mean"), SETTINGS)
def test_random_spans_fill_their_places_and_rebuild(density, mean):
    config = SpanCorruption(RandomSpans(density, mean))
    width = config.raw_length(64)
    raw, lengths = random_rows(40, width, np.arange(40) % 13 * (width // 12))
    lengths[:3] = width
    found = config.corrupt(rows_of(raw, lengths), fold(1, np.arange(40)), T5)
    assert found["encoder_input_tokens"].shape == (40, config.input_length(64)) and found["encoder_segment_ids"][:3].all()
    assert found["decoder_target_tokens"].shape == (40, config.target_length(64)) and found["decoder_segment_ids"][:3].all()
    for row, (inputs, targets) in enumerate(zip(tokens_of(found, "encoder"), tokens_of(found, "decoder"), strict=True)):
        if not lengths[row]:
            assert not inputs and not targets
            continue
        again, sentinels = spans_of(inputs, targets)
        assert again == raw[row, : lengths[row]].tolist()
        assert sentinels == list(T5.sentinels[: config.noise.counts(lengths[row]).spans])
        assert targets[0] == T5.sentinels[0] and targets[-2] not in T5.sentinels  # no closing sentinel


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_nothing_is_lost_or_doubled(name):
    config, n, length = T5_OBJECTIVES[name], 300, 48
    width = config.raw_length(length)
    raw, lengths = random_rows(n, width, np.arange(n) % (width + 1))
    # Ordinary tokens with the ids of control tokens: nothing may be told by an id.
    raw[5::7, :3] = T5.pad, T5.eos, T5.unk
    found = config.corrupt(rows_of(raw, lengths), fold(2, np.arange(n)), T5)
    assert {name: value.dtype.name for name, value in found.items()} == {
        feature: spec.dtype for feature, spec in config.features(_shape(config, length)).items()
    }
    for feature, spec in config.features(_shape(config, length)).items():
        assert found[feature].shape == (n, *spec.shape)
    assert min(found[feature].min() for feature in found) >= 0
    for row in range(n):
        text = raw[row, : lengths[row]].tolist()
        inputs = found["encoder_input_tokens"][row, : found["encoder_segment_ids"][row].sum()].tolist()
        targets = found["decoder_target_tokens"][row, : found["decoder_segment_ids"][row].sum()].tolist()
        # The decoder reads its targets one place later, behind the padding id, and every target counts.
        assert found["decoder_loss_weights"][row].sum() == len(targets)
        if not text:
            assert not inputs and not targets and not found["decoder_input_tokens"][row].any()
            continue
        assert found["decoder_input_tokens"][row, : len(targets)].tolist() == [T5.pad, *targets[:-1]]
        assert inputs[-1] == targets[-1] == EOS
        REBUILT[name](text, inputs[:-1], targets[:-1])


def _shape(config, length):
    from bertfam.data.rows.running_text import Chunks
    from bertfam.data.text_data import TextData

    return TextData(rows=Chunks(separated=False), corruption=config).shape(length)


def _spans(text, inputs, targets):
    """Spans in the order of both sides: the targets' noise, cut at its sentinels, fills the inputs' sentinels."""
    sentinels = [token for token in inputs if token in T5.sentinels]
    assert sentinels == list(T5.sentinels[: len(sentinels)])
    assert [token for token in targets if token in T5.sentinels] == list(T5.sentinels[: sum(t in T5.sentinels for t in targets)])
    spans, current = [], []
    for token in targets:
        if token in T5.sentinels:
            spans.append(current)
            current = []
        else:
            current.append(token)
    spans = [span for span in [*spans, current] if span]
    again = []
    for token in inputs:
        again += spans.pop(0) if token in T5.sentinels else [token]
    assert again == text and not spans


def _masked(text, inputs, targets):
    assert targets == text and all(seen in (word, T5.sentinels[0]) for seen, word in zip(inputs, text, strict=True))


def _bert_style(text, inputs, targets):
    assert targets == text and len(inputs) == len(text)
    assert not {token for token in inputs if token in T5.special[:2] and token not in text}


def _deshuffled(text, inputs, targets):
    assert targets == text and sorted(inputs) == sorted(text)


def _prefix(text, inputs, targets):
    assert inputs + targets == text and (len(text) < 2 or (inputs and targets))


def _dropped(text, inputs, targets):
    places = iter(range(len(text)))
    kept, gone = list(inputs), list(targets)
    for place in places:  # the text is one shuffle of both that keeps their orders
        assert text[place] in (kept[:1] + gone[:1])
        (kept if kept[:1] == [text[place]] else gone).pop(0)
    assert not kept and not gone


REBUILT = {
    "prefix_lm": _prefix, "bert_style": _bert_style, "deshuffling": _deshuffled, "mass_style": _masked,
    "replace_spans": _spans, "drop_tokens": _dropped, "random_spans": _spans,
}  # fmt: skip


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.25, 0.5])
def test_shares_of_noise(rate):
    n, width = 1500, 127
    raw, lengths = random_rows(40, width)
    raw, lengths = np.tile(raw, (n // 40 + 1, 1))[:n], np.full(n, width)
    keys = fold(3, np.arange(n))
    found = SpanCorruption(RandomTokens(rate)).corrupt(rows_of(raw, lengths), keys, T5)
    targets, weights = found["decoder_target_tokens"], found["decoder_loss_weights"] > 0
    noise = weights & (targets < 32000) & (targets != EOS)
    assert abs(noise.sum() / (n * width) - rate) < 5 * math.sqrt(rate * (1 - rate) / (n * width))
    # A run of clear text begins at the first token, and behind each span: n r (1 - r) + (1 - r)^2 runs.
    runs = (weights & (targets >= 32000)).sum(axis=1)
    expected = (width - 1) * rate * (1 - rate) + 1 - rate
    assert abs(runs.mean() - expected) < 5 * runs.std() / math.sqrt(n)


def test_bert_style_replaces_a_tenth_by_random_pieces():
    n, width = 800, 511
    raw, lengths = random_rows(1, width)
    found = T5_OBJECTIVES["bert_style"].corrupt(rows_of(np.tile(raw, (n, 1)), np.full(n, width)), fold(3, np.arange(n)), T5)
    inputs = found["encoder_input_tokens"][:, :width]
    masked, random = (inputs == T5.sentinels[0]).sum(), ((inputs != T5.sentinels[0]) & (inputs != raw)).sum()
    total = masked + random
    assert abs(total / (n * width) - 0.15) < 5 * math.sqrt(0.15 * 0.85 / (n * width))
    assert abs(random / total - 0.1) < 5 * math.sqrt(0.09 / total)
    assert inputs[inputs != T5.sentinels[0]].max() < 32000 and inputs.min() > 2


def test_deshuffling_has_no_order():
    n = 3000
    raw = np.arange(10, 14)[None].repeat(n, 0)
    found = T5_OBJECTIVES["deshuffling"].corrupt(rows_of(raw, np.full(n, 4)), fold(4, np.arange(n)), T5)
    orders, counts = np.unique(found["encoder_input_tokens"][:, :4], axis=0, return_counts=True)
    assert len(orders) == 24 and counts.min() > n / 24 - 5 * math.sqrt(n / 24)


@pytest.mark.parametrize("targets", [ClearToSentinels(), ClearToSentinels(aligned=True), DropClear()], ids=str)
def test_noise_for_which_there_is_no_place_stays_clear(targets):
    inputs = NoiseToSentinels() if isinstance(targets, ClearToSentinels) else T5_OBJECTIVES["drop_tokens"].inputs
    config, n = SpanCorruption(RandomTokens(0.3), inputs, targets, max_targets=20), 400
    free = SpanCorruption(RandomTokens(0.3), inputs, targets, max_targets=70)
    raw, lengths = random_rows(n, 63)
    keys = fold(5, np.arange(n))
    found, whole = (noise.corrupt(rows_of(raw, lengths), keys, T5) for noise in (config, free))
    limited = tokens_of(found, "decoder")
    assert max(map(len, limited)) == 20 and {len(row) for row in limited} >= {19, 20}
    for row, (few, many) in enumerate(zip(limited, tokens_of(whole, "decoder"), strict=True)):
        assert few == many if len(many) <= 20 else few[:-2] == many[: len(few) - 2]
        text = raw[row].tolist()
        read = tokens_of({name: value[row : row + 1] for name, value in found.items()}, "encoder")[0]
        (_spans if isinstance(targets, ClearToSentinels) else _dropped)(text, read[:-1], few[:-1])


def test_sentinels_that_run_out():
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
    few = TokenIds(size=100, pad=0, unk=2, eos=1, special=(0, 1, 2), sentinels=(99, 98, 97))
    raw, lengths = np.arange(10, 50)[None].repeat(200, 0), np.full(200, 40)
    found = SpanCorruption(RandomTokens(0.3)).corrupt(rows_of(raw, lengths), fold(6, np.arange(200)), few)
    for row in range(200):  # beyond the last sentinel everything stays clear
        marks = [t for t in found["decoder_target_tokens"][row].tolist() if t >= 97]
        assert marks == [99, 98, 97][: len(marks)]
        assert set(raw[0].tolist()) <= {
            *found["encoder_input_tokens"][row].tolist(),
            *found["decoder_target_tokens"][row].tolist(),
        }
    with pytest.raises(UserError, match="no sentinel tokens"):
        T5_OBJECTIVES["mass_style"].check(64, TokenIds(size=9, pad=0, unk=1, eos=2))
    T5_OBJECTIVES["deshuffling"].check(64, TokenIds(size=9, pad=0, unk=1, eos=2))


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_rows_do_not_depend_on_their_neighbours(name):
    config = T5_OBJECTIVES[name]
    raw, lengths = random_rows(60, 64, np.random.default_rng(1).integers(1, 65, 60))
    whole = config.corrupt(rows_of(raw, lengths), fold(3, np.arange(60)), T5)
    few = np.array([59, 3, 20])
    alone = config.corrupt(rows_of(raw[few], lengths[few]), fold(3, few), T5)
    assert all(np.array_equal(value, whole[feature][few]) for feature, value in alone.items())
    other = config.corrupt(rows_of(raw, lengths), fold(4, np.arange(60)), T5)
    assert (other["encoder_input_tokens"] != whole["encoder_input_tokens"]).any(axis=1).mean() > 0.4


def test_rows_of_one_to_twelve_tokens():
    for config in T5_OBJECTIVES.values():
        width = config.raw_length(16)
        raw, lengths = random_rows(12, width, np.arange(1, 13))
        found = config.corrupt(rows_of(raw, lengths), fold(8, np.arange(12)), T5)
        assert all(
            targets[-1] == EOS and len(targets) <= size + 2
            for targets, size in zip(tokens_of(found, "decoder"), lengths, strict=True)
        )
    # One token cannot be noise of random spans: it is clear text, which a sentinel stands for.
    found = SpanCorruption().corrupt(rows_of(np.array([[7, 8]]), np.array([1])), fold(1, 0), T5)
    assert tokens_of(found, "encoder") == [[7, EOS]] and tokens_of(found, "decoder") == [[T5.sentinels[0], EOS]]
    with pytest.raises(UserError, match="rows of 2 tokens are too short"):
        SpanCorruption().raw_length(2)


def test_the_first_token_of_the_decoder():
    raw = rows_of(np.arange(10, 20)[None], np.array([10]))
    for start, token in (("pad", T5.pad), ("eos", EOS)):
        found = SpanCorruption(start=start).corrupt(raw, fold(1, 0), T5)
        assert found["decoder_input_tokens"][0, 0] == token and found["decoder_loss_weights"][0, 0] == 1
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
def test_settings_of_span_corruption_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        SpanCorruption(**settings)


def test_sentinels_of_many_runs_in_one_batch_are_each_row_s_own():
    noise = np.array([[0, 1, 0, 1, 0], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
    raw = Raw(np.arange(10, 25).reshape(3, 5), np.ones((3, 5), bool), noise, fold(1, np.arange(3)))
    values, keep = NoiseToSentinels().write(raw, T5)
    assert values[keep].tolist() == [10, 32099, 12, 32098, 14, 32099, 16, 32098, 18, 32097, 20, 21, 22, 23, 24]

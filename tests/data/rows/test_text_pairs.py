"""Rows of inputs and targets, alone and mixed with running text."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from numbered_documents import BARE, FIRST, IDS

from bertfam.corruption.corruption import RowForm, TextCorruption
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.text_to_text import TextToText
from bertfam.data.corpora.pair_files import PairFiles
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.completions import Completions
from bertfam.data.rows.mixture import Mixture
from bertfam.data.rows.running_text import Chunks
from bertfam.data.rows.text_pairs import PairFrame, TextPairs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.errors import UserError
from bertfam.features import decoder_features, encoder_features


def make_pairs(*lengths):
    """Return pairs of (inputs, targets) of the given lengths; the tokens are FIRST, FIRST + 1, ..."""
    starts = np.concatenate([[0], np.cumsum(np.array(lengths).reshape(-1))]).astype(np.int64)
    bounds = 2 * np.arange(len(lengths) + 1)
    return Documents("toy", FIRST + np.arange(starts[-1], dtype=np.uint32), starts, bounds, pairs=True)


def pair_texts(documents, pair):
    begin, middle, end = documents.sentence_starts[2 * pair : 2 * pair + 3]
    return documents.tokens[begin:middle].tolist(), documents.tokens[middle:end].tolist()


def random_pairs(count, seed=0):
    generator = np.random.default_rng(seed)
    return make_pairs(*zip(generator.integers(0, 30, count), generator.integers(1, 12, count), strict=True))


def all_rows(examples, numbers=None):
    numbers = np.arange(len(examples)) if numbers is None else np.array(numbers)
    return examples.rows(numbers, np.zeros(len(numbers), np.uint64))


@pytest.mark.parametrize("start", ["pad", "eos"])
def test_rows_of_one_pair(start):
    documents = make_pairs((3, 2), (0, 1), (9, 7))
    frame = PairFrame(BARE, start)
    examples = TextPairs().examples(documents, (6, 4), 0, frame)
    rows = all_rows(examples)
    first, end = (BARE.pad if start == "pad" else BARE.eos), BARE.eos
    assert rows["encoder_input_tokens"].tolist() == [
        [10, 11, 12, end, 0, 0],
        [end, 0, 0, 0, 0, 0],
        [16, 17, 18, 19, 20, end],  # cut inputs still end with the end token
    ]
    assert rows["decoder_target_tokens"].tolist() == [[13, 14, end, 0], [15, end, 0, 0], [25, 26, 27, end]]
    assert rows["decoder_input_tokens"].tolist() == [[first, 13, 14, 0], [first, 15, 0, 0], [first, 25, 26, 27]]
    assert rows["decoder_loss_weights"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert rows["encoder_segment_ids"].tolist() == (rows["encoder_input_tokens"] > 0).astype(int).tolist()
    assert len(examples.warnings) == 3
    assert examples.warnings[0].startswith("1 of the 3 pairs of toy have inputs of more than 6 tokens, which are cut")
    assert examples.warnings[1].startswith("1 of the 3 pairs of toy have targets of more than 4 tokens")
    assert examples.warnings[2].startswith("1 of the 3 pairs of toy have no inputs")


def test_rows_of_a_vocabulary_that_frames_texts():
    """Frame both sides as BART does, <s> text </s>, and start the decoder with </s>."""
    frame = PairFrame(IDS, "eos")
    rows = all_rows(TextPairs().examples(make_pairs((2, 1)), (5, 4), 0, frame))
    assert rows["encoder_input_tokens"].tolist() == [[IDS.cls, 10, 11, IDS.sep, 0]]
    assert rows["decoder_target_tokens"].tolist() == [[IDS.cls, 12, IDS.sep, 0]]
    assert rows["decoder_input_tokens"].tolist() == [[IDS.sep, IDS.cls, 12, 0]]
    bare = all_rows(TextPairs().examples(make_pairs((2, 1)), (5, 4), 0, PairFrame(IDS, "pad")))
    assert bare["encoder_input_tokens"].tolist() == [[10, 11, IDS.sep, 0, 0]]
    assert bare["decoder_input_tokens"].tolist() == [[IDS.pad, 12, 0, 0]]


@pytest.mark.parametrize("max_examples", [None, 3])
def test_packed_rows_contain_every_pair_once_in_its_own_segment(max_examples):
    documents, size = random_pairs(300), (40, 16)
    examples = TextPairs(packed=True, max_examples=max_examples).examples(documents, size, 5, PairFrame(BARE, "pad"))
    rows = all_rows(examples)
    assert all(value.shape == (len(examples), size[name.startswith("decoder")]) for name, value in rows.items())
    packed_pairs = []
    for row in range(len(examples)):
        packed_row = {name: value[row] for name, value in rows.items()}
        segments = set(packed_row["encoder_segment_ids"].tolist()) - {0}
        assert segments == set(packed_row["decoder_segment_ids"].tolist()) - {0} == set(range(1, len(segments) + 1))
        assert len(segments) <= (max_examples or 2)
        for segment in segments:
            in_encoder, in_decoder = (packed_row[f"{side}_segment_ids"] == segment for side in ("encoder", "decoder"))
            inputs, targets = (
                packed_row["encoder_input_tokens"][in_encoder].tolist(),
                packed_row["decoder_target_tokens"][in_decoder].tolist(),
            )
            assert inputs[-1] == targets[-1] == BARE.eos
            assert packed_row["decoder_input_tokens"][in_decoder].tolist() == [BARE.pad, *targets[:-1]]
            assert packed_row["encoder_positions"][in_encoder].tolist() == list(range(len(inputs)))
            assert packed_row["decoder_positions"][in_decoder].tolist() == list(range(len(targets)))
            assert (np.diff(np.flatnonzero(in_encoder)) == 1).all() and (np.diff(np.flatnonzero(in_decoder)) == 1).all()
            packed_pairs.append((inputs[:-1], targets[:-1]))
        assert (packed_row["decoder_loss_weights"] == (packed_row["decoder_segment_ids"] > 0)).all()
    expected = [pair_texts(documents, pair) for pair in range(300)]
    assert sorted(packed_pairs) == sorted((list(i), list(t)) for i, t in expected)
    unpacked = TextPairs().examples(documents, size, 5, PairFrame(BARE, "pad"))
    assert len(examples) < 0.7 * len(unpacked)
    fill = ((rows["encoder_segment_ids"] > 0).mean(), (rows["decoder_segment_ids"] > 0).mean())
    assert examples.fill == pytest.approx(fill)


def test_packing_respects_the_capacity_of_both_sides():
    """Pack short inputs with long targets and the reverse: a pair of each kind fits, two of one kind do not."""
    documents = make_pairs((1, 10), (12, 1), (1, 10), (12, 1))
    examples = TextPairs(packed=True, max_examples=4).examples(documents, (20, 16), 0, PairFrame(BARE, "pad"))
    rows = all_rows(examples)
    for side, width in (("encoder", 20), ("decoder", 16)):
        assert (rows[f"{side}_segment_ids"] > 0).sum() == {"encoder": 2 + 13 + 2 + 13, "decoder": 11 + 2 + 11 + 2}[side]
        assert rows[f"{side}_segment_ids"].shape[1] == width


@dataclass(frozen=True)
class CopiedText(TextCorruption):
    """Toy corruption for an encoder and a decoder: the clean text as inputs, its first tokens as targets."""

    form: ClassVar[RowForm] = RowForm(framed=False)
    targets: int = 8

    @property
    def decoder_start(self):
        return "pad"

    def target_length(self, length):
        return self.targets

    def features(self, shape):
        return encoder_features(shape) | decoder_features(shape)

    def corrupt(self, rows, keys, tokens):
        inputs = {name: value for name, value in rows.items() if name != "maskable"}
        target = rows["encoder_input_tokens"][:, : self.targets]
        segments = rows["encoder_segment_ids"][:, : self.targets]
        return inputs | {
            "decoder_input_tokens": np.pad(target[:, :-1], ((0, 0), (1, 0))),
            "decoder_target_tokens": target,
            "decoder_segment_ids": segments,
            "decoder_loss_weights": (segments > 0).astype(np.float32),
        }


LENGTH = 24


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder, the corpora (pairs and running text) and their vocabulary, with a token cache in the folder."""
    folder = tmp_path_factory.mktemp("pairs")
    words = "one two three four five six seven eight nine ten".split()
    generator = np.random.default_rng(0)
    number_lists = [generator.integers(0, 10, generator.integers(1, 5)) for _ in range(150)]
    lines = [
        {"inputs": " and ".join(words[n] for n in numbers), "targets": " ".join(words[n] for n in sorted(numbers))}
        for numbers in number_lists
    ]
    lines += [{"inputs": "one", "targets": "  "}, {"inputs": "", "targets": "ten"}, {"inputs": "two", "targets": "\u200d"}]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "text.txt").write_text("\n\n".join(" ".join(generator.choice(words, 40)) for _ in range(60)))
    corpora = {
        "sorting": PairFiles((str(folder / "pairs.jsonl"),), prefix="sort: ", validation_fraction=0.2),
        "text": TextFiles((str(folder / "text.txt"),), validation_fraction=0.2),
    }
    vocabulary = WordPiece.train((text for corpus in corpora.values() for d in corpus.documents("train") for text in d), size=90)
    build(corpora, vocabulary, folder / "cache")
    return folder, corpora, vocabulary


def make_data(prepared, *names, **settings):
    folder, corpora, _ = prepared
    mixture = Mixture(tuple(corpora[name] for name in names), names, **settings.pop("mixture", {}))
    settings = {"rows": Chunks(), "corruption": CopiedText(), "cache_dir": str(folder / "cache")} | settings
    return TextData(mixture, **settings)


def test_cache_keeps_pairs_and_counts_those_without_targets(prepared):
    folder, corpora, vocabulary = prepared
    cache = TokenCache(folder / "cache")
    assert cache.has_pairs("sorting") and not cache.has_pairs("text")
    manifest = json.loads((folder / "cache" / "cache.json").read_text())
    assert [manifest["corpora"][name]["train"].get("pairs") for name in ("sorting", "text")] == [True, None]
    for split in ("train", "validation"):
        pairs = list(corpora["sorting"].texts(split))
        kept = [pair for pair in pairs if pair[1].strip("\u200d")]
        documents, counts = cache.documents(split, "sorting"), cache.counts(split, "sorting")
        assert documents.pairs and len(documents) == len(kept)
        assert counts["skipped_documents"] == len(pairs) - len(kept) and counts["sentences"] == 2 * len(kept)
        assert counts["words"] == sum(len(text.split()) for pair in kept for text in pair)
        for number, pair in enumerate(kept):
            expected = [ids.tolist() for ids in vocabulary.encode_batch(pair)]
            assert list(pair_texts(documents, number)) == expected
    skipped = [cache.counts(split, "sorting")["skipped_documents"] for split in ("train", "validation")]
    assert sum(skipped) == 2


def test_bytes_of_a_pair_cache_do_not_depend_on_processes(prepared, tmp_path):
    folder, corpora, vocabulary = prepared
    other = build(corpora, vocabulary, tmp_path / "other", processes=1).directory
    files = sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    assert len(files) > 16
    assert all((other / name).read_bytes() == (folder / "cache" / name).read_bytes() for name in files)


@pytest.mark.parametrize("packed", [False, True])
def test_mixed_batch_depends_on_seed_and_step_only(prepared, packed):
    """Mix pairs and running text: equal features, slices of the batch, and every pair once an epoch."""
    folder, _, vocabulary = prepared
    cache, tokens = TokenCache(folder / "cache"), vocabulary.token_ids
    settings = make_data(prepared, "sorting", "text", pairs=TextPairs(packed=packed), mixture={"rates": (3.0, 1.0)})
    batches = settings.training(cache, tokens, LENGTH, 16, seed=3)
    specs = settings.features(LENGTH)
    whole = batches.rows(7, 0, 16)
    assert {name: (value.shape[1:], value.dtype.name) for name, value in whole.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    assert ("decoder_positions" in whole) is packed
    again = settings.training(cache, tokens, LENGTH, 16, seed=3)
    for start, stop in ((0, 5), (5, 6), (6, 16)):
        part = again.rows(7, start, stop)
        assert all(np.array_equal(part[name], value[start:stop]) for name, value in whole.items())
    other = settings.training(cache, tokens, LENGTH, 16, seed=4).rows(7, 0, 16)
    assert not np.array_equal(other["encoder_input_tokens"], whole["encoder_input_tokens"])
    assert (batches.rows(10**6, 0, 16)["decoder_loss_weights"].sum(axis=1) > 0).all()
    # Epochs of the pairs.
    mixed = batches.sequence
    part = mixed.parts[0]
    documents = cache.documents("train", "sorting")
    expected = sorted(pair_texts(documents, pair)[1] for pair in range(len(documents)))
    orders = []
    for epoch in (0, 1):
        rows = part.at(epoch * len(part.examples) + np.arange(len(part.examples)))
        targets_of_epoch = []
        for row in range(len(part.examples)):
            targets, segments = rows["decoder_target_tokens"][row], rows["decoder_segment_ids"][row]
            targets_of_epoch += [targets[segments == segment][:-1].tolist() for segment in range(1, segments.max() + 1)]
        assert sorted(targets_of_epoch) == expected
        orders.append(targets_of_epoch)
    assert orders[0] != orders[1]
    share = np.mean(mixed.index(np.arange(10_000))[0] == 0)
    assert share == pytest.approx(0.75, abs=1e-3)


def test_running_text_has_positions_when_mixed_with_packed_pairs(prepared):
    folder, _, vocabulary = prepared
    settings = make_data(prepared, "sorting", "text", pairs=TextPairs(packed=True))
    batches = settings.training(TokenCache(folder / "cache"), vocabulary.token_ids, LENGTH, 8, seed=0)
    rows = batches.sequence.parts[1].at(np.arange(4))
    assert (rows["encoder_positions"] == np.arange(LENGTH) * (rows["encoder_segment_ids"] > 0)).all()
    assert (rows["decoder_positions"] == np.arange(8) * (rows["decoder_segment_ids"] > 0)).all()


def test_run_of_pairs_alone(prepared):
    folder, corpora, vocabulary = prepared
    cache = build({"text": corpora["sorting"]}, vocabulary, folder / "alone", least_documents=2)
    settings = TextData(corpora["sorting"], corruption=TextToText(target_tokens=12), pairs=TextPairs(packed=True))
    assert settings.shape(LENGTH).targets == 12
    held_out = settings.held_out(cache, vocabulary.token_ids, LENGTH, 4)
    rows = [held_out.source.rows(step, 0, 4) for step in range(held_out.steps)]
    total = sum(int(row["decoder_loss_weights"].sum()) for row in rows)
    documents = cache.documents("validation", "text")
    lengths = np.diff(documents.sentence_starts)[1::2]
    assert total == np.minimum(lengths + 1, 12).sum()
    assert set(rows[0]) == set(settings.features(LENGTH))
    # The cache records that it contains pairs.
    assert len(replace(settings, corpus=None).training(cache, vocabulary.token_ids, LENGTH, 4, 0).sequence.examples) > 10


def test_mistakes_are_reported(prepared, tmp_path):
    folder, corpora, vocabulary = prepared
    with pytest.raises(UserError, match="pairs of inputs and targets require an encoder and a decoder, but NextTokens has"):
        make_data(prepared, "sorting", corruption=NextTokens()).check_marks()
    with pytest.raises(UserError, match="the text is running text, but TextToText is for pairs"):
        make_data(prepared, "sorting", "text", corruption=TextToText()).check_marks()
    cache = TokenCache(folder / "cache")
    with pytest.raises(UserError, match=r"\(text\) is running text, but TextToText"):
        TextData(corruption=TextToText()).training(cache, vocabulary.token_ids, LENGTH, 4, 0)
    with pytest.raises(UserError, match="TextPairs.packed: pairs .* BertMasking has only one"):
        TextData(pairs=TextPairs(packed=True))
    with pytest.raises(UserError, match="must be at least 2, and requires TextPairs.packed = True"):
        TextPairs(max_examples=4)
    with pytest.raises(UserError, match="too short for pairs; use at least 2 each"):
        TextPairs().examples(make_pairs((1, 1)), (8, 1), 0, PairFrame(BARE, "pad"))
    with pytest.raises(UserError, match="TextToText.target_tokens is 1"):
        TextToText(target_tokens=1)
    empty_targets = tmp_path / "nothing.jsonl"
    empty_targets.write_text('{"inputs": "one", "targets": ""}')
    with pytest.raises(UserError, match="no training document with any token"):
        build({"text": PairFiles((str(empty_targets),), validation_fraction=0.0)}, vocabulary, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_rows_of_completions():
    documents = make_pairs((3, 2), (0, 1), (9, 7))
    data = TextData(corruption=NextTokens(), rows=Chunks(), pairs=Completions(target_tokens=3))
    examples = data.examples(documents, 8, 0, BARE)
    rows, end = all_rows(examples), BARE.eos
    # An empty prompt begins with the end of the text before it; of a long one the beginning is cut off.
    assert rows["decoder_input_tokens"].tolist() == [
        [10, 11, 12, 13, 14, 0, 0, 0],
        [end, 15, 0, 0, 0, 0, 0, 0],
        [20, 21, 22, 23, 24, 25, 26, 0],
    ]
    assert rows["decoder_target_tokens"].tolist() == [
        [11, 12, 13, 14, end, 0, 0, 0],
        [15, end, 0, 0, 0, 0, 0, 0],
        [21, 22, 23, 24, 25, 26, end, 0],
    ]
    assert rows["decoder_loss_weights"].tolist() == [
        [0, 0, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
    ]
    assert rows["decoder_segment_ids"].tolist() == (rows["decoder_input_tokens"] > 0).astype(int).tolist()
    assert [row.tolist() for row in data.pairs.prompts(rows)] == [[10, 11, 12], [end], [20, 21, 22, 23, 24]]
    assert [line.partition(",")[0] for line in examples.warnings] == [
        "1 of the 3 prompts of toy have more than 5 tokens",
        "1 of the 3 completions of toy have more than 2 tokens",
    ]


def test_prompts_begin_with_the_start_of_the_family():
    layout = Completions(target_tokens=2, start="eos")
    rows = all_rows(layout.plan(make_pairs((4, 1), (0, 1)), NextTokens(), 5, 0, BARE))
    assert rows["decoder_input_tokens"].tolist() == [[BARE.eos, 12, 13, 14, 0], [BARE.eos, 15, 0, 0, 0]]
    assert rows["decoder_loss_weights"].sum(axis=1).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pairs": Completions(), "corruption": TextToText()},
            "Completions are rows of a causal LM, and TextToText makes others",
        ),
        ({"pairs": TextPairs(), "corruption": NextTokens(), "rows": Chunks()}, r"TextData.pairs = @Completions\(\)"),
        ({"pairs": Completions(7), "corruption": NextTokens(), "rows": Chunks()}, "rows of 7 tokens have no room"),
    ],
)
def test_layouts_that_do_not_fit_the_noise(settings, message):
    with pytest.raises(UserError, match=message):
        TextData(**settings).examples(make_pairs((3, 2)), 7 if settings["pairs"] == Completions(7) else 8, 0, BARE)

"""Rows for decoders from documents (next tokens, and the noise of T5 and BART) as a function of the step."""

import re

import numpy as np
import pytest
from numbered_documents import BARE, FIRST, make_documents, random_documents

from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.bart.infilling import TextInfilling
from bertfam.corruption.bart.token_noise import TokenDeletion, TokenMasking
from bertfam.corruption.corruption import RowForm
from bertfam.corruption.next_tokens import NextTokens
from bertfam.corruption.t5.span_corruption import T5_OBJECTIVES
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.checks.diagnosis import row_warnings
from bertfam.data.checks.vocabulary_check import check_vocabulary_fits
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.rows.batches import Batches, CorruptedRows
from bertfam.data.rows.order import Shuffled
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences, WholeDocuments
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import builder
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.errors import UserError

END = BARE.eos
# A vocabulary with every token that any noise requires.
FULL = TokenIds(
    size=1_000_000, pad=0, unk=1, cls=2, sep=3, eos=5, mask=4, special=(0, 1, 2, 3, 4, 5),
    sentinels=tuple(range(999_999, 999_899, -1)), starts_word=np.ones(1_000_000, bool),
)  # fmt: skip
NEXT = {
    "chunks": Chunks(),
    "documents": WholeDocuments(),
    "sentences": DocSentences(),
    "sentences of documents": FullSentences(),
    "packed": Packed(WholeDocuments(), max_examples=4),
    "packed sentences": Packed(DocSentences()),
}
KINDS = (
    {f"next tokens, {name}": TextData(rows=rows, corruption=NextTokens()) for name, rows in NEXT.items()}
    | {f"t5 {name}": TextData(rows=Chunks(separated=False), corruption=noise) for name, noise in T5_OBJECTIVES.items()}
    | {"t5 of documents": TextData(rows=WholeDocuments(), corruption=T5_OBJECTIVES["prefix_lm"])}
    | {
        "bart": TextData(rows=DocSentences(), corruption=Denoising()),
        "bart, all": TextData(rows=FullSentences(), corruption=Denoising(0.5, TextInfilling(), 0.1, 0.5)),
        "bart masking": TextData(rows=Chunks(), corruption=Denoising(0.0, TokenMasking(random_share=0.1))),
        "bart deletion": TextData(rows=WholeDocuments(), corruption=Denoising(0.0, TokenDeletion())),
    }
)


def make_batches(data, documents, length, key=0, batch=16):
    examples = data.examples(documents, length, 0, FULL)
    return Batches(CorruptedRows(Shuffled(len(examples), key), examples, data.corruption, FULL, key + 1), batch)


@pytest.mark.parametrize("kind", KINDS)
def test_decoder_rows_depend_on_seed_and_step_only(kind):
    data, documents, length = KINDS[kind], random_documents(3, 30), 32
    source, other = (make_batches(data, documents, length) for _ in range(2))
    specs = data.features(length)
    assert data.shape(length).targets == specs["decoder_target_tokens"].shape[0]
    for step in (0, 7, 10**6):
        whole = source.rows(step, 0, 16)
        assert {name: (value.shape[1:], value.dtype.name) for name, value in whole.items() if name in specs} == {
            name: (spec.shape, spec.dtype) for name, spec in specs.items()
        }
        for start, stop in ((0, 3), (3, 11), (15, 16)):
            part = other.rows(step, start, stop)
            assert all(np.array_equal(part[name], whole[name][start:stop]) for name in whole)
        real = whole["decoder_segment_ids"] > 0
        assert np.array_equal(whole["decoder_loss_weights"], real) and min(value.min() for value in whole.values()) >= 0
        assert not whole["decoder_target_tokens"][~real].any() and not whole["decoder_input_tokens"][~real].any()
    again = make_batches(data, documents, length, key=9).rows(0, 0, 16)
    assert not np.array_equal(again["decoder_target_tokens"], source.rows(0, 0, 16)["decoder_target_tokens"])


def join_documents(documents):
    """Return the documents, each with an end-of-text token behind it, and the text as one line that starts with such a token."""
    bounds = documents.sentence_starts[documents.sentence_bounds]
    parts = [[*documents.tokens[begin:end].tolist(), END] for begin, end in zip(bounds, bounds[1:], strict=False)]
    return parts, [END, *(token for part in parts for token in part)]


@pytest.mark.parametrize("kind", NEXT)
@pytest.mark.parametrize("length", [3, 8, 40])
def test_every_token_is_the_target_of_exactly_one_position(kind, length):
    data, documents = TextData(rows=NEXT[kind], corruption=NextTokens()), random_documents(length, 25, most_tokens=9)
    examples = data.examples(documents, length, 0, BARE)
    numbers = np.arange(len(examples))
    rows = data.corruption.corrupt(examples.rows(numbers, numbers.astype(np.uint64)), numbers, BARE)
    parts, line = join_documents(documents)
    before = {token: line[place] for place, token in enumerate(line[1:]) if token != END}  # all tokens of the text are distinct
    last = {part[-2] for part in parts}
    targets, ends = [], []
    for row in numbers:
        for segment in range(1, rows["decoder_segment_ids"][row].max() + 1):
            in_segment = rows["decoder_segment_ids"][row] == segment
            inputs, outputs = (rows[f"decoder_{name}_tokens"][row][in_segment].tolist() for name in ("input", "target"))
            if "decoder_positions" in rows:
                assert rows["decoder_positions"][row][in_segment].tolist() == list(range(len(inputs)))
            assert inputs[1:] == outputs[:-1]  # within an example a target is the next input
            for input_token, token in zip(inputs, outputs, strict=True):
                if token == END:
                    ends.append(input_token)
                else:
                    assert before[token] == input_token
                    targets.append(token)
    assert sorted(targets) == documents.tokens.tolist() and sorted(ends) == sorted(last)


def test_documents_in_a_packed_row_are_separate_segments():
    data = TextData(rows=Packed(WholeDocuments(), max_examples=3), corruption=NextTokens())
    rows = data.corruption.corrupt(
        data.examples(make_documents([3], [2]), 8, 0, BARE).rows(np.array([0]), np.array([0], np.uint64)), None, BARE
    )
    a, b = [FIRST, FIRST + 1, FIRST + 2], [FIRST + 3, FIRST + 4]
    assert {name: value[0].tolist() for name, value in rows.items()} == {
        "decoder_input_tokens": [END, *a, END, *b, 0],
        "decoder_target_tokens": [*a, END, *b, END, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 2, 2, 2, 0],
        "decoder_positions": [0, 1, 2, 3, 0, 1, 2, 0],
        "decoder_loss_weights": [1, 1, 1, 1, 1, 1, 1, 0],
    }


def test_end_of_text_token_may_be_the_padding_token():
    """Use GPT-2's <|endoftext|> as both; weights and segments distinguish them."""
    ids = TokenIds(size=1000, pad=7, unk=7, eos=7, special=(7,))
    data = TextData(rows=WholeDocuments(), corruption=NextTokens())
    rows = data.corruption.corrupt(
        data.examples(make_documents([2]), 5, 0, ids).rows(np.array([0]), np.array([0], np.uint64)), None, ids
    )
    assert rows["decoder_target_tokens"].tolist() == [[FIRST, FIRST + 1, 7, 7, 7]]
    assert rows["decoder_loss_weights"].tolist() == [[1, 1, 1, 0, 0]] == rows["decoder_segment_ids"].tolist()
    packed = TextData(rows=Packed(WholeDocuments()), corruption=NextTokens())
    rows = packed.corruption.corrupt(
        packed.examples(make_documents([2]), 5, 0, ids).rows(np.array([0]), np.array([0], np.uint64)), None, ids
    )
    assert rows["decoder_target_tokens"].tolist() == [[FIRST, FIRST + 1, 7, 7, 7]]
    assert rows["decoder_input_tokens"].tolist() == [[7, FIRST, FIRST + 1, 7, 7]]
    separated = TokenIds(size=1000, pad=0, unk=1, cls=2, sep=3, special=(0, 1, 2, 3))
    rows = data.examples(make_documents([2]), 5, 0, separated).rows(np.array([0]), np.array([0], np.uint64))
    assert rows["next_tokens"].tolist() == [[FIRST, FIRST + 1, 3, 0, 0]]  # [SEP] ends a text if the vocabulary has no other end


def test_documents_are_joined_without_separators():
    documents = random_documents(5, 40)
    rows = Chunks(separated=False).examples(documents, 20, 0, FULL, RowForm(framed=False))
    numbers = np.arange(len(rows))
    batch = rows.rows(numbers, numbers.astype(np.uint64))
    assert batch["encoder_input_tokens"][batch["encoder_segment_ids"] > 0].tolist() == documents.tokens.tolist()
    assert batch["encoder_segment_ids"].sum(axis=1)[:-1].tolist() == [20] * (len(rows) - 1)


@pytest.mark.parametrize("rows", [FullSentences(), DocSentences(), WholeDocuments(), Chunks(), Chunks(separated=False)], ids=str)
def test_rows_mark_the_first_tokens_of_sentences(rows):
    documents = random_documents(6, 40, most_tokens=9)
    first_tokens = set((FIRST + documents.sentence_starts[:-1]).tolist())
    examples = rows.examples(documents, 24, 0, FULL, RowForm(sentences=True))
    numbers = np.arange(len(examples))
    batch = examples.rows(numbers, numbers.astype(np.uint64))
    marked = batch["encoder_input_tokens"][batch["sentence_begins"]]
    assert sorted(marked.tolist()) == sorted(first_tokens) and len(first_tokens) > 100


class Lines(Corpus):
    """Documents in which control tokens are typed."""

    units = False

    def texts(self, split):
        plain = [["The quick brown fox jumps over the lazy dog.", f"It did so {number} times."] for number in range(60)]
        return iter(
            [*plain, ["use <pad> to fill", "and </s> or <extra_id_3> and <unk>"], *plain[:20]] if split == "train" else plain[:1]
        )

    def fingerprint(self):
        return {"kind": "lines"}


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """The token cache of `Lines`, and its vocabulary."""
    sentences = (line for document in Lines().texts("train") for line in document)
    vocabulary = WordPiece.train(sentences, size=200, layout=LAYOUTS["t5"])
    return builder.build({"text": Lines()}, vocabulary, tmp_path_factory.mktemp("typed") / "cache", processes=1), vocabulary


@pytest.mark.parametrize("name", T5_OBJECTIVES)
def test_typed_control_tokens_are_ordinary_text(typed, name):
    cache, vocabulary = typed
    tokens = vocabulary.token_ids
    text = cache.documents("train", "text").tokens[:]
    assert not np.isin(text, [tokens.pad, tokens.eos, *tokens.sentinels]).any()
    data = TextData(rows=Chunks(separated=False), corruption=T5_OBJECTIVES[name])
    check_vocabulary_fits(data, tokens, "vocab", 32)
    source = data.training(cache, tokens, 32, 8, seed=1)
    size, counts = len(source.sequence.examples), {token: 0 for token in range(tokens.size)}
    for step in range(-(-size // 8)):
        rows = source.rows(step, 0, 8)
        for side in ("encoder_input_tokens", "decoder_target_tokens"):
            assert rows[side].shape == (8, data.features(32)[side].shape[0])
            assert not (rows[side][rows[side.split("_")[0] + "_segment_ids"] > 0] == tokens.pad).any()
    if name == "random_spans":  # an epoch keeps all of its text: the clear text and the noise add up to it
        for places in np.array_split(np.arange(size), 3):
            rows = source.sequence.rows_of(np.zeros_like(places), places)
            for side, segments in (
                ("encoder_input_tokens", "encoder_segment_ids"),
                ("decoder_target_tokens", "decoder_segment_ids"),
            ):
                for token in rows[side][rows[segments] > 0].tolist():
                    counts[token] += 1
        ordinary = [token for token in range(tokens.size) if token not in (tokens.eos, *tokens.sentinels)]
        assert [counts[token] for token in ordinary] == [int((text == token).sum()) for token in ordinary]


def test_missing_control_tokens_are_reported_before_any_text_is_read():
    bare = TokenIds(size=500, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
    t5, bart = (TextData(rows=Chunks(), corruption=noise) for noise in (T5_OBJECTIVES["random_spans"], Denoising()))
    with pytest.raises(UserError, match="^vocab: the vocabulary has no sentinel tokens, which .* --layout=t5 --sentinels=100"):
        check_vocabulary_fits(t5, bare, "vocab", 64)
    with pytest.raises(UserError, match=r"^vocab: rows of 2048 tokens, made of 2274, may need 114 sentinels"):
        check_vocabulary_fits(t5, FULL, "vocab", 2048)
    with pytest.raises(UserError, match="^vocab: the vocabulary has no cls token, which Denoising requires"):
        check_vocabulary_fits(bart, TokenIds(size=500, pad=0, unk=1, eos=2, mask=3), "vocab", 64)
    check_vocabulary_fits(bart, bare, "vocab", 64)
    with pytest.raises(UserError, match="no eos token, which a row of text requires"):
        check_vocabulary_fits(TextData(rows=Chunks(), corruption=NextTokens()), TokenIds(size=9, pad=0, unk=1), "vocab", 64)


@pytest.mark.parametrize(
    ("packs", "fix"), [(True, r"pack them \(.*@WholeDocuments"), (False, r": give shorter rows \(Stage.length\)")]
)
def test_warning_about_padding_suggests_a_remedy(packs, fix):
    documents = make_documents(*[[4]] * 60)
    examples = WholeDocuments().examples(documents, 32, 0, FULL, RowForm(framed=False))
    (line,) = row_warnings(WholeDocuments(), examples, "the text", 32, packs=packs)
    assert re.search(fix, line) and "88% of the positions" in line


def test_text_of_one_token():
    one = Documents("one", np.array([FIRST], np.uint32), np.array([0, 1]), np.array([0, 1]))
    for kind, data in KINDS.items():
        examples = data.examples(one, 32, 0, FULL)
        rows = data.corruption.corrupt(examples.rows(np.array([0]), np.array([1], np.uint64)), np.array([1], np.uint64), FULL)
        count = int(rows["decoder_loss_weights"].sum())
        assert len(examples) == 1 and 1 <= count <= 3, kind
        assert rows["decoder_target_tokens"][0, count - 1] == (FULL.sep if "bart" in kind else END), kind

"""Rows of labelled texts and words: equal to those of transformers' tokenizers, with labels, each once an epoch."""

import itertools
import warnings
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.checks.sampling import sample
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts, Labels, truncated
from bertfam.data.rows.labelled.tagged_words import TaggedWords, Tags
from bertfam.data.rows.labelled.text_windows import TextWindows
from bertfam.data.rows.mixture import Mixture
from bertfam.data.rows.running_text import Chunks
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.learners import make_learner
from bertfam.errors import UserError

KINDS = {"bert": "wordpiece", "roberta": "byte_bpe", "xlnet": "unigram", "albert": "unigram", "big_bird": "bpe"}
WORDS = "the cat sat on a mat and saw one more dog there".split()
# Texts of no tokens, of few, of about as many as fit into a row or into half of it, and of many more.
SIZES = (0, 1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 14, 30)


@dataclass(frozen=True)
class GivenTexts(Corpus):
    """Labelled texts that are given as they are."""

    given: tuple[tuple[str, ...], ...]
    label_count: int = 1
    labels_words: bool = False

    @property
    def labels(self):
        return self.label_count

    def texts(self, split):
        return map(list, self.given if split == "train" else ())

    def fingerprint(self):
        return {"kind": "given"}


@pytest.fixture(scope="module", params=KINDS)
def prepared(request, tmp_path_factory):
    """Return a vocabulary of a layout, and a function that loads transformers' tokenizer of its folder."""
    transformers = pytest.importorskip("transformers")
    learner = make_learner(KINDS[request.param], size=400, layout=LAYOUTS[request.param])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        vocabulary = learner.learn(learner.count([" ".join(WORDS[start:] + WORDS[:start]) for start in range(len(WORDS))] * 5))
    folder = tmp_path_factory.mktemp(request.param)
    vocabulary.save(folder)
    return vocabulary, partial(transformers.AutoTokenizer.from_pretrained, folder)


def text_of(size):
    return " ".join(itertools.islice(itertools.cycle(WORDS), size))


def documents_of(texts, vocabulary, *settings):
    """Return the tokenised documents of texts, each given with its labels."""
    return sample(GivenTexts(tuple(map(tuple, texts)), *settings), "train", vocabulary, "toy").documents


def all_rows(examples):
    return examples.rows(np.arange(len(examples)), np.zeros(len(examples), np.uint64))


@pytest.mark.parametrize("length", [16, 17])
@pytest.mark.parametrize("is_pair", [False, True])
def test_rows_are_those_of_the_saved_tokenizer(prepared, length, is_pair):
    vocabulary, load = prepared
    tokenizer = load()
    texts = [list(map(text_of, sizes)) for sizes in itertools.product(SIZES, repeat=1 + is_pair)]
    examples = LabelledTexts().examples(
        documents_of([[*parts, "1"] for parts in texts], vocabulary), length, 0, vocabulary.token_ids
    )
    rows = all_rows(examples)
    columns = [list(column) for column in zip(*texts, strict=True)]
    options = {"truncation": "longest_first", "padding": "max_length", "max_length": length, "return_token_type_ids": True}
    expected = tokenizer(*columns, **options, return_tensors="np")
    for number, parts in enumerate(texts):
        is_real = expected["attention_mask"][number] == 1
        count = int(is_real.sum())
        assert rows["encoder_segment_ids"][number].tolist() == [1] * count + [0] * (length - count), parts
        assert rows["encoder_input_tokens"][number, :count].tolist() == expected["input_ids"][number, is_real].tolist(), parts
        assert rows["encoder_token_type_ids"][number, :count].tolist() == expected["token_type_ids"][number, is_real].tolist()
        assert (rows["encoder_input_tokens"][number, count:] == vocabulary.token_ids.pad).all()
        cls = rows["encoder_input_tokens"][number, rows["sequence_start_positions"][number]]
        assert cls.tolist() == [vocabulary.token_ids.cls]
    lengths = [len(ids) for ids in tokenizer(*columns)["input_ids"]]
    cut = sum(size > length for size in lengths)
    room = length - tokenizer.num_special_tokens_to_add(pair=is_pair)
    assert 0 < cut < len(texts)
    assert [warning.partition(" of toy")[0] for warning in examples.warnings] == [f"{cut} of the {len(texts)} texts"]
    assert f"more than {room} tokens" in examples.warnings[0]


def test_rows_of_words_are_those_of_the_saved_tokenizer_with_a_label_at_the_first_token_of_each(prepared):
    """Words of several tokens, of none, with punctuation, and more than fit."""
    vocabulary, load = prepared
    tokenizer = load(add_prefix_space=True) if vocabulary.joint else load()
    sentences = [WORDS[:count] for count in (1, 2, 12)]
    sentences += [
        ["catsat", "\u200d", "U.S.", "the"],
        ["\u200d", "cat"],
        ["cat", "\u200d"],
        ["(", "mat", ")", "don't"],
        WORDS * 3,
    ]
    labels = [[str(index % 5) if index % 7 else "nan" for index in range(1, 1 + len(words))] for words in sentences]
    texts = [[*words, " ".join(own)] for words, own in zip(sentences, labels, strict=True)]
    examples = TaggedWords().examples(documents_of(texts, vocabulary, 1, True), 16, 0, vocabulary.token_ids)
    rows = all_rows(examples)
    options = {"truncation": True, "padding": "max_length", "max_length": 16, "is_split_into_words": True}
    expected = tokenizer(sentences, **options)
    for number, own in enumerate(labels):
        is_real = np.array(expected["attention_mask"][number]) == 1
        count = int(is_real.sum())
        assert rows["encoder_segment_ids"][number].tolist() == [1] * count + [0] * (16 - count)
        ids = np.array(expected["input_ids"][number])[is_real]
        assert rows["encoder_input_tokens"][number, :count].tolist() == ids.tolist(), sentences[number]
        words = [word for word, is_token in zip(expected.word_ids(number), is_real, strict=True) if is_token]
        first = [word is not None and word not in words[:place] for place, word in enumerate(words)]
        values = [own[word] if is_first else "nan" for word, is_first in zip(words, first, strict=True)]
        weights = [float(value != "nan") for value in values]
        assert rows["label_weights"][number].tolist() == weights + [0.0] * (16 - count), sentences[number]
        assert rows["labels"][number, :count].tolist() == [0.0 if value == "nan" else float(value) for value in values]
    cut = sum(len(ids) > 16 for ids in tokenizer(sentences, is_split_into_words=True)["input_ids"])
    assert [warning.partition(" of toy")[0] for warning in examples.warnings] == [f"{cut} of the {len(texts)} texts"]


def test_texts_are_cut_as_the_longer_one_first_one_token_at_a_time():
    for room in range(2, 9):
        lengths = np.array(list(itertools.product(range(12), repeat=2)))
        for (first, second), cut in zip(lengths, truncated(lengths, room), strict=True):
            assert cut.sum() == min(first + second, room)
            assert (cut <= (first, second)).all()
            # A text loses tokens only if it ends up no more than one token shorter than the other.
            assert cut[0] == first or cut[0] >= cut[1] - 1
            assert cut[1] == second or cut[1] >= cut[0] - 1


def test_labels_that_are_not_known_have_weight_0(vocabulary):
    documents = documents_of([["one", "1 nan 0"], ["two", "nan nan nan"], ["three", "0 0.5 -2"]], vocabulary, 3)
    examples = LabelledTexts().examples(documents, 8, 0, vocabulary.token_ids)
    rows = examples.rows(np.array([2, 0, 1, 2]), np.zeros(4, np.uint64))
    assert rows["labels"].tolist() == [[0, 0.5, -2], [1, 0, 0], [0, 0, 0], [0, 0.5, -2]]
    assert rows["label_weights"].tolist() == [[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]]
    assert not examples.warnings


@pytest.mark.parametrize("texts", [[["", "1"]], [["", "", "1"], ["", "", "0"]]])
def test_texts_without_any_token_are_rows_of_control_tokens(vocabulary, texts):
    rows = all_rows(LabelledTexts().examples(documents_of(texts, vocabulary), 8, 0, vocabulary.token_ids))
    tokens = vocabulary.token_ids
    expected = [tokens.cls, *[tokens.sep] * (len(texts[0]) - 1)]
    assert rows["encoder_input_tokens"].tolist() == [expected + [tokens.pad] * (8 - len(expected))] * len(texts)


@pytest.fixture(scope="module")
def numbered(vocabulary, tmp_path_factory):
    """A corpus of numbered texts in which the label is the number, and its token cache."""
    corpus = GivenTexts(tuple((" ".join([WORDS[number % 12]] * (number % 9 + 1)), str(number)) for number in range(50)))
    return corpus, build({"text": corpus}, vocabulary, tmp_path_factory.mktemp("labels") / "cache")


def test_every_text_is_used_once_an_epoch_with_its_label(vocabulary, numbered):
    corpus, cache = numbered
    data = TextData(corpus, rows=LabelledTexts(), corruption=Labels())
    batches = data.training(cache, vocabulary.token_ids, 12, 5, seed=3)
    assert {name: (value.shape[1:], value.dtype.name) for name, value in batches.rows(0, 0, 5).items()} == {
        name: (spec.shape, spec.dtype) for name, spec in data.features(12).items()
    }
    epochs = [
        np.concatenate([batches.rows(step, 0, 5)["labels"][:, 0] for step in range(first, first + 10)]) for first in (0, 10)
    ]
    assert not np.array_equal(*epochs)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(50))
    row = batches.rows(4, 2, 3)
    text, label = corpus.given[int(row["labels"][0, 0])]
    assert row["label_weights"].tolist() == [[1.0]] and label == str(int(row["labels"][0, 0]))
    ids = row["encoder_input_tokens"][row["encoder_segment_ids"] > 0].tolist()
    assert ids == vocabulary.encode_prompt(text).ids.tolist()


@dataclass(frozen=True)
class RunningText(Corpus):
    """One document of running text."""

    def texts(self, split):
        yield ["one two three", "four five six"]

    def fingerprint(self):
        return {"kind": "running"}


def test_labels_and_noise_that_do_not_fit_are_refused(vocabulary, numbered, tmp_path):
    corpus, cache = numbered
    labelled = {"rows": LabelledTexts(), "corruption": Labels()}
    for data, words in (
        (TextData(RunningText(), **labelled), ("the text", "@LabelledFiles()")),
        (TextData(corpus, rows=SentencePairs(), corruption=BertMasking()), ("the text", "BertMasking", "@Labels()")),
        (TextData(corpus, rows=LabelledTexts(), corruption=Labels(count=3)), ("the text", "Labels.count = 1")),
        (TextData(corpus, rows=TaggedWords(), corruption=Tags()), ("1 label per text", "1 label per word", "@Labels()")),
        (TextData(RunningText(), rows=TaggedWords(), corruption=Tags()), ("the text", "@TaggedFiles()")),
        (TextData(replace(corpus, labels_words=True), **labelled), ("the text", "@TaggedWords()", "@Tags()")),
        (TextData(Mixture((corpus, RunningText()), ("good", "bad")), **labelled), ("corpus bad", "@LabelledFiles()")),
    ):
        with pytest.raises(UserError) as error:
            data.check_marks()
        assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(UserError, match=r"cache.* BertMasking.*@Labels\(\)"):
        TextData(rows=SentencePairs(), corruption=BertMasking()).training(cache, vocabulary.token_ids, 12, 5, 0)
    running = build({"text": RunningText()}, vocabulary, tmp_path / "cache")
    with pytest.raises(UserError, match=r"cache.*@LabelledFiles\(\)"):
        TextData(**labelled).training(running, vocabulary.token_ids, 12, 5, 0)
    refused = ((LabelledTexts(), BertMasking()), (SentencePairs(), Labels()), (Chunks(), Labels()), (LabelledTexts(), Tags()))
    for rows, noise in refused:
        with pytest.raises(UserError, match=f"{type(rows).__name__} and {type(noise).__name__} do not make rows together"):
            TextData(rows=rows, corruption=noise)
    with pytest.raises(UserError, match="Labels.count is 0"):
        Labels(count=0)


def test_rows_need_room_and_a_token_to_predict_from(vocabulary):
    documents = documents_of([["one", "two", "1"]], vocabulary)
    with pytest.raises(UserError, match="length 4 is too short for a labelled text; use at least 5"):
        LabelledTexts().examples(documents, 4, 0, vocabulary.token_ids)
    learner = make_learner("byte_bpe", size=258, layout=LAYOUTS["gpt2"])
    without = learner.learn(learner.count(["the cat sat"]))
    with pytest.raises(UserError, match=r"no \[CLS\]"):
        LabelledTexts().examples(documents, 12, 0, without.token_ids)


@pytest.mark.parametrize("stride", [3, 10])
def test_windows_cover_long_texts_with_the_label_of_each(prepared, stride):
    vocabulary, _ = prepared
    texts = [(text_of(size), str(number)) for number, size in enumerate(SIZES)]
    documents, length = documents_of(texts, vocabulary), 14
    examples = TextWindows(stride=stride).examples(documents, length, 0, vocabulary.token_ids)
    frame = vocabulary.token_ids.frame
    before, after = ([token.id for token in tokens] for tokens in (frame.before, frame.after_one))
    room, expected, owners = length - len(before) - len(after), [], []
    for number, (text, _) in enumerate(texts):
        ids, first = vocabulary.encode_batch([text])[0].tolist(), 0
        while True:
            expected.append([*before, *ids[first : first + room], *after])
            owners.append(number)
            if first + room >= len(ids):
                break
            first += stride
    rows = all_rows(examples)
    sizes = rows["encoder_segment_ids"].sum(axis=1)
    assert [row[:size].tolist() for row, size in zip(rows["encoder_input_tokens"], sizes, strict=True)] == expected
    assert examples.row_sizes.tolist() == sizes.tolist()
    assert rows["labels"][:, 0].tolist() == owners == examples.documents_of(np.arange(len(examples))).tolist()
    assert examples.cut == 0 and examples.warnings == [] and len(expected) > len(texts)


def test_windows_that_leave_tokens_out_and_pairs_are_refused(prepared):
    vocabulary, _ = prepared
    for texts, stride, named in (([("the cat", "0")], 13, "leave tokens out"), ([("the cat", "a mat", "0")], 4, "single texts")):
        with pytest.raises(UserError, match=named):
            TextWindows(stride=stride).examples(documents_of(texts, vocabulary), 14, 0, vocabulary.token_ids)

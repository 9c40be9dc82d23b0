"""Minimal pairs: reading, counting, and sentence scores compared with single sentences and tokens."""

import dataclasses
import json
import tracemalloc
import zipfile
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from bertfam import api
from bertfam.decoding.end_tokens import end_tokens
from bertfam.errors import UserError
from bertfam.evaluation.minimal_pairs import Pair, PairCounts, by_phenomenon, compare, read_pairs
from bertfam.evaluation.sentence_scores import scorer
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config

LINES = [{"sentence_good": f"good {number}", "sentence_bad": f"bad {number}", "UID": "x"} for number in range(4)]


def json_lines(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def folder(tmp_path):
    for name, lines in (("b", LINES[:3]), ("a", LINES[3:]), (".hidden", LINES)):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{name}.jsonl").write_text(json_lines(lines) + "\n")
    (tmp_path / "data/README.md").write_text("no pairs")
    return tmp_path


def test_pairs_are_read_from_zip_files_folders_and_files(folder):
    archive = folder / "BLiMP.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder / "data")
        for path in sorted((folder / "data").iterdir()):
            file.write(path, f"data/{path.name}")
        file.writestr("__MACOSX/data/._a.jsonl", b"\x00\x05\x16")
    packed, unpacked = read_pairs(archive), read_pairs(folder / "data")
    assert list(packed) == list(unpacked) == ["a", "b"]
    assert [pair[:2] for pair in packed["b"]] == [(f"good {number}", f"bad {number}") for number in range(3)]
    assert packed["b"][2].where == f"{archive}/data/b.jsonl:3" and unpacked["b"][2].where == f"{folder}/data/b.jsonl:3"
    assert read_pairs(folder / "data/b.jsonl") == {"b": unpacked["b"]}
    assert {name: len(pairs) for name, pairs in read_pairs(archive, limit=2).items()} == {"a": 1, "b": 2}
    (folder / "half.jsonl").write_text(r'{"sentence_good": "a\ud83d", "sentence_bad": "b"}')
    assert read_pairs(folder / "half.jsonl")["half"][0][:2] == ("a\ufffd", "b")
    (folder / "data/more").mkdir()
    (folder / "data/more/a.jsonl").write_text(json_lines(LINES))
    assert list(read_pairs(folder / "data")) == ["a", "b", "more/a"]


@pytest.mark.parametrize("name", ["long.zip", "long.jsonl"])
def test_line_of_unbounded_length_is_refused_without_reading_it(tmp_path, name):
    path, size = tmp_path / name, 64 << 20
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.jsonl", bytes(size))
    else:
        with path.open("wb") as file:
            file.truncate(size)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"\.jsonl:1: a line longer than"):
            read_pairs(path)
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", r"b.jsonl:4 is no JSON in UTF-8 \(.*\): each line must be a pair of sentences"),
        (b'{"sentence_good": "caf\xe9"}', "b.jsonl:4 is no JSON in UTF-8"),
        (b"[1, 2]", 'b.jsonl:4 has no text as "sentence_good"'),
        (
            b'{"sentence_good": "a", "sentence_bad": " "}',
            'b.jsonl:4 has no text as "sentence_bad": each line must have',
        ),
        (b'{"sentence_good": "a", "sentence_bad": 7}', 'b.jsonl:4 has no text as "sentence_bad"'),
    ],
)
def test_malformed_lines_are_reported(folder, line, message):
    path = folder / "data/b.jsonl"
    path.write_bytes(path.read_bytes().rstrip() + b"\n" + line + b"\n")
    with pytest.raises(UserError, match=message):
        read_pairs(folder / "data")
    assert len(read_pairs(folder / "data", limit=3)["b"]) == 3  # lines beyond the limit are not read


def test_missing_empty_and_damaged_inputs_are_reported(tmp_path):
    with pytest.raises(UserError, match=r"holds no \*.jsonl: give BLiMP's zip file"):
        read_pairs(tmp_path)
    with pytest.raises(UserError, match="there is no .*/none"):
        read_pairs(tmp_path / "none")
    (tmp_path / "damaged.zip").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UserError, match=r"damaged.zip cannot be read as a zip file \(File is not a zip file\)"):
        read_pairs(tmp_path / "damaged.zip")
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "damaged.zip", "w", method) as archive:
            archive.writestr("a.jsonl", json_lines([{}] * 100))
        content = bytearray((tmp_path / "damaged.zip").read_bytes())
        content[50:60] = b"\xff" * 10
        (tmp_path / "damaged.zip").write_bytes(content)
        with pytest.raises(UserError, match=r"damaged.zip cannot be read as a zip file"):
            read_pairs(tmp_path / "damaged.zip")
    with zipfile.ZipFile(tmp_path / "escape.zip", "w") as archive:
        archive.writestr("a\x1b[2J.jsonl", json_lines(LINES))
    assert list(read_pairs(tmp_path / "escape.zip")) == [r"a\x1b[2J"]
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for _ in range(2):
            archive.writestr("a/b.jsonl", "{}")
    with pytest.raises(UserError, match="twice.zip has two files a/b.jsonl: leave one out"):
        read_pairs(tmp_path / "twice.zip")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="empty.jsonl has no line"):
        read_pairs(tmp_path)


def test_ties_count_as_half_correct():
    pairs = [Pair(good, bad, f"f:{line}") for line, (good, bad) in enumerate(["ab", "bb", "ba", "cc", "ca"], 1)]

    def score(sentences, where):
        assert len(sentences) == len(where) == 10
        return np.array([{"a": -3.0, "b": -2.0, "c": -1.0}[sentence] for sentence in sentences])

    counts = compare(pairs, score)
    assert counts == PairCounts(5, better=2, ties=2) and counts.accuracy == pytest.approx(0.6)
    assert (counts + PairCounts(1)).numbers() == {"accuracy": pytest.approx(0.5), "pairs": 6, "ties": 2}
    with pytest.raises(UserError, match="f:2: the model gives a sentence the score nan"):
        compare(pairs, lambda sentences, where: np.where(np.arange(10) == 6, np.nan, 0.0))


def test_accuracies_of_phenomena_are_means_of_their_files():
    terms = {"a": "islands", "b": "", "c": "islands", "d": "binding"}
    files = {name: [Pair("x", "y", "f:1", term)] for name, term in terms.items()}
    found = by_phenomenon(files, {"a": 0.5, "b": 0.1, "c": 1.0, "d": 0.25})
    assert list(found.items()) == [("binding", 0.25), ("islands", 0.75)]


SENTENCES = ["the class statement", "an expression list is evaluated for its side effects " * 2, "names", "if x is y"]
WHERE = [f"f.jsonl:{line}" for line in range(1, 5)]


def test_log_probabilities_of_a_decoder_equal_those_of_single_sentences(vocabulary):
    """Sum the log-probabilities of one unpadded sentence at a time; the scorer pads to two lengths."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_length": 24}
    config, generator = Gpt2Config(vocab_size=vocabulary.size, **sizes), np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.float32(0.3 * generator.standard_normal(leaf.shape)), shapes)
    model = api.LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))
    sentence_scorer = scorer({"decoder": model})
    assert sentence_scorer.description == "log-probability after [SEP]"
    scores = sentence_scorer.score(SENTENCES, WHERE)
    for sentence, score in zip(SENTENCES[:2], scores[:2], strict=True):
        tokens = np.array([vocabulary.token_ids.sep, *vocabulary.encode_batch([sentence])[0]])
        logits = np.asarray(model.apply(tokens[None, :-1])["logits"][0], np.float64)
        log_probabilities = scipy.special.log_softmax(logits, axis=-1)
        expected = log_probabilities[np.arange(len(tokens) - 1), tokens[1:]].sum()
        assert score == pytest.approx(expected, rel=1e-5)
    assert len(tokens) > 16 and len(set(scores)) == 4
    with pytest.raises(UserError, match="f.jsonl:1: a sentence has 31 tokens and the model reads at most 25; take it out"):
        sentence_scorer.score(["a " * 30], WHERE[:1])
    with pytest.raises(UserError, match=r"f.jsonl:1: '\\u200d' has no token"):
        sentence_scorer.score(["\u200d"], WHERE[:1])
    with pytest.raises(UserError, match="no token that begins or ends a text"):
        scorer({"decoder": api.LanguageModel(config, params, vocabulary, model.ends._replace(start=None))})


def test_pseudo_log_likelihoods_of_an_encoder(random_model):
    """Mask each token of each sentence in a separate row without padding."""
    model = api.load(random_model)
    ids = model.vocabulary.token_ids
    sentence_scorer = scorer({"encoder": model})
    assert sentence_scorer.description == "pseudo-log-likelihood, each token masked in turn"
    scores = sentence_scorer.score(SENTENCES[2:], WHERE[2:])
    for sentence, score in zip(SENTENCES[2:], scores, strict=True):
        tokens = np.array([ids.cls, *model.vocabulary.encode_batch([sentence])[0], ids.sep])
        expected = 0.0
        for place in range(1, len(tokens) - 1):
            hidden = np.where(np.arange(len(tokens)) == place, ids.mask, tokens)
            logits = np.asarray(model.apply(hidden[None])["mlm_logits"], np.float64)[0, place]
            expected += logits[tokens[place]] - np.log(np.exp(logits).sum())
        assert score == pytest.approx(expected, rel=1e-4)
    headless = api.Model(model.config, {"encoder": model.params["encoder"]}, model.vocabulary)
    with pytest.raises(UserError, match="has no masked-language-model head, so it gives sentences no score"):
        scorer({"encoder": headless})


def test_pseudo_log_likelihoods_of_an_encoder_decoder(vocabulary):
    """Replace each token of each sentence by the sentinel in a separate row without padding."""
    ids = dataclasses.replace(vocabulary.token_ids, sentinels=(vocabulary.size - 1, vocabulary.size - 2))
    vocabulary_with_sentinels = SimpleNamespace(token_ids=ids, encode_batch=vocabulary.encode_batch, size=vocabulary.size)
    sizes = {"hidden_size": 32, "num_layers": 1, "num_encoder_layers": 1, "num_heads": 2, "head_dim": 8, "feed_forward_size": 32}
    config, generator = T5Config(vocab_size=vocabulary.size, **sizes), np.random.default_rng(0)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.float32(0.3 * generator.standard_normal(leaf.shape)), shapes)
    model = api.LanguageModel(config, params, vocabulary_with_sentinels, end_tokens(config, ids))
    sentence_scorer = scorer({"encoder_decoder": model})
    assert sentence_scorer.description == "pseudo-log-likelihood, each token behind a sentinel in turn"
    scores = sentence_scorer.score(SENTENCES[2:], WHERE[2:])
    for sentence, score in zip(SENTENCES[2:], scores, strict=True):
        tokens = np.array([*vocabulary.encode_batch([sentence])[0], ids.sep])
        expected = 0.0
        for place in range(len(tokens) - 1):
            hidden = np.where(np.arange(len(tokens)) == place, ids.sentinels[0], tokens)
            decoder_tokens = np.array([[ids.pad, ids.sentinels[0]]])
            logits = np.asarray(model.apply(decoder_tokens, encoder_tokens=hidden[None])["logits"], np.float64)[0, 1]
            expected += logits[tokens[place]] - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
        assert score == pytest.approx(expected, rel=1e-4)
    model_without_sentinels = api.LanguageModel(config, params, SimpleNamespace(token_ids=vocabulary.token_ids), model.ends)
    with pytest.raises(UserError, match="its vocabulary has no sentinel"):
        scorer({"encoder_decoder": model_without_sentinels})

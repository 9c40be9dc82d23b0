"""Hashes of passages and duplicate documents, compared with plain sets of slices."""

from functools import partial

import numpy as np
import pytest

from bertfam.data.checks import duplicates
from bertfam.data.checks.passages import passages
from bertfam.data.corpora.corpus import Corpus

WINDOW = 8


@pytest.mark.parametrize("size", [0, 7, 8, 9, 5000])
def test_every_window_has_a_hash(monkeypatch, size):
    monkeypatch.setattr("bertfam.data.checks.passages._AT_ONCE", 100)  # in many pieces
    symbols = np.random.default_rng(0).integers(0, 3, size).astype(np.uint8)
    windows = {symbols[begin : begin + WINDOW].tobytes() for begin in range(max(0, size - WINDOW + 1))}
    hashes = passages(symbols, WINDOW, 1)
    base = 0x9E3779B97F4A7C15
    expected = {sum((symbol + 1) * base**place for place, symbol in enumerate(window)) % 2**64 for window in windows}
    assert set(hashes.tolist()) == expected and len(hashes) == len(windows) and np.all(np.diff(hashes.astype(float)) >= 0)
    sampled = passages(symbols, WINDOW, 16)
    assert set(sampled.tolist()) == {value for value in expected if value < 2**60}


def test_about_one_window_in_sixteen_is_kept():
    symbols = np.random.default_rng(1).integers(97, 123, 200_000).astype(np.uint8)
    count = len(passages(symbols, 64, 16))
    mean = (200_000 - 63) / 16
    assert abs(count - mean) < 5 * np.sqrt(mean * 15 / 16)


def text(words, source="file"):
    symbols = np.frombuffer("".join(words).encode(), np.uint8)
    return duplicates.Text(source, symbols, WINDOW, partial(str, words[0]))


def test_shares_equal_those_of_plain_sets(monkeypatch):
    """Keep every passage, so that the shares of a document's windows in one training document are exact."""
    monkeypatch.setattr(duplicates, "_ONE_IN", 1)
    generator = np.random.default_rng(2)
    words = ["".join(generator.choice(list("abcdefghij"), 9)) for _ in range(400)]
    held_out = [[words[i] for i in generator.choice(400, 12, replace=False)] for _ in range(30)]
    training = [[words[i] for i in generator.choice(400, 12, replace=False)] for _ in range(30)]
    training += [[*document[: int(generator.integers(1, 12))], "x" * 9] for document in held_out[:20]] + held_out[20:24]

    def windows(document):
        joined = "".join(document)
        return {joined[begin : begin + WINDOW] for begin in range(len(joined) - WINDOW + 1)}

    shares = [max(len(windows(one) & windows(other)) / len(windows(one)) for other in training) for one in held_out]
    exact = [one in training for one in held_out]
    report = duplicates.find_duplicates(lambda: map(text, held_out), map(text, training))
    assert (report.held_out, report.exact) == (30, 4) == (30, sum(exact))
    assert report.near == sum(share >= 0.5 and not same for share, same in zip(shares, exact, strict=True)) > 3
    training_windows = set().union(*map(windows, training))
    is_in_training = [window in training_windows for one in held_out for window in windows(one)]
    assert report.passages == pytest.approx(np.mean(is_in_training))


def test_text_of_every_document_is_ignored_as_boilerplate(monkeypatch):
    monkeypatch.setattr(duplicates, "_ONE_IN", 1)
    licence = "the same words at the head of every file "
    generator = np.random.default_rng(3)
    documents = [[licence, "".join(generator.choice(list("abcdefghij"), 20))] for _ in range(40)]
    report = duplicates.find_duplicates(lambda: map(text, documents[:20]), map(text, documents[20:]))
    assert (report.exact, report.near, report.example) == (0, 0, None)


def test_index_stays_within_its_bound(monkeypatch):
    monkeypatch.setattr(duplicates, "_MOST", 1000)
    generator = np.random.default_rng(4)
    documents = [["".join(generator.choice(list("abcdefghij"), 2000))] for _ in range(60)]
    index = duplicates._Index(map(text, documents))
    assert len(index.hashes) <= 1000 and index.one_in >= 128
    expected = [passages(text(document).symbols, WINDOW, index.one_in) for document in documents]
    assert index.sizes.tolist() == [len(hashes) for hashes in expected]
    report = duplicates.find_duplicates(lambda: map(text, documents), map(text, documents[10:30]))
    assert report.exact == 20 and report.passages == pytest.approx(1 / 3, abs=0.1)


class TwoDocuments(Corpus):
    def texts(self, split):
        yield ["One  Two", "three"] if split == "train" else ["one two", "THREE"]

    def fingerprint(self):
        return {}


def test_case_and_white_space_are_ignored():
    report = duplicates.find_duplicates(
        lambda: duplicates.texts_of_corpora({"two": TwoDocuments()}, "validation"),
        duplicates.texts_of_corpora({"two": TwoDocuments()}, "train"),
    )
    assert (report.held_out, report.exact, report.near) == (1, 1, 0)
    assert report.example == {"held_out": "two", "training": "two", "begins": "one two THREE", "share": 1.0}

"""Passages and duplicates against sets of plain slices."""

from functools import partial

import numpy as np
import pytest

from bertfam.data.checks import duplicates
from bertfam.data.checks.passages import passages
from bertfam.data.corpora.corpus import Corpus

WINDOW = 8


@pytest.mark.parametrize("size", [0, 7, 8, 9, 5000])
def test_a_hash_for_every_window(monkeypatch, size):
    monkeypatch.setattr("bertfam.data.checks.passages._AT_ONCE", 100)  # in many pieces
    symbols = np.random.default_rng(0).integers(0, 3, size).astype(np.uint8)
    windows = {symbols[begin : begin + WINDOW].tobytes() for begin in range(max(0, size - WINDOW + 1))}
    found = passages(symbols, WINDOW, 1)
    base = 0x9E3779B97F4A7C15
    expected = {sum((symbol + 1) * base**place for place, symbol in enumerate(window)) % 2**64 for window in windows}
    assert set(found.tolist()) == expected and len(found) == len(windows) and np.all(np.diff(found.astype(float)) >= 0)
    some = passages(symbols, WINDOW, 16)
    assert set(some.tolist()) == {value for value in expected if value < 2**60}


def test_one_window_in_so_many_is_kept():
    symbols = np.random.default_rng(1).integers(97, 123, 200_000).astype(np.uint8)
    count = len(passages(symbols, 64, 16))
    mean = (200_000 - 63) / 16
    assert abs(count - mean) < 5 * np.sqrt(mean * 15 / 16)


def text(words, source="file"):
    symbols = np.frombuffer("".join(words).encode(), np.uint8)
    return duplicates.Text(source, symbols, WINDOW, partial(str, words[0]))


def test_shares_are_those_of_sets(monkeypatch):
    """With every passage kept: the share of a document's windows that one training document has."""
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
    found = duplicates.find_duplicates(lambda: map(text, held_out), map(text, training))
    assert (found.held_out, found.exact) == (30, 4) == (30, sum(exact))
    assert found.near == sum(share >= 0.5 and not same for share, same in zip(shares, exact, strict=True)) > 3
    of_training = set().union(*map(windows, training))
    pairs = [window in of_training for one in held_out for window in windows(one)]
    assert found.passages == pytest.approx(np.mean(pairs))


def test_what_stands_everywhere_is_boilerplate(monkeypatch):
    monkeypatch.setattr(duplicates, "_ONE_IN", 1)
    licence = "the same words at the head of every file "
    generator = np.random.default_rng(3)
    documents = [[licence, "".join(generator.choice(list("abcdefghij"), 20))] for _ in range(40)]
    found = duplicates.find_duplicates(lambda: map(text, documents[:20]), map(text, documents[20:]))
    assert (found.exact, found.near, found.example) == (0, 0, None)


def test_the_index_stays_within_its_bound(monkeypatch):
    monkeypatch.setattr(duplicates, "_MOST", 1000)
    generator = np.random.default_rng(4)
    documents = [["".join(generator.choice(list("abcdefghij"), 2000))] for _ in range(60)]
    index = duplicates._Index(map(text, documents))
    assert len(index.hashes) <= 1000 and index.one_in >= 128
    expected = [passages(text(document).symbols, WINDOW, index.one_in) for document in documents]
    assert index.sizes.tolist() == [len(hashes) for hashes in expected]
    found = duplicates.find_duplicates(lambda: map(text, documents), map(text, documents[10:30]))
    assert found.exact == 20 and found.passages == pytest.approx(1 / 3, abs=0.1)


class Two(Corpus):
    def texts(self, split):
        yield ["One  Two", "three"] if split == "train" else ["one two", "THREE"]

    def fingerprint(self):
        return {}


def test_case_and_spaces_do_not_count():
    found = duplicates.find_duplicates(
        lambda: duplicates.texts_of_corpora({"two": Two()}, "validation"), duplicates.texts_of_corpora({"two": Two()}, "train")
    )
    assert (found.held_out, found.exact, found.near) == (1, 1, 0)
    assert found.example == {"held_out": "two", "training": "two", "begins": "one two THREE", "share": 1.0}

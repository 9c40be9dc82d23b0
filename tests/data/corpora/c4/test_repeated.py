"""Removal of spans of sentences that earlier pages contain."""

import numpy as np
import pytest

from bertfam.data.corpora.c4.pages import PageCleaner, clean
from bertfam.data.corpora.c4.repeated import HashSet, RepeatedSpans, sentence_digests
from bertfam.data.corpora.c4.rules import RULES, PageRules
from bertfam.data.corpora.c4.tally import Tally


def unique(*pages):
    """Return the remaining sentences of pages whose sentences are single letters."""
    repeated, remaining = RepeatedSpans(), []
    for page in pages:
        remaining.append("".join(page[place] for place in repeated.unique(sentence_digests(page))))
        repeated.keep(sentence_digests(remaining[-1]))
    return remaining


@pytest.mark.parametrize(
    ("pages", "remaining"),
    [
        (["abcd", "xabcy"], ["abcd", "xy"]),
        (["abcd", "xaby"], ["abcd", "xaby"]),  # two sentences in a row are too few
        (["abcde", "xabcdey"], ["abcde", "xy"]),  # overlapping spans are removed whole
        (["abcxabc"], ["abcx"]),  # within a page
        (["aaaaa"], ["aaa"]),  # also where the repeats overlap
        (["aaaaaaaa", "aaa"], ["aaa", ""]),
        (["abc", "pabcq", "rpabs"], ["abc", "pq", "rpabs"]),  # "pab" does not occur in the remaining text
        (["ab", "ab"], ["ab", "ab"]),
        (["", "a"], ["", "a"]),
    ],
)
def test_repeated_spans_of_three_sentences_are_removed(pages, remaining):
    assert unique(*pages) == remaining


def test_repeats_are_found_regardless_of_case_and_white_space():
    repeated = RepeatedSpans()
    repeated.keep(sentence_digests(["The cat sat.", "It ran.", "It slept."]))
    assert repeated.unique(sentence_digests(["the  CAT sat.", "It\tran.", "it slept."])) == []


def test_no_span_of_three_sentences_remains_twice():
    """Compare random pages of few distinct sentences with a count of all spans."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        pages = ["".join(generator.choice(list("abcd"), generator.integers(0, 12))) for _ in range(12)]
        remaining = unique(*pages)
        spans = [page[begin : begin + 3] for page in remaining for begin in range(len(page) - 2)]
        assert len(spans) == len(set(spans)), pages
        # The first occurrence of three sentences in a row stays.
        first = next(page for page in pages if len(page) >= 3)
        assert remaining[pages.index(first)].startswith(first[:3])


def test_repeated_sentences_are_removed_and_all_counts_add_up():
    one, two, three, four = (f"This is the sentence of number {name}." for name in ("one", "two", "three", "four"))
    others = [f"Something else is said in place {name} here." for name in ("a", "b", "c", "d")]
    pages = [
        [f"{one} {two}", f"{three} {four}"],
        [others[0], f"{others[1]} {one} {two} {three}", others[2]],  # a part of a line is removed
        [one, two, three, others[3]],  # too little remains
        [f"{one} {two}", three, "This alone is not said before."],
    ]
    tally = Tally(RULES)
    assert list(clean([PageCleaner(PageRules())(pages)], PageRules(), tally)) == [pages[0], [others[0], others[1], others[2]]]
    removed = tally.removed["repeated"]
    assert (removed.pages, removed.lines) == (2, 4 + 3)
    assert removed.example == one
    for name in ("pages", "lines", "characters"):
        counts = [getattr(count, name) for count in (tally.kept, *tally.removed.values())]
        assert sum(counts) == getattr(tally.seen, name)


def test_removed_page_does_not_count_as_an_earlier_occurrence():
    sentences = [f"This is the sentence of number {name}." for name in ("one", "two", "three")]
    with_bracket = [*sentences, "This line has a { in its middle."]
    tally = Tally(RULES)
    assert list(clean([PageCleaner(PageRules())([with_bracket, sentences, sentences])], PageRules(), tally)) == [sentences]


def test_hash_set_equals_a_python_set():
    generator = np.random.default_rng(1)
    numbers = generator.integers(0, 2**64, 300_000, np.uint64)
    half, kept = numbers[:150_000], HashSet()
    for begin in range(0, len(half), 1000):
        kept.add(half[begin : begin + 1000])
    assert len(kept) == len(set(half.tolist()))
    known = set(half.tolist())
    np.testing.assert_array_equal(kept.contains(numbers), [number in known for number in numbers.tolist()])
    assert kept.contains(np.zeros(0, np.uint64)).shape == (0,)

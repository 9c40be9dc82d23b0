import numpy as np
import pytest

from bertfam.data.corpora.c4.pages import clean
from bertfam.data.corpora.c4.repeated import HashSet, RepeatedSpans
from bertfam.data.corpora.c4.rules import RULES, PageRules
from bertfam.data.corpora.c4.tally import Tally


def unique(*pages):
    """What is left of pages of one-letter sentences."""
    repeated, found = RepeatedSpans(), []
    for page in pages:
        found.append("".join(page[place] for place in repeated.unique(page)))
        repeated.keep(found[-1])
    return found


@pytest.mark.parametrize(
    ("pages", "left"),
    [
        (["abcd", "xabcy"], ["abcd", "xy"]),
        (["abcd", "xaby"], ["abcd", "xaby"]),  # two in a row are not three
        (["abcde", "xabcdey"], ["abcde", "xy"]),  # spans that overlap go whole
        (["abcxabc"], ["abcx"]),  # within a page
        (["aaaaa"], ["aaa"]),  # and where they overlap
        (["aaaaaaaa", "aaa"], ["aaa", ""]),
        (["abc", "pabcq", "rpabs"], ["abc", "pq", "rpabs"]),  # "pab" stands nowhere in what is left
        (["ab", "ab"], ["ab", "ab"]),
        (["", "a"], ["", "a"]),
    ],
)
def test_spans_of_three(pages, left):
    assert unique(*pages) == left


def test_case_and_white_space_do_not_count():
    repeated = RepeatedSpans()
    repeated.keep(["The cat sat.", "It ran.", "It slept."])
    assert repeated.unique(["the  CAT sat.", "It\tran.", "it slept."]) == []


def test_no_three_in_a_row_are_left_twice():
    """Random pages of few different sentences, against a count of all spans."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        pages = ["".join(generator.choice(list("abcd"), generator.integers(0, 12))) for _ in range(12)]
        left = unique(*pages)
        spans = [page[begin : begin + 3] for page in left for begin in range(len(page) - 2)]
        assert len(spans) == len(set(spans)), pages
        # The first three in a row stay.
        first = next(page for page in pages if len(page) >= 3)
        assert left[pages.index(first)].startswith(first[:3])


def test_pages_lose_sentences_and_all_counts_add_up():
    one, two, three, four = (f"This is the sentence of number {name}." for name in ("one", "two", "three", "four"))
    more = [f"Something else is said in place {name} here." for name in ("a", "b", "c", "d")]
    pages = [
        [f"{one} {two}", f"{three} {four}"],
        [more[0], f"{more[1]} {one} {two} {three}", more[2]],  # a part of a line goes
        [one, two, three, more[3]],  # too little is left
        [f"{one} {two}", three, "This alone is not said before."],
    ]
    tally = Tally(RULES)
    assert list(clean(pages, PageRules(), tally)) == [pages[0], [more[0], more[1], more[2]]]
    removed = tally.removed["repeated"]
    assert (removed.pages, removed.lines) == (2, 4 + 3)
    assert removed.example == one
    for name in ("pages", "lines", "characters"):
        counts = [getattr(count, name) for count in (tally.kept, *tally.removed.values())]
        assert sum(counts) == getattr(tally.seen, name)


def test_a_page_that_goes_is_not_what_others_repeat():
    sentences = [f"This is the sentence of number {name}." for name in ("one", "two", "three")]
    with_bracket = [*sentences, "This line has a { in its middle."]
    tally = Tally(RULES)
    assert list(clean([with_bracket, sentences, sentences], PageRules(), tally)) == [sentences]


def test_set_of_hashes():
    generator = np.random.default_rng(1)
    numbers = generator.integers(0, 2**64, 300_000, np.uint64)
    half, kept = numbers[:150_000], HashSet()
    for begin in range(0, len(half), 1000):
        kept.add(half[begin : begin + 1000])
    assert len(kept) == len(set(half.tolist()))
    known = set(half.tolist())
    np.testing.assert_array_equal(kept.contains(numbers), [number in known for number in numbers.tolist()])
    assert kept.contains(np.zeros(0, np.uint64)).shape == (0,)

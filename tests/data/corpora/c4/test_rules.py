"""Cleaning rules of C4, each with its counts of removed pages, lines and characters."""

import pytest

from bertfam.data.corpora.c4 import rules
from bertfam.data.corpora.c4.pages import PageCleaner, clean
from bertfam.data.corpora.c4.rules import RULES, PageRules, check_rules
from bertfam.data.corpora.c4.tally import Tally
from bertfam.errors import UserError

GOOD = ["A first sentence stands in this line.", "Is a second one in the next line? There is a third one!"]


def cleaned(page, **settings):
    """Return the remaining lines and the counts (pages, lines, characters) of each rule that removed any."""
    tally = Tally(RULES)
    page_rules = PageRules(**settings)
    pages = list(clean([PageCleaner(page_rules)([page])], page_rules, tally))
    counts = {rule: (count.pages, count.lines, count.characters) for rule, count in tally.removed.items()}
    return (pages[0] if pages else []), {rule: count for rule, count in counts.items() if any(count)}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (f"One word of this line is {'x' * 1001} characters long.", "long_word"),
        ("This line has no mark at its end", "end_mark"),
        ("This line trails off into nothing...", "end_mark"),
        ("Only four words here.", "short_line"),
        ("Please turn on JavaScript to see this page.", "javascript"),
        ("By staying here you accept our Privacy Policy today.", "policy"),
        ("This site makes good use of cookies and cakes.", "policy"),
        ("[1][edit][citation needed]", "citation"),
    ],
)
def test_line_rule_removes_the_line(line, rule):
    kept, removed = cleaned([GOOD[0], line, GOOD[1]])
    assert kept == GOOD
    counts = {"citation": (0, 1, len(line))}.get(rule, (0, 1, len(line)))
    assert removed == {rule: counts}
    assert cleaned([GOOD[0], line, GOOD[1]], rules=frozenset(RULES) - {rule})[1].get(rule) is None


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("Here stands lorem Ipsum dolor sit amet.", "lorem_ipsum"),
        ("The function is called like f = {1, 2, 3}.", "curly_bracket"),
        ("Nobody should say darn in such a place.", "bad_word"),
    ],
)
def test_page_rule_removes_the_page(line, rule):
    page = [GOOD[0], "a menu", line, GOOD[1]]
    kept, removed = cleaned(page, bad_words=("darn",))
    assert kept == []
    characters = len(GOOD[0]) + len(line) + len(GOOD[1])
    assert removed == {"end_mark": (0, 1, len("a menu")), rule: (1, 3, characters)}
    assert cleaned(page, bad_words=("darn",), rules=frozenset(RULES) - {rule})[0] == [GOOD[0], line, GOOD[1]]


def test_page_rules_see_the_lines_that_line_rules_keep():
    """Keep a page whose only { is in a removed line, as the published program does."""
    kept, removed = cleaned([*GOOD, "function f() {", "}"])
    assert kept == GOOD and removed == {"end_mark": (0, 2, 15)}


def test_limits_are_exact():
    assert cleaned([f"A word of {'x' * 1000} characters may stay.", *GOOD])[1] == {}
    five, four = "These are five good words.", "These are four words."
    assert cleaned([five, *GOOD])[0] == [five, *GOOD]
    assert cleaned([four, *GOOD])[0] == GOOD
    assert cleaned([four, *GOOD], min_words=4)[0] == [four, *GOOD]
    two = GOOD[:1] + ["This is the second and last sentence."]
    assert cleaned(two) == ([], {"few_sentences": (1, 2, sum(map(len, two)))})
    assert cleaned(two, min_sentences=2)[0] == two
    assert cleaned(two, rules=frozenset(RULES) - {"few_sentences"})[0] == two
    # A page without any line is removed, whichever rules apply.
    assert cleaned(["a menu"], rules=frozenset({"end_mark"})) == ([], {"end_mark": (0, 1, 6), "few_sentences": (1, 0, 0)})


def test_citations_are_removed_from_lines():
    line = "A fact[1] and another[23] are known here[citation needed]."
    kept, removed = cleaned([line, *GOOD])
    assert kept[0] == "A fact and another are known here."
    assert removed == {"citation": (0, 0, len(line) - len(kept[0]))}
    # A line ends with the mark before its citations.
    assert cleaned(["This ends in a full stop.[12] [edit]", *GOOD])[0][0] == "This ends in a full stop."


@pytest.mark.parametrize("mark", [".", "?", "!", '"', "”", "。", "؟", "।"])
def test_end_marks_of_several_scripts(mark):
    line = f"This line ends in such a mark{mark}"
    assert cleaned([line, *GOOD])[0][0] == line


@pytest.mark.parametrize(
    ("words", "text", "is_bad"),
    [
        # These are the published program's own tests.
        (["ass"], "I asked my friend for assistance polishing my cutlass.", False),
        (["ass"], "He took the saddle and put it on his ass in preparation for travel.", True),
        (["ass"], "Ass is one of several species of small, horse-like animals.", True),
        (["ass"], 'Donkey is one synonym for the word "ass".', True),
        (["bad thing"], "This is a BAD thing to say aloud.", True),
        (["bad thing"], "These are bad things to say aloud.", False),
        (["c++"], "Nobody may write c++ in this house.", True),
        (["坏话"], "这里有一句坏话在中间。", True),
        (["sm"], "Those who are small do not mind it.", False),
        (["sm"], "这里有一个sm在中间的句子。", True),
        (["ไม่ดี"], "คำว่าไม่ดีอยู่ในประโยคนี้.", True),
    ],
)
def test_bad_words(words, text, is_bad):
    assert (cleaned([*GOOD, text], bad_words=tuple(words), rules=frozenset({"bad_word"}))[0] == []) is is_bad


def test_every_character_is_a_word_in_text_without_spaces():
    """Count each character as a word, and end sentences by the rules of the language."""
    page = ["猫坐在垫子上。狗在花园里跑。", "太短。", "鸟在天上飞得很高！"]
    kept, removed = cleaned(page, language="zh")
    assert kept == [page[0], page[2]] and removed == {"short_line": (0, 1, 3)}


def test_pages_of_other_languages_are_removed():
    kept, removed = cleaned(GOOD, is_wanted=lambda text: "third" not in text)
    assert kept == [] and removed == {"language": (1, 2, sum(map(len, GOOD)))}
    assert cleaned(GOOD, is_wanted=lambda text: "third" in text) == (GOOD, {})


def test_unknown_rule_names_are_refused():
    check_rules(list(RULES))
    with pytest.raises(UserError, match="did you mean policy"):
        check_rules(["polcy"])
    assert all(f"\n    {rule} " in rules.__doc__ for rule in RULES)

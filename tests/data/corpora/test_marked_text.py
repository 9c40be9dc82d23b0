"""Phrases and entities marked in text, from the input file to the masked row."""

import math
from collections import Counter

import numpy as np
import pytest

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.corruption.masked_lm.units import BEGINS, CONTINUES, UNIT_BITS, Units
from bertfam.data.corpora.corpus import Span
from bertfam.data.corpora.marked_text import MarkedText, find_names, find_salient, strip_marks
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import DocSentences, FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError


@pytest.mark.parametrize(
    ("marked", "text", "spans"),
    [
        ("⟨in the end⟩ ⟦New York⟧ had", "in the end New York had", [("phrase", 0, 10), ("entity", 11, 19)]),
        ("⟨the ⟦New York⟧ office⟩.", "the New York office.", [("entity", 4, 12), ("phrase", 0, 19)]),
        ("a ⟩ b ⟦⟧ c ⟦ d", "a  b  c  d", []),  # unpaired marks, and an empty pair
        ("plain", "plain", []),
    ],
)
def test_marks_are_removed_from_the_text(marked, text, spans):
    assert strip_marks(marked) == (text, [Span(*span) for span in spans])


def test_sentences_end_as_in_the_text_without_marks(tmp_path):
    """Keep abbreviations next to marks; a unit across two sentences, or not closed in its line, is dropped."""
    marked = [
        "It was ⟦Mr. Smith⟧ of ⟨the ⟦U.S. Army⟧ staff⟩. ⟦New York⟧ is big. So is ⟦New York⟧. ⟨At last. He⟩ left ⟦Rome.",
        "⟦He⟧ came⟧ back.",
        "⟨⟩ ⟦⟧",
    ]
    (tmp_path / "marked.txt").write_text("\n".join(marked) + "\n")
    (tmp_path / "plain.txt").write_text("\n".join(strip_marks(line)[0] for line in marked) + "\n")
    files = (
        TextFiles((str(tmp_path / f"{name}.txt"),), input_format="paragraphs", validation_fraction=0.0)
        for name in ("marked", "plain")
    )
    text, plain = MarkedText(next(files)), next(files)
    (lines,) = text.texts("train")
    sentences = text.marked_sentences(lines)
    (expected,) = plain.documents("train")
    assert [sentence for sentence, _ in sentences] == expected == text.sentences(lines)
    assert [(kind, sentence[begin:end]) for sentence, spans in sentences for kind, begin, end in spans] == [
        ("entity", "Mr. Smith"),
        ("entity", "U.S. Army"),
        ("phrase", "the U.S. Army staff"),
        ("entity", "New York"),
        ("entity", "New York"),
        ("entity", "He"),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("In 1492 Christopher Columbus sailed.", ["1492", "Christopher Columbus"]),
        ("New York had 8,804,190 inhabitants in May.", ["New York", "8,804,190", "May"]),
        ("The end.", []),
        ("Émile met Ana, Bob and O'Neil at 12:30.", ["Ana", "Bob", "O'Neil", "12:30"]),
        ("... 3 of them", ["3"]),
    ],
)
def test_names_and_numbers_are_found(text, names):
    assert [text[begin:end] for _, begin, end in find_names(text)] == names


@pytest.fixture(scope="module")
def caches(corpus, vocabulary, tmp_path_factory):
    """Caches of the real text, plain and with marks: every fourth pair of words is a phrase, every fifth word an entity."""
    folder = tmp_path_factory.mktemp("marked")
    plain, marked = [], []
    for document in corpus.documents("train"):
        lines = [" ".join(sentence.split()) for sentence in document]
        plain.append("\n".join(lines))
        marked.append("\n".join(" ".join(with_marks(line.split())) for line in lines))
    for name, documents in (("plain", plain), ("marked", marked)):
        (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    files = {name: TextFiles(train=(str(folder / f"{name}.txt"),), validation_fraction=0.0) for name in ("plain", "marked")}
    corpora = {"plain": files["plain"], "marked": MarkedText(files["marked"])}
    return {name: build({"text": text}, vocabulary, folder / name) for name, text in corpora.items()}


def with_marks(words):
    words = list(words)
    for at in range(0, len(words) - 1, 4):
        words[at], words[at + 1] = f"⟨{words[at]}", f"{words[at + 1]}⟩"
    for at in range(0, len(words), 5):
        words[at] = f"⟦{words[at]}⟧" if "⟨" not in words[at] and "⟩" not in words[at] else words[at]
    return words


def test_tokens_equal_those_of_the_text_without_marks(caches):
    plain, marked = (caches[name].documents("train", "text") for name in ("plain", "marked"))
    assert plain.units is None and len(marked.units) == len(marked.tokens)
    for name in ("tokens", "sentence_starts", "sentence_bounds"):
        assert np.array_equal(getattr(plain, name), getattr(marked, name))


def test_marks_cover_whole_words(caches, vocabulary):
    documents = caches["marked"].documents("train", "text")
    tokens, starts = documents.tokens[:].astype(int), documents.sentence_starts
    for sentence in range(0, 400, 7):
        span = slice(starts[sentence], starts[sentence + 1])
        starts_word = vocabulary.token_ids.starts_word[tokens[span]]
        for shift in (0, UNIT_BITS):
            marks = documents.units[:][span] >> shift & 3
            assert set(marks) <= {0, BEGINS, CONTINUES}
            # A token continues only the unit of the token before it.
            assert np.all((marks[1:] != CONTINUES) | (marks[:-1] != 0)) and marks[0] != CONTINUES
            # Units begin and end at the bounds of words.
            assert starts_word[marks == BEGINS].all()
            ends = np.flatnonzero((marks[1:] == 0) & (marks[:-1] != 0)) + 1
            assert starts_word[ends].all()
    assert 0.2 < np.mean(documents.units[:] & 3 > 0) < 0.7 and np.mean(documents.units[:] >> UNIT_BITS > 0) > 0.05


def test_builds_by_several_processes_give_the_same_bytes(caches, corpus, vocabulary, tmp_path):
    files = TextFiles(train=(str(caches["marked"].directory.parent / "marked.txt"),), validation_fraction=0.0)
    rebuilt = build({"text": MarkedText(files)}, vocabulary, tmp_path / "again", processes=2)
    for name in ("tokens.bin", "units.bin", "sentence_starts.bin"):
        paths = (cache.directory / "text" / "train" / name for cache in (rebuilt, caches["marked"]))
        assert len({path.read_bytes() for path in paths}) == 1
    named = build({"text": MarkedText(files, marks="names")}, vocabulary, tmp_path / "names")
    assert TokenCache(tmp_path / "names").documents("train", "text").units[:].any()
    assert named.fingerprint != rebuilt.fingerprint


ROWS = [SentencePairs(), DocSentences(), FullSentences(), Packed(DocSentences()), Packed(SentencePairs())]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_marks_stay_with_their_tokens_in_rows_of_every_kind(caches, tokens, rows):
    """Compare the marks of rows with those of the text; positions that are not maskable have no marks."""
    documents = caches["marked"].documents("train", "text")
    examples = rows.examples(documents, 64, 1, tokens)
    batch = examples.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    places_of_run = {}
    # The marks of a run of five tokens are known where the run occurs once in the text.
    text = documents.tokens[:].astype(int)
    for at in range(len(text) - 4):
        places_of_run.setdefault(tuple(text[at : at + 5].tolist()), []).append(at)
    compared = 0
    for row in range(0, len(examples), 9):
        for at in range(64 - 4):
            span = slice(at, at + 5)
            run = tuple(batch["encoder_input_tokens"][row, span].tolist())
            if batch["maskable"][row, span].all() and len(places_of_run.get(run, [])) == 1:
                (place,) = places_of_run[run]
                assert np.array_equal(batch["units"][row, span], documents.units[place : place + 5])
                compared += 1
    assert compared > 500 and not batch["units"][~batch["maskable"]].any()


@pytest.mark.parametrize(("level", "weights"), [(0, (1, 0, 0)), (1, (0, 1, 0)), (2, (0, 0, 1))])
def test_tokens_of_a_unit_share_one_replacement(caches, tokens, level, weights):
    documents = caches["marked"].documents("train", "text")
    examples = DocSentences().examples(documents, 96, 1, tokens)
    chosen = np.resize(np.arange(len(examples)), 2000)
    rows = examples.rows(chosen, fold(1, np.arange(2000)))
    noise = BertMasking(choice=Units(*map(float, weights)), drawn_by="unit")
    result = noise.corrupt(rows, fold(2, np.arange(2000)), tokens)
    assert "units" not in result and "maskable" not in result
    used = result["masked_loss_weights"] > 0
    positions = result["masked_positions"]
    assert np.take_along_axis(rows["maskable"], positions, axis=1)[used].all()
    share = used.sum() / (rows["encoder_segment_ids"] > 0).sum()
    assert abs(share - 0.15) < 0.01
    predicted = np.zeros(rows["maskable"].shape, bool)
    row, slot = np.nonzero(used)
    predicted[row, positions[row, slot]] = True
    place = rows["units"] >> (UNIT_BITS * max(level - 1, 0)) & 3
    if level == 0:
        place = np.zeros_like(place)
    # Neighbours within a unit are both predicted or both kept, and replaced in the same way.
    joined = (place[:, 1:] == CONTINUES) & rows["maskable"][:, 1:] & rows["maskable"][:, :-1]
    assert np.array_equal(predicted[:, 1:][joined], predicted[:, :-1][joined])
    assert joined.sum() > (3000 if level else -1)
    masked = result["encoder_input_tokens"] == tokens.mask
    predicted_pairs = joined & predicted[:, 1:]
    assert np.array_equal(masked[:, 1:][predicted_pairs], masked[:, :-1][predicted_pairs])
    kinds = Counter(masked[predicted & (place != CONTINUES)].tolist())
    total = sum(kinds.values())
    assert abs(kinds[True] / total - 0.8) < 5 * math.sqrt(0.16 / total)


def test_rows_draw_their_level_by_the_weights():
    levels = Units(1.0, 2.0, 5.0).levels(fold(3, np.arange(20_000)))
    shares = np.bincount(levels, minlength=3) / 20_000
    assert np.all(np.abs(shares - np.array([1, 2, 5]) / 8) < 0.02)


def test_text_without_marks_is_refused(cache, tokens):
    data = TextData(corruption=BertMasking(choice=Units()))
    with pytest.raises(
        UserError,
        match="has no marks of phrases and entities, which Units reads: give the text with --marks=given or --marks",
    ):
        data.training(cache, tokens, 32, 4, 0)
    assert TextData(corruption=BertMasking(choice=WholeWords())).training(cache, tokens, 32, 4, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Units(0.0, 0.0, 0.0), "are no weights"),
        (lambda: Units(basic=-1.0), "are no weights"),
        (lambda: MarkedText(TextFiles(train=("a",)), marks="brackets"), "MarkedText.marks is 'brackets'"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises((ValueError, UserError), match=message):
        make()


@pytest.mark.parametrize(
    ("sentence", "spans"),
    [
        ("On 5 May 1990 he met Mary Jones in Paris.", ["5 May 1990", "Mary Jones", "Paris"]),
        ("Born on July 20, 1969, and not in May, she had 300 books.", ["July 20, 1969", "May"]),
        ("The 1920s, 1999, 2.1999, 1234.5 and 5,1999 in Sept. 2001", ["1920s", "1999", "Sept. 2001"]),
        ("It rose 1500% by 1969-07-20 and the 3rd March.", ["1969-07-20", "3rd March"]),
        ("Nothing at all.", []),
    ],
)
def test_names_and_dates_are_salient(sentence, spans):
    """Numbers that are no dates are none, and neither is the first word of a sentence."""
    assert [sentence[begin:end] for _, begin, end in find_salient(sentence)] == spans

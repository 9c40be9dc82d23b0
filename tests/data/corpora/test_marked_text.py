"""Phrases and entities that are marked in text, from the file to the mask."""

import math
from collections import Counter

import numpy as np
import pytest

from bertfam.corruption.keys import fold
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.corruption.masked_lm.units import BEGINS, CONTINUES, UNIT_BITS, Units
from bertfam.data.corpora.corpus import Span
from bertfam.data.corpora.marked_text import MarkedText, find_names, strip_marks
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
        ("a ⟩ b ⟦⟧ c ⟦ d", "a  b  c  d", []),  # without a counterpart, or around nothing
        ("plain", "plain", []),
    ],
)
def test_marks_are_taken_out(marked, text, spans):
    assert strip_marks(marked) == (text, [Span(*span) for span in spans])


def test_sentences_end_where_those_of_the_text_without_marks_do(tmp_path):
    """Marks hide no abbreviation; what is marked across two sentences, or is not closed in its line, is no unit."""
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
    found = text.marked_sentences(lines)
    (expected,) = plain.documents("train")
    assert [sentence for sentence, _ in found] == expected == text.sentences(lines)
    assert [(kind, sentence[begin:end]) for sentence, spans in found for kind, begin, end in spans] == [
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
def test_names_and_numbers(text, names):
    assert [text[begin:end] for _, begin, end in find_names(text)] == names


@pytest.fixture(scope="module")
def caches(corpus, vocabulary, tmp_path_factory):
    """The real text with every fourth pair of words marked as a phrase and every fifth word as an entity; the same unmarked."""
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
    return {name: build({"text": found}, vocabulary, folder / name) for name, found in corpora.items()}


def with_marks(words):
    words = list(words)
    for at in range(0, len(words) - 1, 4):
        words[at], words[at + 1] = f"⟨{words[at]}", f"{words[at + 1]}⟩"
    for at in range(0, len(words), 5):
        words[at] = f"⟦{words[at]}⟧" if "⟨" not in words[at] and "⟩" not in words[at] else words[at]
    return words


def test_the_tokens_are_those_of_the_text_without_marks(caches):
    plain, marked = (caches[name].documents("train", "text") for name in ("plain", "marked"))
    assert plain.units is None and len(marked.units) == len(marked.tokens)
    for name in ("tokens", "sentence_starts", "sentence_bounds"):
        assert np.array_equal(getattr(plain, name), getattr(marked, name))


def test_marks_are_of_whole_words(caches, vocabulary):
    documents = caches["marked"].documents("train", "text")
    tokens, starts = documents.tokens.astype(int), documents.sentence_starts
    for sentence in range(0, 400, 7):
        here = slice(starts[sentence], starts[sentence + 1])
        begins = vocabulary.token_ids.starts_word[tokens[here]]
        for shift in (0, UNIT_BITS):
            place = documents.units[here] >> shift & 3
            assert set(place) <= {0, BEGINS, CONTINUES}
            # A unit goes on only from itself.
            assert np.all((place[1:] != CONTINUES) | (place[:-1] != 0)) and place[0] != CONTINUES
            # Where one begins or ends, so does a word.
            assert begins[place == BEGINS].all()
            outside = np.flatnonzero((place[1:] == 0) & (place[:-1] != 0)) + 1
            assert begins[outside].all()
    assert 0.2 < np.mean(documents.units & 3 > 0) < 0.7 and np.mean(documents.units >> UNIT_BITS > 0) > 0.05


def test_however_it_is_built(caches, corpus, vocabulary, tmp_path):
    """By several processes the same bytes."""
    files = TextFiles(train=(str(caches["marked"].directory.parent / "marked.txt"),), validation_fraction=0.0)
    again = build({"text": MarkedText(files)}, vocabulary, tmp_path / "again", processes=2)
    for name in ("tokens.bin", "units.bin", "sentence_starts.bin"):
        paths = (cache.directory / "text" / "train" / name for cache in (again, caches["marked"]))
        assert len({path.read_bytes() for path in paths}) == 1
    named = build({"text": MarkedText(files, marks="names")}, vocabulary, tmp_path / "names")
    assert TokenCache(tmp_path / "names").documents("train", "text").units.any()
    assert named.fingerprint != again.fingerprint


ROWS = [SentencePairs(), DocSentences(), FullSentences(), Packed(DocSentences()), Packed(SentencePairs())]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_marks_go_with_their_tokens(caches, tokens, rows):
    """Into rows of every kind; where a token may not be predicted there is none."""
    documents = caches["marked"].documents("train", "text")
    examples = rows.examples(documents, 64, 1, tokens)
    found = examples.rows(np.arange(len(examples)), fold(1, np.arange(len(examples))))
    of_token = {}
    # Of runs of five tokens that occur once in the text the marks are known.
    text = documents.tokens.astype(int)
    for at in range(len(text) - 4):
        of_token.setdefault(tuple(text[at : at + 5].tolist()), []).append(at)
    compared = 0
    for row in range(0, len(examples), 9):
        for at in range(64 - 4):
            here = slice(at, at + 5)
            run = tuple(found["encoder_input_tokens"][row, here].tolist())
            if found["maskable"][row, here].all() and len(of_token.get(run, [])) == 1:
                (place,) = of_token[run]
                assert np.array_equal(found["units"][row, here], documents.units[place : place + 5])
                compared += 1
    assert compared > 500 and not found["units"][~found["maskable"]].any()


@pytest.mark.parametrize(("level", "weights"), [(0, (1, 0, 0)), (1, (0, 1, 0)), (2, (0, 0, 1))])
def test_units_are_masked_whole_and_alike(caches, tokens, level, weights):
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
    # Neighbours of one unit have one fate, to be predicted and how.
    joined = (place[:, 1:] == CONTINUES) & rows["maskable"][:, 1:] & rows["maskable"][:, :-1]
    assert np.array_equal(predicted[:, 1:][joined], predicted[:, :-1][joined])
    assert joined.sum() > (3000 if level else -1)
    masked = result["encoder_input_tokens"] == tokens.mask
    both = joined & predicted[:, 1:]
    assert np.array_equal(masked[:, 1:][both], masked[:, :-1][both])
    kinds = Counter(masked[predicted & (place != CONTINUES)].tolist())
    total = sum(kinds.values())
    assert abs(kinds[True] / total - 0.8) < 5 * math.sqrt(0.16 / total)


def test_rows_draw_their_level():
    levels = Units(1.0, 2.0, 5.0).levels(fold(3, np.arange(20_000)))
    shares = np.bincount(levels, minlength=3) / 20_000
    assert np.all(np.abs(shares - np.array([1, 2, 5]) / 8) < 0.02)


def test_text_without_marks_is_refused(cache, tokens):
    data = TextData(corruption=BertMasking(choice=Units()))
    with pytest.raises(
        UserError, match="has no marks of phrases and entities, which Units masks: give the text with --marks=given or --marks"
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

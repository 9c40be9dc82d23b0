"""Vectors of words: means over pieces, samples, neighbours, correlations and the geometry of layers, by brute force."""

import gzip
import json

import numpy as np
import pytest
from scipy import stats

from bertfam import cli
from bertfam.analysis.representations import geometry
from bertfam.analysis.representations.neighbours import Space, marked_word
from bertfam.analysis.representations.samples import contexts, sample, sampled_words
from bertfam.analysis.representations.similarity import Pair, correlations, names_of, read_pairs
from bertfam.analysis.representations.word_vectors import Occurrence, find_words, vectors
from bertfam.analysis.subject import open_subject
from bertfam.errors import UserError

TEXTS = [
    "The assignment statement binds names to values, and the values to names.",
    "Return the value of a list.",
    "A class definition defines a class object; it is an executable statement.",
    "The list of names is a value.",
    "An expression is " + "reimplementation " * 9,
]


@pytest.fixture(scope="module")
def subject(random_model):
    return open_subject(str(random_model), length=24)


@pytest.fixture(scope="module")
def words():
    return sampled_words(TEXTS)


@pytest.fixture(scope="module")
def found(subject, words):
    """Return the vector of each word that the model reads whole."""
    parts = vectors(subject, TEXTS, words, 2, "")
    return {words[number]: vector for numbers, own in parts for number, vector in zip(numbers, own, strict=True)}


def test_a_vector_is_the_mean_of_the_pieces_of_a_word(subject, words, found):
    expected, cut_words = {}, 0
    for number, text in enumerate(TEXTS):
        row = subject.row(text)
        hidden = np.asarray(
            subject.model.apply(row.ids[None], token_type_ids=row.types[None], collect=["hidden_states"])["hidden_states"]
        )
        for start, end in find_words(text):
            inside = (row.texts == 0) & (row.offsets[:, 0] >= start) & (row.offsets[:, 1] <= end)
            cut = end > row.offsets[row.texts == 0][-1, 1]
            cut_words += bool(cut and inside.any())
            if not cut and subject.vocabulary.token_ids.unk not in row.ids[inside]:
                expected[Occurrence(number, start, end)] = hidden[:, 0, inside].mean(axis=1)
    assert expected.keys() == found.keys() and len(expected) > 15 and cut_words == 1
    for word, vector in expected.items():
        np.testing.assert_allclose(found[word], vector, atol=2e-5, err_msg=str(word))


def test_samples_are_equally_likely_and_in_order():
    sentences = [f"word{number}" for number in range(50)]
    kept = sample(iter(sentences), 20)
    assert len(set(kept)) == 20 and kept == sorted(kept, key=sentences.index) and sample(sentences, 99) == sentences
    repeated = [f"{'sea' if number % 2 else 'Sea'} {number} sky" for number in range(200)]
    texts, own = contexts(iter(repeated), ["sea", "sky", "land"], 30)
    assert len(own["sea"]) == 30 == len(set(own["sea"])) and own["land"] == []
    assert all(texts[text][start:end].lower() == word for word in own for text, start, end in own[word])
    numbers = [int(texts[text].split()[1]) for text, _, _ in own["sea"]]
    assert 60 < np.mean(numbers) < 140


def test_neighbours_by_brute_force(subject, words, found):
    space = Space(subject, TEXTS, words, 1, 4)
    text, word = marked_word("A [value] is a list of names.")
    assert text == "A value is a list of names." and word == Occurrence(0, 2, 7)
    ((_, query),) = vectors(subject, [text], [word], 1, "")

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    best = {}
    for other, vector in found.items():
        best[other.text] = max(best.get(other.text, -1), cosine(query[0, 1], vector[1]))
    near = space.near_occurrence(text, word, 3)
    assert [one.cosine for one in near] == pytest.approx(sorted(best.values(), reverse=True)[:3], abs=1e-5)
    assert all(one.text.count("[") == 1 for one in near)

    means = {}
    for other, vector in found.items():
        means.setdefault(TEXTS[other.text][other.start : other.end].lower(), []).append(vector[1] / np.linalg.norm(vector[1]))
    count, near = space.near_word("Names", 2, 2)
    expected = {name: cosine(np.mean(own, 0), np.mean(means["names"], 0)) for name, own in means.items() if len(own) > 1}
    expected.pop("names")
    assert count == len(means["names"]) and [one.text for one in near] == sorted(expected, key=expected.get, reverse=True)[:2]
    with pytest.raises(UserError, match="--word=absent is not in the text"):
        space.near_word("absent", 2, 1)


def test_correlations_leave_out_words_without_a_vector():
    generator = np.random.default_rng(0)
    static = {name: generator.normal(size=(2, 5)) for name in "abcdef"}
    pairs = [Pair(*names, score) for names, score in zip(["ab", "cd", "ef", "ac", "az"], [3.0, 1.0, 2.0, 2.5, 9.0], strict=True)]
    report = correlations(pairs, static)
    assert report["pairs"] == 4 and report["left_out"] == 1
    for layer, correlation in enumerate(report["spearman"]):
        cosines = [
            1 - np.inner(*(static[name][layer] / np.linalg.norm(static[name][layer]) for name in pair[:2])) for pair in pairs[:4]
        ]
        assert correlation == pytest.approx(-stats.spearmanr(cosines, [pair.score for pair in pairs[:4]]).statistic)


def test_no_correlation_of_equal_numbers_is_stated(recwarn):
    static = {name: np.ones((1, 5)) + np.eye(5)[number] for number, name in enumerate("abc")}
    static["d"] = np.arange(5.0)[None]
    equal = [Pair(*names, 1.0) for names in ("ab", "bd", "ac")]
    assert correlations(equal, static)["spearman"] == [None]
    assert not [warning for warning in recwarn.list if not issubclass(warning.category, ResourceWarning)]
    assert geometry.self_similarity(np.eye(3), ["a", "b", "c"]) == (None, 0)


def test_files_of_one_name_are_two_sets():
    paths = ["one/men.txt", "two/men.txt.gz", "wordsim.txt", "wordsim.txt"]
    assert names_of(paths) == {"one/men.txt": "one/men.txt", "two/men.txt.gz": "two/men.txt.gz", "wordsim": "wordsim.txt"}


def test_pairs_are_read_from_tabs_spaces_and_gzip(tmp_path):
    path = tmp_path / "pairs.txt.gz"
    path.write_bytes(gzip.compress(b"Old\tnew\t1.58\n\nsmart wise 9\na b -1\n"))
    assert read_pairs(str(path)) == [("old", "new", 1.58), ("smart", "wise", 9.0), ("a", "b", -1.0)]


def test_geometry_by_brute_force():
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(2, 12, 4)), generator.normal(size=(3, 12, 6))
    units = first[0] / np.linalg.norm(first[0], axis=1, keepdims=True)
    cosines = units @ units.T
    assert geometry.anisotropy(first[0]) == pytest.approx(cosines[~np.eye(12, dtype=bool)].mean())
    names = list("aaabbcdefghi")
    similarity, count = geometry.self_similarity(first[0], names)
    assert count == 2 and similarity == pytest.approx((cosines[[0, 0, 1], [1, 2, 2]].mean() + cosines[3, 4]) / 2)

    def hsic(one, other):
        kernels = [x @ x.T for x in (one, other)]
        for kernel in kernels:
            np.fill_diagonal(kernel, 0)
        a, b, ones = *kernels, np.ones(12)
        cross = ones @ a @ ones * (ones @ b @ ones) / (11 * 10) - 2 / 10 * ones @ a @ b @ ones
        return (np.trace(a @ b) + cross) / (12 * 9)

    def cka(one, other):
        one, other = one - one.mean(0), other - other.mean(0)
        return hsic(one, other) / np.sqrt(hsic(one, one) * hsic(other, other))

    expected = [[cka(one, other) for other in second] for one in first]
    np.testing.assert_allclose(geometry.aligned(first, second), expected, rtol=1e-4, atol=1e-5)
    turned = first @ np.linalg.qr(generator.normal(size=(4, 4)))[0] * 3
    assert geometry.aligned(first, turned)[0, 0] == pytest.approx(1, abs=1e-5)


def test_commands(random_model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "pairs.txt").write_text("names\tvalues\t9\nlist\tvalue\t3\nlist\tnames\t1\nzebra\tlist\t0\n")
    flags = [f"--model_dir={random_model}", "--input=text.txt", "--length=24"]
    words = ["--text=a [value] is a list", "--word=names", "--min_count=1", "--layer=0"]
    assert cli.main(["analyze", "neighbours", *flags, *words]) == 0
    out = capsys.readouterr().out
    assert out.startswith("layer 0, ") and "\na [value] is a list\n  " in out and "\nnames, mean of " in out
    assert cli.main(["analyze", "similarity", *flags, "--pairs=pairs.txt", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sets"].values()
    assert found["pairs"] == 3 and found["left_out"] == 1 and len(found["spearman"]) == 3
    assert cli.main(["analyze", "similarity", *flags, "--pairs=pairs.txt"]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert first == ["layer", "pairs", "left", "embeddings", "1", "2"]
    assert cli.main(["analyze", "layers", *flags, f"--other={random_model}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " words, with several occurrences of " in lines[0] and lines[-1].split()[-1] == "1.00" and len(lines) == 11


@pytest.mark.parametrize(
    ("command", "flags", "words"),
    [
        ("neighbours", ["--text=no word"], "has 0 words in brackets"),
        ("neighbours", ["--word=list", "--layer=9"], "--layer=9 is more than 2"),
        ("neighbours", ["--text=a [語] is"], "the word [語] is unknown"),
        ("similarity", ["--pairs=short.txt"], "short.txt has 1 pair of words, too few"),
        ("similarity", ["--pairs=nan.txt"], "nan.txt:2: 'b a nan' is not two words and a number"),
        ("layers", ["--words=20001"], "--words=20001 is more than 20,000"),
        ("layers", ["--words=9"], "--words=9 is less than 10"),
    ],
)
def test_mistakes(random_model, tmp_path, capsys, monkeypatch, command, flags, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "short.txt").write_text("a b 1\n")
    (tmp_path / "nan.txt").write_text("a b 1\nb a nan\n")
    assert cli.main(["analyze", command, f"--model_dir={random_model}", "--input=text.txt", "--length=24", *flags]) == 2
    assert words in capsys.readouterr().err

"""Text in several languages: each has the share of the vocabulary's words and of the rows that alpha says."""

import argparse
import json

import jax
import numpy as np
import pytest

from bertfam import cli
from bertfam.commands import flags as shared
from bertfam.config import load
from bertfam.data import vocabularies
from bertfam.data.token_cache.cache import TokenCache

WORDS = {
    "en": "the house stands by a wide river and its windows are open every morning when birds begin to sing near water".split(),
    "fi": "talo seisoo leveän joen rannalla ja sen ikkunat ovat auki joka aamu kun linnut alkavat laulaa veden äärellä".split(),
    "zh": list("房子在宽阔的河边每天早上窗户都开着鸟儿开始唱歌水光照进屋里孩子们笑了"),
}
ENDS = {"en": ".", "fi": ".", "zh": "。"}
DOCUMENTS = {"en": 320, "fi": 80, "zh": 20}


def document(code, number):
    """Three different sentences in one line."""
    generator = np.random.default_rng([number, sorted(WORDS).index(code)])
    between = "" if code == "zh" else " "
    return between.join(between.join(generator.choice(WORDS[code], 12)).capitalize() + ENDS[code] for _ in range(3))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("languages")
    for code, count in DOCUMENTS.items():
        (folder / f"{code}.txt").write_text("\n\n".join(document(code, number) for number in range(count)) + "\n")
    return folder


def flags(texts):
    return [*(f"--language_input={code}={texts / code}.txt" for code in WORDS), "--input_format=paragraphs"]


def expected(sizes, alpha):
    powers = np.array(list(sizes), float) ** alpha
    return powers / powers.sum()


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3])
def test_rows(texts, tmp_path, capsys, alpha):
    """A row in 10,000 is the resolution of a mixture, and 2 rows the deviation of any window of them."""
    assert cli.main(["vocab", *flags(texts), "--cased", "--size=220", f"--output={tmp_path / 'vocab'}"]) == 0
    cache = [*flags(texts), f"--vocab={tmp_path / 'vocab'}", f"--output={tmp_path / 'cache'}"]
    assert cli.main(["cache", *cache, f"--alpha={alpha}"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(
        "bertfam: error: --alpha says how many rows and words each language gives, and a token cache holds all"
    )
    assert not (tmp_path / "cache").exists()
    assert cli.main(["cache", *cache, "--gin.TextData.rows=@FullSentences()", "--processes=0"]) == 0
    capsys.readouterr()
    words = ["preview", *flags(texts), f"--alpha={alpha}", f"--vocab={tmp_path / 'vocab'}", f"--cache_dir={tmp_path / 'cache'}"]
    rows = "--gin.TextData.rows=@FullSentences()", "--length=32"
    assert cli.main([*words, *rows, "--examples=1000", "--json"]) == 0
    found = [record["corpus"] for record in json.loads(capsys.readouterr().out)]
    data = load([], ["TextData.rows = @FullSentences()"]).build("TextData")
    opened, ids = TokenCache(tmp_path / "cache"), vocabularies.load(tmp_path / "vocab").token_ids
    assert opened.corpora == tuple(WORDS)
    sizes = [len(data.rows.examples(opened.documents("train", code), 32, 0, ids)) for code in WORDS]
    shares = [found.count(code) / len(found) for code in WORDS]
    assert np.abs(shares - expected(sizes, alpha)).max() <= 2 / 1000 + 1 / 10_000
    assert (shares[2] > 0.15) == (alpha == 0.3)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "byte_bpe"])
def test_a_vocabulary_learns_each_language_as_often_as_its_share_says(texts, tmp_path, capsys, kind):
    """With alpha = 1/2 and four times as much text, each word of the smaller language counts twice: as if it were there twice."""
    single = document("en", 1)
    (tmp_path / "four.txt").write_text("\n\n".join([single] * 4))
    (tmp_path / "unit.txt").write_text(single[::-1])  # as many characters as one of the four
    (tmp_path / "twice.txt").write_text("\n\n".join([single] * 4 + [single[::-1]] * 2))
    common = [f"--kind={kind}", "--size=300"]
    mixed = [f"--language_input={name}={tmp_path / file}.txt" for name, file in (("en", "four"), ("und_xx", "unit"))]
    assert cli.main(["vocab", *mixed, "--alpha=0.5", *common, f"--output={tmp_path / 'mixed'}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert cli.main(["vocab", f"--input={tmp_path / 'twice.txt'}", *common, f"--output={tmp_path / 'as-if'}", "--json"]) == 0
    as_if = json.loads(capsys.readouterr().out)
    assert summary["words"] == as_if["words"] and summary["pieces_per_word"] == as_if["pieces_per_word"]
    assert vocabularies.load(tmp_path / "mixed").fingerprint == vocabularies.load(tmp_path / "as-if").fingerprint
    assert [summary["corpora"][name]["share"] for name in ("en", "und_xx")] == pytest.approx([2 / 3, 1 / 3], rel=1e-12)
    characters = {name: told["characters"] for name, told in summary["corpora"].items()}
    assert characters["en"] == 4 * characters["und_xx"] and sum(characters.values()) == summary["characters"]


@pytest.mark.parametrize("alpha", [0.7, 0.3])
def test_shares_of_words(texts, tmp_path, capsys, alpha):
    """Whole counts round each of at most a few hundred words by 1/2."""
    words = ["vocab", *flags(texts), "--cased", f"--alpha={alpha}", "--size=300", "--json", f"--output={tmp_path / 'vocab'}"]
    assert cli.main(words) == 0
    summary = json.loads(capsys.readouterr().out)
    told = summary["corpora"]
    shares = np.array([told[code]["share"] for code in WORDS])
    characters = np.array([told[code]["characters"] for code in WORDS])
    assert np.allclose(shares, expected(characters, alpha), rtol=1e-12)
    factors = shares / characters / (shares / characters).min()
    counts = np.array([told[code]["words"] for code in WORDS])
    assert abs(summary["words"] - (counts * factors).sum()) <= 500 / 2
    assert factors[2] > 2 and summary["words"] > 1.02 * counts.sum()
    assert all(told[code]["unk_share"] == 0 for code in WORDS)


def test_a_small_language_gets_pieces_of_its_own(texts, tmp_path, capsys):
    """As many as its share, where there is no room for all words."""
    found = {}
    for alpha in (1, 0.3):
        words = [
            "vocab",
            *flags(texts),
            f"--alpha={alpha}",
            "--cased",
            "--size=150",
            f"--output={tmp_path / str(alpha)}",
            "--json",
        ]
        assert cli.main(words) == 0
        found[alpha] = json.loads(capsys.readouterr().out)["corpora"]
    assert found[0.3]["fi"]["pieces_per_word"] < found[1]["fi"]["pieces_per_word"]


def test_languages_have_their_own_rules_for_sentences(texts, tmp_path):
    (tmp_path / "tr.txt").write_text("Ev geniş nehrin kıyısında. Pencereler açık.\n")
    given = [f"--language_input={code}={texts / code}.txt" for code in ("fi", "zh")]
    words = [*given, f"--language_input=und_tr={tmp_path / 'tr.txt'}", f"--language_input=zh_tw={texts / 'zh.txt'}"]
    found = load_text(words)
    assert list(found.names) == ["fi", "zh", "und_tr", "zh_tw"]
    assert [corpus.language for corpus in found.corpora] == ["fi", "zh", "und", "zh"] and found.temperature == 1
    both = load_text([*given, f"--language_input=fi={tmp_path / 'tr.txt'}", "--alpha=0.5"])
    assert both.corpora[0].train == (str(texts / "fi.txt"), str(tmp_path / "tr.txt")) and both.temperature == 2


def load_text(words):
    """The corpus that flags describe."""
    parser = argparse.ArgumentParser()
    shared.add_config(parser)
    shared.add_text(parser)
    return shared.load_config(parser.parse_args(words)).build("TextData").corpus


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--language_input=a.txt"], "--language_input=a.txt: it must be CODE=GLOB, as --language_input='de=wiki/de/*.txt'"),
        (["--language_input=zh-tw=a.txt"], "--language_input=zh-tw=a.txt: it must be CODE=GLOB"),
        *(
            (
                [f"--language_input={code}=a.txt"],
                f"--language_input={code}=a.txt: language {code!r} has no sentence rules: begin with one of am, ar, bg, bn, ca, "
                "da, de, el, en, es, fi, fr, gu, hi, hy, it, ja, kk, kn, ml, mr, my, nl, pa, pl, pt, ru, sk, ta, te, uk, zh, or "
                f"write und_{code}=a.txt for rules that fit most others",
            )
            for code in ("english", "dee", "DE")
        ),
        (["--language_input=de="], "--language_input=de=: it must be CODE=GLOB"),
        (
            ["--language_input=de=a.txt", "--input=b.txt"],
            "--input and --language_input both say where the text comes from; give one",
        ),
        (["--language_input=de=a.txt", "--task=python_docs"], "--language_input and --task both say where the text comes from"),
        (["--language_input=de=a.txt", "--language=de"], "--language is of one language: it does not go with --language_input"),
        (
            ["--input=a.txt", "--alpha=0.5"],
            "--alpha says how much there is of each language: give --language_input=CODE=GLOB with it",
        ),
        (["--language_input=de=a.txt", "--alpha=0"], "--alpha=0.0 must be above 0 and at most 1, which leaves the languages as"),
        (
            ["--language_input=de=a.txt", "--alpha=70"],
            "--alpha=70.0 must be above 0 and at most 1, which leaves the languages as",
        ),
        (["--language_input=de=a.txt", "--alpha=nan"], "--alpha=nan must be above 0 and at most 1"),
        (["--language_input=de=none.txt"], "none.txt"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("Ein Satz.\n")
    assert cli.main(["vocab", *words, "--output=out"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("bertfam: error: ") and message in told and not (tmp_path / "out").exists()


def test_the_run_file_of_multilingual_bert():
    """12 layers of 768 over the published vocabulary have 178 million parameters: the count of its own parts."""
    run = load(
        ["runs/mbert_base.gin"], ["TextData.corpus = @Mixture()", "Mixture.corpora = (@PythonDocs(),)", 'Mixture.names = ("en",)']
    )
    run = run.build("Run").sized(119_547)
    assert run.data.corpus.temperature == pytest.approx(1 / 0.7, rel=1e-12)
    shapes = jax.eval_shape(lambda key: run.objective.init(key, run.shape(0))[0], jax.random.key(0))
    padded = 119_552 - 119_547  # rows of the table
    encoder = sum(leaf.size for part in ("encoder", "pooler") for leaf in jax.tree.leaves(shapes[part]))
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    tables = (119_547 + 512 + 2) * 768 + 2 * 768
    assert encoder - padded * 768 == tables + 12 * layer + 768 * 768 + 768 == 177_853_440

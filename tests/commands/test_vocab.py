import json

import pytest
from command_line import replaced

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.corpora.python_docs import corpus
from bertfam.storage import files

TEXT = "The cat sat on the mat.\nThe cats saw the café.\n\nA caterpillar sat there.\n"


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def vocab(*flags):
    return cli.main(["vocab", *flags])


def test_learns_from_all_of_the_text(text, capsys):
    assert vocab("--input=a.txt", "--size=36", "--output=out", "--json") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert summary["size"] == 36 and summary["documents"] == 2 and summary["words"] == 18
    assert summary["characters"] == len(TEXT) - 4 and summary["unk_share"] == 0
    vocabulary = vocabularies.load("out")
    lines = TEXT.split("\n")
    assert summary["pieces_per_word"] == pytest.approx(sum(map(len, vocabulary.encode_batch(lines))) / 18)
    assert "warning" not in err and "learnt 36 pieces" in err


def test_too_large_a_size_warns_once(text, capsys):
    (text / "b.txt").write_text("a b c d a b c")
    assert vocab("--input=b.txt", "--size=4000", "--output=out") == 0
    out, err = capsys.readouterr()
    assert out.startswith("out: 9 pieces from 1 document,") and err.count("warning") == 1
    assert "vocab: warning: the text allows only 9 pieces" in err


@pytest.mark.parametrize(
    ("flags", "lowercase", "strip_accents", "cafe"),
    [
        ([], True, None, "cafe"),
        (["--cased"], False, None, "café"),
        (["--strip_accents=false"], True, False, "café"),
        (["--cased", "--strip_accents=true"], False, True, "cafe"),
    ],
)
def test_casing_and_accents(text, flags, lowercase, strip_accents, cafe):
    assert vocab("--input=a.txt", "--size=200", "--min_frequency=1", "--output=out", *flags) == 0
    vocabulary = vocabularies.load("out")
    assert (vocabulary.lowercase, vocabulary.strip_accents) == (lowercase, strip_accents)
    assert vocabulary.pieces(vocabulary.encode_batch(["café"])[0]) == [cafe]


@pytest.mark.parametrize(
    ("flags", "first", "last"),
    [
        (["--kind=unigram"], ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"], None),
        (["--kind=bpe", "--layout=t5", "--size=150"], ["<pad>", "</s>", "<unk>"], "<extra_id_0>"),
        (["--kind=byte_bpe"], ["<s>", "<pad>", "</s>", "<unk>", "!"], "<mask>"),
        (["--kind=byte_bpe", "--layout=gpt2"], ["!"], "<|endoftext|>"),
        (["--layout=roberta"], ["<s>", "<pad>", "</s>", "<unk>"], "<mask>"),
        (["--kind=unigram", "--layout=t5", "--size=260", "--sentinels=200"], ["<pad>", "</s>", "<unk>"], "<extra_id_0>"),
        (["--kind=byte_bpe", "--sentinels=3"], ["<s>", "<pad>", "</s>", "<unk>", "!"], "<extra_id_0>"),
    ],
)
def test_kinds_and_layouts(text, capsys, flags, first, last):
    assert vocab(*replaced(["--input=a.txt", "--size=400", "--output=out", "--json"], flags)) == 0
    out, err = capsys.readouterr()
    summary, made = json.loads(out), vocabularies.load("out")
    assert summary["size"] == made.size and summary["unk_share"] == 0 and err.count("warning") <= 1
    pieces = made.pieces(range(made.size))
    assert pieces[: len(first)] == first and last in (None, pieces[-1])
    asked = [int(flag.partition("=")[2]) for flag in flags if flag.startswith("--sentinels=")]
    assert len(made.token_ids.sentinels) == (asked[0] if asked else 100 * ("--layout=t5" in flags))
    lines = TEXT.split("\n")
    joint = [lines[0], made.joint + lines[1], lines[3]]
    assert summary["pieces_per_word"] * summary["words"] == pytest.approx(sum(map(len, made.encode_batch(joint))))


def test_lossless_options(text):
    assert vocab("--input=a.txt", "--kind=unigram", "--normalizer=identity", "--keep_spaces", "--byte_fallback", "--output=o",
                 "--size=330") == 0  # fmt: skip
    made = vocabularies.load("o")
    source = "  if x:\n\treturn  ${x} \U0001f603"
    assert made.decode(made.encode_batch([source])[0]) == source


def test_ideographs_may_stay_together(text):
    (text / "zh.txt").write_text("日本 日本 日本\n")
    for flag, size in (("true", 7), ("false", 9)):
        assert vocab("--input=zh.txt", "--size=99", f"--output={flag}", f"--split_ideographs={flag}") == 0
        made = vocabularies.load(flag)
        assert made.size == size and len(made.encode_batch(["日本"])[0]) == (2 if flag == "true" else 1)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe", "byte_bpe"])
def test_the_order_of_documents_and_files_does_not_matter(text, kind):
    documents = TEXT.split("\n\n")
    (text / "b.txt").write_text(documents[1] + "\n" + documents[0] + "\n")
    for number, document in enumerate(reversed(documents)):
        (text / f"part{number}.txt").write_text(document)
    for name in ("a.txt", "b.txt", "part*.txt"):
        assert vocab(f"--input={name}", f"--kind={kind}", "--size=270", f"--output={kind}/{name[0]}") == 0
    files = {path.name for path in (text / kind / "a").iterdir()}
    for name in files:
        assert len({(text / kind / folder / name).read_bytes() for folder in "abp"}) == 1, name


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe", "byte_bpe"])
def test_tiny_and_empty_texts(text, kind, capsys):
    (text / "one.txt").write_text("a")
    assert vocab("--input=one.txt", f"--kind={kind}", "--size=4000", "--output=out") == 0
    assert capsys.readouterr().err.count("warning") == 1 and len(vocabularies.load("out").encode_batch(["a"])[0]) in (1, 2)
    (text / "empty.txt").write_text("")
    assert vocab("--input=empty.txt", f"--kind={kind}", "--output=none") == 2
    assert "empty.txt: no document" in capsys.readouterr().err and not (text / "none").exists()


def test_a_sample_of_the_documents_is_the_same_in_any_order(text, capsys):
    documents = [f"Document {number} of many." for number in range(200)]
    (text / "a.txt").write_text("\n\n".join(documents))
    (text / "b.txt").write_text("\n\n".join(documents[::-1]))
    for name in "ab":
        assert vocab(f"--input={name}.txt", "--size=60", f"--output={name}", "--sample=0.25", "--json") == 0
        assert 25 < json.loads(capsys.readouterr().out)["documents"] < 75
    assert vocabularies.load("a").fingerprint == vocabularies.load("b").fingerprint


def test_a_gin_file_may_name_the_text(text):
    (text / "run.gin").write_text('TextData.corpus = @TextFiles()\nTextFiles.train = ("a.txt",)\n')
    assert vocab("--gin_file=run.gin", "--input_format=lines", "--size=36", "--output=out") == 0
    assert vocabularies.load("out").size == 36


def test_the_home_folder(text, monkeypatch):
    monkeypatch.setenv("HOME", str(text))
    assert vocab("--input=~/*.txt", "--size=36", "--output=~/new/out") == 0
    assert sorted(path.name for path in text.iterdir()) == ["a.txt", "new"] and vocabularies.load(text / "new" / "out").size == 36


def test_a_failure_leaves_no_folders(text, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    assert vocab("--input=a.txt", "--size=36", "--output=new/folder/out") == 2
    assert "vocab.txt cannot be written (No space left on device)" in capsys.readouterr().err
    assert [path.name for path in text.iterdir()] == ["a.txt"]


def test_the_embedded_corpus_is_a_task(text, monkeypatch):
    def texts(self, split):
        assert split == "train"
        return iter([["The docs say this.", "They say the same."]] * 3)

    monkeypatch.setattr(corpus.PythonDocs, "texts", texts)
    assert vocab("--task=python_docs", "--size=30", "--output=out") == 0
    assert vocabularies.load("out").size == 30


@pytest.mark.parametrize("given", ["vocab.txt", "*.txt", "{text}/mine/v*.txt"])
def test_text_in_the_output_is_kept_with_the_flag_too(text, capsys, monkeypatch, given):
    (text / "mine").mkdir()
    (text / "a.txt").rename(text / "mine/vocab.txt")
    monkeypatch.chdir(text / "mine")
    for flags in ([], ["--overwrite"]):
        assert vocab(f"--input={given.format(text=text)}", "--size=36", "--output=.", *flags) == 2
        error = capsys.readouterr().err
        assert "--output=. holds vocab.txt, which is read too, by --input" in error and "--overwrite" not in error
    assert [path.name for path in text.rglob("*")] == ["mine", "vocab.txt"]


def test_text_of_a_gin_file_in_the_output_is_kept(text, capsys):
    (text / "mine").mkdir()
    (text / "a.txt").rename(text / "mine/vocab.txt")
    (text / "run.gin").write_text('TextData.corpus = @TextFiles()\nTextFiles.train = ("mine/*.txt",)\n')
    assert vocab("--gin_file=run.gin", "--input_format=lines", "--size=36", "--output=mine", "--overwrite") == 2
    assert "--output=mine holds mine/vocab.txt, which is text to read" in capsys.readouterr().err
    assert [path.name for path in (text / "mine").iterdir()] == ["vocab.txt"]


def test_advice_to_overwrite_is_given_only_where_it_works(text, capsys, monkeypatch):
    assert vocab("--input=a.txt", "--size=36", "--output=.") == 2
    error = capsys.readouterr().err
    assert "--output=. holds a.txt, which is not a file of a vocabulary" in error and "--overwrite" not in error
    assert vocab("--input=a.txt", "--size=36", "--output=out") == 0
    monkeypatch.chdir(text / "out")
    capsys.readouterr()
    for flags in ([], ["--overwrite"]):  # a shell would be left in a deleted folder
        assert vocab("--input=../a.txt", "--size=37", "--output=.", *flags) == 2
        error = capsys.readouterr().err
        assert "--output=. is the current folder" in error and "--overwrite" not in error


def test_overwrites_only_with_the_flag(text, capsys):
    assert vocab("--input=a.txt", "--size=36", "--output=out") == 0
    before = vocabularies.load("out").fingerprint
    assert vocab("--input=a.txt", "--size=37", "--output=out") == 2
    assert "--output=out is not empty (it holds special_tokens_map.json)" in capsys.readouterr().err
    assert vocabularies.load("out").fingerprint == before
    assert vocab("--input=a.txt", "--size=37", "--output=out", "--overwrite") == 0
    assert vocabularies.load("out").size == 37
    assert vocab("--input=a.txt", "--kind=bpe", "--size=70", "--output=out", "--overwrite") == 0
    assert vocabularies.load("out").size == 70  # nothing of the other kind is left
    assert sorted(path.name for path in text.iterdir()) == ["a.txt", "out"]
    (text / "out" / "notes.md").write_text("mine")
    before = sorted((text / "out").iterdir())
    assert vocab("--input=a.txt", "--size=37", "--output=out", "--overwrite") == 2
    assert "--output=out holds notes.md, which is not a file of a vocabulary: name another" in capsys.readouterr().err
    assert sorted((text / "out").iterdir()) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no text: give --input=GLOB for text files, or --task=python_docs"),
        (["--input=a.txt", "--task=python_docs"], "--input and --task both say"),
        (["--task=python_docs", "--input_format=lines"], "--input_format says how --input is read"),
        (["--input=none.txt"], "no such file: none.txt"),
        (["--input=empty.txt"], "empty.txt: no document"),
        (["--input=void.txt"], "there is no text to learn a vocabulary from"),
        (["--input=a.txt", "--size=5"], "--size=5 is too small"),
        (["--input=a.txt", "--sample=1.5"], "--sample=1.5 must be above 0 and at most 1"),
        (["--input=a.txt", "--sample=1e-9"], "--sample=1e-09 draws no document of the corpus text"),
        (["--input=a.txt", "--min_frequency=0"], "--min_frequency=0 must be at least 1"),
        (["--input=a.txt", "--kind=byte_bpe", "--size=260"], "the 256 bytes and 5 special pieces need 261"),
        (
            ["--input=a.txt", "--kind=bpe", "--size=15"],
            "size 15 is too small: the characters and special pieces of this text need",
        ),
        (["--input=a.txt", "--sentinels=-1"], "--sentinels=-1 is negative"),
        (
            ["--input=a.txt", "--kind=unigram", "--layout=t5", "--size=103"],
            "--size=103 is too small: it includes 103 special pieces",
        ),
        (["--input=a.txt", "--kind=unigram", "--layout=gpt2"], "--layout=gpt2 has no token for unknown text"),
        (
            ["--input=a.txt", "--kind=bpe", "--cased"],
            "--cased is a flag of --kind=wordpiece and --kind=words: it does not apply to --kind=bpe",
        ),
        (["--input=a.txt", "--keep_spaces"], "--keep_spaces is a flag of --kind=unigram and --kind=bpe"),
        (["--input=a.txt", "--kind=bpe", "--character_coverage=2"], "--character_coverage=2.0 must be above 0.5 and at most 1"),
        (["--input=a.txt", "--output=a.txt"], "--output=a.txt is a file"),
        (["--input=a.txt", "--output=a.txt/out"], "a.txt is not a folder; name another"),
        (["--input_format=lines"], "--input_format says how --input is read: give --input=GLOB with it"),
        (["--task=python_docs", "--language=de"], "--language says how --input is read: it does not go with --task=python_docs"),
        (["--input=nowhere://bucket/*.txt"], "nowhere://bucket/*.txt: Protocol not known: nowhere"),
        (
            ["--input=a.txt", "--output=s3://bucket/vocab"],
            "--output=s3://bucket/vocab: it is neither on this machine nor at gs://",
        ),
        (["--input=a.txt", "--output=loop"], "--output=loop is a file: name a folder"),
        (["--input=a.txt", "--output="], "--output=: the value is empty"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(text, capsys, flags, message):
    (text / "empty.txt").write_text(" \n")
    (text / "void.txt").write_text("\u200d\n")
    (text / "loop").symlink_to("loop")
    before = sorted(text.rglob("*"))
    assert vocab(*replaced(["--output=out"], flags)) == 2
    out, err = capsys.readouterr()
    assert not out and err.strip().split("\n")[-1].startswith("bertfam: error: ") and message in err
    assert sorted(text.rglob("*")) == before

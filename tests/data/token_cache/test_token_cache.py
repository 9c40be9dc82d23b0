"""Token caches: contents, counts, damage, and differences from the current settings."""

import gzip
import json
import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build, check_sources
from bertfam.data.token_cache.cache import TokenCache, check_fingerprint
from bertfam.data.token_cache.writer import Counts
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.errors import UserError

DOCUMENTS = [["one two three", "two one"], ["three"], ["two two", "one", "three three one"]]


@pytest.fixture(scope="module")
def words():
    return WordPiece([*SPECIAL_PIECES, "one", "two", "three", "[", "]", "mask", "sep", "and"])


@dataclass(frozen=True)
class Lists(Corpus):
    """Corpus of the given documents, followed by an error if `fails` is True."""

    train: list = field(default_factory=lambda: DOCUMENTS)
    validation: list = field(default_factory=list)
    fails: bool = False

    def texts(self, split):
        yield from getattr(self, split)
        if self.fails:
            raise UserError("a.txt:7: not UTF-8")

    def fingerprint(self):
        return {"kind": "lists"}


@dataclass(frozen=True)
class LabelledLists(Lists):
    """Corpus of the given texts or words, each followed by the given number of labels, or by a label for each word."""

    count: int = 1
    labels_words: bool = False

    @property
    def labels(self):
        return self.count


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def documents_as_pieces(cache, split="train"):
    """Return documents as lists of sentences as lists of pieces."""
    vocabulary, documents = vocabularies.load(cache.vocabulary_directory), cache.documents(split, "text")
    starts, bounds = documents.sentence_starts, documents.sentence_bounds
    sentences = [vocabulary.pieces(documents.tokens[a:b]) for a, b in zip(starts[:-1], starts[1:], strict=True)]
    return [sentences[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


def test_cache_contains_the_documents(tmp_path, words):
    cache = build({"text": Lists(validation=[["two"]])}, words, tmp_path / "cache")
    assert documents_as_pieces(cache) == [[sentence.split() for sentence in document] for document in DOCUMENTS]
    assert documents_as_pieces(cache, "validation") == [[["two"]]]
    # Every word is one token.
    text = [" ".join(document) for document in DOCUMENTS]
    sizes = {"words": 12, "bytes": sum(map(len, text))}
    assert cache.counts("train") == {"documents": 3, "sentences": 6, "tokens": 12, "skipped_documents": 0} | sizes
    assert cache.documents("train", "text").tokens.dtype == np.uint16
    assert vocabularies.load(cache.vocabulary_directory).fingerprint == words.fingerprint
    assert json.loads((tmp_path / "cache" / "cache.json").read_text())["format"] == 2


def test_two_builds_give_the_same_bytes(tmp_path, corpus, vocabulary, cache_dir):
    again = build({"text": corpus}, vocabulary, tmp_path / "again")
    assert contents(again.directory) == contents(cache_dir)


def test_tokens_equal_those_of_the_vocabulary(corpus, vocabulary, cache):
    documents = cache.documents("train", "text")
    number = 5
    expected = vocabulary.encode_batch(list(corpus.documents("train"))[number])
    begin, end = documents.sentence_bounds[number], documents.sentence_bounds[number + 1]
    sentences = [documents.tokens[documents.sentence_starts[i] : documents.sentence_starts[i + 1]] for i in range(begin, end)]
    assert [ids.tolist() for ids in sentences] == [ids.tolist() for ids in expected if len(ids)]


def test_more_than_65536_pieces_are_stored_as_uint32(tmp_path):
    vocabulary = WordPiece([*SPECIAL_PIECES, *(f"w{number}" for number in range(70_000))])
    cache = build({"text": Lists([["w0 w65535 w69999"], ["w65530"]])}, vocabulary, tmp_path / "cache")
    tokens = cache.documents("train", "text").tokens[:]
    assert tokens.dtype == np.uint32 and tokens.tolist() == [5, 65540, 70004, 65535]


TEXT = "one two three\ntwo one\n\nthree\n\ntwo two\none\nthree three one\n"


def test_cache_does_not_depend_on_line_ends_or_compression(tmp_path, words):
    written = {
        "final-newline": TEXT.encode(),
        "no-final-newline": TEXT.rstrip("\n").encode(),
        "blank-lines-of-spaces": TEXT.replace("\n\n", "\n  \n").encode(),
        "crlf": TEXT.replace("\n", "\r\n").encode(),
        "gzip": gzip.compress(TEXT.encode()),
    }
    caches = {}
    for name, data in written.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
        corpus = TextFiles(str(tmp_path / f"{name}.txt"), validation_fraction=0.0)
        files = contents(build({"text": corpus}, words, tmp_path / name).directory)
        del files["cache.json"], files["digests.json"]  # the sizes and digests of the text files differ
        caches[name] = files
    assert len(caches["crlf"]) >= 8 and all(files == caches["crlf"] for files in caches.values())


def test_lines_without_a_token_are_skipped_and_counted(tmp_path, words, capsys):
    empty = ["\u200d", "\ufeff", "\x01\x02", "\u200b\u200c"]
    documents = [["one", empty[0], "two"], empty, ["\u200d"], [*empty[1:3], "three one"], ["two"]]
    cache = build({"text": Lists(documents)}, words, tmp_path / "cache")
    assert documents_as_pieces(cache) == [[["one"], ["two"]], [["three", "one"]], [["two"]]]
    counts = cache.counts("train")
    assert (counts["skipped_documents"], counts["words"]) == (2, 5)
    assert counts["bytes"] == len("one two") + len("three one") + len("two")  # bytes of lines that have tokens
    assert "tokenising train: 3 documents, 5 tokens, 2 skipped, " in capsys.readouterr().err
    source = TextData().training(cache, words.token_ids, 8, 6, seed=0)
    rows = source.rows(0, 0, 6)
    assert (rows["encoder_segment_ids"].sum(axis=1) >= 5).all() and (rows["masked_loss_weights"].sum(axis=1) >= 1).all()


def test_special_pieces_typed_in_the_text_are_ordinary_text(tmp_path, words):
    cache = build({"text": Lists([["one [MASK] and [SEP] two [PAD][CLS]"], ["three"]])}, words, tmp_path / "cache")
    typed = ["one", "[", "mask", "]", "and", "[", "sep", "]", "two", "[", "[UNK]", "]", "[", "[UNK]", "]"]
    assert documents_as_pieces(cache) == [[typed], [["three"]]]
    control = [words.token_ids.pad, words.token_ids.cls, words.token_ids.sep, words.token_ids.mask]
    assert not np.isin(cache.documents("train", "text").tokens, control).any()
    rows = TextData().training(cache, words.token_ids, 20, 4, seed=0).rows(0, 0, 4)
    assert not np.isin(rows["masked_target_tokens"][rows["masked_loss_weights"] > 0], control).any()


@pytest.mark.parametrize("corpus", [Lists(fails=True), Lists([]), Lists([["\u200d"]])], ids=["error", "empty", "no-token"])
def test_failed_build_leaves_no_files(tmp_path, words, corpus):
    (tmp_path / "here").mkdir()
    with pytest.raises(UserError):
        build({"text": corpus}, words, tmp_path / "here" / "new" / "folders" / "cache")
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_early_interrupt_leaves_no_files(tmp_path, words, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(WordPiece, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build({"text": Lists()}, words, tmp_path / "new" / "cache")
    assert not list(tmp_path.iterdir())


def test_unwritable_output_is_refused(tmp_path, words):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/cache cannot be written: .*file is not a folder; name another$"):
        build({"text": Lists()}, words, tmp_path / "file" / "cache")


def test_second_build_uses_the_existing_cache(tmp_path, words, vocabulary):
    first = build({"text": Lists()}, words, tmp_path / "cache")
    before = contents(first.directory)
    assert build({"text": Lists()}, words, tmp_path / "cache").directory == first.directory
    with pytest.raises(UserError, match="was built from something else"):
        build({"text": Lists()}, vocabulary, tmp_path / "cache")
    assert contents(first.directory) == before and [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.fixture
def built(tmp_path, words):
    return build({"text": Lists()}, words, tmp_path / "cache").directory


LABELLED = [["one two", "", "0.25 nan"], ["", "three", "-1 1e20"], ["two", "one", "0 1"]]


def test_cache_keeps_labels_and_empty_texts(tmp_path, words):
    cache = build({"text": LabelledLists(LABELLED, LABELLED[1:2], count=2)}, words, tmp_path / "cache")
    assert documents_as_pieces(cache) == [[text.split() for text in document[:-1]] for document in LABELLED]
    assert cache.counts("train") == {
        "documents": 3, "sentences": 6, "tokens": 5, "skipped_documents": 0, "words": 5, "bytes": len("one two  threetwo one")
    }  # fmt: skip
    documents, stored = (read("train", "text") for read in (cache.documents, cache.stored_documents))
    assert documents.label_count == stored.label_count == cache.label_count("text") == 2
    expected = np.array([[0.25, np.nan], [-1, 1e20], [0, 1]], np.float32)
    assert np.array_equal(documents.labels[:].reshape(3, 2), expected, equal_nan=True) and documents.labels.dtype == np.float32
    joined = stored.joined("parts", [(2, 3), (0, 2)])
    assert np.array_equal(joined.labels.take(np.arange(6)).reshape(3, 2), expected[[2, 0, 1]], equal_nan=True)
    assert cache.documents("validation", "text").labels[:].tolist() == np.float32([-1, 1e20]).tolist()
    # Text without labels has no such file, and its description does not name them.
    plain = build({"text": Lists()}, words, tmp_path / "plain")
    assert plain.label_count("text") == plain.documents("train", "text").label_count == 0
    assert plain.documents("train", "text").labels is None and "labels" not in (tmp_path / "plain/cache.json").read_text()


def test_cache_keeps_labels_of_words(tmp_path, words):
    tagged = [["one", "", "two", "0 nan 2"], ["three", "3"], ["two", "one", "4 5"]]
    cache = build({"text": LabelledLists(tagged, labels_words=True)}, words, tmp_path / "cache")
    documents, stored = (read("train", "text") for read in (cache.documents, cache.stored_documents))
    assert documents.labels_words and stored.labels_words and cache.labels_words("text")
    assert documents_as_pieces(cache) == [[word.split() for word in document[:-1]] for document in tagged]
    expected = np.array([0, np.nan, 2, 3, 4, 5], np.float32)
    assert np.array_equal(documents.labels[:], expected, equal_nan=True)
    joined = stored.joined("parts", [(2, 3), (0, 1)])
    assert np.array_equal(joined.labels.take(np.arange(5)), expected[[4, 5, 0, 1, 2]], equal_nan=True)


def test_damaged_labels_are_refused(tmp_path, words):
    path = build({"text": LabelledLists(LABELLED, count=2)}, words, tmp_path / "cache").directory / "text/train/labels.bin"
    content = path.read_bytes()
    for damaged, message in (
        (content[:22], "text/train/labels.bin has 22 bytes instead of 24; delete .* and build it again"),
        (bytes([content[0] ^ 1]) + content[1:], "text/train/labels.bin: block 0 .* is damaged"),
        (None, "text/train/labels.bin is missing; delete .* and build it again"),
    ):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        with pytest.raises(UserError, match=message):
            TokenCache(tmp_path / "cache").documents("train", "text").labels.take(np.arange(2))


def test_corpora_outside_of_the_cache_are_not_read(tmp_path, words):
    cache = build({"text": LabelledLists(LABELLED, count=2)}, words, tmp_path / "cache").directory
    for name in ("text/train", "text"):
        (cache / name).rename(tmp_path / "outside")
        (cache / name).symlink_to(tmp_path / "outside")
        with pytest.raises(UserError, match=f"{name} is a link out of its folder"):
            TokenCache(cache)
        (cache / name).unlink()
        (tmp_path / "outside").rename(cache / name)


def test_model_folder_in_place_of_its_cache_is_recognised(built, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/cache").symlink_to(built)
    with pytest.raises(UserError, match=f"it is a model folder, so name {tmp_path / 'model/cache'}$"):
        TokenCache(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("text/train/tokens.bin", 22, "text/train/tokens.bin has 22 bytes instead of 24; delete .* and build it again"),
        ("text/train/tokens.bin", 26, "text/train/tokens.bin has 26 bytes instead of 24"),
        ("text/train/sentence_starts.bin", 0, "text/train/sentence_starts.bin has 0 bytes instead of 56"),
        ("text/train/sentence_starts.offsets.bin", 31, "has 31 bytes instead of 32"),
        ("text/train/tokens.bin", None, "text/train/tokens.bin is missing; delete .* and build it again"),
        ("cache.json", 40, r"cache.json is damaged \(.*\); delete .* and build it again"),
        ("cache.json", 0, "cache.json is damaged"),
        ("cache.json", None, r"holds no token cache \(no cache.json\); build one with `bertfam cache`"),
    ],
)
def test_incomplete_cache_is_refused(built, name, size, message):
    path = built / name
    if size is None:
        path.unlink()
    else:
        path.write_bytes((path.read_bytes() + bytes(2))[:size])
    with pytest.raises(UserError, match=message):
        TokenCache(built).documents("train", "text")


def test_cache_of_a_run_is_named_where_its_folder_is_given(tmp_path):
    (tmp_path / "config.gin").write_text("import x\nTextData.cache_dir = \\\n    '/data/my cache'\nTextData.seed = 'x'\n")
    with pytest.raises(UserError, match="holds no token cache .* is a model folder, .*/data/my cache.*name that"):
        TokenCache(tmp_path)


def test_folders_that_are_no_cache_are_answered_with_what_they_are(built, tmp_path):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces/vocab.txt").touch()
    misspelt = built.with_name(f"{built.name}s")
    folders = {built / "text": f"in the token cache {built}", tmp_path / "pieces": "a vocabulary", misspelt: f"mean {built}"}
    for folder, words in folders.items():
        with pytest.raises(UserError, match=f"holds no token cache .*{re.escape(words)}"):
            TokenCache(folder)


def test_cache_of_another_format_is_refused(built):
    manifest = json.loads((built / "cache.json").read_text()) | {"format": 7}
    (built / "cache.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has cache format 7, this version reads 2; delete it and build it again$"):
        TokenCache(built)


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"format": 2}', "[" * 100_000])
def test_malformed_manifest_is_refused(built, text):
    (built / "cache.json").write_text(text)
    with pytest.raises(UserError, match="cache.json is damaged"):
        TokenCache(built)


@pytest.mark.parametrize(
    ("corpora", "reason"),
    [
        (None, "it names no corpora"),
        ({}, "it names no corpora"),
        ({"text": {}}, "the split train of text is missing"),
        ({"text": None}, "it has not the entries that a build writes"),
        (5, "it has not the entries that a build writes"),
    ],
)
def test_manifest_without_its_corpora_is_refused(built, corpora, reason):
    manifest = json.loads((built / "cache.json").read_text()) | {"corpora": corpora}
    (built / "cache.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=rf"cache.json is damaged \({reason}\); delete"):
        TokenCache(built)


@pytest.mark.parametrize(
    "change",
    [
        lambda corpora: corpora.update({"../text": corpora["text"]}),
        lambda corpora: corpora["text"].update({"../train": corpora["text"]["train"]}),
        lambda corpora: corpora["text"]["train"]["dtypes"].update(tokens="O"),
        lambda corpora: corpora["text"]["train"]["dtypes"].update(tokens="float32"),
        lambda corpora: corpora["text"]["train"].update(labels=-1),
        lambda corpora: corpora["text"]["train"].update(labels="1"),
        lambda corpora: corpora["text"]["train"]["counts"].update(tokens=-1),
        lambda corpora: corpora["text"]["train"]["counts"].update(bytes="x"),
        lambda corpora: corpora["text"]["train"].update(counts=[]),
        lambda corpora: corpora.update(text=5),
    ],
)
def test_manifest_that_no_build_writes_is_refused(built, change):
    """Names may not lead out of the folder, and dtypes are those of numbers."""
    manifest = json.loads((built / "cache.json").read_text())
    change(manifest["corpora"])
    (built / "cache.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="cache.json is damaged"):
        TokenCache(built)


def file_entry(name, **settings):
    return {"name": name, "size": 3, "sha256": "0" * 64} | settings


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ({"kind": "a", "b": 1}, {"kind": "b", "a": 1}, 'kind was "a" and is "b" now'),
        ({"a": 1}, {}, "a was 1 and is null now"),
        ({"train": [file_entry("x")]}, {"train": [file_entry("x"), file_entry("y")]}, "train was 1 entry and is 2 entries now"),
        ({"train": [file_entry("x")]}, {"train": [file_entry("x", size=4)]}, "train[x].size was 3 and is 4 now"),
        ({"train": [file_entry("x")]}, {"train": [file_entry("z")]}, 'train[x].name was "x" and is "z" now'),
        ({"v": "0" * 64}, {"v": "1" * 64}, 'v was "000000000000000... and is "111111111111111... now'),
    ],
)
def test_difference_of_fingerprints_is_reported(built, monkeypatch, old, new, difference):
    cache = TokenCache(built)
    monkeypatch.setattr(TokenCache, "fingerprint", old)
    check_fingerprint(cache, old)
    with pytest.raises(UserError) as refused:
        check_fingerprint(cache, new)
    assert f"was built from something else ({difference}); delete it to rebuild it" in str(refused.value)


def test_only_given_sources_are_compared(built, words, vocabulary):
    @dataclass(frozen=True)
    class Other(Lists):
        def fingerprint(self):
            return {"kind": "other"}

    cache = TokenCache(built)
    check_sources(cache, None, None)
    check_sources(cache, {"text": Lists()}, None)
    check_sources(cache, None, words)
    with pytest.raises(UserError, match='corpora.text.kind was "lists" and is "other" now'):
        check_sources(cache, {"text": Other()}, None)
    with pytest.raises(UserError, match="vocabulary was "):
        check_sources(cache, {"text": Lists()}, vocabulary)


def test_pairs_are_evaluated_with_two_held_out_documents_or_more(tmp_path, words):
    for count in (0, 1, 2):
        cache = build({"text": Lists(validation=DOCUMENTS[:count])}, words, tmp_path / str(count))
        held_out = TextData().held_out(cache, words.token_ids, 8, 4)
        assert (held_out is None) == (count < 2)


def test_cache_of_several_corpora(tmp_path, words):
    """Every corpus is stored as it would be alone."""
    corpora = {"law": Lists(validation=[["two"]]), "books": Lists([["one"], ["three two"]])}
    cache = build(corpora, words, tmp_path / "cache")
    assert cache.corpora == TokenCache(tmp_path / "cache").corpora == ("law", "books")
    for name, corpus in corpora.items():
        alone = build({"text": corpus}, words, tmp_path / name)
        assert contents(cache.directory / name) == contents(alone.directory / "text")
        assert cache.counts("train", name) == alone.counts("train")
    corpus_counts = [cache.counts("train", name) for name in corpora]
    assert cache.counts("train") == {name: sum(counts[name] for counts in corpus_counts) for name in corpus_counts[0]}
    assert (cache.counts("train")["documents"], cache.counts("train")["words"]) == (5, 15)
    assert cache.documents("train", "law").name == f"the train split of {cache.directory} (law)"
    with pytest.raises(UserError, match="cache holds no text named text, only law, books$"):
        cache.documents("train", "text")
    with pytest.raises(UserError, match=r"\(corpora.books was 1 entry and is null now\)"):
        check_sources(cache, {"law": corpora["law"]}, None)


@pytest.mark.parametrize("name", ["", "vocab", "cache.json", "a/b", "..", ".hidden", "a b", "-a"])
def test_bad_names_of_corpora_are_refused(tmp_path, words, name):
    with pytest.raises(UserError, match="cannot be the name of a corpus: use letters"):
        build({name: Lists()}, words, tmp_path / "cache")
    assert not list(tmp_path.iterdir())


def test_words_and_bytes_do_not_depend_on_the_tokens(tmp_path, vocabulary):
    """Use an ideographic space, which separates words, and letters of two and four bytes."""
    corpus = Lists([["Zwölf  Boxkämpfer\u3000jagen", "x\U0001f600"], ["y"]])
    cache = build({"text": corpus}, vocabulary, tmp_path / "cache")
    counts = cache.counts("train")
    assert (counts["words"], counts["bytes"]) == (5, len("Zwölf  Boxkämpfer\u3000jagen x\U0001f600y".encode()))


def test_cache_of_an_earlier_version_has_no_word_counts(tmp_path, words):
    """The counts of an unfinished build of an earlier version have none either."""
    cache = build({"law": Lists(), "books": Lists()}, words, tmp_path / "cache")
    manifest = json.loads((tmp_path / "cache" / "cache.json").read_text())
    old_counts = {name: count for name, count in cache.counts("train", "law").items() if name not in ("words", "bytes")}
    manifest["corpora"]["law"]["train"]["counts"] = old_counts
    del manifest["digests"]
    (tmp_path / "cache" / "digests.json").unlink()
    (tmp_path / "cache" / "cache.json").write_text(json.dumps(manifest))
    old_cache = TokenCache(tmp_path / "cache")
    assert old_cache.counts("train") == {name: 2 * count for name, count in old_counts.items()}
    assert "words" in old_cache.counts("train", "books") and "words" in old_cache.counts("validation")
    assert Counts.from_json(old_counts) + Counts(1, 1, 1, words=1, bytes=1) == Counts(4, 7, 13, 0, None, None)

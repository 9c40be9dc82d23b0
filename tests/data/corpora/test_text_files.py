"""Documents of plain text files: formats, compression, encodings, held-out splits and fingerprints."""

import bz2
import gzip
import lzma
import random

import pytest
import zstandard

from bertfam.data.corpora import input_files
from bertfam.data.corpora.sentences import split_sentences
from bertfam.data.corpora.text_files import TextFiles
from bertfam.errors import UserError

DOCUMENTS = [["One.", "Two é."], ["Three."], ["Four.", "Five.", "Six."]]
TEXT = "One.\nTwo é.\n\nThree.\n\nFour.\nFive.\nSix.\n"


def read(*paths, split="train", **settings):
    settings = {"validation_fraction": 0.0} | settings
    return list(TextFiles(tuple(map(str, paths)), **settings).documents(split))


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.rstrip("\n").encode(),
        TEXT.replace("\n\n", "\n  \n\t\n").encode(),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        ("\n\n" + TEXT + "\n\n\n").encode(),
        TEXT.encode("utf-8-sig"),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT[:9].encode()) + gzip.compress(TEXT[9:].encode()),
        zstandard.compress(TEXT.encode()),
        zstandard.compress(TEXT[:9].encode()) + zstandard.compress(TEXT[9:].encode()),
        TEXT.replace("Two", " Two").replace("Six.", "Six. ").encode(),
    ],
    ids="final-newline none blank-of-spaces crlf cr many-blank-lines bom gzip gzip-members zstd zstd-frames padded-lines".split(),
)
def test_line_ends_and_compression_do_not_change_the_documents(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    assert read(tmp_path / "a.txt") == DOCUMENTS


def test_input_formats_split_documents_differently(tmp_path):
    (tmp_path / "a.txt").write_text("He met Dr. Smith. She left!\nThey ate.\n\nIt rained.\n")
    split = [["He met Dr. Smith.", "She left!", "They ate."], ["It rained."]]
    assert read(tmp_path / "a.txt") == [["He met Dr. Smith. She left!", "They ate."], ["It rained."]]
    assert read(tmp_path / "a.txt", input_format="paragraphs") == split
    assert read(tmp_path / "a.txt", input_format="lines") == [split[0][:2], ["They ate."], ["It rained."]]


def test_sentences_keep_dotted_names_whole():
    assert split_sentences("Use tf.DType here. See example.com too.") == ["Use tf.DType here.", "See example.com too."]
    assert split_sentences("你好。世界。", "und") == ["你好。", "世界。"]
    assert split_sentences(" \t ") == []


def test_globs_are_sorted_and_every_file_is_read_once(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in "bca":
        (tmp_path / f"{name}.txt").write_text(f"{name} text")  # no final newline: documents never span files
    assert read(tmp_path / "*", tmp_path / "b.txt") == [["a text"], ["b text"], ["c text"]]
    assert read(tmp_path / "b.txt", tmp_path / "?.txt") == [["b text"], ["a text"], ["c text"]]
    (tmp_path / "[a].txt").write_text("brackets")
    assert read(tmp_path / "[a].txt") == [["brackets"]]


def test_held_out_documents_depend_on_their_content_only(tmp_path):
    documents = [f"Document {i}." for i in range(400)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    random.Random(0).shuffle(documents)
    (tmp_path / "b1.txt").write_text("\r\n\r\n".join(documents[:150]))
    (tmp_path / "b2.txt").write_text("\n\n".join(documents[150:] + documents[:150]))
    a = {split: read(tmp_path / "a.txt", split=split, validation_fraction=0.1) for split in ("train", "validation")}
    b = {split: read(tmp_path / "b*.txt", split=split, validation_fraction=0.1) for split in ("train", "validation")}
    assert 20 < len(a["validation"]) < 60 and len(a["train"]) + len(a["validation"]) == 400
    for split in a:
        assert {tuple(d) for d in a[split]} == {tuple(d) for d in b[split]}
    assert read(tmp_path / "a.txt", split="validation") == []  # validation_fraction 0


def test_missing_files_are_answered_with_a_similar_one_or_the_target_of_their_link(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").symlink_to("moved.txt")
    for name, words in (("a.tx", "did you mean .*/a.txt"), ("b.txt", "b.txt is a link to moved.txt, which does not exist")):
        with pytest.raises(UserError, match=words):
            TextFiles(f"{tmp_path}/{name}").files("train")


def test_validation_files_replace_held_out_documents(tmp_path):
    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "v.txt").write_text("Seven.")
    corpus = TextFiles(str(tmp_path / "t.txt"), [str(tmp_path / "v.txt")], validation_fraction=0.9)
    assert list(corpus.documents("train")) == DOCUMENTS and list(corpus.documents("validation")) == [["Seven."]]
    with pytest.raises(UserError, match="both training and validation"):
        list(TextFiles(str(tmp_path / "t.txt"), str(tmp_path / "*.txt")).documents("train"))
    (tmp_path / "c.txt").write_text(TEXT)
    with pytest.raises(UserError, match="c.txt is a copy of .*t.txt, and text is either training or validation text"):
        TextFiles(str(tmp_path / "t.txt"), str(tmp_path / "[cv].txt")).fingerprint()


def test_file_names_of_another_format_are_warned_about_once(tmp_path, capsys):
    for name in ("a.txt", "b.jsonl.gz", "c.parquet", "d.jsonl.txt"):
        (tmp_path / name).write_text(TEXT)
    corpus = TextFiles(f"{tmp_path}/*", input_format="lines")
    assert list(corpus.documents("train")) and corpus.parts("validation")
    warning = capsys.readouterr().err
    assert f"{tmp_path}/b.jsonl.gz is read as plain text, input_format 'lines': give --input_format=jsonl" in warning
    assert warning.count("\n") == 1
    TextFiles(f"{tmp_path}/c.*").files("train")
    assert "give --input_format=parquet" in capsys.readouterr().err
    for name, fix in (
        ("e.csv.gz", "--input_format=jsonl --text_field=COLUMN"),
        ("e.tsv", "sep='\\t'"),
        ("e.json", "jq -c"),
        ("e.htm", "tags"),
    ):
        (tmp_path / name).write_text(TEXT)
        TextFiles(f"{tmp_path}/{name}").files("train")
        warning = capsys.readouterr().err
        assert f"{tmp_path}/{name} is read as plain text" in warning and fix in warning, warning
    TextFiles((f"{tmp_path}/a.txt", f"{tmp_path}/d*")).files("train")
    TextFiles(f"{tmp_path}/b*", input_format="jsonl").files("train")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"^{}: no documents, only blank lines or nothing$"),
        (b" \n\r\n\t\n", r"^{}: no documents"),
        (b"\xef\xbb\xbffine\nr\xe9sum\xe9\n", r"^{}:2: not UTF-8 at byte offset 9; name its encoding"),
        (b"cut off \xe2\x82", r"^{}:1: not UTF-8 at byte offset 8; name its encoding"),
        ("text".encode("utf-16"), r"^{}:1: not UTF-8 at byte offset 0; name its encoding with --encoding, or convert it"),
        (b"PK\x03\x04\x14\xff", r"^{}:1: not UTF-8 at byte offset 5; this is a zip archive; unpack it"),
        (bz2.compress(TEXT.encode()), r"^{}:1: .*bunzip2"),
        (lzma.compress(TEXT.encode()), r"^{}:1: .*unxz"),
        (gzip.compress(gzip.compress(TEXT.encode())), r"^{}:1: .*compressed twice.*gunzip"),
        (gzip.compress(zstandard.compress(TEXT.encode())), r"^{}:1: .*compressed twice.*unzstd"),
        (b"ARROW1\0\0\xff", r"^{}:1: .*Feather file"),
        (b"PAR1\x15\0", r"^{}:1: a NUL character; .*--input_format=parquet"),
        (b"one\ntwo\0\n", r"^{}:2: a NUL character; .* --encoding is not utf-8$"),
        (gzip.compress(random.Random(0).randbytes(99).hex().encode() * 9)[:-20], r"^{}: the gzip file is truncated"),
        (zstandard.compress(TEXT.encode() * 99)[:-9], r"^{}: the zstd file is truncated or damaged"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(200, 255)), r"^{}: the zstd file is truncated or damaged"),
        (gzip.compress(b"one two three")[:-8] + b"12345678", r"^{}: the gzip file is truncated or damaged"),
    ],
    ids=[
        *("empty", "blank", "latin-1", "truncated", "utf-16", "zip", "bzip2", "xz", "gzip-twice", "zstd-in-gzip", "arrow"),
        *("parquet", "nul", "gzip-cut", "zstd-cut", "zstd-damaged", "gzip-checksum"),
    ],
)
def test_bad_files_are_reported_with_their_position(tmp_path, data, message):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message.replace("{}", str(path))) as raised:
        read(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": ("{}/none.txt",)}, "^no such file: {}/none.txt"),
        ({"train": ("{}/*.gz",)}, r"^no file matches {}/\*.gz"),
        ({"train": ("{}",)}, r"^{} is a folder; name the files in it, for example {}/\*.txt$"),
        ({"train": ("nowhere://b/x",)}, "^nowhere://b/x: Protocol not known: nowhere"),
        ({"train": ()}, "no training text"),
        ({"train": ("{}/a",), "input_format": "csv"}, "input_format 'csv' is unknown: use one of sentences, "),
        ({"train": ("{}/a",), "encoding": "utf-9"}, "encoding 'utf-9' is unknown; .* utf-8, "),
        ({"train": ("{}/a",), "encoding": "hex"}, "encoding 'hex' is unknown"),
        ({"train": ("{}/a",), "encoding": "latin-1", "input_format": "parquet"}, "encoding 'latin-1' does not go with parquet"),
        ({"train": ("{}/a",), "text_field": "body"}, "text_field 'body' goes with jsonl and parquet: sentences has no fields"),
        ({"train": ("/dev/null",)}, "^/dev/null is a pipe or device"),
        ({"train": ("{}/a",), "language": "en_US"}, "language 'en_US' has no sentence rules; did you mean en?"),
        ({"train": ("{}/a",), "language": "jp"}, "language 'jp' has no sentence rules; did you mean ja?"),
        ({"train": ("{}/a",), "language": "qqq"}, "language 'qqq' has no sentence rules; use one of am, .*\"und\""),
        ({"train": ("{}/a",), "validation_fraction": 1.0}, "validation_fraction is 1.0"),
    ],
)
def test_bad_settings_are_reported(tmp_path, settings, message):
    settings["train"] = tuple(path.replace("{}", str(tmp_path)) for path in settings["train"])
    with pytest.raises(UserError, match=message.replace("{}", str(tmp_path))):
        list(TextFiles(**settings).documents("train"))


def test_fingerprint_of_much_text_reads_a_part_of_every_file(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "abc"]
    for path, size in zip(paths, (100, 3000, 3000), strict=True):
        path.write_bytes(bytes(size))

    def digested_places(path):
        """Return the offsets of a file at which another byte changes the fingerprint."""
        before, size = input_files.file_fingerprints(paths), path.stat().st_size
        places = []
        for offset in range(0, size, 10):
            path.write_bytes(bytes(offset) + b"x" + bytes(size - offset - 1))
            if input_files.file_fingerprints(paths) != before:
                places.append(offset)
        path.write_bytes(bytes(size))
        return places

    assert [len(digested_places(path)) for path in paths] == [10, 300, 300]
    monkeypatch.setattr(input_files, "_DIGESTED", 1200)  # 400 bytes of each
    monkeypatch.setattr(input_files, "_BUFFER", 100)
    assert len(digested_places(paths[0])) == 10
    blocks = [range(start, start + 100, 10) for start in (0, 970, 1940, 2900)]
    assert digested_places(paths[1]) == [offset for block in blocks for offset in block]
    monkeypatch.setattr(input_files, "_DIGESTED", 60)  # as with very many files
    assert digested_places(paths[1]) == [0, 2990]
    paths[2].unlink()
    with pytest.raises(UserError, match=f"^{paths[2]} cannot be read: No such file"):
        input_files.file_fingerprints(paths)


def test_fingerprint_depends_on_names_bytes_and_settings(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    first = TextFiles((str(path),)).fingerprint()
    assert first["train"][0]["name"] == "a.txt" and first["train"][0]["size"] == len(TEXT.encode())
    assert TextFiles((str(tmp_path / "*.txt"),)).fingerprint() == first
    different = {"input_format": "lines"}, {"encoding": "latin-1"}, {"validation_fraction": 0.5}
    assert all(TextFiles((str(path),), **settings).fingerprint() != first for settings in different)
    assert TextFiles((str(path),), encoding="UTF8", language="de").fingerprint() == first  # lines are sentences
    tables = [TextFiles((str(path),), input_format="jsonl", text_field=field).fingerprint() for field in ("text", "body")]
    assert tables[0] != tables[1]
    path.write_text(TEXT.replace("Six", "Sox"))
    assert TextFiles((str(path),)).fingerprint() != first


@pytest.mark.parametrize("held_out", [{}, {"validation_fraction": 0.0}, {"validation": ("[ab].txt",)}])
def test_parts_of_a_split_add_up_to_its_text(tmp_path, monkeypatch, held_out):
    monkeypatch.chdir(tmp_path)
    for name in "abcd":
        text = "" if name == "c" else "\n\n".join(f"Number {number}.\nIn {name}." for number in range(200))
        (tmp_path / f"{name}.txt").write_text(text)
    corpus = TextFiles("[cd].txt" if "validation" in held_out else "*.txt", **held_out)
    assert [part.name for part in corpus.parts("train")] == [str(path) for path in corpus.files("train")]
    assert sum(part.size for part in corpus.parts("train")) == sum(path.stat().st_size for path in corpus.files("train"))
    for split in ("train", "validation"):
        texts = [lines for part in corpus.parts(split) for lines in corpus.part(split, part)]
        assert texts == list(corpus.texts(split))
    assert bool(corpus.parts("validation")) == (corpus.validation_fraction > 0)


def test_json_under_the_name_of_plain_text_is_named(tmp_path, capsys):
    path = tmp_path / "pages.txt"
    path.write_text('{"url": "a", "text": "One."}\n{"url": "b", "text": "Two."}\n')
    (tmp_path / "braces.txt").write_text('{"quoted"} words in braces.\n')
    list(TextFiles((str(tmp_path / "braces.txt"),)).read(tmp_path / "braces.txt"))
    assert not capsys.readouterr().err
    for format in ("sentences", "lines"):
        list(TextFiles((str(path),), input_format=format).read(path))
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{path}:1 is a JSON object" in warning and "--input_format=jsonl" in warning
    assert list(TextFiles((str(path),), input_format="jsonl").read(path)) and not capsys.readouterr().err

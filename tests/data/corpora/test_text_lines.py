"""Lines of text files: encodings, compression, and positions in error messages."""

import contextlib
import encodings
import gzip
import pkgutil
import random
import struct
import tarfile
import tracemalloc

import pytest
import zstandard

from bertfam.data.corpora import text_lines
from bertfam.data.corpora.text_lines import check_encoding, read_lines
from bertfam.errors import UserError

ALPHABETS = {
    "utf-8": "aé漢😀 \u2028\x85\x0b\x1c",
    "utf-8-sig": "aé漢😀",
    "utf-16": "aé漢😀",
    "utf-16-le": "aé漢😀",
    "utf-32-be": "aé漢😀",
    "latin-1": "aéÿ\x85",
    "cp1252": "aé€",
    "gb18030": "a漢字é😀",
    "shift_jis": "aカ漢字",
    "iso2022_jp": "aカ漢字",
}


@pytest.fixture(params=[1, 2, 7, 64])
def block(request, monkeypatch):
    monkeypatch.setattr(text_lines, "_BLOCK", 16 * request.param)
    return request.param


def random_text(generator, alphabet):
    """Return random characters with line ends of all three kinds."""
    return "".join(generator.choice([*alphabet, *alphabet, "\n", "\r", "\r\n"]) for _ in range(300))


@pytest.mark.parametrize("encoding", ALPHABETS)
def test_lines_do_not_depend_on_encoding_or_block_size(tmp_path, block, encoding):
    generator = random.Random(block)
    text = random_text(generator, ALPHABETS[encoding])
    expected = [line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    data = text.encode(encoding)
    for name, written in {"plain": data, "gzip": gzip.compress(data), "zstd": zstandard.compress(data)}.items():
        (tmp_path / name).write_bytes(written)
        # Text after the last line end is a line unless it is empty.
        assert list(read_lines(tmp_path / name, encoding)) == (expected if text[-1] not in "\r\n" else expected[:-1])


BAD = [("utf-8", b"\xe9"), ("utf-8", b"\xf0\x9f"), ("gb18030", b"\xff"), ("cp1252", b"\x81")]


@pytest.mark.parametrize(("encoding", "bad"), BAD)
def test_undecodable_bytes_are_located(tmp_path, block, encoding, bad):
    generator = random.Random(block)
    for position in range(0, 200, 13):
        text = random_text(generator, ALPHABETS[encoding])[:position]
        line = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
        data = text.encode(encoding)
        for rest in (b"", b"abc\n" * 50):
            (tmp_path / "a").write_bytes(data + bad + rest)
            with pytest.raises(UserError) as raised:
                list(read_lines(tmp_path / "a", encoding))
            expected = f"{tmp_path / 'a'}:{line}: not {encoding.upper()} at byte offset {len(data)};"
            assert str(raised.value).startswith(expected)


def test_nul_characters_are_located(tmp_path, block):
    text = "one\r\ntwo\rthree\n" * 40
    for position in range(0, len(text), 41):
        (tmp_path / "a").write_text(text[:position] + "x\0" + text[position:], newline="")
        line = text[:position].replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
        with pytest.raises(UserError, match=f":{line}: a NUL character"):
            list(read_lines(tmp_path / "a"))


def test_archives_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("A text.\n")
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "a.txt", "a.txt")
    with pytest.raises(UserError, match=f"{path}:1: .*tar archive; unpack it"):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 7\n", "Git LFS.* git lfs pull"),
        (b"{\\rtf1 Some text.}", "RTF"),
        (b"%PDF-1.4 all of ASCII", "PDF .* pdftotext"),
        (b"Rar!\x1a\x07\x01\0", "RAR archive"),
        (b"]\0\0\x80\0" + b"\xff" * 8, "unlzma"),
        (b"\xff\x06\0\0sNaPpY", "snappy"),
        (b"\x93NUMPY\x01\0", "NumPy"),
        (b"SQLite format 3\0", "SQLite"),
        (b"\xd0\xcf\x11\xe0\xa1", "old Office document"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path, data, words):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(UserError, match=f"{tmp_path / 'a.txt'}:.* this is .*{words}"):
        list(read_lines(tmp_path / "a.txt"))


def test_web_pages_are_named_once(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\ufeff\n<!DOCTYPE html>\n<title>404</title>\n")
    for _ in range(2):
        assert len(list(read_lines(tmp_path / "a.txt"))) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'a.txt'} is a web page" in line


def test_utf_8_in_the_place_of_another_encoding_is_named_once(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Der Bär hört die Tür.\n" * 2, "utf-8")
    (tmp_path / "b.txt").write_text("Der Bär hört die Tür.\n" * 2, "latin-1")
    (tmp_path / "c.txt").write_text("the bear\n")
    for name in "aabc":
        list(read_lines(tmp_path / f"{name}.txt", "latin-1"))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'a.txt'} is valid UTF-8, and is read as iso8859-1; leave --encoding out" in line


def test_zstd_with_a_dictionary_is_named(tmp_path):
    dictionary = zstandard.ZstdCompressionDict(b"a text of words " * 60)
    (tmp_path / "a.zst").write_bytes(zstandard.ZstdCompressor(dict_data=dictionary).compress(b"a text of words " * 9))
    trained = zstandard.train_dictionary(300, [b"a text of many words %d" % number * 9 for number in range(99)])
    (tmp_path / "b.zst").write_bytes(zstandard.ZstdCompressor(dict_data=trained).compress(b"a text of many words"))
    with pytest.raises(UserError, match="b.zst: the zstd file was compressed with a dictionary"):
        list(read_lines(tmp_path / "b.zst"))


def test_lines_above_the_limit_are_refused(tmp_path, block, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 3000)
    (tmp_path / "a").write_text("one\n" + "x" * 3000 + "\n" + "y" * 3000)
    assert list(map(len, read_lines(tmp_path / "a"))) == [3, 3000, 3000]
    for bad in ("one\n" + "x" * 3001 + "\ntwo", "one\n" + "x" * 3001):
        for data in (bad.encode(), zstandard.compress(bad.encode())):
            (tmp_path / "a").write_bytes(data)
            with pytest.raises(UserError, match=":2: a line longer than 3,000 characters"):
                list(read_lines(tmp_path / "a"))


def zstd_of_one_byte(count, window_log):
    """Return a frame of `count` blocks that repeat a byte 131,071 times, and a line end."""
    block = lambda last, kind, size: struct.pack("<I", last | kind << 1 | size << 3)[:3]  # noqa: E731
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([window_log - 10 << 3])
    return header + (block(0, 1, 131_071) + b"a") * count + block(1, 0, 1) + b"\n"


def test_a_small_compressed_file_of_a_long_line_needs_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 4 << 20)
    (tmp_path / "zstd").write_bytes(zstd_of_one_byte(2_000, 20))  # 8 kB of 250 MiB
    (tmp_path / "gzip").write_bytes(gzip.compress(bytes(64 << 20).replace(b"\0", b"a"), 1))
    for name in ("zstd", "gzip"):
        tracemalloc.start()
        try:
            with pytest.raises(UserError, match=f"{name}:1: a line longer than 4,194,304"):
                list(read_lines(tmp_path / name))
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_a_zstd_window_is_as_large_as_its_file_allows(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(zstd_of_one_byte(2, 31))
    with pytest.raises(UserError, match="a: the zstd file was compressed with a window of more than 128 MiB.* --long"):
        list(read_lines(tmp_path / "a"))
    (tmp_path / "a").write_bytes(zstd_of_one_byte(2, 27))
    assert list(read_lines(tmp_path / "a")) == ["a" * 262_142]
    monkeypatch.setattr(text_lines, "_ZSTD_WINDOW", 1 << 10)
    text = random.Random(0).randbytes(1 << 17).hex()
    settings = zstandard.ZstdCompressionParameters(window_log=17, write_content_size=False)
    (tmp_path / "a").write_bytes(zstandard.ZstdCompressor(compression_params=settings).compress(text.encode()))
    assert (tmp_path / "a").stat().st_size > 1 << 17 and list(read_lines(tmp_path / "a")) == [text]


def test_zstd_frames_after_frames_that_are_skipped(tmp_path):
    """Files of pzstd begin with a frame that holds the size of the next one."""
    frame = zstandard.ZstdCompressor().compress("Zwei Häuser.\n".encode())
    skipped = [struct.pack("<II", 0x184D2A50, 4) + b"size", struct.pack("<II", 0x184D2A5E, 0)]
    (tmp_path / "a").write_bytes(skipped[0] + frame + skipped[1] + frame)
    assert list(read_lines(tmp_path / "a")) == ["Zwei Häuser."] * 2


def test_utf_16_requires_a_byte_order_mark(tmp_path):
    (tmp_path / "a").write_bytes("text".encode("utf-16-be"))
    with pytest.raises(UserError, match=r"a: not UTF-16 \(UTF-16 stream does not start with BOM\).* --encoding"):
        list(read_lines(tmp_path / "a", "utf-16"))


def test_unknown_encodings_are_refused():
    assert check_encoding("UTF8") == check_encoding("utf-8") == "utf-8"
    assert check_encoding("latin-1") == check_encoding("ISO-8859-1")
    for name in ("", "utf-9", "hex", "rot13", "locale", "base64", "UTF_7", "unicode_escape", "raw_unicode_escape"):
        with pytest.raises(UserError, match=f"^encoding '{name}' is unknown"):
            check_encoding(name)


def test_no_codec_yields_lone_surrogates(tmp_path):
    """Try all codecs of Python; text with lone surrogates could not be hashed, tokenised or printed."""
    names = [module.name for module in pkgutil.iter_modules(encodings.__path__) if module.name != "aliases"]
    tricks = [
        b"+2AA-",
        b"\\ud800 \\udfff",
        b"-x9d8a",
        bytes.fromhex("d800dc00"),
        bytes.fromhex("00d800dc"),
        b"\xed\xa0\x80",
        b"abc",
    ]
    read = 0
    for name in names:
        try:
            check_encoding(name)
        except UserError:
            continue
        for data in tricks:
            (tmp_path / "a").write_bytes(data)
            with contextlib.suppress(UserError):
                "".join(read_lines(tmp_path / "a", name)).encode()
                read += 1
    assert read > 200

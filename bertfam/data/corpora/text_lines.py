"""Lines of text files, decompressed and decoded at a few hundred megabytes a second.

Errors name the file, the line and the byte offset (in the decompressed text), which `io.TextIOWrapper` does not report.
"""

import codecs
import gzip
import io
import os
import shlex
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from bertfam.errors import UserError, warn_once
from bertfam.storage.streams import open_binary

LONGEST_LINE = 32 << 20  # characters
ENDINGS = ("", ".gz", ".zst")  # of a name, which the same file may have plain or compressed
_BLOCK = 1 << 20  # bytes
# Every 4 bytes of zstd may stand for a block of 128 KiB, so that one piece becomes at most 16 MiB.
_ZSTD_PIECE = 512
_ZSTD_WINDOW = 128 << 20  # bytes; the window of `zstd --ultra -22`, and the most that `zstd -d` takes by itself
# First bytes of files that are often taken for text -> what to do about them.
_OTHER_FILES = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "compressed by bzip2; unpack it by bunzip2, or compress it by gzip or zstd",
    b"\xfd7zX": "compressed by xz; unpack it by unxz, or compress it by gzip or zstd",
    b"7z\xbc\xaf": "a 7z archive; unpack it first",
    b"\x04\x22\x4d\x18": "compressed by lz4; unpack it by unlz4, or compress it by gzip or zstd",
    b"\x1f\x8b": "compressed twice, by gzip too; unpack it once by gunzip -k",
    b"\x28\xb5\x2f\xfd": "compressed twice, by zstd too; unpack it once by unzstd",
    b"\x1f\x9d": "compressed by compress; unpack it by uncompress, or compress it by gzip or zstd",
    b"PARE": "a Parquet file with an encrypted footer; write it again without encryption",
    b"Rar!": "a RAR archive; unpack it first",
    b"\x5d\x00\x00": "compressed by lzma; unpack it by unlzma, or compress it by gzip or zstd",
    b"\xff\x06\x00\x00sNaPpY": "compressed by snappy; unpack it first, or compress it by gzip or zstd",
    b"\x93NUMPY": "an array of NumPy; write its text to a file",
    b"SQLite format 3": "an SQLite database; write its text to a file",
    b"\xd0\xcf\x11\xe0": "an old Office document; save it as plain text",
    b"GIF8": "an image; leave it out",
    b"PAR1": "a Parquet file; read it by --input_format=parquet, or as labelled texts by --format=parquet",
    b"ARROW1": "an Arrow or Feather file; write it as Parquet, by pyarrow.parquet.write_table",
    b"%PDF": "a PDF document; convert it to text, for example with pdftotext",
    b"\x89PNG": "an image; leave it out",
    b"\xff\xd8\xff": "an image; leave it out",
    b"\x7fELF": "a program; leave it out",
}
# First bytes of text that is about other text -> what to do about it.
_FOREIGN_TEXTS = {
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS, not the file; fetch that by git lfs pull",
    b"{\\rtf": "an RTF document; save it as plain text",
    b"%PDF-": _OTHER_FILES[b"%PDF"],
}
# Codecs for mail, source code and host names; they can decode to lone surrogates.
_OTHER_CODECS = ("utf-7", "unicode-escape", "raw-unicode-escape", "punycode", "idna", "undefined")


def check_encoding(encoding: str) -> str:
    """Return Python's canonical name of a codec; raise UserError unless it is a codec for text files."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # rejects codecs that are not for text, such as hex
        name = codecs.lookup(encoding).name
        if name.replace("_", "-") in _OTHER_CODECS:
            raise LookupError(name)
        return name
    except (LookupError, ValueError) as error:
        raise UserError(
            f"encoding {encoding!r} is unknown; use a Python codec, such as utf-8, utf-16, latin-1, cp1252, gb18030 or shift_jis"
        ) from error


def read_lines(path: str | os.PathLike[str], encoding: str = "utf-8", *, strip: bool = True) -> Iterator[str]:
    """Yield the stripped lines of a file; blank ones are empty strings, so that line i is the i-th of the file.

    Args:
      path: A plain, gzipped or zstd-compressed file (by content, not by name), local or in a store. A line ends at LF,
        CRLF or CR; a byte order mark at the start and a missing final line end make no difference.
      encoding: Any codec of Python.
      strip: Remove white space around each line.

    Raises:
      UserError: If the file cannot be read, is damaged, is not text in this encoding, or holds a NUL character or a line longer
        than `LONGEST_LINE`.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    number = offset = 0  # lines and bytes read so far
    pending = ""  # the incomplete last line of the previous block
    other = ""
    for block in read_blocks(path):
        if not offset:
            other = other_file(block)
            _check_is_plain(path, block)
            _check_is_not_utf8(path, block, encoding)
        state = decoder.getstate()
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            valid = error.start - len(state[0])  # bytes of this block
            decoder.setstate(state)
            line = number + 1 + decoder.decode(block[: max(valid, 0)]).count("\n")
            line += decoder.getstate()[1] & 1  # a CR, held back because LF might follow
            encode = "name its encoding with --encoding, or convert it, for example with iconv -t UTF-8"
            fix = f"this is {other}" if other else encode
            raise UserError(f"{path}:{line}: not {encoding.upper()} at byte offset {offset + valid}; {fix}") from error
        except UnicodeError as error:  # for example UTF-16 without a byte order mark
            raise UserError(f"{path}: not {encoding.upper()} ({error}); name its encoding with --encoding") from error
        if not offset:
            text = text.removeprefix("\ufeff")
        if "\0" in text:
            line = number + 1 + text.count("\n", 0, text.index("\0"))
            fix = f"this is {other}" if other else f"this is not a text file, or --encoding is not {encoding}"
            raise UserError(f"{path}:{line}: a NUL character; {fix}")
        *lines, pending = (pending + text).split("\n")
        if max(len(pending), len(lines[0]) if lines else 0) > LONGEST_LINE:
            raise UserError(f"{path}:{number + 1}: a line longer than {LONGEST_LINE:,} characters; break it into lines")
        yield from map(str.strip, lines) if strip else lines
        number += len(lines)
        offset += len(block)
    if pending:
        yield pending.strip() if strip else pending


def _check_is_plain(path: str | os.PathLike[str], block: bytes) -> None:
    """Raise UserError for a file that begins like no plain text, and warn of one that begins like a web page."""
    start = block[:100].removeprefix(codecs.BOM_UTF8)
    if fix := next((fix for magic, fix in _FOREIGN_TEXTS.items() if start.startswith(magic)), None):
        raise UserError(f"{path}: this is {fix}")
    if start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        warn_once(f"{path} is a web page, and is read with its tags; extract its text first, or leave it out")


def _check_is_not_utf8(path: str | os.PathLike[str], block: bytes, encoding: str) -> None:
    """Warn of text that another encoding is named for, but that is valid UTF-8, which other text hardly ever is."""
    name = codecs.lookup(encoding).name
    if name.startswith("utf") or block.isascii():
        return
    try:
        codecs.getincrementaldecoder("utf-8")().decode(block)
    except UnicodeDecodeError:
        return
    warn_once(f"{path} is valid UTF-8, and is read as {name}; leave --encoding out, unless its letters are right so")


def other_file(block: bytes) -> str:
    """Return what a file that begins with these bytes is, and what to do about it; "" if that is unknown."""
    if block[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    return next((fix for start, fix in _OTHER_FILES.items() if block.startswith(start)), "")


def read_blocks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed, at most `_BLOCK` at a time, and b"" at the end.

    Raises:
      UserError: If the file cannot be read, or is damaged.
    """
    magic = b""
    try:
        with open_binary(path) as file:
            magic = file.peek(4)[:4]
            read = next((read for start, (_, read) in _COMPRESSIONS.items() if magic.startswith(start)), _plain)
            yield from read(file)
        yield b""
    except _NeedsDictionary as error:
        raise UserError(
            f"{path}: the zstd file was compressed with a dictionary, which is not in it; unpack it by zstd -d -D DICTIONARY"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile, _Damaged) as error:
        name = next(name for start, (name, _) in _COMPRESSIONS.items() if magic.startswith(start))
        raise UserError(f"{path}: the {name} file is truncated or damaged; download it again") from error
    except _WideWindow as error:
        command = f"zstd -dc --long=31 {shlex.quote(str(path))} | zstd -o NEW.zst"
        raise UserError(
            f"{path}: the zstd file was compressed with a window of more than {_ZSTD_WINDOW >> 20} MiB, and of more than its own "
            f"size; compress it again without --long, for example by {command}"
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


class _Damaged(Exception):
    """A truncated or damaged zstd file."""


class _NeedsDictionary(Exception):
    """A zstd file that was compressed with a dictionary."""


class _WideWindow(Exception):
    """A zstd file with a window that needs more memory than its size allows."""


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    return _plain(gzip.GzipFile(fileobj=file))  # type: ignore[arg-type]


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    return _in_blocks(_zstd_pieces(file))


def _zstd_pieces(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    # The decompressor keeps the last `window` bytes of its output. Published dumps of many gigabytes have windows of 2 GiB.
    size = file.seek(0, io.SEEK_END) if file.seekable() else 0
    if size:
        file.seek(0)
    decompressor = zstandard.ZstdDecompressor(max_window_size=min(max(_ZSTD_WINDOW, size), 2**31))
    # zstandard's `stream_reader`, whose output has a bound, accepts a truncated file as complete.
    frame = decompressor.decompressobj()
    whole = True
    try:
        while data := file.read(_ZSTD_PIECE):
            while data:
                yield frame.decompress(data)
                whole, data = frame.eof, frame.unused_data
                if whole:
                    frame = decompressor.decompressobj()
    except zstandard.ZstdError as error:
        kinds = {"too much memory": _WideWindow, "Dictionary": _NeedsDictionary}
        raise next((kind for words, kind in kinds.items() if words in str(error)), _Damaged) from error
    if not whole:
        raise _Damaged


def _in_blocks(texts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of `_BLOCK`, the last one excepted."""
    rest = bytearray()
    for text in texts:
        rest += text
        if len(rest) >= _BLOCK:
            whole = len(rest) // _BLOCK * _BLOCK
            yield from (bytes(rest[start : start + _BLOCK]) for start in range(0, whole, _BLOCK))
            del rest[:whole]
    if rest:
        yield bytes(rest)


# Magic number of a compressed file -> name of the format, decompressor.
_COMPRESSIONS = {
    b"\x1f\x8b": ("gzip", _gzip),
    b"\x28\xb5\x2f\xfd": ("zstd", _zstd),
    # Skippable frames, with which files of pzstd and seekable files begin (RFC 8878, section 3.1.2).
    **{bytes((number, 0x2A, 0x4D, 0x18)): ("zstd", _zstd) for number in range(0x50, 0x60)},
}

"""Lines of text files: decompressed, decoded, and told apart, at a few hundred megabytes a second.

What cannot be read is named by file, line and byte offset (in the decompressed text).
"""

import codecs
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from bertfam.errors import UserError

LONGEST_LINE = 32 << 20  # characters
_BLOCK = 1 << 20  # bytes
# For mail, source code and names of hosts; they give what is no character (half a surrogate pair).
_OTHER_CODECS = ("utf-7", "unicode-escape", "raw-unicode-escape", "punycode", "idna", "undefined")


def check_encoding(encoding: str) -> str:
    """Python's own name of a codec; raises UserError where there is none of that name for files of text."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs that are not for text, as hex
        name = codecs.lookup(encoding).name
        if name.replace("_", "-") in _OTHER_CODECS:
            raise LookupError(name)
        return name
    except (LookupError, ValueError) as error:
        raise UserError(
            f"encoding {encoding!r} is unknown: use a codec of Python's, as utf-8, utf-16, latin-1, cp1252, gb18030 or shift_jis"
        ) from error


def read_lines(path: str | os.PathLike[str], encoding: str = "utf-8", *, strip: bool = True) -> Iterator[str]:
    """Lines without the white space around them; blank ones are empty strings, so that line i is the i-th of the file.

    Args:
      path: a plain, gzipped or zstd-compressed file (by content, not by name). A line ends at LF, CRLF or CR; a byte order
        mark at the start and a missing final line end change nothing.
      encoding: of the text, any codec of Python's.
      strip: False leaves the white space around them.

    Raises:
      UserError: the file cannot be read, is damaged, or is no text of this encoding; it holds a NUL character, or a line
        longer than `LONGEST_LINE`.
    """
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    number = offset = 0  # lines and bytes behind us
    begun = ""  # the line that the last block broke off
    for block in _blocks(path):
        state = decoder.getstate()
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            valid = error.start - len(state[0])  # bytes of this block
            decoder.setstate(state)
            line = number + 1 + decoder.decode(block[: max(valid, 0)]).count("\n")
            line += decoder.getstate()[1] & 1  # a CR, held back because LF might have followed
            raise UserError(
                f"{path}:{line}: not {encoding.upper()} at byte offset {offset + valid}: name its encoding with "
                "--encoding, or convert it, as with iconv -t UTF-8"
            ) from error
        except UnicodeError as error:  # as without the byte order mark that UTF-16 needs
            raise UserError(f"{path}: not {encoding.upper()} ({error}): name its encoding with --encoding") from error
        if not offset:
            text = text.removeprefix("\ufeff")
        if "\0" in text:
            line = number + 1 + text.count("\n", 0, text.index("\0"))
            raise UserError(f"{path}:{line}: a NUL character: not a text file, or of another --encoding than {encoding}")
        *lines, begun = (begun + text).split("\n")
        if max(len(begun), len(lines[0]) if lines else 0) > LONGEST_LINE:
            raise UserError(f"{path}:{number + 1}: a line longer than {LONGEST_LINE:,} characters: break it up into lines")
        yield from map(str.strip, lines) if strip else lines
        number += len(lines)
        offset += len(block)
    if begun:
        yield begun.strip() if strip else begun


def _blocks(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The decompressed bytes, at most `_BLOCK` at a time, and b"" at the end."""
    magic = b""
    try:
        with open(path, "rb") as file:
            magic = file.peek(4)[:4]
            read = next((read for start, (_, read) in _COMPRESSIONS.items() if magic.startswith(start)), _plain)
            yield from read(file)
        yield b""
    except (EOFError, zlib.error, gzip.BadGzipFile, _Damaged) as error:
        name = next(name for start, (name, _) in _COMPRESSIONS.items() if magic.startswith(start))
        raise UserError(f"{path}: the {name} file is cut off or damaged: fetch it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


class _Damaged(Exception):
    """A zstd file is cut off or damaged."""


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _gzip(file: BinaryIO) -> Iterator[bytes]:
    return _plain(gzip.GzipFile(fileobj=file))  # type: ignore[arg-type]


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    import zstandard

    # `stream_reader` would take a file that is cut off for a whole one.
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    frame = decompressor.decompressobj()
    whole = True
    try:
        while data := file.read(_BLOCK // 16):
            while data:
                text = frame.decompress(data)
                yield from (text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK))
                whole, data = frame.eof, frame.unused_data
                if whole:
                    frame = decompressor.decompressobj()
    except zstandard.ZstdError as error:
        raise _Damaged from error
    if not whole:
        raise _Damaged


# How a compressed file begins -> its name, and what decompresses it.
_COMPRESSIONS = {b"\x1f\x8b": ("gzip", _gzip), b"\x28\xb5\x2f\xfd": ("zstd", _zstd)}

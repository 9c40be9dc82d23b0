"""`bertfam encode`: pieces, ids and offsets of texts under a vocabulary."""

from __future__ import annotations

import argparse
import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bertfam.commands import flags
from bertfam.errors import UserError

if TYPE_CHECKING:
    from bertfam.data.vocabularies import Encoding

SUMMARY = "show the pieces, ids and offsets of texts"
EXAMPLE = """\
  bertfam vocab --task=python_docs --size=8192 --output=vocab
  bertfam encode --vocab=vocab "Returns a new object." "Raises an error."
  bertfam encode --vocab=vocab --prompt "Returns a new [MASK]."
  echo "Returns a new object." | bertfam encode --vocab=vocab --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("texts", type=flags.text, nargs="*", metavar="TEXT", help="texts to encode (default: the lines of stdin)")
    parser.add_argument("--vocab", type=flags.folder, required=True, metavar="DIR", help="vocabulary folder, of any kind")
    parser.add_argument(
        "--input",
        type=flags.path,
        metavar="FILE",
        help="file with one text per line, plain or compressed by gzip or zstd, instead of TEXT",
    )
    parser.add_argument(
        "--prompt",
        action="store_true",
        help="encode typed control tokens, such as [MASK], as the tokens that they name, and add the tokens that models expect "
        "around a text, such as [CLS] and [SEP]; without it, a text is encoded as in pretraining, without control tokens",
    )
    flags.add_json(parser)


def main(args: argparse.Namespace) -> int:
    """Encode the texts and print them; return the exit status."""
    from bertfam.data import vocabularies

    if args.input and args.texts:
        raise UserError("TEXT and --input both say what to encode; give one of them")
    if args.input and not os.path.exists(args.input):
        raise UserError(f"--input={args.input}: there is no such file; a text itself is given without --input")
    vocabulary = vocabularies.load(args.vocab)
    encode = vocabulary.encode_prompt if args.prompt else vocabulary.encode
    for number, text in enumerate(args.texts or _lines(args.input)):
        encoding = encode(text)
        if args.json:
            print(
                json.dumps(
                    {
                        "text": text,
                        "pieces": encoding.pieces,
                        "ids": encoding.ids.tolist(),
                        "offsets": encoding.offsets.tolist(),
                    },
                    ensure_ascii=False,
                )
            )
        else:
            print("\n" * (number > 0) + "\n".join(_table(text, encoding)))
    return 0


def _lines(name: str | None) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed, or of stdin, without line ends."""
    from bertfam.data.corpora.text_lines import other_file

    for number, line in enumerate(_file_lines(name) if name else sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            other = other_file(line) if number == 1 else ""
            fix = f"this is {other}" if other else "convert it first"
            raise UserError(f"{name or 'stdin'}:{number} is not UTF-8; {fix}") from error


def _file_lines(path: str) -> Iterator[bytes]:
    from bertfam.data.corpora.text_lines import LONGEST_LINE, read_blocks

    number, rest = 1, b""
    for block in read_blocks(path):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
        number += len(lines)
        if len(rest) > LONGEST_LINE:
            raise UserError(f"{path}:{number}: a line longer than {LONGEST_LINE:,} bytes; break it into lines")
    if rest:
        yield rest


def _table(text: str, encoding: Encoding) -> Iterator[str]:
    """Yield the text, then one line per piece: the piece, its id, start and end, and the text between them."""
    from bertfam.pages.visible import visible

    yield visible(text)
    rows = [
        (visible(piece), str(id), f"{start}-{end}", repr(text[start:end]) if end else "")
        for piece, id, (start, end) in zip(encoding.pieces, encoding.ids.tolist(), encoding.offsets.tolist(), strict=True)
    ]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for piece, id, offsets, part in rows:
        cells = (_padded(piece, widths[0]), id.rjust(widths[1]), offsets.rjust(widths[2]), part)
        yield ("  " + "  ".join(cells)).rstrip()


def _width(text: str) -> int:
    """Return the number of terminal columns: two for wide characters, none for combining ones."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))

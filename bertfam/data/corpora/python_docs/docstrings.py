"""Sentences of the docstrings of Python source.

`python -m bertfam.data.corpora.python_docs.docstrings` reads a JSON list of source files on stdin and writes a JSON line for
each: the list of its docstrings, each a list of sentences, or null for a file that cannot be read or parsed.
"""

import ast
import gc
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from bertfam.data.corpora.sentences import split_sentences

# Incremented whenever the same source yields other sentences.
VERSION = 2

_MIN_WORDS = 3
# Below this share of letters among the characters other than spaces, a sentence is code, a signature or a formula.
_MIN_LETTERS = 0.75

_UNDERLINE = re.compile(r"([=\-~^`#*+\"'.:_])\1{2,}$")
_TABLE = re.compile(r"(\+[-=+]+\+|[|].*[|]|[=\-]{2,}(\s+[=\-]{2,})+)$")
_DIRECTIVE = re.compile(r"\.\.(\s|$)")
# Directives whose body is prose; the body of all others (code, maths, plots, links, footnotes) is dropped.
_PROSE_DIRECTIVE = re.compile(
    r"\.\. (?:note|warning|tip|important|hint|caution|attention|deprecated|versionadded|versionchanged)::\s*(.*)"
)
_VERSION_NUMBER = re.compile(r"v?\d[\w.]*\s*")
_FENCE = re.compile(r"(```|~~~)")
_EXAMPLE = re.compile(r">>>|In \[")
_BULLET = re.compile(r"(?:[-*+•]|\(?\d{1,2}[.)]|#\.)\s+")
_FIELD = re.compile(r":(?:param|parameter|arg|argument|key|keyword|returns?|raises?|except|ivar|cvar|var|yields?)\b[^:]*:\s*")
_DROPPED_FIELD = re.compile(r":\w+[^:]*:(\s|$)")
# "name: text", "name (type): text" and "name -- text" of Google's and the standard library's argument lists; the text may
# begin on the next line.
_ARGUMENT = re.compile(r"[*`]{0,3}[A-Za-z_][\w.\[\]]*`{0,2}(?:, [*`]{0,3}\w+`{0,2})*(?:\s*\([^)]*\))?\s*(?::|--)(?:\s+|$)")
# "name : type" of NumPy's lists, whose text follows on indented lines.
_NUMPY_ARGUMENT = re.compile(r"[*`]*[A-Za-z_][\w.*`, ]*\s:(\s|$)")
_SECTION = re.compile(r"[A-Z][A-Za-z]*(?: [A-Za-z]+)?:{1,2}$")

_INLINE = (
    (re.compile(r"\[\d+\]_"), ""),  # footnote
    (re.compile(r":[a-zA-Z:+\-]+:`~?(?:[^`<]*?\.)?([^`<.]+?)(?:\s*<[^`>]*>)?`"), r"\1"),  # role: the last name
    (re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)"), r"\1"),  # Markdown link
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # RST link
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`]*)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*\s][^*]*)\*\*"), r"\1"),
    (re.compile(r"(?<!\w)\*([^*\s][^*]*)\*(?!\w)"), r"\1"),
    (re.compile(r"\\([*_`|\\ ])"), r"\1"),
)
_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"(?<!\w)[^\W\d_]{2,}(?!\w)")
_NO_PROSE = re.compile(r"\\|://|\|")  # TeX, addresses, tables


def sentences_of(source: bytes) -> list[list[str]] | None:
    """Return the sentences of each docstring of a module, in the order of the file; None if it is not Python.

    Docstrings of modules, classes and functions at any depth count, except for those without a sentence.
    """
    if b'"""' not in source and b"'''" not in source:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
    return [sentences for docstring in _docstrings(tree) if (sentences := clean(docstring))]


def clean(docstring: str) -> list[str]:
    """Return the prose of a docstring as sentences, without examples, code, tables, titles, signatures and markup."""
    sentences = []
    for paragraph in _paragraphs(inspect.cleandoc(docstring).split("\n")):
        for pattern, replacement in _INLINE:
            paragraph = pattern.sub(replacement, paragraph)
        paragraph = _SPACE.sub(" ", paragraph).strip()
        sentences += [sentence for sentence in split_sentences(paragraph) if _is_prose(sentence)]
    return sentences


def _docstrings(tree: ast.Module) -> Iterator[str]:
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        # Definitions stand in statements only: blocks of if, try, with, for, and bodies.
        for field in ("finalbody", "orelse", "handlers", "body"):
            children = getattr(node, field, ())
            if isinstance(children, list):
                stack.extend(child for child in reversed(children) if hasattr(child, "body"))


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield paragraphs of running text, with wrapped lines joined by spaces; a list item is a paragraph."""
    kept = list(_without_blocks(lines))
    paragraph: list[str] = []
    margin = 0  # indentation of the paragraph
    in_argument = False
    for i, (indent, text) in enumerate(kept):
        begins = not paragraph or indent != margin
        item = _item(text, in_list=begins or in_argument)
        if paragraph and (begins or item or not text):
            yield " ".join(paragraph)
            paragraph = []
        if item:
            text = item.text
        if text:
            if not paragraph:
                in_argument = item is not None and item.is_argument
                # A wrapped item continues at the indentation of its text.
                following, has_more = kept[i + 1] if i + 1 < len(kept) else (indent, "")
                margin = following if item and has_more and following > indent else indent
            paragraph.append(text)
        elif item:
            in_argument = item.is_argument
    if paragraph:
        yield " ".join(paragraph)


def _without_blocks(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (indentation, stripped text) of each line, blank for code, examples, tables, titles and directives."""
    skip_deeper = None  # while set, lines indented deeper than this belong to a block
    in_fence = in_example = False
    for i, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if skip_deeper is not None and text and indent <= skip_deeper:
            skip_deeper = None
        is_fence = bool(_FENCE.match(text))
        in_fence ^= is_fence
        # Examples and tables end at the next blank line.
        in_example = bool(text) and (in_example or bool(_EXAMPLE.match(text) or _TABLE.match(text)))
        title = bool(_UNDERLINE.match(text)) or _is_title(text, lines[i + 1].strip() if i + 1 < len(lines) else "")
        if is_fence or in_fence or in_example or title or skip_deeper is not None:
            text = ""
        elif _DIRECTIVE.match(text) and not _PROSE_DIRECTIVE.match(text):
            skip_deeper = indent
            text = ""
        elif text.endswith("::") and not _DIRECTIVE.match(text):
            skip_deeper = indent
            text = text[:-1]
        yield indent, text


class _Item(NamedTuple):
    text: str  # without the marker; may be empty
    is_argument: bool


def _item(text: str, *, in_list: bool) -> _Item | None:
    """Return the list item that a line begins, or None; arguments are recognised only `in_list`."""
    marked = True
    if prose := _PROSE_DIRECTIVE.match(text):
        text = _VERSION_NUMBER.sub("", prose[1], count=1)
    elif field := _FIELD.match(text):
        text = text[field.end() :]
    elif _DROPPED_FIELD.match(text) or _SECTION.match(text) or _NUMPY_ARGUMENT.match(text):
        text = ""
    elif bullet := _BULLET.match(text):
        text = text[bullet.end() :]
    else:
        marked = False
    if (marked or in_list) and (argument := _ARGUMENT.match(text)):
        return _Item(text[argument.end() :], True)
    return _Item(text, False) if marked else None


def _is_title(text: str, following: str) -> bool:
    return bool(_UNDERLINE.match(following)) and len(following) >= min(len(text), 3) and not text.endswith(".")


def _is_prose(sentence: str) -> bool:
    words = len(_WORD.findall(sentence))
    if words < _MIN_WORDS or _NO_PROSE.search(sentence):
        return False
    if sentence.count(",") >= words - 1:  # a list of names
        return False
    letters = sum(map(str.isalpha, sentence))
    return letters >= _MIN_LETTERS * (len(sentence) - sentence.count(" "))


def main() -> None:
    """Extract the docstrings of the files named on stdin."""
    gc.disable()  # syntax trees have no reference cycles, and collection takes a fifth of the time
    for path in json.load(sys.stdin):
        try:
            with open(path, "rb") as file:
                source = file.read()
        except OSError:
            print("null")
        else:
            print(json.dumps(sentences_of(source)))


if __name__ == "__main__":
    main()

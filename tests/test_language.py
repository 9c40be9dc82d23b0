"""Language of the docstrings: openings that hide the subject of a sentence.

ruff's D rules check the form of docstrings and the mood of functions. This test checks what they skip: the first word of every
docstring of a module, class, function or property. Each file has a number of known faults, which may only fall.
`python tests/test_language.py` prints the numbers of today, and every fault with its line.
"""

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("bertfam", "launch")
BANNED = (
    *("What", "Whether", "Which", "How", "Who", "Whose", "Where"),
    *("Of", "Those", "Them", "That", "None", "Nothing", "See"),
)
OPENING = re.compile(rf"\W*({'|'.join(BANNED)})\b")

# Known faults by file. Lower a number with the faults that you remove; raise none.
KNOWN: dict[str, int] = {}


def banned_openings(source: str) -> list[tuple[int, str]]:
    """Return the line and the opening word of each docstring that opens with a banned word."""
    faults = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            opening = OPENING.match(ast.get_docstring(node) or "")
            if opening:
                faults.append((node.body[0].lineno, opening[1]))
    return sorted(faults)


@cache
def faults() -> Mapping[str, list[tuple[int, str]]]:
    """Return the banned openings of each file that has any."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    by_file = {path.relative_to(ROOT).as_posix(): banned_openings(path.read_text()) for path in paths}
    return {path: openings for path, openings in by_file.items() if openings}


def test_no_new_banned_openings():
    new = {path: openings for path, openings in faults().items() if len(openings) > KNOWN.get(path, 0)}
    assert not new, "\n".join(f"{path}:{line}: docstring opens with {word}" for path in new for line, word in new[path])


def test_known_openings_only_fall():
    clean = {path: len(faults().get(path, [])) for path, count in KNOWN.items() if len(faults().get(path, [])) < count}
    assert not clean, f"lower the numbers in KNOWN to {clean}"


def test_finds_banned_openings_in_modules_classes_functions_and_properties():
    source = '''"""What a module holds."""
class Cache:
    """Whose cache it is."""
    @property
    def size(self):
        """
        `Whether` it is empty."""
    async def read(self):
        """Of all rows, the first."""
        def inner():
            """See `read`."""
'''
    assert banned_openings(source) == [(1, "What"), (3, "Whose"), (6, "Whether"), (9, "Of"), (11, "See")]


def test_accepts_other_openings_and_missing_docstrings():
    source = '"""Offsets of words."""\nclass Whatever:\n    """Nonempty rows."""\ndef f():\n    x = "What else"\n'
    assert banned_openings(source) == []


if __name__ == "__main__":
    for file, openings in faults().items():
        sys.stdout.write("".join(f"{file}:{line}: {word}\n" for line, word in openings))
    sys.stdout.write("KNOWN = {\n" + "".join(f'    "{file}": {len(openings)},\n' for file, openings in faults().items()) + "}\n")

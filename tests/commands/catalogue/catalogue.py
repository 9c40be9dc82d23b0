"""An entry of the catalogue of mistakes, and the files and command line that it stands for."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfam.config.paths import packaged_folder

RUN = (
    "--gin_file={trained}/run.gin --input={trained}/text/train.txt --validation_input={trained}/text/held-out.txt "
    "--vocab={trained}/vocab --model_dir=model"
)
DISTILLED = RUN.replace("run.gin", "run.gin --gin_file=objectives/distillation.gin")
TEXT = "--input={trained}/text/train.txt --vocab={trained}/vocab"


@dataclass(frozen=True)
class Entry:
    """A mistake.

    Attributes:
      words: the command line, after `bertfam`.
      names: the file and line, flags, settings and values that the line on stderr must name, in any order. The wording of
        the line is free.
      files: path -> content, made in this order: text or bytes, a `Copy` of a folder, or `Changed` JSON; None removes the path.

    In all of them {here} is the current folder, {trained} the folder of a trained run (run.gin, text/, vocab/, other-vocab/,
    model/), and {hf} the export of its model. In `words`, {run} stands for the flags that train it, {distilled} for those of
    a student like it, and {text} for its text and vocabulary.
    """

    words: str
    names: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """A copy of a file or folder."""

    source: str


@dataclass(frozen=True)
class Changed:
    """An existing JSON file with some values replaced."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Places:
    """Folders that the names in braces stand for."""

    here: Path
    trained: Path
    hf: Path

    def fill(self, text: str) -> str:
        """Replace the names in braces by paths."""
        folders = {"here": self.here, "trained": self.trained, "hf": self.hf, "gin_configs": packaged_folder()}
        for name, value in {"run": RUN, "distilled": DISTILLED, "text": TEXT, **folders}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def words(self, line: str) -> list[str]:
        """Split a command line into words."""
        return shlex.split(self.fill(line))

    def unnamed(self, entry: Entry, line: str) -> list[str]:
        """Return the names of an entry that a line of stderr does not mention."""
        names = [self.fill(name) for name in entry.names]
        return [name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", line)]

    def make(self, files: Mapping[str, Any]) -> None:
        """Make the files of an entry in {here}."""
        for name, content in files.items():
            path = self.here / name
            if content is None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Copy):
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(self.fill(content.source), path)
            elif isinstance(content, Changed):
                path.write_text(json.dumps(json.loads(path.read_text()) | dict(content.values)))
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                if path.is_dir():
                    shutil.rmtree(path)
                path.write_text(self.fill(content))

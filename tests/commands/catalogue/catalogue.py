"""What an entry of the catalogue is, and how it is put to the command line."""

import json
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
      message: the line on stderr, after `bertfam: error: `.
      files: path -> what is made there, in this order: text or bytes; `copy` of a folder, `changed` JSON; None removes it.

    In all of them {here} is the current folder, {trained} that of a trained run (run.gin, text/, vocab/, other-vocab/, model/),
    {hf} the export of its model; in words {run} stands for the flags that train it, {distilled} for
    those of a student like it, {text} for its text and vocabulary.
    """

    words: str
    message: str
    files: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """A copy of a file or folder."""

    source: str


@dataclass(frozen=True)
class Changed:
    """A JSON file that is there, with other values."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Places:
    """The folders that the names in braces stand for."""

    here: Path
    trained: Path
    hf: Path

    def fill(self, text: str) -> str:
        """The text with paths in place of the names in braces."""
        folders = {"here": self.here, "trained": self.trained, "hf": self.hf, "gin_configs": packaged_folder()}
        for name, value in {"run": RUN, "distilled": DISTILLED, "text": TEXT, **folders}.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    def words(self, line: str) -> list[str]:
        """The words of a command line."""
        return shlex.split(self.fill(line))

    def make(self, files: Mapping[str, Any]) -> None:
        """Makes the files of an entry in {here}."""
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

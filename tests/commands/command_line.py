"""How the tests run commands, and the run that they share (made by the fixture `trained`)."""

import json
import os
import pydoc_data.topics
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import bertfam_process
import xla


@dataclass(frozen=True)
class Trained:
    """Folder with text/, vocab/, other-vocab/, run.gin and the finished model/."""

    folder: Path

    @property
    def model_dir(self) -> Path:
        return self.folder / "model"

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout.txt").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr.txt").read_text()

    @property
    def modules(self) -> set[str]:
        """The modules that the training process had loaded at its end."""
        return set(json.loads((self.folder / "modules.json").read_text()))

    def pretrain(self, model_dir: Path | str, *more: str) -> list[str]:
        """The words of the command that trained it, for another MODEL_DIR."""
        flags = {"gin_file": "run.gin", "input": "text/train.txt", "validation_input": "text/held-out.txt", "vocab": "vocab"}
        return [
            "pretrain",
            *(f"--{name}={self.folder / path}" for name, path in flags.items()),
            f"--model_dir={model_dir}",
            *more,
        ]


def write_texts(folder, *, held_out=slice(20, 23), copies=1):
    """Makes a folder of train.txt and held-out.txt: the topics of Python's `help`, a document each, a sentence a line.

    Args:
      held_out: which of them by length, the shortest first.
      copies: of those for training, each with a first sentence of its own.
    """
    from bertfam.data.corpora.sentences import split_sentences

    folder.mkdir()
    documents = [
        "\n".join(sentence for text in topic.split("\n\n") for sentence in split_sentences(" ".join(text.split())))
        for _, topic in sorted(pydoc_data.topics.topics.items())
    ]
    chosen = sorted(documents, key=len)[held_out]
    training = [text for text in documents if text not in chosen]
    again = [f"Copy {number} of the topics.\n{text}" for number in range(1, copies) for text in training]
    (folder / "train.txt").write_text("\n\n".join(training + again))
    (folder / "held-out.txt").write_text("\n\n".join(chosen))


def started(words, environment, **options):
    """A command in a process of its own, which compiles fast and remembers what it compiled."""
    environment = xla.device_environment() | {name: str(value) for name, value in environment.items()}
    command = [sys.executable, bertfam_process.__file__, *map(str, words)]
    return subprocess.Popen(command, env=os.environ | environment, **options)


def bertfam(*words, **environment):
    """Runs a command in a process of its own, see `started`."""
    with started(words, environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def in_process(*words):
    """Run a command in this process, which saves the imports of `bertfam`; the output of child processes is not captured."""
    from bertfam import cli

    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = cli.main([*map(str, words)])
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def listing(folder):
    """Every path under a folder with its size and time: equal listings mean that nothing was written."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(Path(folder).rglob("*"))}

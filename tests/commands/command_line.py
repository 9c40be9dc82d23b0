"""Commands as the tests run them, and the run that they share (made by the fixture `trained`)."""

import json
import os
import pydoc_data.topics
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import bertfam_process
import fork_server
import xla
from fork_server import PIPES
from time_limits import FAR_SECONDS

LAUNCHER = Path(__file__).parents[2] / "launch" / "local.py"


@dataclass(frozen=True)
class Trained:
    """A finished run: a folder with text/, vocab/, other-vocab/, run.gin and model/."""

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
        """Modules that the training process had loaded at its end."""
        return set(json.loads((self.folder / "modules.json").read_text()))

    def pretrain(self, model_dir: Path | str, *more: str) -> list[str]:
        """Return the command line that trained it, for another MODEL_DIR."""
        flags = {"gin_file": "run.gin", "input": "text/train.txt", "validation_input": "text/held-out.txt", "vocab": "vocab"}
        return [
            "pretrain",
            *(f"--{name}={self.folder / path}" for name, path in flags.items()),
            f"--model_dir={model_dir}",
            *more,
        ]


def write_texts(folder, *, held_out=slice(20, 23), copies=1):
    """Write train.txt and held-out.txt into a new folder: the topics of Python's `help`, a document each, a sentence a line.

    Args:
      folder: the folder, which is made.
      held_out: slice of the topics, sorted by length, that are held out.
      copies: number of copies of the training documents, each with a first sentence of its own.
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


def _environment(variables):
    """Return the environment of a process with one device, which compiles fast and shares what it compiled."""
    return os.environ | xla.device_environment() | {name: str(value) for name, value in variables.items()}


def started(words, environment, **options):
    """Start a command in a process of its own; `environment` may have the variables of bertfam_process.py.

    It is forked from a process that has imported the package, unless IMPORT=1 asks for one that imports it as a user's does.
    """
    if "IMPORT" not in environment:
        return fork_server.ForkedProcess(words, _environment(environment), **options)
    command = [sys.executable, bertfam_process.__file__, *map(str, words)]
    return subprocess.Popen(command, env=_environment(environment), **options)


def launcher(words, processes=2):
    """Return the command line that runs a command as several processes with one device each."""
    flags = [f"--processes={processes}", "--devices_per_process=1", "--grace=60"]
    return [sys.executable, LAUNCHER, *flags, "--", sys.executable, bertfam_process.__file__, *map(str, words)]


def launch(*words, processes=2, **environment):
    """Run a command as several processes with one device each."""
    command = launcher(words, processes)
    return subprocess.run(command, capture_output=True, text=True, env=_environment(environment), timeout=FAR_SECONDS)


def launch_separately(words, flags=lambda index: (), own=({}, {}), **environment):
    """Run two processes without a launcher, which would end one after the other: (exit status, stdout, stderr) of each.

    Args:
      words: words of the command.
      flags: returns more flags for a process.
      own: variables of the environment for each process.
      **environment: variables for both.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        words = [*words, f"--coordinator=localhost:{probe.getsockname()[1]}", "--num_processes=2"]
    processes = [
        started([*words, f"--process_index={index}", *flags(index)], environment | own[index], **PIPES) for index in range(2)
    ]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda process: process.communicate(timeout=FAR_SECONDS), processes))
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def bertfam(*words, **environment):
    """Run a command in a process of its own, see `started`; "THEN" separates several, which run one after the other there."""
    with started(words, environment, **PIPES) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def in_process(*words):
    """Run a command in this process, which saves the imports of `bertfam`; the output of child processes is not captured."""
    from bertfam import cli

    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        status = cli.main([*map(str, words)])
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def error_lines(done):
    """Return the lines of a finished process's stderr without its warnings."""
    return [line for line in done.stderr.splitlines() if "warning" not in line]


def replaced(words, flags):
    """The words of a command with these flags in place of those of the same names."""
    names = {flag.partition("=")[0] for flag in flags if flag.startswith("--")}
    return [*(word for word in words if word.partition("=")[0] not in names), *flags]


def listing(folder):
    """Return every path under a folder, files with size and time: equal listings mean that nothing was written.

    The lock is left out, which another test may hold for a moment, and so are the times of folders, which a lock changes, and
    what Python writes when it imports a module.
    """
    from bertfam.storage import locks

    found: dict[Path, tuple[int, int] | None] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found |= {Path(parent, name): None for name in folders}
        for path in (Path(parent, name) for name in files if not name.startswith(locks.NAME)):
            status = path.stat()
            found[path] = status.st_size, status.st_mtime_ns
    return found

"""What the launchers share: flags before a command, commands that are run or only printed, and starting again.

Nothing but the standard library, so that a launcher runs where bertfam is not installed.
"""

import argparse
import itertools
import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

CHECKOUT = Path(__file__).resolve().parent.parent
MISTAKE = 2  # bertfam's exit status where the user has made a mistake
SAVED = 75  # ... where a signal has ended it: its state is saved, and the same command goes on
STUCK = 76  # ... where a step took too long
ALONE = 77  # ... where another of its processes is gone without a word
AGAIN = {  # statuses after which a run is started again, and why
    SAVED: "preempted, and its state is saved",
    STUCK: "stuck",
    ALONE: "left alone by one of its processes",
}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # what Google Cloud, Kubernetes and XPK all take


class Failed(Exception):
    """Ends a launcher with one line, and a status that is 2 for a mistake of the user's."""

    def __init__(self, line: str, status: int = MISTAKE) -> None:
        super().__init__(line)
        self.status = status


def run_main(main: Callable[[], int]) -> None:
    """Ends the process as `main` says, and with one line where it raises `Failed`."""
    try:
        status = main()
    except Failed as error:
        tell(f"error: {error}")
        status = error.status
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


def tell(line: str) -> None:
    """A line of the launcher's own."""
    print(f"bertfam: {line}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that tells a mistake in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISTAKE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser(path: str, text: str, usage: str) -> argparse.ArgumentParser:
    """A parser whose help is the launcher's docstring."""
    return Parser(
        prog=f"launch/{Path(path).name}",
        usage=f"%(prog)s {usage}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The launcher's flags, and the command after the first `--`; [] where there is none."""
    cut = words.index("--") if "--" in words else len(words)
    return parser.parse_args(words[:cut]), list(words[cut + 1 :])


def need_command(parser: argparse.ArgumentParser, command: Sequence[str]) -> None:
    """Ends with a line where there is no command."""
    if not command:
        parser.error("no command: write it after --")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """--dry_run."""
    parser.add_argument("--dry_run", action="store_true", help="print what would be run, quoted for a shell; run nothing")


def name(text: str) -> str:
    """A flag's value that is a name in a cloud or a cluster."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: up to 40 letters a to z, digits and -, a letter first")
    return text


def word(text: str) -> str:
    """A flag's value that is a name or an address, of whatever kind: not empty, and without spaces."""
    if not text or any(letter.isspace() for letter in text):
        raise argparse.ArgumentTypeError(f"{text!r}: must not be empty or have spaces in it")
    return text


def seconds(text: str) -> float:
    """A flag's value that is a time, 0 or more."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return found


def count(text: str, least: int = 0) -> int:
    """A flag's value that is 0 or more."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


def positive(text: str) -> int:
    """A flag's value that is 1 or more."""
    return count(text, 1)


class Runner:
    """Runs commands, or prints them."""

    def __init__(self, dry_run: bool, retry_seconds: float = 5) -> None:
        self.dry_run = dry_run
        self._retry_seconds = retry_seconds

    def run(self, words: Sequence[str], retries: int = 0, text: str | None = None) -> None:
        """Runs a command; shows what it prints.

        Args:
          words: of the command.
          retries: how often to try again, ever later. Only for what may be done twice.
          text: what it reads.

        Raises:
          Failed: it has failed, with its status.
        """
        if not self.dry_run:
            self._run(words, retries, capture=False, text=text)
        elif text is None:
            print(shlex.join(words))
        else:
            print(f"{shlex.join(words)} << 'END'\n{text}END")

    def ask(self, words: Sequence[str], supposed: str, final: str | None = None) -> str:
        """What a command that changes nothing prints, without the space around it; it is tried again where it fails.

        Args:
          words: of the command.
          supposed: the answer where nothing is run.
          final: what it says where trying again would not help.

        Raises:
          Failed: it has failed, with its status and last line, or that with `final`.
        """
        if self.dry_run:
            print(shlex.join(words))
            return supposed
        return self._run(words, 3, capture=True, final=final)

    def _run(self, words: Sequence[str], retries: int, capture: bool, final: str | None = None, text: str | None = None) -> str:
        for tried in range(retries + 1):
            try:
                done = subprocess.run(words, input=text or "", capture_output=capture, text=True, errors="replace")
            except FileNotFoundError:
                raise Failed(f"there is no command {words[0]}") from None
            if done.returncode == 0:
                return (done.stdout or "").strip()
            if final and final in (done.stderr or ""):
                break
            if tried < retries:
                pause = self._retry_seconds * 2**tried
                tell(f"{program(words)} has failed with {done.returncode}, tries again in {pause:g} s")
                time.sleep(pause)
        said = [line for line in (done.stderr or "").splitlines() if line.strip()]
        why = [line for line in said if final and final in line] or said
        raise Failed(": ".join([f"{program(words)} has failed with {done.returncode}", *why[-1:]]), done.returncode)


def program(words: Sequence[str]) -> str:
    """A command by its first words, up to the first flag or file."""
    return " ".join(itertools.takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words[:5]))


def why_again(status: int) -> str | None:
    """Why a command that has ended with this status is to be started again; None where that would not help."""
    return f"killed by signal {status - 128}" if status > 128 else AGAIN.get(status)


def again(once: Callable[[], int], restarts: int, stopped: Callable[[], bool] = lambda: False) -> int:
    """Calls `once` until it is finished, or has failed so that starting again would not help; returns the last status.

    Args:
      once: starts the run, which goes on from its newest checkpoint, and returns its status.
      restarts: how often to start it again at most.
      stopped: whether the user wants it to end.
    """
    for left in range(restarts, -1, -1):
        status = once()
        why = why_again(status)
        if why is None or not left or stopped():
            break
        tell(f"the run was {why}: starts it again, restarts left: {left - 1}")
    return status

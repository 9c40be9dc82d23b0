"""Shared code of the launchers: flags before a command, commands that are run or only printed, restarts.

It uses the standard library only, so that a launcher runs where bertfam is not installed.
"""

import argparse
import itertools
import math
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).resolve().parent.parent
MISTAKE = 2  # bertfam's exit status after a mistake in the command
UNREACHABLE = 74  # ... after a fault of the storage that may pass
SAVED = 75  # ... after a signal: the state is saved, and the same command resumes
STUCK = 76  # ... after a step that took too long
LOST = 77  # ... after another process of the run exited without sending a status
RESTART_REASONS = {  # exit statuses after which a run is restarted
    UNREACHABLE: "could not read or write its storage",
    SAVED: "was preempted after saving its state",
    STUCK: "was stuck",
    LOST: "lost one of its processes",
}
_TRAININGS = ("pretrain", "distill", "finetune")  # commands that launchers are for
_FOLDERS = ("--model_dir", "--vocab", "--cache_dir")  # flags of them
_IN_ONE_PROCESS = (  # the others, except index and replay, which several processes may run
    *(
        "ablate",
        "analyze",
        "cache",
        "check",
        "checkpoints",
        "clean",
        "completion",
        "configs",
        "doctor",
        "embed",
        "encode",
        "entities",
        "evaluate",
        "explain",
        "export",
        "fill",
        "generate",
    ),
    *("import", "merge", "plan", "predict", "preview", "prune", "quantize", "report", "retrieve", "vocab"),
)
_STARTERS = ("accelerate", "deepspeed", "mpiexec", "mpirun", "sbatch", "srun", "torchrun")
_DASH = "[-\u2010-\u2015\u2212]"  # also those that web pages and word processors write in place of -
# A flag with PROTOCOL://NAME:PASSWORD@..., which bertfam refuses; a port has none but digits.
_PASSWORD = re.compile(r"(--[\w.-]+=\w+://)[^/@:]*:(?!\d*(?:/|$)).*@")
_FLAG = re.compile(rf"(?P<dashes>{_DASH}{{1,2}})(?P<name>[A-Za-z](?:\w|{_DASH})*)(?==|\Z)")  # not of gin: --gin.NAME
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # accepted by Google Cloud, Kubernetes and XPK


class LaunchError(Exception):
    """Error that ends a launcher with one line and an exit status; the status of a mistake in the command is 2."""

    def __init__(self, line: str, status: int = MISTAKE) -> None:
        super().__init__(line)
        self.status = status


def run_main(main: Callable[[], int]) -> None:
    """Exit with the status that `main` returns, or with one line if it raises `LaunchError`."""
    try:
        status = main()
    except LaunchError as error:
        report(f"error: {error}")
        status = error.status
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


def report(line: str) -> None:
    """Print a line of the launcher on stderr."""
    print(f"bertfam: {line}", file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """ArgumentParser that reports a mistake in one line, without the usage before it, and refuses repeated flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given: dict[str, str] = {}  # destination of a flag -> the flag as it was given first

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and a line that names the mistake."""
        self.exit(MISTAKE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse calls this once for each time that a flag is given, and keeps the last value.
        if action.option_strings and not isinstance(action, argparse._AppendAction):
            given = "=".join([action.option_strings[-1], *arg_strings])
            if action.dest in self._given:
                self.error(f"{self._given[action.dest]} and {given}: the flag has one value; give it once")
            self._given[action.dest] = given
        return super()._get_values(action, arg_strings)


def make_parser(path: str, text: str, usage: str) -> argparse.ArgumentParser:
    """Make a parser whose help is the launcher's docstring."""
    return Parser(
        prog=f"launch/{Path(path).name}",
        usage=f"%(prog)s {usage}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the launcher's flags, and the command after the first `--`; [] if there is none."""
    for text in words:
        if text.endswith("\r"):
            parser.error(f"{text!r}: a carriage return ends this word, as in a script with Windows line ends: convert the script")
    cut = words.index("--") if "--" in words else len(words)
    options, unknown = parser.parse_known_args(words[:cut])
    if unknown:
        fix = _fix_of_unknown(parser, unknown, has_command="--" in words)
        parser.error(f"unrecognized arguments: {shlex.join(unknown)}{fix}")
    return options, list(words[cut + 1 :])


def _fix_of_unknown(parser: argparse.ArgumentParser, unknown: Sequence[str], *, has_command: bool) -> str:
    """Return the end of the message about words that are no flags of the launcher."""
    if unknown[0].startswith("-") and "--sbatch" in parser._option_string_actions:
        return f": a flag of sbatch is given as --sbatch={unknown[0]}"
    if has_command:
        return ""
    command = list(itertools.dropwhile(lambda text: not _is_program(text), unknown))
    if unknown[0] in (*_TRAININGS, *_IN_ONE_PROCESS):  # bertfam was taken for the NAME
        return f": write a NAME, and -- before the command: NAME -- bertfam {shlex.join(unknown)}"
    if not command and not unknown[0].startswith("-"):
        command = list(unknown)
    return f": write -- before the command: -- {shlex.join(command)}" if command else ""


def _is_program(word: str) -> bool:
    """Return True for a word that can only be the program of a command."""
    return Path(word).name == "bertfam" or Path(word).name.startswith("python")


def check_command(parser: argparse.ArgumentParser, command: Sequence[str], alone: str | None = None) -> None:
    """Exit with an error for a command that cannot work: an empty one, one in quotes, or one that starts processes itself.

    So it does for commands of bertfam that every process would refuse, or would run in full.

    Only the names of flags are looked at, which are letters, digits and _, and --model_dir, without which nothing is trained.

    Args:
      parser: parser of the launcher.
      command: words of the command.
      alone: advice for commands that run in one process; None if only one is started, to which no flags are added.
    """
    if not command:
        parser.error("no command: write it after --")
    if _is_quoted(command[0]):
        parser.error(f"{command[0]!r} is one word: write the command without quotes around it: -- {' '.join(command[0].split())}")
    # Other programs may stand before it, as env and nice do.
    names = [Path(text).name for text in command]
    before = names[: names.index("bertfam")] if "bertfam" in names else names[:1]
    if starter := next((name for name in before if name in _STARTERS), None):
        parser.error(f"{starter} starts processes, as {parser.prog} does: write the command without {starter}")
    if command[0] in (*_TRAININGS, *_IN_ONE_PROCESS):
        parser.error(f"{command[0]} is a command of bertfam: write -- bertfam {command[0]}")
    name, *words = _words_of_bertfam(command) or [""]
    flags = [(match["dashes"], match["name"]) for text in words if (match := _FLAG.match(text))]
    if ("--", "help") in flags or ("-", "h") in flags:
        return
    if secret := next((match for text in words if (match := _PASSWORD.match(text))), None):
        parser.error(f"{secret[1]}***@: an address with a password would stand in the files and logs of a job: leave it out")
    if name in _IN_ONE_PROCESS and alone is not None:
        parser.error(f"bertfam {name} runs in one process: {alone}")
    if name not in _TRAININGS:
        return
    for dashes, flag in flags:
        if (right := "--" + re.sub(_DASH, "_", flag)) != dashes + flag:
            parser.error(f"{dashes}{flag} is no flag of bertfam {name}: write {right}")
    if ("--", "process_index") in flags:
        parser.error(f"--process_index differs from process to process: leave it out, since {parser.prog} says it")
    if ("--", "model_dir") not in flags:
        parser.error(f"bertfam {name} requires --model_dir=DIR")
    # In quotes a variable reaches bertfam as it is written, and so do the names of sbatch's files.
    for text in words:
        if text.startswith("--model_dir=") and (part := re.search(r"\$\{?\w+\}?|%[AaJjuxN]\b", text)):
            parser.error(
                f"{text}: nothing replaces {part[0]} in it; write a folder of one name, from which a run that is started again "
                "resumes"
            )


def local_folders(command: Sequence[str]) -> dict[str, str]:
    """Return the flags of folders of a training command that are not in a bucket, with their values."""
    name, *words = _words_of_bertfam(command) or [""]
    if name not in _TRAININGS:
        return {}
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, has_value, value = word.partition("=")
        if flag in _FOLDERS:
            found[flag] = value if has_value else following
    return {flag: value for flag, value in found.items() if "://" not in value}


def _is_quoted(word: str) -> bool:
    """Return True for a command that was written as one word; a program's path may have spaces, also on another machine."""
    words = word.split()
    if len(words) < 2 or Path(word).is_file():
        return False
    return not Path(word).is_absolute() or bool(_words_of_bertfam(words)) or any(text.startswith("-") for text in words)


def _words_of_bertfam(command: Sequence[str]) -> list[str]:
    """Return the command of bertfam and its flags; [] for another program."""
    if Path(command[0]).name == "bertfam":
        return list(command[1:])
    is_module = _is_program(command[0]) and list(command[1:3]) == ["-m", "bertfam"]
    return list(command[3:]) if is_module else []


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Declare --dry_run."""
    parser.add_argument("--dry_run", action="store_true", help="print the commands, quoted for a shell, and run nothing")


def name(text: str) -> str:
    """Parse a flag's value as the name of a resource in a cloud or cluster."""
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name: use at most 40 letters a to z, digits and -, a letter first")
    return text


def word(text: str) -> str:
    """Parse a flag's value as any name or address: not empty, and without spaces."""
    if not text or any(letter.isspace() for letter in text):
        raise argparse.ArgumentTypeError(f"{text!r} must not be empty or contain spaces")
    return text


def seconds(text: str) -> float:
    """Parse a flag's value as a number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def count(text: str, least: int = 0) -> int:
    """Parse a flag's value as an integer, 0 or more."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer, {least} or more")
    return int(text)


def positive(text: str) -> int:
    """Parse a flag's value as an integer, 1 or more."""
    return count(text, 1)


class Runner:
    """Runs commands, or prints them in a dry run."""

    def __init__(self, dry_run: bool, retry_seconds: float = 5) -> None:
        self.dry_run = dry_run
        self._retry_seconds = retry_seconds

    def run(self, words: Sequence[str], retries: int = 0, text: str | None = None) -> None:
        """Run a command and show its output.

        Args:
          words: words of the command.
          retries: largest number of retries, with growing delays; only for commands that are safe to repeat.
          text: stdin of the command.

        Raises:
          LaunchError: if the command failed, with its exit status.
        """
        if not self.dry_run:
            self._run(words, retries, capture=False, text=text)
        elif text is None:
            print(shlex.join(words))
        else:
            print(f"{shlex.join(words)} {here_document(text)}")

    def query(self, words: Sequence[str], dry_answer: str, final: str | None = None) -> str:
        """Run a command that changes nothing and return its stripped stdout; retry it if it fails.

        Args:
          words: words of the command.
          dry_answer: return value in a dry run.
          final: text on stderr after which retrying would not help.

        Raises:
          LaunchError: if the command failed, with its exit status and the last line of its stderr, or the line with `final`.
        """
        if self.dry_run:
            print(shlex.join(words))
            return dry_answer
        return self._run(words, 3, capture=True, final=final)

    def _run(self, words: Sequence[str], retries: int, capture: bool, final: str | None = None, text: str | None = None) -> str:
        for attempt in range(retries + 1):
            try:
                done = subprocess.run(words, input=text or "", capture_output=capture, text=True, errors="replace")
            except FileNotFoundError:
                raise LaunchError(f"command not found: {words[0]}") from None
            if done.returncode == 0:
                return (done.stdout or "").strip()
            if final and final in (done.stderr or ""):
                break
            if attempt < retries:
                delay = self._retry_seconds * 2**attempt
                report(f"{program(words)} failed with status {done.returncode}; retrying in {delay:g} s")
                time.sleep(delay)
        lines = [line for line in (done.stderr or "").splitlines() if line.strip()]
        causes = [line for line in lines if final and final in line] or lines
        message = ": ".join([f"{program(words)} failed with status {done.returncode}", *causes[-1:]])
        raise LaunchError(message, done.returncode)


def here_document(text: str) -> str:
    """Return a shell's here-document of a text that ends with a newline; no line of the text closes it."""
    end, lines = "END", set(text.splitlines())
    while end in lines:
        end += "_"
    return f"<< '{end}'\n{text}{end}"


def run_token() -> dict[str, str]:
    """Return the variable with a new secret by which the processes of a run recognise each other."""
    return {"BERTFAM_RUN_TOKEN": secrets.token_hex(16)}


def program(words: Sequence[str]) -> str:
    """Name a command by its first words, up to the first flag or file."""
    return " ".join(itertools.takewhile(lambda word: re.fullmatch("[a-z][a-z-]*", word), words[:5]))


def restart_reason(status: int) -> str | None:
    """Return why a command that ended with this exit status is restarted; None if a restart would not help."""
    return f"was killed by signal {status - 128}" if status > 128 else RESTART_REASONS.get(status)


def run_with_restarts(once: Callable[[], int], restarts: int, stopped: Callable[[], bool] = lambda: False) -> int:
    """Call `once` until the run is finished, or failed so that a restart would not help; return the last exit status.

    Args:
      once: starts the run, which resumes from its newest checkpoint, and returns its exit status.
      restarts: largest number of restarts.
      stopped: returns True if the user ended the run.
    """
    for left in range(restarts, -1, -1):
        status = once()
        reason = restart_reason(status)
        if reason is None or not left or stopped():
            break
        report(f"the run {reason}; restarting it (restarts left: {left - 1})")
    return status

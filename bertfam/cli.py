"""Command line `bertfam COMMAND [flags]`; `bertfam.commands.table` has the commands.

Exit status: the command's own; 2 for a user's mistake, 1 for a failed run (`TrainingError`) and 74 for a fault of the storage
that may pass (`TransientError`), each with one line on stderr; 130 when interrupted; 141 when the reader of a pipe has closed
it. Faults of bertfam itself keep their traceback.
"""

import argparse
import gc
import os
import re
import shlex
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import takewhile
from types import ModuleType
from typing import Any, NoReturn

from bertfam import __version__, environment, interrupts
from bertfam.arguments import Parser, repeated
from bertfam.call_arguments import check_list, check_text
from bertfam.commands import other_trainers
from bertfam.commands.quick_exit import QuickExit
from bertfam.commands.table import COMMANDS, Command, load, parser_of
from bertfam.errors import MissingFlag, TrainingError, TransientError, UserError, device_fault, out_of_memory, report
from bertfam.sharding import libtpu
from bertfam.storage.faults import FULL, cannot_write, explain
from bertfam.suggest import did_you_mean, nearest

__all__ = ["COMMANDS", "Command", "main", "start"]

GIN_FLAG = "--gin."
_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # hyphens, dashes and the minus sign
_LOWERCASE = ("--do_lower_case", "--lower_case", "--lowercase")
# New objects after which Python's cyclic garbage collector runs. With its default, 700, collection takes 1.3 s of CPU time while
# a small training run imports its modules and traces its programs (Python 3.11, jax 0.10.2); with this threshold, 0.3 s.
_COLLECTOR_THRESHOLD = 50_000
_TRAINING = ("pretrain", "distill", "finetune", "ablate")
# Memory settings of glibc, which reads them when a process starts. With huge pages for large arrays, steps on CPUs spend less
# time on page faults.
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"


def start() -> int:
    """Run the command line of this process; one that trains starts anew with huge pages, unless glibc's settings are given."""
    if sys.argv[1:2] and sys.argv[1] in _TRAINING and _TUNABLES not in os.environ and _has_glibc():
        os.execve(sys.executable, sys.orig_argv, os.environ | {_TUNABLES: _HUGE_PAGES})
    quick_exit = QuickExit()
    quick_exit.status = main()
    return quick_exit.status


def _has_glibc() -> bool:
    return "CS_GNU_LIBC_VERSION" in getattr(os, "confstr_names", ())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; sys.argv by default) and return its exit status."""
    _open_closed()
    _escape_unprintable()
    _collect_garbage_less_often()
    words: list[str] = []
    try:
        words = _words(argv)
        _check_current_folder()
        with _interruptible():
            status = _run(words)
        sys.stdout.flush()  # raises here, where it is caught, if the pipe is closed
        return status
    except MissingFlag as error:
        return report(UserError(f"{error}: {shlex.join(['bertfam', *words, error.flag])}"))
    except (UserError, TrainingError, TransientError, KeyboardInterrupt) as error:
        return report(error)
    except BrokenPipeError as error:
        _discard_output()
        return report(error)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            _discard_output()
            return report(cannot_write(error.filename or "the output, or a file,", error, ""))
        if out_of_memory(error):
            return report(error)
        if fault_of_devices := device_fault(error):
            return report(fault_of_devices)
        if isinstance(error, ValueError) and (mistake := environment.mistake(error)):
            return report(mistake)
        if (fault := explain(error)) is error:
            raise
        return report(fault)


def _words(argv: Any) -> list[str]:
    """Return the words of the command line, or those of a caller; raise UserError if a caller gives anything but words."""
    if argv is None:
        return sys.argv[1:]
    if isinstance(argv, str):
        raise UserError("argv must be a list of words, not one text: shlex.split makes one of it")
    words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in check_list(argv, "argv", "words")]
    return [check_text(word, f"argv[{place}]") for place, word in enumerate(words)]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT as Python does, but not where it would be lost or crash a library."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as nohup and shell scripts do
        yield
        return
    with interrupts.raised_on(signal.SIGINT, _interrupt):
        yield


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _discard_output() -> None:
    """Write to nowhere from now on: Python flushes stdout once more at exit, which must not fail again."""
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError, AttributeError):  # a stream without a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed() -> None:
    """Open the null device in place of a closed stdin, stdout or stderr, so that no file gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115  (until the end)


def _escape_unprintable() -> None:
    """Escape characters that the encoding of stdout or stderr lacks, instead of ending with an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _collect_garbage_less_often() -> None:
    """Raise the threshold of the garbage collector, unless the caller has raised it further or set it to 0, "never"."""
    if 0 < gc.get_threshold()[0] < _COLLECTOR_THRESHOLD:
        gc.set_threshold(_COLLECTOR_THRESHOLD)


def _check_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UserError("the current folder does not exist any more; change to another one") from None


def _check_line_ends(words: Sequence[str]) -> None:
    """Refuse the carriage returns that a script with Windows line ends puts behind the last word of each line."""
    for word in words:
        if word.endswith("\r") and (word == "\r" or word.startswith("-")):
            raise UserError(
                f"{word}: a carriage return ends this word, as in a script with Windows line ends: convert the script (dos2unix "
                "SCRIPT, or tr -d '\\r' < SCRIPT > NEW)"
            )


def _run(argv: list[str]) -> int:
    _check_line_ends(argv)
    try:
        name, flags = _choose(argv)
        module = load(name)
        args = _parse(name, module, flags)
        args.command_line = ("bertfam", *argv)
    except SystemExit:  # --help or --version, which argparse has printed
        return 0
    environment.check()
    libtpu.quieten()
    return module.main(args)


def _choose(argv: list[str]) -> tuple[str, list[str]]:
    """Split the command line into the command's name and its flags; print --help and --version."""
    for words in (2, 1):
        if (name := " ".join(argv[:words])) in COMMANDS:
            return name, argv[words:]
    if argv and (group := [name for name in COMMANDS if name.startswith(f"{argv[0]} ")]):
        _choose_in_group(argv, group)
    if argv and not argv[0].startswith("-"):
        hint = other_trainers.command_here(argv[0]) or did_you_mean(argv[0], COMMANDS, "see bertfam --help")
        raise UserError(f"unknown command {argv[0]}{hint}")
    parser = _overview("bertfam", COMMANDS)
    parser.add_argument("--version", action="version", version=f"bertfam {__version__}")
    _, unknown = parser.parse_known_args(argv)
    if unknown:
        raise UserError(f"unknown flag {unknown[0]} before the command; write bertfam COMMAND {unknown[0]}")
    raise UserError("no command given; bertfam --help lists all (first come vocab, pretrain, evaluate, export)")


def _choose_in_group(argv: list[str], names: Sequence[str]) -> NoReturn:
    """Print --help of a group of commands, or raise UserError as the command line names none of them."""
    group, parts = argv[0], [name.partition(" ")[2] for name in names]
    if argv[1:] and not argv[1].startswith("-"):
        hint = did_you_mean(argv[1], parts, f"one of {', '.join(parts)}")
        raise UserError(f"unknown command {group} {argv[1]}{hint}")
    _overview(f"bertfam {group}", names).parse_known_args(argv[1:])
    raise UserError(f"no command given after {group}; one of {', '.join(parts)}")


def _overview(prog: str, names: Collection[str]) -> Parser:
    """Return the parser whose --help lists commands."""
    width = max(map(len, names))
    return Parser(
        prog=prog,
        usage=f"{prog} COMMAND [flags]",
        description="Pretrain the BERT family in JAX.",
        epilog="\n".join(
            ["commands:"]
            + [f"  {name:{width}}  {COMMANDS[name].summary}" for name in names]
            + ["", "bertfam COMMAND --help shows a command's flags and an example."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _parse(name: str, module: ModuleType, flags: list[str]) -> argparse.Namespace:
    parser = parser_of(name, module)
    takes_gin = parser.get_default("gin_bindings") is not None  # set by flags.add_config
    gin_flags = [flag for flag in flags if flag.startswith(GIN_FLAG)]
    if gin_flags and not takes_gin:
        raise UserError(f"bertfam {name} takes no gin configuration; leave out {gin_flags[0]}")
    gin_bindings = _gin_bindings(gin_flags)
    flags = [flag for flag in flags if not flag.startswith(GIN_FLAG)]
    before_end = list(takewhile(lambda word: word != "--", flags))
    _check_dashes(parser, before_end)
    _refuse_unknown(parser, [word for word in before_end if word.startswith("--")])  # argparse reports missing ones first
    args, unknown = parser.parse_known_args(flags)
    _refuse_unknown(parser, unknown)
    if takes_gin:
        args.gin_bindings = gin_bindings
    return args


def _known(parser: Parser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings]


def _check_dashes(parser: Parser, words: Sequence[str]) -> None:
    """Refuse flags of one dash, or of the dashes that word processors and web pages make of two."""
    known = _known(parser)
    for word in words:
        name = word.lstrip(_DASHES)
        flag = f"--{name.partition('=')[0]}"
        if word.startswith(tuple(_DASHES)) and not word.startswith("--") and (flag in known or flag.startswith(GIN_FLAG)):
            raise UserError(f"{word}: a flag begins with two hyphens; write --{name}")


def _refuse_unknown(parser: Parser, words: Sequence[str]) -> None:
    known = _known(parser)
    for word in words:
        flag = word.partition("=")[0]
        if flag not in known:
            kind = "flag" if flag.startswith("-") else "argument"
            hint = _hint(parser, word) or _similar(parser, flag)
            raise UserError(f"{parser.prog} has no {kind} {flag}{hint}")


def _hint(parser: Parser, word: str) -> str:
    """Return the end of the message about an unknown word that is known to be meant otherwise; "" for others."""
    known, flag = _known(parser), word.partition("=")[0]
    takes_gin = "--gin_file" in known
    if flag.startswith("---") and any(not action.option_strings for action in parser._actions):
        return "; to give it as a text, put -- before it"
    if negated := _negated(parser, flag):
        return f"; that is the default: leave it out ({negated} is the opposite)"
    if takes_gin and re.fullmatch("--gin(_param|_params|_binding|_bindings)?", flag):
        return "; write --gin.NAME=value"
    if takes_gin and re.fullmatch(r"--[A-Z][\w/]*(\.\w+)?|--\w+/\w+(\.\w+)?", flag):
        return f"; a value of the configuration is given by {GIN_FLAG}{flag[2:]}=VALUE"
    if takes_gin and word.startswith("gin.") and "=" in word:
        return f"; write --{word}"
    if (other := other_trainers.flag_here(flag, known, takes_gin=takes_gin)) and flag.startswith("--"):
        return other
    positional = {f"--{action.dest}": action.metavar for action in parser._actions if not action.option_strings}
    if flag in positional:
        return f"; write {positional[flag]} by itself, without a flag"
    if takes_gin and word.endswith(".gin") and not word.startswith("-"):
        return f"; write --gin_file={word}"
    if "--input" in known and not word.startswith("-") and os.path.isfile(word):
        return "; put a pattern in quotes, as --input='books/*.txt', or give --input=FILE for each file"
    return ""


def _similar(parser: Parser, flag: str) -> str:
    """Return the end of the message about an unknown flag: a similar one, or where to look; dashes make no flags similar."""
    names = [option[2:] for option in _known(parser) if option.startswith("--")]
    if flag.startswith("--") and (match := nearest(flag[2:], names)):
        return f"; did you mean --{match[0]}?"
    return f"; see {parser.prog} --help"


def _negated(parser: Parser, flag: str) -> str | None:
    """Return the switch whose absence an unknown flag asks for, such as --cased for --lowercase; None if there is none."""
    switches = {option for action in parser._actions if action.nargs == 0 for option in action.option_strings}
    opposite = "--cased" if flag in _LOWERCASE else re.sub("^--(no[_-]?|un)", "--", flag)
    return opposite if opposite != flag and opposite in switches else None


def _gin_bindings(flags: Sequence[str]) -> list[str]:
    """Convert each '--gin.NAME=value' to 'NAME = value'; raise UserError if a name is bound twice."""
    bindings: dict[str, str] = {}
    first: dict[str, str] = {}
    for flag in flags:
        name, equals, value = flag.removeprefix(GIN_FLAG).partition("=")
        if not (name and equals):
            raise UserError(f"{flag}: write --gin.NAME=value, without spaces around the equals sign")
        if name in bindings:
            raise repeated(first[name], flag)
        bindings[name], first[name] = f"{name} = {value}", flag
    return list(bindings.values())


if __name__ == "__main__":
    sys.exit(start())

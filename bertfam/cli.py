"""`bertfam COMMAND [flags]`: a table of commands, each imported only when it is called.

A module under bertfam.commands gives SUMMARY (one line), add_arguments(parser), main(args) -> exit status, and EXAMPLE
(shown under its --help) if it likes. At its top it imports nothing heavy, so that help answers at once.

Exit status: the command's own, 2 for a user's mistake, 1 for a run whose numbers are no longer finite, or not what they were (one
line on stderr each), 130 when interrupted, 141 when the reader of a pipe has gone. Faults of bertfam itself keep their traceback.
"""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from itertools import takewhile
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from bertfam import __version__
from bertfam.errors import TrainingError, UserError, report
from bertfam.sharding import libtpu
from bertfam.suggest import did_you_mean


class Command(NamedTuple):
    """A row of the table of commands.

    Attributes:
      module: under bertfam.commands.
      summary: one line, the module's SUMMARY, which the overview shows without importing it.
    """

    module: str
    summary: str


COMMANDS = {
    "clean": Command("clean", "clean web text as C4 was, with a report of what each rule removed"),
    "vocab": Command("vocab", "train a vocabulary on text: WordPiece, unigram, BPE or byte-level BPE"),
    "encode": Command("encode", "show the pieces, ids and offsets of texts"),
    "cache": Command("cache", "tokenise a corpus once, into a token cache"),
    "preview": Command("preview", "show corrupted training rows, decoded"),
    "check": Command("check", "validate a configuration without compiling"),
    "plan": Command("plan", "compile a run for any TPU slice ahead of time and report memory, cost and fit"),
    "pretrain": Command("pretrain", "train a model"),
    "distill": Command("distill", "distill a trained model into a smaller one"),
    "evaluate": Command(
        "evaluate", "measure a trained model on held-out text, on minimal pairs of sentences, or on a seqio task"
    ),
    "fill": Command("fill", "fill the [MASK]s of a text"),
    "generate": Command("generate", "generate text from prompts"),
    "checkpoints": Command("checkpoints", "list a run's checkpoints and verify them"),
    "replay": Command("replay", "recompute an update of a run and compare: whether a device computes wrongly"),
    "export": Command("export", "write a Hugging Face folder from a trained model"),
    "import": Command("import_", "make a model folder from a Hugging Face folder"),
}

GIN_FLAG = "--gin."


# type of a flag -> what its value is called
_NUMBERS: dict[Any, str] = {int: "whole number", float: "number"}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose mistakes are UserErrors (argparse would print the usage and exit)."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--\w+): expected .*", r"\1 needs a value: write \1=VALUE", message)
        raise UserError(f"{message} (see {self.prog} --help)")

    def _get_value(self, action: argparse.Action, word: str) -> Any:
        name = "/".join(action.option_strings) or str(action.metavar)
        if not word and action.option_strings and action.const != word:
            raise UserError(f"{name}=: the value is empty; give one{'' if action.required else ', or leave the flag out'}")
        try:
            return super()._get_value(action, word)
        except argparse.ArgumentError as error:
            kind = _NUMBERS.get(action.type)
            raise UserError(f"{name}={word} is no {kind}" if kind else f"{name}={word}: {error.message}") from error

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            hint = did_you_mean(str(value), choices, f"one of {', '.join(choices)}")
            raise UserError(f"{'/'.join(action.option_strings)}={value} is no choice{hint}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name; sys.argv by default) and return its exit status."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()  # a closed pipe shows here, where it is caught
        return status
    except (UserError, TrainingError, KeyboardInterrupt) as error:
        return report(error)
    except BrokenPipeError as error:
        # Python flushes stdout once more on its way out: give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return report(error)


def _run(argv: list[str]) -> int:
    try:
        name, flags = _choose(argv)
        module = importlib.import_module(f"bertfam.commands.{COMMANDS[name].module}")
        args = _parse(name, module, flags)
    except SystemExit:  # --help or --version: argparse has answered
        return 0
    libtpu.quieten()
    return module.main(args)


def _choose(argv: list[str]) -> tuple[str, list[str]]:
    """The command's name and the flags after it; answers --help and --version."""
    if argv and argv[0] in COMMANDS:
        return argv[0], argv[1:]
    if argv and not argv[0].startswith("-"):
        raise UserError(f"unknown command {argv[0]}{did_you_mean(argv[0], COMMANDS, 'see bertfam --help')}")
    width = max(map(len, COMMANDS))
    parser = Parser(
        prog="bertfam",
        usage="bertfam COMMAND [flags]",
        description="Pretrain the BERT family in JAX.",
        epilog="\n".join(
            ["commands:"]
            + [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
            + ["", "bertfam COMMAND --help shows a command's flags and an example."]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"bertfam {__version__}")
    _, unknown = parser.parse_known_args(argv)
    if unknown:
        raise UserError(f"unknown flag {unknown[0]} before the command; write bertfam COMMAND {unknown[0]}")
    raise UserError(f"no command given; one of {', '.join(COMMANDS)}")


def _parse(name: str, module: ModuleType, flags: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog=f"bertfam {name}",
        description=module.SUMMARY,
        epilog=f"example:\n{module.EXAMPLE.strip(chr(10))}" if hasattr(module, "EXAMPLE") else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    takes_gin = parser.get_default("gin_bindings") is not None  # set by flags.add_config
    gin_flags = [flag for flag in flags if flag.startswith(GIN_FLAG)]
    if gin_flags and not takes_gin:
        raise UserError(f"bertfam {name} reads no gin configuration; leave out {gin_flags[0]}")
    gin_bindings = [_gin_binding(flag) for flag in gin_flags]
    flags = [flag for flag in flags if not flag.startswith(GIN_FLAG)]
    before_end = takewhile(lambda word: word != "--", flags)
    _refuse_unknown(parser, [word for word in before_end if word.startswith("--")])  # argparse names missing ones first
    args, unknown = parser.parse_known_args(flags)
    _refuse_unknown(parser, unknown)
    if takes_gin:
        args.gin_bindings = gin_bindings
    return args


def _refuse_unknown(parser: Parser, words: list[str]) -> None:
    known = [option for action in parser._actions for option in action.option_strings]
    for word in words:
        flag = word.partition("=")[0]
        if flag not in known:
            kind = "flag" if flag.startswith("-") else "place for"
            hint = did_you_mean(flag, known, f"see {parser.prog} --help")
            raise UserError(f"{parser.prog} has no {kind} {flag}{hint}")


def _gin_binding(flag: str) -> str:
    """'NAME = value' of '--gin.NAME=value'."""
    name, equals, value = flag.removeprefix(GIN_FLAG).partition("=")
    if not (name and equals):
        raise UserError(f"{flag}: write --gin.NAME=value, without spaces around the equals sign")
    return f"{name} = {value}"

"""Parsers of command lines: every mistake is a `UserError`, and a flag that has one value is given once."""

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from typing_extensions import override

from bertfam.errors import UserError, report
from bertfam.storage.credentials import check_address
from bertfam.storage.files import check_file, check_writable
from bertfam.suggest import did_you_mean, one_each, without_commas

# type of a flag -> name of the type in messages
_NUMBERS: dict[Any, str] = {int: "whole number in digits, such as 30000", float: "number"}


class Parser(argparse.ArgumentParser):
    """ArgumentParser that raises UserErrors, where argparse would print the usage and exit, and refuses repeated flags."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given: dict[str, str] = {}  # destination of a flag -> the flag as it was given first

    @override
    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--\w+): expected .*", r"\1 requires a value; write \1=VALUE", message)
        switch = r"^argument (--\w+): ignored explicit argument '(.*)'$"
        message = re.sub(switch, r"\1=\2: the flag takes no value; write \1 alone, or leave it out", message)
        raise UserError(f"{message} (see {self.prog} --help)")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse calls this once for each time that a flag is given, and keeps the last value.
        if action.option_strings and not isinstance(action, argparse._AppendAction):
            given = "=".join([action.option_strings[-1], *arg_strings])
            if action.dest in self._given:
                raise repeated(self._given[action.dest], given)
            self._given[action.dest] = given
        if action.option_strings and arg_strings == ["--"]:  # of --flag=--, which argparse takes for the end of the flags
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def _get_value(self, action: argparse.Action, word: str) -> Any:
        name = _name(action)
        if not word and action.option_strings and action.const != word:
            raise UserError(f"{name}=: the value is empty; give one{'' if action.required else ', or leave the flag out'}")
        if action.option_strings:  # a prompt may name any address
            check_address(word)
        try:
            return super()._get_value(action, word)
        except argparse.ArgumentError as error:
            kind = _NUMBERS.get(action.type)
            meant = [number for number in without_commas(word) if action.type is float or number.lstrip("-").isdecimal()]
            fix = f"; write {' or '.join(meant)}" if meant else ""
            raise UserError(f"{name}={word} is not a {kind}{fix}" if kind else f"{name}={word}: {error.message}") from error

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            hint = did_you_mean(str(value), choices, f"one of {', '.join(choices)}")
            if isinstance(action, argparse._AppendAction):
                hint = one_each(str(value), choices.__contains__) or hint
            raise UserError(f"{_name(action)}={value} is not one of the choices{hint}")


class ScriptParser(Parser):
    """Parser of a script that is no command of bertfam: a mistake ends the process with one line and status 2.

    Its help has the lines of the description as they are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False} | options)

    @override
    def error(self, message: str) -> NoReturn:
        try:
            super().error(message)
        except UserError as error:
            sys.exit(report(error))

    @override
    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parse_known_args(*args, **kwargs)
        except UserError as error:
            sys.exit(report(error))


def output_file(text: str) -> Path:
    """Parse the path of a file that a script writes at its end, in the place of an earlier one."""
    return _checked(Path(text), partial(check_file, replaces=True))


def output_folder(text: str) -> Path:
    """Parse the path of a folder that a script writes."""
    return _checked(Path(text), check_writable)


def _checked(path: Path, check: Callable[[Path], None]) -> Path:
    try:
        check(path)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def _name(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)


def repeated(first: str, second: str) -> UserError:
    """Return the mistake of a flag that is given twice and has one value."""
    return UserError(f"{first} and {second}: the flag has one value; give it once")

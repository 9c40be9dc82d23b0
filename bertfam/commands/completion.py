"""`bertfam completion`: a script that completes commands and flags in bash or zsh.

The script has all of them in it, so that a completion starts no Python. shtab and argcomplete were considered: the first
requires one parser with subparsers, and the second starts the program at every completion.
"""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertfam import __version__

SUMMARY = "print the completion of commands and flags for bash or zsh"
EXAMPLE = """\
  bertfam completion bash
  bertfam completion zsh
Write the script (> FILE) to ~/.local/share/bash-completion/completions/bertfam, where the package bash-completion finds it, or
to any file that ~/.bashrc sources; for zsh to ~/.zfunc/_bertfam, with `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in
~/.zshrc. Print it again after an update of bertfam."""

_WORD = re.compile(r"[\w./:@%+,-]+", re.ASCII)  # which no shell changes, in quotes or not
_FILES = re.compile(r"(?:NAME=)?(DIR|FILE|GLOB|MODEL_DIR|PATH|STUDY)\b")  # metavar of a value that is a path
_RUN_FILES = "bertfam_run_files"  # in place of the choices of flags that take the shipped gin files


class Flag(NamedTuple):
    """Flag or positional argument of a command.

    Attributes:
      name: the flag with its dashes; "" for an argument without a name.
      help: its description.
      takes_value: True unless it is a switch.
      choices: the values to complete.
      is_path: True if the value is a path.
    """

    name: str
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    is_path: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="shell that reads the script")


def main(args: argparse.Namespace) -> int:
    """Print the script; return the exit status."""
    from bertfam.commands.table import COMMANDS, load, parser_of
    from bertfam.config.shipped import shipped_files

    commands = {name: tuple(_flags(parser_of(name, load(name)))) for name in COMMANDS}
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    script = {"bash": _bash, "zsh": _zsh}[args.shell](commands, summaries, _safe(shipped_files()))
    print(script, end="")
    return 0


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    for action in parser._actions:
        takes_value = action.nargs != 0
        choices = _safe(map(str, action.choices or ()))
        metavar = str(action.metavar or "")
        if "--gin_file" in action.option_strings or metavar == "STUDY":
            choices = (_RUN_FILES,)
        for name in [one for one in action.option_strings if one.startswith("--")] or [""] * (not action.option_strings):
            yield Flag(name, action.help or "", takes_value, choices, bool(_FILES.match(metavar)))
    if parser.get_default("gin_bindings") is not None:
        yield Flag("--gin.", "bind a value of the configuration: --gin.NAME=VALUE", True, (), False)


def _safe(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word for word in words if _WORD.fullmatch(word))


_BASH = """\
# Completion of bertfam {version} for bash, printed by `bertfam completion bash`.
_bertfam() {{
  local words=("${{COMP_WORDS[@]:0:COMP_CWORD}}") current=${{COMP_WORDS[COMP_CWORD]}} flag='' name flags='' values='' paths=''
  local run_files='{run_files}'
  COMPREPLY=()
  # bash divides --flag=value into three words.
  if [[ $current == '=' ]]; then
    flag=${{COMP_WORDS[COMP_CWORD-1]}} current=''
  elif (( COMP_CWORD > 1 )) && [[ ${{COMP_WORDS[COMP_CWORD-1]}} == '=' ]]; then
    flag=${{COMP_WORDS[COMP_CWORD-2]}}
  elif [[ ${{COMP_WORDS[COMP_CWORD-1]}} == --* && $current != -* ]]; then
    flag=${{COMP_WORDS[COMP_CWORD-1]}}
  fi
  if (( COMP_CWORD == 1 )); then
    mapfile -t COMPREPLY < <(compgen -W '{first}' -- "$current")
    return
  fi
  name=${{words[1]}}
  case $name in
{groups}
  esac
  case $name in
{commands}
  esac
  if [[ -z $flag && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *[=.] ]]; then compopt -o nospace; fi
    return
  fi
  case "$name $flag" in
{values}
  esac
  [[ -z $values ]] || mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
  if [[ -n $paths || ( -z $values && -z $flag ) ]]; then
    compopt -o filenames
    local found
    mapfile -t found < <(compgen -f -- "$current")
    COMPREPLY+=("${{found[@]}}")
  fi
}}
complete -F _bertfam bertfam
"""


def _bash(commands: dict[str, tuple[Flag, ...]], summaries: dict[str, str], run_files: tuple[str, ...]) -> str:
    groups, lines, values = [], [], []
    for group in dict.fromkeys(name.split()[0] for name in commands if " " in name):
        parts = " ".join(name.split()[1] for name in commands if name.startswith(f"{group} "))
        second = f"""mapfile -t COMPREPLY < <(compgen -W '{parts}' -- "$current"); return"""
        groups.append(f'    {group}) if (( COMP_CWORD == 2 )); then {second}; fi; name="$name ${{words[2]}}" ;;')
    for name, flags in commands.items():
        words = " ".join(f"{flag.name}{'=' * (flag.takes_value and flag.name != '--gin.')}" for flag in flags if flag.name)
        lines.append(f"    '{name}') flags='{words}' ;;")
        for flag in flags:
            choices = "$run_files" if flag.choices == (_RUN_FILES,) else " ".join(flag.choices)
            found = [f'values="{choices}"'] * bool(choices) + ["paths=1"] * (flag.is_path or choices == "$run_files")
            if found:
                values.append(f"    '{name} {flag.name}') {' '.join(found)} ;;")
    first = " ".join(dict.fromkeys(name.split()[0] for name in commands))
    return _BASH.format(
        version=__version__,
        run_files=" ".join(run_files),
        first=f"{first} --help --version",
        groups="\n".join(groups),
        commands="\n".join(lines),
        values="\n".join(values),
    )


_ZSH = """\
#compdef bertfam
# Completion of bertfam {version} for zsh, printed by `bertfam completion zsh`.
_bertfam_run_files() {{
  local -a run_files=({run_files})
  _alternative 'shipped:shipped file:compadd -a run_files' 'files:file:_files'
}}
_bertfam() {{
  local -a commands=(
{first}
  )
  if (( CURRENT == 2 )); then
    _describe -t commands command commands
    return
  fi
  local name=$words[2]
  shift words
  (( CURRENT-- ))
  case $name in
{groups}
  esac
  case $name in
{commands}
  esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _bertfam "$@"; else compdef _bertfam bertfam; fi
"""


def _zsh(commands: dict[str, tuple[Flag, ...]], summaries: dict[str, str], run_files: tuple[str, ...]) -> str:
    names = [name for name in commands if " " not in name]
    described = {name: summaries[name] for name in names}
    groups = []
    for group in dict.fromkeys(name.split()[0] for name in commands if " " in name):
        parts = {name.split()[1]: summaries[name] for name in commands if name.startswith(f"{group} ")}
        described[group] = f"commands: {', '.join(parts)}"
        listed = " ".join(_described(part, summary) for part, summary in parts.items())
        second = "if (( CURRENT == 2 )); then _describe -t commands command parts; return; fi"
        rest = 'name="$name $words[2]"; shift words; (( CURRENT-- ))'
        groups.append(f"    {group})\n      local -a parts=({listed})\n      {second}\n      {rest} ;;")
    lines = []
    for name, flags in commands.items():
        specs = " \\\n        ".join(map(_spec, flags))
        lines.append(f"    '{name}')\n      _arguments {specs} ;;")
    return _ZSH.format(
        version=__version__,
        run_files=" ".join(run_files),
        first="\n".join(f"    {_described(name, summary)}" for name, summary in sorted(described.items())),
        groups="\n".join(groups),
        commands="\n".join(lines),
    )


def _described(name: str, summary: str) -> str:
    return shlex.quote(f"{name}:{_escaped(summary)}")


def _spec(flag: Flag) -> str:
    """Return a flag as `_arguments` reads it: '*--flag=[help]:value:(choices)'."""
    if flag.choices == (_RUN_FILES,):
        values = "_bertfam_run_files"
    else:
        values = f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.is_path or not flag.name else " "
    about = _escaped(flag.help.replace("%(default)s", "see --help"))
    if not flag.name:
        return shlex.quote(f"*:{about}:{values}")
    if flag.name == "--gin.":
        return shlex.quote(f"*--gin.-[{about}]: :")
    return shlex.quote(f"*{flag.name}=[{about}]:value:{values}" if flag.takes_value else f"{flag.name}[{about}]")


def _escaped(text: str) -> str:
    """Escape the signs that mean something to `_arguments` and `_describe`."""
    return re.sub(r"([\\\[\]:`$])", r"\\\1", " ".join(text.replace("%%", "%").split()))

"""Shell completion: what the scripts complete, and that no name of a file is run."""

import re
import shutil
import subprocess
from importlib import import_module

import pytest

from bertfam import cli
from bertfam.commands.completion import Flag, _spec

TRY = """
source "$1"
shift
compopt() { :; }
COMP_WORDS=("$@")
COMP_CWORD=$(( $# - 1 ))
_bertfam
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(shell):
        assert cli.main(["completion", shell]) == 0
        (tmp_path / "script").write_text(capsys.readouterr().out)
        return tmp_path / "script"

    return make


def test_bash_completes_commands_flags_and_values(script, tmp_path):
    path = script("bash")
    (tmp_path / "run $(touch pwned) `touch pwned`.gin").touch()

    def completed(*words):
        done = subprocess.run(["bash", "-c", TRY, "try", path, *words], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.split("\n")[:-1]

    assert {*completed("bertfam", "")} >= {name.split()[0] for name in cli.COMMANDS}
    assert completed("bertfam", "analyze", "a") == ["attention"]
    assert completed("bertfam", "analyze", "attention", "--text_") == ["--text_pair="]
    assert completed("bertfam", "pretrain", "--gin.") == ["--gin."]
    assert completed("bertfam", "report", "--x", "=", "t") == ["tokens"]
    assert completed("bertfam", "report", "--x", "=") == ["updates", "tokens"]
    assert completed("bertfam", "completion", "") == ["bash", "zsh"]
    assert completed("bertfam", "pretrain", "--gin_file", "=", "runs/bert_s") == ["runs/bert_small.gin"]
    assert completed("bertfam", "pretrain", "--gin_file", "=", "run $") == ["run $(touch pwned) `touch pwned`.gin"]
    assert not (tmp_path / "pwned").exists()
    for name, command in cli.COMMANDS.items():
        parser = cli.parser_of(name, import_module(f"bertfam.commands.{command.module}"))
        flags = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
        assert {flag.rstrip("=") for flag in completed("bertfam", *name.split(), "--")} - {"--gin."} == flags


def test_zsh_has_every_flag_with_its_signs_escaped(script):
    path = script("zsh")
    text = path.read_text()
    assert text.startswith("#compdef bertfam\n") and "'*--x=[" in text and "'--overwrite[" in text
    assert set(re.findall(r"^    '([a-z ]+)'\)$", text, re.MULTILINE)) == set(cli.COMMANDS)
    flag = Flag("--flag", "it's [a] $(b) `c` x: y", True, (), True)
    assert _spec(flag) == "'*--flag=[it'\"'\"'s \\[a\\] \\$(b) \\`c\\` x\\: y]:value:_files'"
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-f", "-n", path], capture_output=True).stderr == b""


def test_an_unknown_shell_is_one_line(capsys):
    assert cli.main(["completion", "fish"]) == 2
    assert capsys.readouterr().err == "bertfam: error: shell=fish is not one of the choices; one of bash, zsh\n"

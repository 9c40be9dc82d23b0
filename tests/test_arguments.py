"""Parsers of the scripts beside the package: benchmarks, the campaign of crashes, and mutants."""

import sys
from importlib import import_module
from pathlib import Path

import mutants
import pytest

from bertfam.arguments import ScriptParser, output_file, output_folder

ROOT = Path(__file__).parents[1]


def refused(capsys, parse, *words):
    """Return the line with which a script ends."""
    with pytest.raises(SystemExit) as stopped:
        parse(list(words))
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    return line


def test_a_script_refuses_repeated_flags_and_outputs_that_cannot_be_written(tmp_path, capsys):
    def parse(words):
        parser = ScriptParser(description="A script.")
        commands = parser.add_subparsers(required=True, metavar="{run}")
        command = commands.add_parser("run")
        command.add_argument("--steps", type=int)
        command.add_argument("--gin", action="append")
        command.add_argument("--json", type=output_file)
        command.add_argument("--output", type=output_folder)
        return parser.parse_args(words)

    (tmp_path / "old.json").write_text("{}")
    args = parse(["run", "--gin=a", "--gin=b", f"--json={tmp_path}/old.json", f"--output={tmp_path}/new/folder"])
    assert args.gin == ["a", "b"] and args.output == tmp_path / "new/folder"
    assert "--steps=1 and --steps=2" in refused(capsys, parse, "run", "--steps=1", "--steps", "2")
    assert f"--json={tmp_path}:" in refused(capsys, parse, "run", f"--json={tmp_path}")
    assert "no folder" in refused(capsys, parse, "run", f"--json={tmp_path}/none/a.json")
    assert "not a folder" in refused(capsys, parse, "run", f"--output={tmp_path}/old.json")
    assert "--step" in refused(capsys, parse, "run", "--step=1")
    assert "walk" in refused(capsys, parse, "walk")


@pytest.mark.parametrize("name", ["plans", "step", "attention_backends"])
def test_a_benchmark_refuses_a_repeated_flag(name, tmp_path, capsys, monkeypatch):
    main = import_module(f"benchmarks.{name}").main
    flag = "--output" if name == "plans" else "--json"
    words = [f"{flag}={tmp_path}/a", f"{flag}={tmp_path}/b"]
    monkeypatch.setattr(sys, "argv", [name, *words])
    assert f"{words[0]} and {words[1]}" in refused(capsys, lambda _: main())


def test_every_script_has_this_parser():
    scripts = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/*.py"), *ROOT.glob("tests/crashes/*.py")]
    plain = "argparse." + "ArgumentParser("
    own = {path.name for path in scripts if plain in path.read_text()}
    assert own == {"test_cli.py"}, "use bertfam.arguments.ScriptParser"  # test_cli.py inspects flags with argparse's own


def test_mutants_explain_themselves_and_refuse_what_fits_no_file(capsys):
    with pytest.raises(SystemExit) as stopped:
        mutants.main(["--help"])
    assert stopped.value.code == 0 and "WORD" in capsys.readouterr().out
    assert "nofile" in refused(capsys, mutants.main, "nofile")

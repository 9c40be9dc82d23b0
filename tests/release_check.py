"""Check of a release: the sdist and the wheel, built from the files in git, and the wheel in an environment of its own.

    python tests/release_check.py

`make release-check` runs it. It needs the package index and git, and no installed package. The environment has the Python that
runs this, bertfam and its dependencies, and no checkout: all commands run in an empty folder.
"""

import os
import pydoc_data.topics
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Variables through which a checkout, or another environment, would be visible.
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
TEXT = "--input=text.txt --input_format=paragraphs"
SMALL = "--gin.TRAIN_STEPS=4 --gin.EVAL_EVERY=2 --gin.CHECKPOINT_EVERY=2 --gin.BATCH_SIZE=4"
# Each command, and what its output has.
COMMANDS = (
    ("--help", "pretrain"),
    ("configs", "runs/quickstart.gin"),
    (f"vocab {TEXT} --size=1000 --output=vocab", "1,000 pieces"),
    (f"pretrain --gin_file=runs/quickstart.gin {TEXT} --vocab=vocab --model_dir=model {SMALL}", "finished: model"),
    ("export --model_dir=model --output=exported", "exported step 4"),
    ("import --input=exported --output=imported", ""),
)


def run(*command: str | Path, folder: Path) -> str:
    """Run a command in a folder and return what it prints; end with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def make_environment(folder: Path) -> Path:
    """Make an empty environment and return its folder of programs."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin"


def tracked_files() -> list[str]:
    """Return the files of the checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def build(files: list[str], folder: Path) -> tuple[Path, Path]:
    """Build the sdist from a copy of the files, and the wheel from the sdist; return their paths."""
    source = folder / "source"
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    programs = make_environment(folder / "builder")
    run(programs / "python", "-m", "pip", "install", "-qq", "build", folder=folder)
    run(programs / "python", "-m", "build", "--outdir", folder / "dist", source, folder=folder)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


def check_contents(files: list[str], sdist: Path, wheel: Path) -> None:
    """Check that the wheel has the package with all its data and nothing else, and the sdist what the wheel is built from."""
    expected = {name for name in files if name.startswith("bertfam/")}
    expected |= {f"bertfam/{name}" for name in files if name.startswith("gin_configs/")}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    if found != expected:
        sys.exit(f"{wheel.name}: missing {sorted(expected - found)}, unexpected {sorted(found - expected)}")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    sources = {name for name in files if name.startswith(("bertfam/", "gin_configs/"))}
    if missing := (sources | {"LICENSE", "README.md", "pyproject.toml", "setup.py"}) - packed:
        sys.exit(f"{sdist.name}: missing {sorted(missing)}")


def check_version(wheel: Path) -> str:
    """Return the version, which the wheel, the package and the first heading of the changelog share."""
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "bertfam" / "version.py").read_text())[0]
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if not wheel.name.startswith(f"bertfam-{version}-") or newest != version:
        sys.exit(f"bertfam/version.py has {version}, the wheel is {wheel.name}, and CHANGELOG.md begins with {newest}")
    return version


def check_commands(wheel: Path, version: str, folder: Path) -> None:
    """Install the wheel and run commands as a user would, from an empty folder to an exported model."""
    programs, empty = make_environment(folder / "user"), folder / "empty"
    empty.mkdir()
    run(programs / "python", "-m", "pip", "install", "-qq", wheel, folder=empty)
    where = run(programs / "python", "-c", "import bertfam; print(bertfam.__version__, bertfam.__file__)", folder=empty)
    if where.split() != [version, str(next((folder / "user").glob("lib/python*/site-packages/bertfam/__init__.py")))]:
        sys.exit(f"not the installed package: {where}")
    topics = ("\n".join(" ".join(part.split()) for part in text.split("\n\n")) for text in pydoc_data.topics.topics.values())
    (empty / "text.txt").write_text("\n\n".join(topics))
    for command, expected in COMMANDS:
        output = run(programs / "bertfam", *command.split(), folder=empty)
        if expected not in output:
            sys.exit(f"{output}\nbertfam {command}: {expected!r} is not in its output")
    if missing := {"config.json", "model.safetensors", "tokenizer.json"} - set(os.listdir(empty / "exported")):
        sys.exit(f"exported: missing {sorted(missing)}")


def main() -> None:
    """Build, check and run; print a line."""
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), tracked_files()
        sdist, wheel = build(files, folder)
        check_contents(files, sdist, wheel)
        version = check_version(wheel)
        check_commands(wheel, version, folder)
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"{sdist.name} and {wheel.name} are sound: {len(COMMANDS)} commands in a new environment, Python {python}")


if __name__ == "__main__":
    main()

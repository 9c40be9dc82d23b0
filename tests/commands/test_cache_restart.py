"""`bertfam cache` that is killed, runs out of disk, or is given twice at once: nothing is lost, and the bytes are the same."""

import os
import pydoc_data.topics
import signal
import subprocess
import time

import pytest
from command_line import in_process, started
from fork_server import PIPES
from model_folders import journal, remount
from time_limits import FAR_SECONDS

from bertfam import cli


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Return a folder with 5 MB of text in two files, of which a megabyte at most is lost by a kill, and a vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    topics = [" ".join(topic.split()) for _, topic in sorted(pydoc_data.topics.topics.items())]
    for number in range(2):
        documents = [f"Number {number}, {again}.\n{topic}" for again in range(5) for topic in topics]
        (folder / f"{number}.txt").write_text("\n\n".join(documents))
    assert cli.main(["vocab", f"--input={folder / '0.txt'}", "--size=500", f"--output={folder / 'vocab'}"]) == 0
    return folder


def words(text, output, *more):
    """Return the command line that builds a cache."""
    flags = {"input": text / "*.txt", "input_format": "paragraphs", "vocab": text / "vocab", "output": output}
    return ["cache", *(f"--{name}={value}" for name, value in flags.items()), *more]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(text, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed") / "cache"
    assert cli.main(words(text, output, "--processes=0")) == 0
    return output


def children(process):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in listed]


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_build(documents, command, output):
    """Start a build and kill its first process when its journal has so many documents; return the children of that process."""
    with started(command, {"HALT": documents}, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while (counts := journal(output)) is None or sum(counts.values()) < documents:
            assert process.poll() is None
            time.sleep(0.002)
        workers = children(process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    return workers


@pytest.mark.parametrize("processes", [0, 2])
def test_build_killed_at_three_moments_is_resumed(text, undisturbed, tmp_path, processes):
    """Kill it before any document is written, when some are, and when more are."""
    output, flag = tmp_path / "cache", f"--processes={processes}"
    written, most_workers = 0, 0
    for new in (0, 1, 1):
        workers = kill_build(written + new, words(text, output, flag), output)
        assert not output.exists()
        written, most_workers = sum(journal(output).values()), max(most_workers, len(workers))
        until = time.monotonic() + FAR_SECONDS
        while any(map(exists, workers)):
            assert time.monotonic() < until, "the workers of a killed build still run"
            time.sleep(0.01)
    assert written > 0 and most_workers == processes
    done = in_process(*words(text, output, "--processes=1"))
    partial = tmp_path / ".cache.partial"
    assert (done.returncode, done.stdout) == (0, f"token cache: {output}\n")
    assert done.stderr.splitlines()[0] == f"resuming in {partial}, which has {written:,} documents already"
    assert contents(output) == contents(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_second_of_two_builds_waits_for_the_first(text, undisturbed, tmp_path):
    output = tmp_path / "cache"
    command = words(text, output, "--processes=0")
    with started(command, {"HALT": 0}, stdin=subprocess.PIPE, **PIPES) as first:
        while journal(output) is None:
            assert first.poll() is None
            time.sleep(0.002)
        with started(command, {}, **PIPES) as second:
            waiting = second.stderr.readline()
            assert f"waiting for process {first.pid} on " in waiting and waiting.endswith(f", which writes {output}\n")
            assert first.communicate("\n")[0] == f"token cache: {output}\n"
            assert second.communicate() == (f"token cache: {output}\n", "")
    assert first.returncode == second.returncode == 0
    assert contents(output) == contents(undisturbed)


def test_full_disk_is_one_line_and_with_room_the_build_is_resumed(text, undisturbed, small_disk):
    folder = small_disk(1)
    output = folder / "cache"
    done = in_process(*words(text, output, "--processes=2"))
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        f"bertfam: error: {output} cannot be written (No space left on device); fix that and run the same command again: "
        f"the documents written so far are kept in {folder / '.cache.partial'}\n",
    )
    remount(folder, "size=64m")
    done = in_process(*words(text, output, "--processes=1"))
    assert done.returncode == 0 and done.stderr.startswith("resuming in ")
    assert contents(output) == contents(undisturbed) and os.listdir(folder) == ["cache"]


def test_read_only_disk_is_one_line(text, small_disk):
    folder = small_disk(1)
    remount(folder, "ro")
    done = in_process(*words(text, folder / "cache"))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"bertfam: error: {folder / 'cache'} cannot be written: no permission to write into {folder}")


def test_help_says_how_to_resume(capsys):
    assert cli.main(["cache", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert ".NAME.partial beside --output=NAME. The same command resumes it there" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--processes=-1"], "--processes=-1 is negative"),
        (
            ["--processes=2", "--beam"],
            "--processes does not go with --beam, whose runner decides how many there are; leave one out",
        ),
    ],
)
def test_mistaken_flags_are_refused(text, tmp_path, flags, message, capsys):
    assert cli.main(words(text, tmp_path / "cache", *flags)) == 2
    assert capsys.readouterr().err == f"bertfam: error: {message}\n" and not list(tmp_path.iterdir())

"""`bertfam cache` that is killed, runs out of disk, or is given twice at once: nothing is lost, and the bytes are the same."""

import os
import pydoc_data.topics
import signal
import subprocess
import sys
import time

import pytest
from model_folders import journal, remount

from bertfam import cli


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """About 5 MB of text in two files (a record is made every megabyte, at most), and a vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    topics = [" ".join(topic.split()) for _, topic in sorted(pydoc_data.topics.topics.items())]
    for number in range(2):
        documents = [f"Number {number}, {again}.\n{topic}" for again in range(5) for topic in topics]
        (folder / f"{number}.txt").write_text("\n\n".join(documents))
    words = ["vocab", f"--input={folder / '0.txt'}", "--size=500", f"--output={folder / 'vocab'}"]
    assert cli.main(words) == 0
    return folder


def words(text, output, *more):
    flags = {"input": text / "*.txt", "input_format": "paragraphs", "vocab": text / "vocab", "output": output}
    return [sys.executable, "-m", "bertfam", "cache", *(f"--{name}={value}" for name, value in flags.items()), *more]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(text, tmp_path_factory):
    output = tmp_path_factory.mktemp("undisturbed") / "cache"
    assert cli.main(words(text, output, "--processes=0")[3:]) == 0
    return output


def children(process):
    listed = run("ps", "-o", "pid=", "--ppid", str(process.pid)).stdout.split()
    return [int(pid) for pid in listed]


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def killed_with(documents, command, output):
    """Starts a build and kills it, alone, when its journal says that there are so many documents; returns its children."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        found = journal(output)
        if found is not None and sum(found.values()) >= documents:
            break
        time.sleep(0.002)
    helpers = children(process)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it was over before the moment came"
    return helpers


@pytest.fixture
def told(capsys):
    """The exit status of a command in this process, its stdout and its stderr."""

    def tell(command):
        capsys.readouterr()
        status = cli.main(command[3:])
        return status, *capsys.readouterr()

    return tell


@pytest.mark.parametrize("processes", [0, 2])
def test_killed_at_three_moments(text, undisturbed, tmp_path, told, processes):
    output, flag = tmp_path / "cache", f"--processes={processes}"
    there, most = 0, 0
    # Before any document is done, when some are, and when more are.
    for more in (0, 1, 1):
        helpers = killed_with(there + more, words(text, output, flag), output)
        assert not output.exists()
        there, most = sum(journal(output).values()), max(most, len(helpers))
        until = time.monotonic() + 20
        while any(map(exists, helpers)):
            assert time.monotonic() < until, "the processes of a killed build go on"
            time.sleep(0.01)
    assert there > 0 and most == processes
    status, out, err = told(words(text, output, "--processes=1"))
    partial = tmp_path / ".cache.partial"
    assert (status, out) == (0, f"token cache: {output}\n")
    assert err.splitlines()[0] == f"resuming in {partial}: {there:,} documents are there already"
    assert contents(output) == contents(undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_the_second_of_two_waits_for_the_first(text, undisturbed, tmp_path):
    output = tmp_path / "cache"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = words(text, output, "--processes=0")
    first = subprocess.Popen(command, **pipes)
    while journal(output) is None:
        assert first.poll() is None
        time.sleep(0.002)
    first.send_signal(signal.SIGSTOP)
    second = subprocess.Popen(command, **pipes)
    assert second.stderr.readline() == f"waiting for the process that builds in {tmp_path / '.cache.partial'}\n"
    first.send_signal(signal.SIGCONT)
    assert first.communicate()[0] == f"token cache: {output}\n"
    assert second.communicate() == (f"token cache: {output}\n", "")
    assert first.returncode == second.returncode == 0
    assert contents(output) == contents(undisturbed)


def test_a_full_disk_is_one_line_and_the_build_goes_on_when_there_is_room(text, undisturbed, small_disk, told):
    folder = small_disk(1)
    output = folder / "cache"
    assert told(words(text, output, "--processes=2")) == (
        2,
        "",
        f"bertfam: error: {output} cannot be written (No space left on device); fix that and run the same command again: "
        f"the documents written so far are kept in {folder / '.cache.partial'}\n",
    )
    remount(folder, "size=64m")
    status, _, err = told(words(text, output, "--processes=1"))
    assert status == 0 and err.startswith("resuming in ")
    assert contents(output) == contents(undisturbed) and os.listdir(folder) == ["cache"]


def test_a_disk_that_cannot_be_written_is_one_line(text, small_disk, told):
    folder = small_disk(1)
    remount(folder, "ro")
    status, out, err = told(words(text, folder / "cache"))
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"bertfam: error: {folder / 'cache'} cannot be written: no permission to write into {folder}")


def test_the_help_tells_how_to_go_on(capsys):
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
def test_mistaken_flags(text, tmp_path, flags, message, capsys):
    assert cli.main(words(text, tmp_path / "cache", *flags)[3:]) == 2
    assert capsys.readouterr().err == f"bertfam: error: {message}\n" and not list(tmp_path.iterdir())

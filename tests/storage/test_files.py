"""Files and folders on disk, complete or absent."""

import errno
import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from bertfam.errors import UserError
from bertfam.storage import exchange, faults, files, paths
from bertfam.storage.partial_file import PartialFile


def test_new_folder_appears_after_success_only(tmp_path):
    with files.new_folder(tmp_path / "a" / "b") as folder:
        (folder / "file").write_text("text")
        assert not (tmp_path / "a" / "b").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "a" / "b").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(UserError, match="^.*/plain/file exists already"), files.new_folder(tmp_path / "plain" / "file"):
        (tmp_path / "plain" / "file").write_text("")  # another process was first
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["file"]


def test_failure_leaves_neither_files_nor_parent_folders(tmp_path, monkeypatch):
    with pytest.raises(ArithmeticError), files.new_folder(tmp_path / "a" / "b" / "c") as folder:
        (folder / "file").write_text("text")
        raise ArithmeticError
    assert not list(tmp_path.iterdir())

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.tempfile, "mkdtemp", refuse)
    with pytest.raises(UserError, match=r"a/b/c cannot be written \(Permission denied\); make it writable, or name another"):
        with files.new_folder(tmp_path / "a" / "b" / "c"):
            raise AssertionError
    assert not list(tmp_path.iterdir())


def test_partial_files_of_a_killed_process_are_cleared(tmp_path, monkeypatch):
    files.write_text(tmp_path / "file", "before")

    def kill(source, target):
        assert source.endswith(".partial") and os.path.exists(source)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", kill)
        patch.setattr(files.os, "unlink", lambda path: None)
        with pytest.raises(SystemExit):
            files.write_text(tmp_path / "file", "after")
    (tmp_path / ".folder.partial").mkdir()
    assert len(list(tmp_path.iterdir())) == 3
    files.clear_partial(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file", ".folder.partial"}
    assert (tmp_path / "file").read_text() == "before"
    files.clear_partial(tmp_path / "absent")


def test_existing_folder_wins_with_first_wins(tmp_path):
    with files.new_folder(tmp_path / "a", first_wins=True) as folder:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "theirs").touch()
        (folder / "ours").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]


@pytest.mark.parametrize("check", [files.check_unused, files.check_writable])
def test_unwritable_places_are_reported(tmp_path, monkeypatch, check):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"{tmp_path}/file/a/b cannot be written: {tmp_path}/file is not a folder; name another"):
        check(tmp_path / "file" / "a" / "b")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=f"a/b cannot be written: no permission to write into {tmp_path}; name another"):
        check(tmp_path / "a" / "b")


def test_used_folders_are_refused(tmp_path):
    files.check_unused(tmp_path)
    (tmp_path / "file").touch()
    for used in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match=f"^{used} exists already: name another folder$"):
            files.check_unused(used)
    files.check_writable(tmp_path)


def test_text_is_written_completely_or_not_at_all(tmp_path, monkeypatch):
    files.write_text(tmp_path / "a", "é\n")
    assert (tmp_path / "a").read_bytes() == "é\n".encode()
    (tmp_path / "plain").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def fail_with_full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_with_full_disk)
    with pytest.raises(UserError, match=r"a cannot be written \(No space left on device\)"):
        files.write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "é\n" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UserError, match=r"none/a cannot be written \(No such file or directory\)"):
        files.write_text(tmp_path / "none" / "a", "new")


def test_a_record_that_is_no_text_starts_over(tmp_path):
    for content in (b"\xff", b""):
        (tmp_path / ".p.tsv.partial").write_bytes(b"name\na\n")
        (tmp_path / ".p.tsv.partial.json").write_bytes(content)
        file = PartialFile(tmp_path / "p.tsv", {}, header=b"name\n", end=b"\n")
        assert file.done == 0 and file.partial.read_bytes() == b"name\n"
        file.close()


def test_a_full_disk_is_told_with_the_name_of_the_output(tmp_path):
    file = PartialFile(tmp_path / "p.tsv", {}, header=b"name\n", end=b"\n")
    file.close()
    file._file = open("/dev/full", "wb")
    for write in (lambda: file.append(b"a\n"), file.close):
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'p.tsv'}'"):
            write()


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "file")


@pytest.mark.parametrize(
    "error", [FULL, shutil.Error([("a", "b", str(FULL))]), RuntimeError("No space left on device (os error 28)")]
)
def test_full_disk_is_reported_for_every_kind_of_exception(tmp_path, error):
    with pytest.raises(UserError, match=r"^.*/new cannot be written \(No space left on device\); free some space"):
        with files.new_folder(tmp_path / "new"):
            raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [UserError("No space left on device, it says"), FileNotFoundError(2, "none", "file")])
def test_other_exceptions_are_raised_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as raised, files.new_folder(tmp_path / "new"):
        raise error
    assert raised.value is error


def test_replaced_folder_is_there_at_every_moment(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()

    def refuse(*paths):
        raise AssertionError("the folder would be absent for a moment")

    monkeypatch.setattr(files.exchange.os, "rename", refuse)
    with files.replaced_folder(tmp_path / "a") as folder:
        (folder / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "new"]


@pytest.mark.parametrize(("moment", "remaining"), [(1, "old"), (2, "old"), (3, "new")])
def test_replacement_killed_at_any_moment_is_recovered(tmp_path, monkeypatch, moment, remaining):
    """Kill it where the file system cannot exchange names: before and after the first rename, and after the second."""

    class KilledError(BaseException):
        pass

    count = 0

    def killed(function):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == moment:
                raise KilledError
            function(*arguments, **options)

        return call

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").touch()
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(files.exchange, "_exchange", lambda *paths: False)
        patch.setattr(files.exchange.os, "rename", killed(os.rename))
        with files.replaced_folder(tmp_path / "a") as folder:
            (folder / "new").touch()
            patch.setattr(files.exchange.shutil, "rmtree", killed(shutil.rmtree) if moment == 3 else shutil.rmtree)
    files.recover(tmp_path / "a")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", remaining]


def test_the_root_folder_has_no_interrupted_replacement():
    assert not exchange.is_interrupted(Path("/"))


@pytest.mark.parametrize(("number", "passes"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)])
def test_a_name_without_an_address_is_said(number, passes):
    refused = faults.refusal(socket.gaierror(number, "Name or service not known"))
    assert refused == (faults.NO_ADDRESS, passes)


def test_a_full_disk_is_said_of_the_file():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), files.NamedFile("/dev/full", "a") as file:
        file.write(b"text")


def write_records(path, **options):
    file = PartialFile(path, {"of": "text"}, header=b"name\n", end=b"\n")
    file.append(b"record\n")
    file.finish(**options)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("name", [".p.tsv.partial", ".p.tsv.partial.json"])
def test_a_link_in_place_of_a_partial_file_is_not_followed(tmp_path, link, name):
    victim = tmp_path / "victim"
    victim.write_text(json.dumps({"of": "text"}))
    (tmp_path / ".p.tsv.partial").write_bytes(b"name\nof somebody else\n")
    (tmp_path / ".p.tsv.partial.json").write_bytes(victim.read_bytes())
    (tmp_path / name).unlink()
    link(victim, tmp_path / name)
    write_records(tmp_path / "p.tsv")
    assert victim.read_text() == json.dumps({"of": "text"})
    assert (tmp_path / "p.tsv").read_bytes() == b"name\nrecord\n" and not (tmp_path / "p.tsv").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"victim", "p.tsv"}


def test_a_partial_file_resumes_and_is_not_replaced_meanwhile(tmp_path):
    first = PartialFile(tmp_path / "p.tsv", {"of": "text"}, header=b"name\n", end=b"\n")
    first.append(b"record\nincomp")
    first.close()
    second = PartialFile(tmp_path / "p.tsv", {"of": "text"}, header=b"name\n", end=b"\n")
    assert second.done == 1
    second.append(b"another\n")
    assert second.partial.read_bytes() == b"name\nrecord\nanother\n"
    second.partial.unlink()
    second.partial.symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"\.p\.tsv\.partial was removed or replaced"):
        second.finish()
    second.close()
    assert not (tmp_path / "p.tsv").exists()
    second.partial.unlink()
    second.partial.mkdir()
    with pytest.raises(UserError, match=r"\.p\.tsv\.partial is a folder"):
        write_records(tmp_path / "p.tsv")


def test_a_second_writer_of_a_partial_file_waits_and_keeps_that_of_the_first(tmp_path):
    """Both would append to one file, and the second one could move it a moment after the first."""
    first = PartialFile(tmp_path / "p.tsv", {"of": "text"}, header=b"name\n", end=b"\n")
    with ThreadPoolExecutor() as pool:
        second = pool.submit(write_records, tmp_path / "p.tsv")
        first.append(b"record\n")
        assert not wait([second], 0.3).done and first.partial.read_bytes() == b"name\nrecord\n"
        first.finish()
        with pytest.raises(UserError, match=r"p\.tsv exists already"):
            second.result()
    assert [path.name for path in tmp_path.iterdir()] == ["p.tsv"] and (tmp_path / "p.tsv").read_bytes() == b"name\nrecord\n"


def test_links_in_place_of_folders_of_unfinished_work_are_not_followed(tmp_path):
    victim = tmp_path / "victim/file"
    victim.parent.mkdir()
    victim.write_text("text")
    (tmp_path / ".cache.partial").symlink_to(victim.parent)
    (tmp_path / ".cache.replaced").symlink_to(victim.parent)
    with pytest.raises(UserError, match=r"\.cache\.partial is a link, and unfinished work on cache is written there"):
        paths.partial_folder(tmp_path / "cache")
    files.recover(tmp_path / "cache")
    assert not (tmp_path / "cache").exists() and (tmp_path / ".cache.replaced").is_symlink()
    work = tmp_path / "work"
    work.mkdir()
    assert not files.has_links(work)
    (work / "parts").symlink_to(victim.parent)
    assert files.has_links(tmp_path / "work")
    files.clear_folder(work)
    assert not list(work.iterdir()) and victim.read_text() == "text"

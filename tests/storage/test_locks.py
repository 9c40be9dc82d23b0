"""Locks: one process writes a folder, a second one waits, and the lock of a process that has ended is stale."""

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from time_limits import FAR_SECONDS

from bertfam.errors import STORAGE_FAULT, UserError
from bertfam.storage import files, locks, paths
from bertfam.storage.locks import Holder


@pytest.fixture
def clock(monkeypatch):
    """Clock of the waiting process, which `sleep` advances at once; `calls` run at each sleep."""
    fake = SimpleNamespace(now=0.0, calls=[], monotonic=lambda: fake.now)

    def sleep(seconds):
        fake.now += seconds
        for call in fake.calls:
            call()

    fake.sleep = sleep
    monkeypatch.setattr(locks, "time", fake)
    monkeypatch.setattr(locks, "_BEAT_SECONDS", FAR_SECONDS)  # a holder changes its lock by another clock
    return fake


def holder(**changes):
    own = Holder("there", locks._machine(), os.getpid(), locks._start_time(os.getpid()), "2026-01-31 12:00:00", "token")
    return replace(own, **changes)


def ended_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_second_writer_waits_a_minute_and_is_refused_in_a_line(tmp_path, clock, capsys):
    with locks.hold(tmp_path / "a" / "b"), pytest.raises(UserError) as refused, locks.hold(tmp_path / "a" / "b"):
        raise AssertionError
    assert f"{tmp_path / 'a' / 'b'} is being written by process {os.getpid()} on " in str(refused.value)
    assert 60 <= clock.now <= 61 and capsys.readouterr().err.count("waiting for process") == 1
    assert not list(tmp_path.iterdir())


def test_folder_in_which_no_file_can_be_created_is_refused():
    with pytest.raises(UserError, match="^/proc/x cannot be written"), locks.hold_beside(paths.to_path("/proc/x")):
        pass


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link", "large file"])
def test_what_is_no_lock_is_refused_at_once(tmp_path, clock, kind):
    lock = tmp_path / locks.NAME
    {
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
        "dangling link": lambda: lock.symlink_to("absent"),
        "large file": lambda: lock.write_bytes(bytes(1 << 17)),
    }[kind]()
    with pytest.raises(UserError, match=f"{locks.NAME} is not a lock.*: delete it"), locks.hold(tmp_path):
        pass
    assert clock.now == 0


@pytest.mark.parametrize(
    "content", ["[" * 60_000, "\0" * 300, "5", "{}", {"process": "x"}, {"beat": 1e400}, {"start": "x"}, {"folder": 5}]
)
def test_damaged_lock_becomes_stale(tmp_path, clock, content):
    text = json.dumps(holder().__dict__ | content) if isinstance(content, dict) else content
    (tmp_path / locks.NAME).write_text(text)
    with locks.hold(tmp_path):
        assert clock.now >= locks.STALE_SECONDS


def test_second_writer_starts_once_the_first_has_ended(tmp_path, clock):
    with locks.hold(tmp_path), pytest.raises(UserError), locks.hold(tmp_path, seconds=0):
        raise AssertionError
    path = tmp_path / locks.NAME
    path.write_bytes(holder().content())
    clock.calls.append(lambda: clock.now > 30 and path.unlink(missing_ok=True))
    with locks.hold(tmp_path):
        assert 30 < clock.now < 32 and json.loads(path.read_text())["process"] == os.getpid()
    assert not path.exists()


@pytest.mark.parametrize("changes", [{"process": None}, {"start": 7}], ids=["ended", "number used again"])
def test_lock_of_an_ended_process_of_this_machine_is_stale_at_once(tmp_path, clock, changes):
    changes = {"process": ended_process()} if "process" in changes else changes
    (tmp_path / locks.NAME).write_bytes(holder(**changes).content())
    with locks.hold(tmp_path):
        assert clock.now < 1


def test_process_that_waits_for_its_parent_has_ended(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        start = locks._start_time(process.pid)
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not locks._runs(process.pid, start)


@pytest.mark.parametrize("content", [holder(machine="another").content(), b"", b"\xff[", b"[]", b'{"host": 1}'])
def test_lock_of_another_machine_or_a_damaged_one_is_stale_when_it_stands_still(tmp_path, clock, content):
    (tmp_path / locks.NAME).write_bytes(content)
    with locks.hold(tmp_path):
        assert locks.STALE_SECONDS <= clock.now < locks.STALE_SECONDS + 2 < locks.WAIT_SECONDS


def test_lock_of_a_stranger_does_not_steer_the_terminal(tmp_path, clock):
    (tmp_path / locks.NAME).write_bytes(holder(host="\x1b[2J\rbertfam: error", machine="another").content())
    with pytest.raises(UserError) as caught, locks.hold(tmp_path, seconds=1):
        raise AssertionError
    assert r"\x1b[2J\rbertfam: error" in str(caught.value) and str(caught.value).isprintable()


def test_changing_lock_of_another_machine_is_not_stale_whatever_its_clock(tmp_path, clock):
    path, other = tmp_path / locks.NAME, holder(machine="another", since="1970-01-01 00:00:00")
    path.write_bytes(other.content())
    clock.calls.append(lambda: path.write_bytes(replace(other, beat=int(clock.now / 15)).content()))
    with pytest.raises(UserError, match="1970-01-01"), locks.hold(tmp_path):
        raise AssertionError
    assert path.exists()


def test_lock_that_was_copied_with_its_folder_is_stale(tmp_path, clock):
    run, copied = tmp_path / "run", tmp_path / "copy"
    (tmp_path / "link").symlink_to(run)
    path = run / locks.NAME
    with locks.hold(run):
        shutil.copytree(run, copied)
        with pytest.raises(UserError, match="copy is being written by process"), locks.hold(copied, seconds=0):
            raise AssertionError  # it may be another path to the same folder, until the lock of that changes
        own = json.loads(path.read_bytes())
        path.write_text(json.dumps(own | {"beat": 7}))
        before = clock.now
        with locks.hold(copied):
            assert clock.now < before + 1
        for same in (run, tmp_path / "link", run / ".." / "run"):
            with pytest.raises(UserError, match="is being written by process"), locks.hold(same, seconds=0):
                raise AssertionError
    assert not path.exists() and not list(copied.iterdir())


@pytest.mark.parametrize("is_made_again", [False, True])
def test_lock_of_a_folder_that_was_renamed_is_not_stale(tmp_path, clock, is_made_again):
    run, renamed = tmp_path / "run", tmp_path / "renamed"
    with locks.hold(run):
        content = json.loads((run / locks.NAME).read_bytes())
        run.rename(renamed)
        if is_made_again:
            run.mkdir()
            (run / locks.NAME).write_text(json.dumps(content | {"beat": 7}))
        with pytest.raises(UserError, match="renamed is being written by process"), locks.hold(renamed, seconds=50):
            raise AssertionError


def test_lock_of_an_earlier_version_is_understood(tmp_path, clock):
    fields = json.loads(holder().content())
    del fields["folder"], fields["inode"]
    for process, is_free in ((os.getpid(), False), (ended_process(), True)):
        (tmp_path / locks.NAME).write_text(json.dumps(fields | {"process": process}))
        with nullcontext() if is_free else pytest.raises(UserError), locks.hold(tmp_path, seconds=0):
            assert is_free


def test_lock_that_was_copied_within_a_bucket_is_stale(bucket, clock):
    run, copied = paths.to_path(f"{bucket}/run"), paths.to_path(f"{bucket}/copied-run")
    with locks.hold(run):
        own = json.loads((run / locks.NAME).read_bytes())
        assert own["folder"] == str(run)
        files.write_text(copied / locks.NAME, json.dumps(own))
        files.write_text(run / locks.NAME, json.dumps(own | {"beat": 7}))
        with locks.hold(copied, seconds=0), pytest.raises(UserError), locks.hold(run, seconds=0):
            raise AssertionError


def test_holder_changes_its_lock_and_ends_if_another_process_has_taken_it(tmp_path, monkeypatch, capsys):
    ended, status = threading.Event(), []
    monkeypatch.setattr(locks, "_BEAT_SECONDS", 0.01)

    def end(code):
        status.append(code)
        ended.set()
        raise RuntimeError

    monkeypatch.setattr(locks.os, "_exit", end)
    path = tmp_path / locks.NAME
    with locks.hold(tmp_path):
        while json.loads(path.read_bytes())["beat"] < 2:
            ended.wait(0.01)
        for _ in range(200):  # a beat that read the lock just before writes its own once more
            files.write_bytes(path, holder(process=12345).content())
            if ended.wait(0.05):
                break
    assert ended.is_set()
    assert set(status) == {STORAGE_FAULT}
    assert "process 12345 on there" in capsys.readouterr().err
    assert json.loads(path.read_bytes())["process"] == 12345


def test_holder_does_not_change_its_lock_after_the_release(tmp_path, monkeypatch):
    """It deletes the lock between the moments at which its thread reads the lock and writes the change."""
    is_writing, write = threading.Event(), locks._write
    monkeypatch.setattr(locks, "_BEAT_SECONDS", 0.01)

    def write_slowly(path, own):
        is_writing.set()
        threading.Event().wait(0.05)
        write(path, own)

    monkeypatch.setattr(locks, "_write", write_slowly)
    before = set(threading.enumerate())
    with locks.hold(tmp_path):
        (thread,) = set(threading.enumerate()) - before
        is_writing.wait(FAR_SECONDS)
    thread.join(FAR_SECONDS)
    assert not list(tmp_path.iterdir())


def test_one_of_many_takes_a_stale_lock_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.01)
    (tmp_path / locks.NAME).write_bytes(holder(process=ended_process()).content())
    inside, most = [], []

    def write():
        with locks.hold(tmp_path, seconds=None):
            inside.append(1)
            most.append(len(inside))
            threading.Event().wait(0.02)
            inside.pop()

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(FAR_SECONDS)
    assert most == [1] * 6


@pytest.mark.parametrize("call", ["mkdir", "is_dir", "_inode", "_write"])
def test_folder_may_vanish_before_any_call(tmp_path, clock, monkeypatch, call):
    """Another process that ends deletes the empty folder while this one takes the lock in it."""
    folder = tmp_path / "new"
    owner = Path if call in ("mkdir", "is_dir") else locks
    original, deleted = getattr(owner, call), []

    def delete_first(*arguments, **settings):
        if not deleted:
            deleted.append(shutil.rmtree(folder))
        return original(*arguments, **settings)

    if call != "_inode":
        folder.mkdir()
        files.write_bytes(folder / locks.NAME, holder(process=ended_process()).content())
    monkeypatch.setattr(owner, call, delete_first)
    with locks.hold(folder):
        assert deleted and json.loads((folder / locks.NAME).read_bytes())["process"] == os.getpid()
    assert not list(tmp_path.rglob(locks.NAME))


def test_processes_that_make_and_delete_one_folder_all_take_their_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_POLL_SECONDS", 0.0005)
    turns, interval = [], sys.getswitchinterval()

    def write():
        for _ in range(25):
            with locks.hold(tmp_path / "new", seconds=None):
                turns.append(1)

    threads = [threading.Thread(target=write) for _ in range(6)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(FAR_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert len(turns) == 150 and not list(tmp_path.rglob(locks.NAME))


def test_lock_of_a_bucket_is_created_once(bucket, clock):
    folder = paths.to_path(f"{bucket}/locked-folder")
    with locks.hold(folder), pytest.raises(UserError, match="is being written by process"), locks.hold(folder):
        raise AssertionError
    assert not folder.exists()
    files.write_bytes(folder / locks.NAME, holder(machine="another").content())
    with locks.hold_beside(folder), locks.hold(folder):
        assert clock.now >= 60 + locks.STALE_SECONDS


def test_folders_that_are_being_written_are_locked(tmp_path, clock):
    with files.new_folder(tmp_path / "new") as folder:
        (folder / "file").touch()
        with pytest.raises(UserError, match="new is being written by process"), files.new_folder(tmp_path / "new"):
            raise AssertionError
    with files.replaced_folder(tmp_path / "new"):
        with pytest.raises(UserError, match="new is being written by process"), files.replaced_folder(tmp_path / "new"):
            raise AssertionError
    assert [path.name for path in tmp_path.iterdir()] == ["new"]

"""Files and folders in a bucket, complete or absent although a bucket has no rename."""

import errno
import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiohttp
import fake_bucket
import fsspec
import numpy as np
import pytest
from etils import epath
from etils.epath import gpath

from bertfam import cli
from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import STORAGE_FAULT, TransientError, UserError, report
from bertfam.storage import buckets, faults, files, gcs, paths
from bertfam.training.checkpoints import cleanup, manifest, selection
from bertfam.training.checkpoints.retention import Keep, lines
from bertfam.training.logs.metrics import MetricsWriter


@pytest.fixture
def bucket_folder(bucket, request):
    """Address of a folder for one test."""
    return f"{bucket}/{request.node.name}"


def test_bucket_paths_avoid_tensorflow_after_etils_used_local_paths(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("EPATH_USE_TF", "")
    gpath._is_tf_installed.cache_clear()
    assert epath.Path(tmp_path).exists() and gpath._is_tf_installed()
    buckets._check_bucket.cache_clear()
    paths.to_path(f"{bucket}/any")
    assert type(epath.Path(f"{bucket}/any")._backend).__name__ == "_FileSystemSpecBackend"


def test_folder_is_created_and_replaced_as_a_whole(bucket_folder):
    with files.new_folder(bucket_folder) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("1")
        (folder / "b").write_bytes(bytes(5_300_000))  # large enough for a multipart upload
        assert not files.is_used(bucket_folder)
    assert buckets.sizes(paths.to_path(bucket_folder)) == {"b": 5_300_000, "inner/a": 1}
    with pytest.raises(UserError, match="exists already"), files.new_folder(bucket_folder):
        pass
    with files.replaced_folder(bucket_folder) as folder:
        (folder / "c").write_text("23")
    assert buckets.sizes(paths.to_path(bucket_folder)) == {"c": 2}


def test_uploaded_bytes_are_unchanged(bucket_folder):
    contents = [b"", b"\r", b"\n", b"\r\n", b"\n\r\r", b"\n\n", b" ", b"\0"]
    with files.new_folder(bucket_folder) as folder:
        for number, content in enumerate(contents):
            (folder / str(number)).write_bytes(content)
    local_folder = paths.local(paths.to_path(bucket_folder))
    assert [(local_folder / str(number)).read_bytes() for number in range(len(contents))] == contents


def test_interrupted_upload_is_refused_and_replaced(bucket_folder, monkeypatch):
    class KilledError(BaseException):
        pass

    def put_one_file(local, remote, **options):
        fs.put_file(local[0], remote[0])
        raise KilledError

    fs = paths.to_path(bucket_folder).fs
    with monkeypatch.context() as patch, pytest.raises(KilledError), files.new_folder(bucket_folder) as folder:
        (folder / "cache.json").write_text("{}")
        (folder / "ids").write_text("1")
        patch.setattr(fs, "put", put_one_file)
    with pytest.raises(UserError, match="is incomplete: the command that wrote it was stopped"):
        TokenCache(bucket_folder)
    assert not files.is_used(bucket_folder)
    with files.new_folder(bucket_folder) as folder:
        (folder / "ids").write_text("2")
    assert buckets.sizes(paths.to_path(bucket_folder)) == {"ids": 1} and files.is_used(bucket_folder)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x"])
def test_objects_are_not_copied_out_of_the_folder(bucket_folder, tmp_path, name):
    with pytest.raises(UserError, match=f"an object '{name}', whose name is a path out of the folder"):
        buckets.fetch(paths.to_path(bucket_folder), ["ids", name], tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_failed_folder_is_not_uploaded(bucket_folder):
    with pytest.raises(UserError, match=f"{bucket_folder}/a is wrong"), files.new_folder(bucket_folder) as folder:
        (folder / "a").write_text("1")
        raise UserError(f"{folder / 'a'} is wrong")
    assert not paths.to_path(bucket_folder).exists()


def test_local_copy_has_the_bytes_of_the_bucket(bucket_folder, cache, monkeypatch):
    buckets.upload(cache.directory, paths.to_path(bucket_folder))
    local_documents, bucket_documents = cache.documents("train", "text"), TokenCache(bucket_folder).documents("train", "text")
    for name in ("tokens", "sentence_starts", "sentence_bounds"):
        np.testing.assert_array_equal(getattr(bucket_documents, name), getattr(local_documents, name))
    first = paths.local(paths.to_path(bucket_folder))
    assert paths.local(paths.to_path(bucket_folder)) == first
    files.write_text(paths.to_path(bucket_folder) / "cache.json", "{}")
    assert paths.local(paths.to_path(bucket_folder)) != first  # the copy follows the bucket

    fetched, fetch = [], buckets.fetch
    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(buckets, "fetch", lambda *arguments: (fetched.append(arguments), fetch(*arguments)))
        files.write_text(paths.to_path(bucket_folder) / "cache.json", "{}\n")
        assert (
            len(set(pool.map(paths.local, [paths.to_path(bucket_folder)] * 4))) == 1 == len(fetched)
        )  # one download for all threads

    with monkeypatch.context() as patch, pytest.raises(UserError, match="with other bytes than the store has"):
        patch.setattr(buckets, "fetch", flip_first_byte_after(buckets.fetch))
        files.write_text(paths.to_path(bucket_folder) / "cache.json", "{ }")
        paths.local(paths.to_path(bucket_folder))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError("Forbidden: b/o"), "HTTP 403, no permission"), (aiohttp.ClientError("reset"), "ClientError: reset")],
)
def test_unreadable_bucket_is_reported_in_one_line(bucket_folder, monkeypatch, error, reason):
    def get(*names):
        raise error

    folder = paths.to_path(bucket_folder)
    files.write_text(folder / "metrics.jsonl", "")
    monkeypatch.setattr(folder.fs, "get", get)
    for read in (lambda: MetricsWriter(folder, 0), lambda: paths.local(folder)):
        with pytest.raises(TransientError) as refused:
            read()
        assert str(refused.value) == f"{reason}: {folder} cannot be read; run the same command again"
        assert report(refused.value) == STORAGE_FAULT


def flip_first_byte_after(fetch):
    def fetch_and_flip(folder, names, into):
        fetch(folder, names, into)
        path = into / "text" / "train" / "tokens.bin"
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])

    return fetch_and_flip


def save_checkpoint(model_dir, step, content=b"values"):
    folder = paths.to_path(model_dir) / "checkpoints" / str(step)
    for name in ("params/a", "rest/d/b"):
        files.write_bytes(folder / name, content)
    manifest.write(folder)
    return folder


def test_incomplete_and_damaged_checkpoints_are_skipped_and_old_ones_deleted(bucket_folder, capsys):
    one, two, three = (save_checkpoint(bucket_folder, step) for step in (1, 2, 3))
    neighbour = save_checkpoint(f"{bucket_folder}1", 1)  # its name starts with the other's
    files.write_bytes(two / "params/a", b"valuet")  # a flipped bit
    files.write_bytes(three / "rest/d/b", b"value")  # truncated
    files.write_bytes(paths.to_path(bucket_folder) / "checkpoints" / "4" / "params/a", b"values")  # killed during the save
    directory = paths.to_path(bucket_folder) / "checkpoints"
    assert selection.steps(directory) == [1, 2, 3] and selection.complete(directory) == [1, 2]
    assert selection.choose(bucket_folder) == 1
    warnings = capsys.readouterr().err
    assert "checkpoints/2 is not used (params/a has other bytes than were written); step 1 is" in warnings
    assert "checkpoints/3 is not used (rest/d/b has 5 bytes of 6); step 1 is" in warnings
    cleanup.clear(bucket_folder, 1)
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2.damaged", "3.damaged"]
    for step in (2, 3, 4):
        save_checkpoint(bucket_folder, step)
    cleanup.delete_unkept(paths.to_path(bucket_folder), Keep(newest=2))
    assert sorted(path.name for path in directory.iterdir()) == ["3", "4"]
    assert one.exists() is False and selection.choose(bucket_folder) == 4
    buckets.remove(paths.to_path(bucket_folder))
    assert not paths.to_path(bucket_folder).exists() and manifest.NAME in buckets.sizes(neighbour)


def test_metrics_are_written_with_every_score_and_at_the_end(bucket_folder):
    model_dir = paths.to_path(bucket_folder)
    writer = MetricsWriter(model_dir, 0)
    writer.write(1, "train", {"loss": 3.0})
    assert not model_dir.exists()
    writer.write(1, "eval", {"loss": 2.0})
    assert lines(model_dir, "train") == {1: {"loss": 3.0}} and lines(model_dir, "eval") == {1: {"loss": 2.0}}
    writer.write(2, "train", {"loss": 1.0})
    writer.flush()
    writer.write(3, "train", {"loss": 0.5})  # lost with the process
    resumed = MetricsWriter(model_dir, 2)
    resumed.write(3, "train", {"loss": 0.25})
    resumed.close()
    assert lines(model_dir, "train") == {1: {"loss": 3.0}, 2: {"loss": 1.0}, 3: {"loss": 0.25}}
    assert [path.name for path in model_dir.glob("events*")]
    resumed.check()


def test_metrics_that_could_not_be_uploaded_are_uploaded_later(bucket_folder, monkeypatch, capsys):
    monkeypatch.setattr(gcs, "_DELAYS", (0.0,))
    model_dir = paths.to_path(bucket_folder)
    writer = MetricsWriter(model_dir, 0)
    with fake_bucket.faults(503):
        writer.write(1, "eval", {"loss": 2.0})
    assert not writer.failed() and not model_dir.exists()
    writer.write(2, "eval", {"loss": 1.0})
    assert lines(model_dir, "eval") == {1: {"loss": 2.0}, 2: {"loss": 1.0}}
    writer.write(3, "train", {"loss": 0.5})
    with fake_bucket.faults(503):
        writer.close()
    assert "HTTP 503, no: the newest lines of " in capsys.readouterr().err


def test_refused_metrics_are_reported_at_the_end(bucket_folder, monkeypatch):
    writer = MetricsWriter(paths.to_path(bucket_folder), 0)

    def refuse(name, content, **options):
        raise ValueError("the name is not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(paths.to_path(bucket_folder).fs, "pipe_file", refuse)
        writer.write(1, "eval", {"loss": 2.0})
    assert writer.failed()
    with pytest.raises(UserError, match=r" cannot be written \(ValueError: the name is not allowed\)"):
        writer.check()
    writer.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("gs://", "names no bucket: write gs://BUCKET/FOLDER"),
        ("gs://nobody/model", "there is no bucket gs://nobody; create it first, or name another"),
        ("gs://locked/model", r"gs://locked cannot be read \(HTTP 403, no permission\); grant this machine's account the role"),
    ],
)
def test_unusable_buckets_are_refused(bucket, address, message):
    with pytest.raises(UserError, match=message):
        paths.to_path(address)


def test_missing_packages_are_reported(bucket, monkeypatch):
    def absent(protocol):
        raise ImportError("Please install gcsfs to access Google Storage")

    buckets._check_bucket.cache_clear()
    monkeypatch.setattr(fsspec, "filesystem", absent)
    with pytest.raises(UserError, match=r"pip install 'bertfam\[gcs\]'"):
        paths.to_path(f"{bucket}/model")


@pytest.mark.parametrize("code", [403, 503])
def test_requests_are_retried_at_once(bucket_folder, monkeypatch, code):
    delays = []

    async def sleep(seconds):
        delays.append(seconds)

    monkeypatch.setattr(gcs.asyncio, "sleep", sleep)
    file = paths.to_path(bucket_folder) / "a"
    # TensorStore may still repeat requests of earlier tests, which would use up the single fault.
    refuse_once = partial(fake_bucket.faults, code, count=1, match=re.escape(bucket_folder.removeprefix("gs://bucket/")))
    with refuse_once():
        files.write_bytes(file, b"1")
    with refuse_once():
        assert file.read_bytes() == b"1"
    with refuse_once():
        assert file.is_file()
    assert delays == [0, 0, 0]


@pytest.mark.parametrize(("code", "reason"), [(403, "HTTP 403, no permission: "), (503, "HTTP 503, no: ")])
def test_a_store_that_does_not_answer_holds_nothing_back_as_missing(bucket_folder, monkeypatch, code, reason):
    monkeypatch.setattr(gcs, "_DELAYS", (0.0, 0.0))
    monkeypatch.setattr(gcs, "_DENIED_RETRIES", 1)
    save_checkpoint(bucket_folder, 1)
    save_checkpoint(bucket_folder, 2)
    folder = paths.to_path(bucket_folder)
    reads = [
        folder.exists,
        folder.is_dir,
        (folder / "checkpoints/2/digests.json").is_file,
        lambda: selection.choose(bucket_folder),
    ]
    with fake_bucket.faults(code):
        for operation in [*reads, lambda: files.write_bytes(folder / "a", b""), lambda: buckets.remove(folder)]:
            with pytest.raises(TransientError) as fault:
                operation()
            assert str(fault.value).startswith(reason)
    with fake_bucket.faults(code, match="GET .*checkpoints/2/params/a.*media"), pytest.raises(TransientError):
        selection.choose(bucket_folder)  # what cannot be read now is not damaged
    assert selection.choose(bucket_folder) == 2


def test_an_outage_of_a_bucket_is_a_line_and_a_status_of_its_own(bucket, monkeypatch, capsys):
    monkeypatch.setattr(gcs, "_DELAYS", (0.0,))
    buckets._check_bucket.cache_clear()
    with fake_bucket.faults(503):
        assert cli.main(["checkpoints", f"--model_dir={bucket}/model"]) == STORAGE_FAULT
    assert capsys.readouterr().err.startswith(f"bertfam: error: HTTP 503, no: {bucket} cannot be read; ")
    paths.to_path(bucket)
    with fake_bucket.faults(503):
        assert cli.main(["checkpoints", f"--model_dir={bucket}/model"]) == STORAGE_FAULT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertfam: error: HTTP 503, no: ")


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (
            ValueError("PERMISSION_DENIED: Error writing gs://b/o: no [http_response_code='403']"),
            ("HTTP 403, no permission", True),
        ),
        (
            ValueError("UNAVAILABLE: CURL error 7: Failed to connect [source locations=...]"),
            ("CURL error 7: Failed to connect", True),
        ),
        (OSError(errno.ESTALE, "stale"), (os.strerror(errno.ESTALE), True)),
        (OSError(errno.ENOSPC, "full"), (os.strerror(errno.ENOSPC), False)),
        (TimeoutError("Timed out after 2000 seconds."), ("Timed out after 2000 seconds.", True)),
        (ValueError("NOT_FOUND: os_error_code='28'"), (os.strerror(28), False)),
        (KeyError("a"), None),
    ],
)
def test_faults_that_may_pass_are_told_from_those_that_stay(error, refusal):
    assert faults.refusal(error) == refusal
    assert faults.refusal(RuntimeError("wrapped")) is None
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = error
    assert faults.refusal(wrapped) == refusal

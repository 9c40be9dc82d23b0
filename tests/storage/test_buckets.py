"""Files and folders in a bucket: complete or absent, though nothing is renamed there."""

from concurrent.futures import ThreadPoolExecutor

import aiohttp
import fsspec
import numpy as np
import pytest
from etils import epath
from etils.epath import gpath

from bertfam.data.token_cache.cache import TokenCache
from bertfam.errors import UserError
from bertfam.storage import buckets, files, paths
from bertfam.training.checkpoints import cleanup, manifest, selection
from bertfam.training.checkpoints.retention import Keep, lines
from bertfam.training.logs.metrics import MetricsWriter


@pytest.fixture
def place(bucket, request):
    """A folder of the test's own."""
    return f"{bucket}/{request.node.name}"


def test_tensorflow_is_left_out_where_etils_has_seen_other_paths(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("EPATH_USE_TF", "")
    gpath._is_tf_installed.cache_clear()
    assert epath.Path(tmp_path).exists() and gpath._is_tf_installed()
    buckets._check_bucket.cache_clear()
    paths.to_path(f"{bucket}/any")
    assert type(epath.Path(f"{bucket}/any")._backend).__name__ == "_FileSystemSpecBackend"


def test_a_folder_appears_whole_and_is_replaced_whole(place):
    with files.new_folder(place) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("1")
        (folder / "b").write_bytes(bytes(5_300_000))  # which is sent in pieces
        assert not files.is_used(place)
    assert buckets.sizes(paths.to_path(place)) == {"b": 5_300_000, "inner/a": 1}
    with pytest.raises(UserError, match="exists already"), files.new_folder(place):
        pass
    with files.replaced_folder(place) as folder:
        (folder / "c").write_text("23")
    assert buckets.sizes(paths.to_path(place)) == {"c": 2}


def test_every_byte_arrives(place):
    contents = [b"", b"\r", b"\n", b"\r\n", b"\n\r\r", b"\n\n", b" ", b"\0"]
    with files.new_folder(place) as folder:
        for number, content in enumerate(contents):
            (folder / str(number)).write_bytes(content)
    found = paths.local(paths.to_path(place))
    assert [(found / str(number)).read_bytes() for number in range(len(contents))] == contents


def test_an_upload_that_is_cut_off_is_refused_and_written_anew(place, monkeypatch):
    class Killed(BaseException):
        pass

    def put(local, remote, **options):
        fs.put_file(local[0], remote[0])
        raise Killed

    fs = paths.to_path(place).fs
    with monkeypatch.context() as patch, pytest.raises(Killed), files.new_folder(place) as folder:
        (folder / "cache.json").write_text("{}")
        (folder / "ids").write_text("1")
        patch.setattr(fs, "put", put)
    with pytest.raises(UserError, match="is incomplete: the command that wrote it was stopped"):
        TokenCache(place)
    assert not files.is_used(place)
    with files.new_folder(place) as folder:
        (folder / "ids").write_text("2")
    assert buckets.sizes(paths.to_path(place)) == {"ids": 1} and files.is_used(place)


def test_nothing_is_uploaded_of_a_folder_that_fails(place):
    with pytest.raises(UserError, match=f"{place}/a is wrong"), files.new_folder(place) as folder:
        (folder / "a").write_text("1")
        raise UserError(f"{folder / 'a'} is wrong")
    assert not paths.to_path(place).exists()


def test_a_copy_on_this_machine_has_the_bytes_of_the_bucket(place, cache, monkeypatch):
    buckets.upload(cache.directory, paths.to_path(place))
    here, there = cache.documents("train", "text"), TokenCache(place).documents("train", "text")
    for name in ("tokens", "sentence_starts", "sentence_bounds"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    first = paths.local(paths.to_path(place))
    assert paths.local(paths.to_path(place)) == first
    files.write_text(paths.to_path(place) / "cache.json", "{}")
    assert paths.local(paths.to_path(place)) != first  # what lies there now

    fetched, files_of = [], buckets.fetch
    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(buckets, "fetch", lambda *given: (fetched.append(given), files_of(*given)))
        files.write_text(paths.to_path(place) / "cache.json", "{}\n")
        assert len(set(pool.map(paths.local, [paths.to_path(place)] * 4))) == 1 == len(fetched)  # one for all

    with monkeypatch.context() as patch, pytest.raises(UserError, match="with other bytes than the store has"):
        patch.setattr(buckets, "fetch", spoilt(buckets.fetch))
        files.write_text(paths.to_path(place) / "cache.json", "{ }")
        paths.local(paths.to_path(place))


@pytest.mark.parametrize(
    ("error", "told"), [(OSError("Forbidden: b/o"), "no permission"), (aiohttp.ClientError("reset"), "ClientError: reset")]
)
def test_what_a_bucket_refuses_to_give_is_told_in_a_line(place, monkeypatch, error, told):
    def get(*names):
        raise error

    folder = paths.to_path(place)
    files.write_text(folder / "metrics.jsonl", "")
    monkeypatch.setattr(folder.fs, "get", get)
    for read in (lambda: MetricsWriter(folder, 0), lambda: paths.local(folder)):
        with pytest.raises(UserError) as refused:
            read()
        assert str(refused.value) == f"{folder} cannot be read ({told}); run the same command again"


def spoilt(fetch):
    def fetch_and_flip(folder, names, into):
        fetch(folder, names, into)
        path = into / "text" / "train" / "tokens.bin"
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])

    return fetch_and_flip


def saved(model_dir, step, content=b"values"):
    folder = paths.to_path(model_dir) / "checkpoints" / str(step)
    for name in ("params/a", "rest/d/b"):
        files.write_bytes(folder / name, content)
    manifest.write(folder)
    return folder


def test_checkpoints_that_are_cut_off_damaged_or_old(place, capsys):
    one, two, three = (saved(place, step) for step in (1, 2, 3))
    neighbour = saved(f"{place}1", 1)  # whose name begins with that of the other
    files.write_bytes(two / "params/a", b"valuet")  # a flipped bit
    files.write_bytes(three / "rest/d/b", b"value")  # truncated
    files.write_bytes(paths.to_path(place) / "checkpoints" / "4" / "params/a", b"values")  # killed in the save
    directory = paths.to_path(place) / "checkpoints"
    assert selection.steps(directory) == [1, 2, 3] and selection.complete(directory) == [1, 2]
    assert selection.choose(place) == 1
    told = capsys.readouterr().err
    assert "checkpoints/2 is not used (params/a has other bytes than were written); step 1 is" in told
    assert "checkpoints/3 is not used (rest/d/b has 5 bytes of 6); step 1 is" in told
    cleanup.clear(place, 1)
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2.damaged", "3.damaged"]
    for step in (2, 3, 4):
        saved(place, step)
    cleanup.delete_unkept(paths.to_path(place), Keep(newest=2))
    assert sorted(path.name for path in directory.iterdir()) == ["3", "4"]
    assert one.exists() is False and selection.choose(place) == 4
    buckets.remove(paths.to_path(place))
    assert not paths.to_path(place).exists() and manifest.NAME in buckets.sizes(neighbour)


def test_metrics_are_there_with_each_score_and_at_the_end(place):
    model_dir = paths.to_path(place)
    writer = MetricsWriter(model_dir, 0)
    writer.write(1, "train", {"loss": 3.0})
    assert not model_dir.exists()
    writer.write(1, "eval", {"loss": 2.0})
    assert lines(model_dir, "train") == {1: {"loss": 3.0}} and lines(model_dir, "eval") == {1: {"loss": 2.0}}
    writer.write(2, "train", {"loss": 1.0})
    writer.flush()
    writer.write(3, "train", {"loss": 0.5})  # is lost with the process
    again = MetricsWriter(model_dir, 2)
    again.write(3, "train", {"loss": 0.25})
    again.close()
    assert lines(model_dir, "train") == {1: {"loss": 3.0}, 2: {"loss": 1.0}, 3: {"loss": 0.25}}
    assert [path.name for path in model_dir.glob("events*")]
    again.check()


def test_metrics_that_cannot_be_written_are_told_at_the_end(place, monkeypatch):
    writer = MetricsWriter(paths.to_path(place), 0)

    def refuse(name, content, **options):
        raise OSError("Forbidden: b/bucket/o")

    with monkeypatch.context() as patch:
        patch.setattr(paths.to_path(place).fs, "pipe_file", refuse)
        writer.write(1, "eval", {"loss": 2.0})
    assert writer.failed()
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be written \(no permission\)|events.* cannot be written"):
        writer.check()
    writer.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("gs://", "names no bucket: write gs://BUCKET/FOLDER"),
        ("gs://nobody/model", "there is no bucket gs://nobody; create it first, or name another"),
        ("gs://locked/model", r"gs://locked cannot be read \(no permission\); grant this machine's account the role"),
    ],
)
def test_buckets_that_cannot_be_used(bucket, address, message):
    with pytest.raises(UserError, match=message):
        paths.to_path(address)


def test_packages_that_are_not_installed(bucket, monkeypatch):
    def absent(protocol):
        raise ImportError("Please install gcsfs to access Google Storage")

    buckets._check_bucket.cache_clear()
    monkeypatch.setattr(fsspec, "filesystem", absent)
    with pytest.raises(UserError, match=r"pip install 'bertfam\[gcs\]'"):
        paths.to_path(f"{bucket}/model")

"""Damaged checkpoints are detected, named and not used; which checkpoints are deleted, and which are kept."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import pytest

from bertfam.errors import UserError
from bertfam.training.checkpoints import Checkpoints, cleanup, listing, manifest, newest, selection
from bertfam.training.checkpoints.retention import Keep, held_out
from bertfam.training.checkpoints.store import on_devices
from bertfam.training.state import TrainState


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with small checkpoints of steps 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("saved")
    params = {"w": jax.random.normal(jax.random.key(0), (500,)), "b": {"c": jnp.ones((3, 5), jnp.bfloat16)}}
    checkpoints = Checkpoints(folder)
    for step in (1, 2, 3):
        number = jnp.asarray(step, jnp.int32)
        checkpoints.save(TrainState(number, params, {"m": jnp.zeros(7)}, {}, {}, params, jnp.zeros_like(number)))
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """Return a copy that a test may damage; that checkpoints can be copied is part of the test."""
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


def flip(path, bit=0):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1 << bit
    path.write_bytes(content)


def test_every_damaged_file_is_detected(folder):
    """Each file of each item is removed, cut short by a byte, and changed in one bit."""
    step = folder / "checkpoints" / "3"
    files = [path for path in sorted(step.glob("*/**/*")) if path.is_file()]
    assert len(files) > 15 and {path.relative_to(step).parts[0] for path in files} == {"params", "rest", "average"}
    for path in files:
        name, content = path.relative_to(step).as_posix(), path.read_bytes()
        path.unlink()
        assert manifest.fault(step) == f"{name} is missing"
        path.write_bytes(content[:-1])
        assert manifest.fault(step) == f"{name} has {len(content) - 1:,} bytes of {len(content):,}"
        path.write_bytes(content)
        flip(path)
        assert manifest.fault(step) is None
        assert manifest.fault(step, contents=True) == f"{name} has other bytes than were written"
        path.write_bytes(content)
        assert manifest.fault(step, contents=True) is None


def test_damaged_manifest_is_detected(folder):
    path = folder / "checkpoints" / "3" / "digests.json"
    content = path.read_text()
    for damaged in ("", content[:-10], "[]", '{"files": {}}', '{"files": {"a": 1}}', content.replace('"size"', '"sise"')):
        path.write_text(damaged)
        assert manifest.fault(path.parent) == "digests.json is damaged"
    path.unlink()
    assert manifest.fault(path.parent) == "no digests.json: it was never finished"


def test_files_outside_of_a_checkpoint_are_not_read(folder):
    step = folder / "checkpoints" / "3"
    metadata = step / "params" / "_METADATA"
    metadata.rename(folder / "outside")
    metadata.symlink_to(folder / "outside")
    assert manifest.fault(step, items=["params"]) == "params/_METADATA is a link out of its folder"
    (step / "digests.json").write_text('{"files": {"../../outside": {"size": 1, "sha256": "0"}}}')
    assert manifest.fault(step) == "digests.json is damaged"
    (step / "digests.json").write_text('{"files": {"rest/a": {"size": 1, "sha256": "0"}}}')
    assert manifest.fault(step, items=["params"]) == "params is missing"


def test_files_that_the_manifest_does_not_list_are_no_links_out_and_no_pipes(folder):
    step = folder / "checkpoints" / "3"
    record = json.loads((step / "digests.json").read_text())
    for name in ("params/_METADATA", "params/d", "rest/_METADATA"):
        path, files = step / name, {file: entry for file, entry in record["files"].items() if not file.startswith(name)}
        (step / "digests.json").write_text(json.dumps(record | {"files": files}))
        path.rename(folder / "outside")
        path.symlink_to(folder / "outside")
        assert manifest.fault(step) == f"{name} is a link out of its folder"
        assert (manifest.fault(step, contents=True, items=["params"]) is None) == name.startswith("rest")
        path.unlink()
        os.mkfifo(path)
        assert manifest.fault(step) == f"{name} is not a regular file"
        path.unlink()
        (folder / "outside").rename(path)
        assert manifest.fault(step, contents=True) is None
    (step / "commit_success.txt").unlink(missing_ok=True)
    os.mkfifo(step / "commit_success.txt")
    assert manifest.fault(step, items=["params"]) == "commit_success.txt is not a regular file"


@pytest.mark.parametrize("written", [5, [1], None, "yesterday", "2026-01-31\x1b12:00"])
def test_texts_of_a_manifest_do_not_steer_the_terminal(folder, capsys, written):
    path = folder / "checkpoints" / "3" / "digests.json"
    entry = {"size": 1, "sha256": "0"}
    path.write_text(json.dumps({"written": written, "files": {"params/\x1b[2J\nbertfam: error": entry}}))
    assert manifest.written(path.parent) in (None, "2026-01-31T12:00:00")
    assert selection.choose(folder) == 2
    shown = listing.table(listing.rows(folder)) + capsys.readouterr().err
    assert shown.isascii() and "\x1b" not in shown and r"params/\x1b[2J\nbertfam: error is missing" in shown


def test_metadata_that_orbax_cannot_read_are_one_line_although_the_digests_agree(folder):
    directory = folder / "checkpoints"
    like = jax.eval_shape(lambda: {"w": jnp.zeros(500), "b": {"c": jnp.ones((3, 5), jnp.bfloat16)}})
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    metadata = json.loads((directory / "3" / "params" / "_METADATA").read_text())
    name, entry = next(iter(metadata["tree_metadata"].items()))
    key = {"key_metadata": [*entry["key_metadata"][:-1], entry["key_metadata"][-1] | {"key": ""}]}
    value = {"value_metadata": entry["value_metadata"] | {"value_type": None}}
    opened = Checkpoints(folder, read_only=True)
    for change in (key, value):
        metadata["tree_metadata"][name] = entry | change
        (directory / "3" / "params" / "_METADATA").write_text(json.dumps(metadata))
        manifest.write(directory / "3")
        with pytest.raises(UserError, match="checkpoints/3 is damaged, although its digests agree"):
            opened.parts(3)
            opened.restore_params(3, on_devices(like, jax.tree.map(lambda _: here, like)))
    assert [row.state for row in listing.rows(folder)] == ["complete", "complete", "damaged"]
    (shapes,) = (directory / "2" / "params" / "array_metadatas").iterdir()
    shapes.write_text('{"array_metadatas": [{"array_metadata": {"param_name": "w"}}]}')
    manifest.write(directory / "2")
    with pytest.raises(UserError, match="process_0 in array_metadatas is no list of arrays and their shapes"):
        opened.restore_params(2, on_devices(like, jax.tree.map(lambda _: here, like)))
    opened.close()


def test_newest_undamaged_checkpoint_is_used_and_damaged_ones_are_named(folder, capsys):
    directory = folder / "checkpoints"
    assert selection.choose(folder) == 3 and capsys.readouterr().err == ""
    flip(directory / "3" / "rest" / "_METADATA")
    assert newest(folder) == 3  # only sizes are checked
    assert selection.find(folder, None) == 3  # the parameters are undamaged
    assert selection.choose(folder) == 2
    reason = "rest/_METADATA has other bytes than were written"
    assert capsys.readouterr().err == f"bertfam: warning: {directory}/3 is not used ({reason}); step 2 is\n"
    (directory / "2" / "digests.json").unlink()
    assert selection.choose(folder) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    shutil.rmtree(directory / "1" / "params")
    shutil.rmtree(directory / "3" / "params")
    with pytest.raises(UserError) as caught:
        selection.choose(folder)
    assert str(caught.value).startswith(f"all checkpoints in {directory} are damaged: 3 (params/")
    assert str(caught.value).endswith("; restore a copy of one, or use another --model_dir")
    assert newest(folder) is None


def test_requested_checkpoint_is_refused_if_damaged(folder):
    directory = folder / "checkpoints"
    flip(directory / "3" / "params" / "_METADATA")
    with pytest.raises(UserError) as caught:
        selection.find(folder, 3)
    reason = "params/_METADATA has other bytes than were written"
    assert str(caught.value) == f"{directory}/3 is damaged ({reason}); use another: 1, 2"


def test_damaged_checkpoint_is_set_aside_until_the_run_has_passed_it(folder):
    directory = folder / "checkpoints"
    flip(directory / "3" / "params" / "_METADATA")
    (directory / "4.orbax-checkpoint-tmp" / "params").mkdir(parents=True)
    (directory / "0.deleted").mkdir()
    cleanup.clear(folder, 2)
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2", "3.damaged"]
    cleanup.delete_unkept(folder, Keep())
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2", "3.damaged"]
    shutil.copytree(directory / "2", directory / "4")
    cleanup.delete_unkept(folder, Keep())
    assert sorted(path.name for path in directory.iterdir()) == ["1", "2", "4"]


def test_folders_behind_a_link_that_are_no_checkpoints_stay(folder, tmp_path):
    """A stranger's folder may have a link to mine; a link to another disk with checkpoints is usual."""
    (folder / "checkpoints").rename(tmp_path / "photos")
    (folder / "checkpoints").symlink_to(tmp_path / "photos")
    cleanup.clear(folder, 2)
    assert sorted(path.name for path in (tmp_path / "photos").iterdir()) == ["1", "2", "3.damaged"]
    (tmp_path / "photos" / "2017").mkdir()
    with pytest.raises(UserError, match="photos, where 2017 is no checkpoint.* move that folder away"):
        cleanup.clear(folder, 2)
    assert (tmp_path / "photos" / "2017").is_dir()


def test_links_in_place_of_checkpoints_are_neither_used_nor_deleted(folder, tmp_path, capsys):
    directory, elsewhere = folder / "checkpoints", tmp_path / "elsewhere"
    (directory / "3").rename(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    links = ("3", "0.damaged", "0.deleted", "4.orbax-checkpoint-tmp", "7.damaged")
    for name in links:
        (directory / name).symlink_to(elsewhere)
    (directory / "loop").symlink_to(directory / "loop")
    (directory / "root").symlink_to("/")
    assert selection.steps(directory) == [1, 2] and selection.choose(folder) == 2
    assert [row.step for row in listing.rows(folder)] == [1, 2]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == len(links) + 2 and f"{directory}/3 is a link, and no checkpoint: it is not used" in warnings[2]
    with pytest.raises(UserError, match="has no step 3; it has 1, 2$"):
        selection.find(folder, 3)
    with pytest.raises(UserError, match="checkpoints/3 is a link, and a run saves its checkpoints in this folder"):
        cleanup.clear(folder, 2)
    cleanup.delete_unkept(folder, Keep(newest=1))
    assert sorted(path.name for path in directory.iterdir()) == sorted(["2", *links, "loop", "root"])
    (directory / "3").unlink()
    cleanup.clear(folder, 2)
    assert sorted(path.name for path in directory.iterdir()) == sorted(["2", *links[1:], "loop", "root"])
    assert sorted(elsewhere.rglob("*")) == before
    (directory / "7").mkdir()
    with pytest.raises(UserError, match=r"7.damaged is a link, and 7 is renamed to that; move the link away"):
        cleanup.clear(folder, 2)


def test_file_in_place_of_a_folder(folder, tmp_path):
    (folder / "checkpoints" / "5").write_text("")
    assert newest(folder) == 3 and selection.choose(folder) == 3
    cleanup.clear(folder, 3)
    assert (folder / "checkpoints" / "5.damaged").is_file()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "checkpoints").write_text("")
    with pytest.raises(UserError) as caught:
        selection.choose(tmp_path / "other")
    assert str(caught.value) == f"{tmp_path}/other/checkpoints is a file, but must be a folder; move the file elsewhere"


def test_incomplete_checkpoint_replaces_no_older_one(folder):
    directory = folder / "checkpoints"
    (directory / "3" / "digests.json").unlink()
    cleanup.delete_unkept(folder, Keep(newest=1))
    assert sorted(path.name for path in directory.iterdir()) == ["2", "3"]


def test_kept_steps():
    steps = [10, 20, 30, 40, 50]
    assert Keep(None).kept(steps, {}) == set(steps)
    assert Keep(2).kept(steps, {}) == {40, 50}
    assert Keep(1, every=20).kept(steps, {}) == {20, 40, 50}
    scores = {10: 3.0, 20: 1.0, 30: 1.0, 45: 0.0}
    assert Keep(1, best="mlm_loss").kept(steps, scores) == {30, 50}  # the newer one of equal scores
    assert Keep(1, best="mlm_accuracy").kept(steps, scores) == {10, 50}
    assert Keep(1, best="mlm_loss").kept(steps, {}) == {50}


def test_scores_are_read_from_metrics_jsonl(tmp_path):
    assert held_out(tmp_path, "loss") == {}
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 5, "split": "train", "loss": 9.0}\n{"step": 5, "split": "eval", "loss": 3.0}\n'
        '{"step": 10, "split": "eval", "loss": null}\n{"step": 15, "split": "eval", "mlm_loss": 1.0}\n{"step": 20, "sp'
    )
    assert held_out(tmp_path, "loss") == {5: 3.0}

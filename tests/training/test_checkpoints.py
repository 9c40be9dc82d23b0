"""Checkpoints hold the exact bits of their step, although training continues, and are complete or absent."""

import errno
import os
import shutil
import time

import fake_bucket
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.errors import STORAGE_FAULT, TransientError, UserError, report
from bertfam.training.checkpoints import (
    Checkpoints,
    cleanup,
    has_training_state,
    manifest,
    newest,
    on_devices,
    selection,
    store,
)
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.state import TrainState


@pytest.fixture
def state():
    params = {"w": jnp.arange(200_000, dtype=jnp.float32), "b": {"c": jnp.ones((3, 5), jnp.bfloat16)}}
    return TrainState(jnp.zeros((), jnp.int32), params, {"m": jnp.zeros(7)}, {}, {}, {}, jnp.zeros((), jnp.int32))


def abstract(state):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return on_devices(jax.eval_shape(lambda: state), jax.tree.map(lambda _: sharding, state))


@jax.jit
def update(state):
    return jax.tree.map(lambda leaf: (leaf * 1.5 + 1).astype(leaf.dtype), state)._replace(step=state.step + 1)


def equal(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def test_background_save_holds_its_step_despite_donated_buffers(state, tmp_path):
    step = jax.jit(update, donate_argnums=0)
    checkpoints, states = Checkpoints(tmp_path), {}
    for _ in range(6):
        state = step(state)
        states[int(state.step)] = jax.tree.map(np.array, state)
        checkpoints.save(state)
    checkpoints.close()
    opened = Checkpoints(tmp_path, read_only=True)
    for number, expected in states.items():
        assert equal(opened.restore(number, abstract(state)), expected)
        assert equal(opened.restore_params(number, abstract(state).params), expected.params)
        for path in (tmp_path / "checkpoints" / str(number) / "params").iterdir():  # not needed for the optimizer's state
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert equal(opened.restore_optimizer(number, abstract(state)), expected.opt_state)
    opened.close()


def test_newest_checkpoints_are_kept_and_found(state, tmp_path):
    assert newest(tmp_path) is None
    checkpoints = Checkpoints(tmp_path, keep=Keep(2))
    assert newest(tmp_path) is None
    with pytest.raises(UserError) as caught:
        selection.find(tmp_path, None)
    assert (
        str(caught.value)
        == f"{tmp_path}/checkpoints holds no complete checkpoint; train until one is saved, or use another --model_dir"
    )
    for _ in range(4):
        state = update(state)
        checkpoints.save(state)
        checkpoints.save(state)  # this step is saved already
    checkpoints.close()
    assert newest(tmp_path) == 4 == selection.find(tmp_path, None) and selection.find(tmp_path, 3) == 3
    with pytest.raises(UserError) as caught:
        selection.find(tmp_path, 1)
    assert str(caught.value) == f"{tmp_path}/checkpoints has no step 1; it has 3, 4"
    assert has_training_state(tmp_path, 4)


def test_interrupted_save_is_no_checkpoint(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(update(state))
    checkpoints.close()
    (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp-0" / "params").mkdir(parents=True)
    assert newest(tmp_path) == 1
    cleanup.clear(tmp_path, 1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["1"]
    reopened = Checkpoints(tmp_path)
    reopened.save(update(update(state)))
    reopened.close()
    assert newest(tmp_path) == 2


def test_folder_that_is_moved_while_a_run_writes_to_it_is_named_and_not_made_again(state, tmp_path):
    checkpoints = Checkpoints(tmp_path / "model")
    checkpoints.save(update(state))
    checkpoints.wait()
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="model/checkpoints was moved or removed while this run writes to it: move it back"):
        checkpoints.save_last(update(update(state)))
    assert not (tmp_path / "model").exists() and newest(tmp_path / "elsewhere") == 1


def test_parameters_alone_are_no_training_state(state, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_params(0, state.params)
    checkpoints.close()
    assert newest(tmp_path) == 0 and not has_training_state(tmp_path, 0)


def test_folders_with_other_digits_are_no_steps(tmp_path):
    for name in ("5", "0", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT THREE}", "00007", "-1"):
        (tmp_path / name).mkdir()
    assert selection.steps(tmp_path) == [0, 5]


def test_folder_without_checkpoints_is_refused_and_unchanged(tmp_path):
    with pytest.raises(UserError) as caught:
        Checkpoints(tmp_path / "m", read_only=True)
    assert f"{tmp_path}/m" in str(caught.value) and "there is no folder" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", range(1, 40))
def test_a_jump_of_the_wall_clock_does_not_disturb_a_save(state, tmp_path, monkeypatch, moment):
    """A machine was suspended for a day, at any moment at which the time is read during a save."""
    now, count = time.time, 0

    def jumping():
        nonlocal count
        count += 1
        return now() + (86400 if count >= moment else 0)

    checkpoints = Checkpoints(tmp_path)
    monkeypatch.setattr(time, "time", jumping)
    checkpoints.save_last(update(state))
    checkpoints.close()
    assert newest(tmp_path) == 1 and count > 39


def test_a_passing_fault_costs_no_step(state, tmp_path, monkeypatch, capsys):
    write, faults = manifest.write, [OSError(errno.EIO, "fault"), OSError(errno.ESTALE, "fault"), None]

    def failing(folder):
        if error := faults.pop(0):
            raise error
        write(folder)

    monkeypatch.setattr(manifest, "write", failing)
    checkpoints = Checkpoints(tmp_path)
    state = update(state)
    checkpoints.save(state)
    while not checkpoints.failed():
        time.sleep(0.01)
    checkpoints.save_last(update(state))
    checkpoints.close()
    assert selection.complete(tmp_path / "checkpoints") == [2]
    first, second = capsys.readouterr().err.splitlines()
    assert f"{os.strerror(errno.EIO)}: the checkpoint of step 1 could not be written to {tmp_path}" in first
    assert f"{os.strerror(errno.ESTALE)}: the checkpoint of step 2 could not be written" in second


@pytest.mark.parametrize(
    "fault", [ValueError('NOT_FOUND: Error opening "zarr" driver'), FileNotFoundError(errno.ENOENT, "No such file", "1/params")]
)
def test_threads_of_a_failed_save_do_not_end_the_next_one(state, tmp_path, monkeypatch, capsys, fault):
    """They write on in the folder of the same step, whose remains were deleted."""
    write, faults = manifest.write, [TimeoutError("timed out"), fault, None]

    def failing(folder):
        if error := faults.pop(0):
            raise error
        write(folder)

    monkeypatch.setattr(manifest, "write", failing)
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_last(update(state))
    checkpoints.close()
    assert selection.complete(tmp_path / "checkpoints") == [1]
    first, second = capsys.readouterr().err.splitlines()
    assert "timed out: the checkpoint of step 1" in first and "remains of an earlier attempt: the checkpoint of step 1" in second


def test_a_fault_that_does_not_pass_ends_with_a_status_of_its_own(state, tmp_path, monkeypatch, capsys):
    def fail(folder):
        raise OSError(errno.EIO, "fault")

    monkeypatch.setattr(manifest, "write", fail)
    monkeypatch.setattr(store, "_PAUSES", (0.0,))
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(TransientError) as caught:
        checkpoints.save_last(update(state))
    assert report(caught.value) == STORAGE_FAULT == 74
    assert (
        capsys.readouterr().err.splitlines()[-1].startswith(f"bertfam: error: {os.strerror(errno.EIO)}: the checkpoint of step 1")
    )
    checkpoints.close()
    assert newest(tmp_path) is None


@pytest.mark.parametrize(
    ("code", "fault"), [(403, {"count": 1, "match": "refused.*/d/"}), (503, {"share": 0.12, "match": "refused"})]
)
def test_a_checkpoint_is_written_to_a_store_that_refuses_some_requests(state, bucket, capsys, code, fault):
    model_dir = f"{bucket}/refused{code}"
    checkpoints = Checkpoints(model_dir)
    with fake_bucket.faults(code, **fault):
        for _ in range(3):
            state = update(state)
            checkpoints.save_last(state)
    checkpoints.close()
    assert selection.choose(model_dir) == 3
    assert all("could not be written" in line for line in capsys.readouterr().err.splitlines())

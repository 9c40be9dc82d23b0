"""Digests change with any flipped bit, and their comparison names the device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.objectives.objective import Sum
from bertfam.training.integrity.digest import Digest, disagreement, hashed, mismatches
from bertfam.training.integrity.mismatches import compare
from bertfam.training.integrity.replay import Replayed

digest = jax.jit(lambda leaf: jnp.sum(hashed(leaf), dtype=jnp.uint32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_flipped_bit_and_every_swap_changes_the_digest(dtype):
    leaf = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, 2)).astype(dtype))
    digests = {int(digest(leaf))}
    for bit in range(8 * leaf.nbytes):
        other = leaf.copy()
        other.reshape(-1).view(np.uint8)[bit // 8] ^= np.uint8(1 << bit % 8)
        digests.add(int(digest(other)))
    for place in range(1, leaf.size):
        other = leaf.copy().reshape(-1)
        other[[0, place]] = other[[place, 0]]
        digests.add(int(digest(other.reshape(leaf.shape))))
    assert len(digests) == 1 + 8 * leaf.nbytes + leaf.size - 1


def test_sign_and_number_of_zeros_change_the_digest():
    zeros = [np.zeros(4, np.float32), -np.zeros(4, np.float32), np.zeros(5, np.float32), np.float32(0)]
    assert len({int(digest(leaf)) for leaf in zeros}) == 4


def test_differing_device_is_named():
    copies = {("gradient/a", 0): {"d0": 1, "d1": 1, "d2": 7}, ("gradient/b", 1): {"d0": 3, "d1": 3, "d2": 3}}
    assert mismatches([copies]) == {"d2": ["gradient/a"]}
    assert disagreement(mismatches([copies])) == "silent data corruption: gradient/a on d2 differs from other devices"
    assert list(mismatches([{("gradient/a", 0): {"d0": 1, "d1": 2}}])) == ["d0", "d1"]
    assert mismatches([{("gradient/a", 0): {"d0": 1}, ("gradient/a", 1): {"d1": 2}}]) == {}


SAME = Digest(2.5, 17, {("gradient/a", 0): {"d0": 1, "d1": 1}, ("parameter/a", 0): {"d0": 2, "d1": 2}})


def changed(leaf, **values):
    return dataclasses.replace(SAME, copies=SAME.copies | {(leaf, 0): values})


def make_replay(digest=SAME, *, platform="cpu", devices=("d0", "d1"), again=None, alone=None, losses=(5, 6)):
    metrics = {step: {"loss": Sum(np.float32(loss), np.float32(1))} for step, loss in zip((5, 6), losses, strict=True)}
    for sums in metrics.values():
        sums["gradient_norm"] = Sum(np.float32(2), np.float32(1))
    return Replayed(list(devices), platform, metrics, {6: digest}, again or digest, alone)


RECORD = SAME.line()


def report(*replays, recorded=RECORD, logged=5.5, norm=2.0):
    return compare(replays, {6: recorded} if recorded else {}, {4: {"loss": 0.0}, 6: {"loss": logged, "gradient_norm": norm}})


def test_equal_replays_have_no_faults():
    result = report(make_replay(), make_replay())
    assert not result.faults and not result.suspects
    assert result.notes == ["1 recorded digest compared, bit by bit", "1 logged interval compared, 1 equal in all bits"]


def test_record_decides_between_two_devices():
    wrong = changed("parameter/a", d0=2, d1=3)
    assert report(make_replay(wrong)).suspects == {"d1": ["parameter/a"]}
    assert list(report(make_replay(wrong), recorded=None).suspects) == ["d0", "d1"]


def test_devices_that_differ_on_the_same_rows_are_suspects():
    result = report(make_replay(alone=changed("gradient/a", d0=5, d1=1)))
    assert list(result.suspects) == ["d0", "d1"] and len(result.faults) == 1


def test_differing_arrangements_of_the_devices():
    other = changed("gradient/a", d0=5, d1=5)
    (fault,) = report(make_replay(), make_replay(other)).faults
    assert fault == (
        "silent data corruption: update 6 of arrangement 2 of the devices differs from that of the first (gradient/a)"
    )
    # The order of a sum over more than two accelerators may depend on their places; a loss that is far off is still a fault.
    four = {"platform": "gpu", "devices": ("d0", "d1", "d2", "d3")}
    assert not report(make_replay(**four), make_replay(other, **four)).faults
    assert report(make_replay(**four), make_replay(dataclasses.replace(other, loss=3.0), **four)).faults


def test_platform_without_reproducible_bits_is_compared_with_tolerance():
    other = changed("gradient/a", d0=5, d1=5)
    gpu = report(make_replay(platform="gpu", again=other), recorded=other.line())
    assert not gpu.faults and gpu.notes[0].startswith("results are not bitwise reproducible on this platform")
    assert "deterministic_ops=true makes" in gpu.notes[0]
    fa4 = dataclasses.replace(make_replay(platform="gpu", again=other), attention={"fa4", "hopper"})
    assert "with Execution.attention = 'hopper' in place of 'fa4' makes them reproducible" in report(fa4).notes[0]
    assert report(make_replay(again=other)).faults
    # Neither its logged metrics nor the results of each device on the same rows are faults.
    split = changed("gradient/a", d0=5, d1=1)
    assert not report(make_replay(platform="gpu", again=other, alone=split), logged=5.5005).faults
    assert report(make_replay(platform="gpu", again=other), logged=5.6).faults
    assert report(make_replay(platform="gpu", again=other), recorded=RECORD | {"loss": 2.6}).faults


def test_rounding_that_grows_from_update_to_update_accuses_no_device():
    """Two arrangements of a program without reproducible bits differ by 0.02: ten times that may lie between it and the run."""
    other = changed("gradient/a", d0=5, d1=5)
    replays = [make_replay(platform="gpu", again=other, losses=losses) for losses in ((5, 6), (5, 6.02))]
    assert not report(*replays, recorded=None, logged=5.65, norm=2.1).faults
    assert not report(*replays, recorded=RECORD | {"program": 18, "loss": 2.65}).faults
    assert report(*replays, recorded=None, logged=5.75).faults == ["the mean loss of updates 5 to 6 is 5.5 and was 5.75"]
    # Where bits must be equal, the norm counts too.
    (fault,) = report(make_replay(), norm=2.001).faults
    assert fault == "the mean gradient_norm of updates 5 to 6 is 2 and was 2.001"


def test_different_record_is_a_fault():
    (fault,) = report(make_replay(), recorded=RECORD | {"gradient/a": 9}).faults
    assert fault.startswith("update 6 differs from the record of the run (gradient/a): ")
    # Of another program only losses are compared.
    other = {"program": 18, "gradient/a": 9}
    assert not report(make_replay(), recorded=RECORD | other, logged=5.5005).faults
    assert report(make_replay(), recorded=RECORD | other | {"loss": 2.6}).faults == ["the loss of update 6 is 2.5 and was 2.6"]


def test_logged_losses_are_compared():
    assert report(make_replay(), logged=5.5005).faults == ["the mean loss of updates 5 to 6 is 5.5 and was 5.5005"]
    assert not report(make_replay(), recorded=None, logged=5.5005).faults
    assert report(make_replay(), recorded=None, logged=5.6).faults

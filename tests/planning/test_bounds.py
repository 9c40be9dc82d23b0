"""The lower bound of a program's time."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.planning.bounds import bound, moved_bytes, sent_bytes
from bertfam.planning.hlo.collectives import Collective
from bertfam.planning.hlo.memory import Memory
from bertfam.sharding.chips import Chip


def mesh(slices=2):
    """Of eight devices, replica 2 x fsdp 4."""
    devices = [SimpleNamespace(platform="tpu", slice_index=place * slices // 8) for place in range(8)]
    return SimpleNamespace(devices=np.array(devices).reshape(2, 4))


def collective(kind, devices, *axes, times=1):
    return Collective(kind, axes, devices, 1000, times, "f32[250]", "")


@pytest.mark.parametrize(
    ("found", "within", "between"),
    [
        (collective("all-reduce", 4, "fsdp"), 1500, 0),
        (collective("all-gather", 4, "fsdp", times=12), 12 * 750, 0),
        (collective("reduce-scatter", 4, "fsdp"), 750, 0),
        (collective("all-to-all", 4, "fsdp"), 750, 0),
        (collective("collective-permute", 2, "fsdp"), 1000, 0),
        (collective("collective-permute", 2, "replica"), 0, 1000),
        (collective("collective-broadcast", 4, "fsdp"), 750, 0),
        (collective("all-reduce", 2, "replica"), 0, 1000),
        # Each of the 4 devices of a slice brings a quarter of the sum to the other slice.
        (collective("all-reduce", 8, "replica", "fsdp"), 1500, 250),
        # A part to each of 8: 3 of them in the slice, 4 in the other one.
        (collective("all-to-all", 8, "replica", "fsdp"), 375, 500),
        (collective("ragged-all-to-all", 8, "replica", "fsdp"), 375, 500),
    ],
)
def test_what_is_sent(found, within, between):
    assert sent_bytes([found], mesh()) == (within, between)


def test_replicas_of_one_slice_talk_over_its_links():
    found = [collective("all-reduce", 2, "replica"), collective("all-gather", 8, "replica", "fsdp")]
    assert sent_bytes(found, mesh(slices=1)) == (1000 + 875, 0)


def test_several_replicas_in_each_of_two_slices():
    two = mesh()
    two.devices = two.devices.reshape(8, 1)
    assert sent_bytes([collective("all-reduce", 8, "replica")], two) == (1500, 250)


def test_what_binds():
    chip = Chip("toy", "toy", 100.0, 10**9, 10.0, "", ici_bandwidth=1.0, dcn_bandwidth=0.5, devices=2)
    found = [collective("all-reduce", 8, "replica", "fsdp")]
    # A device is half a chip.
    least = bound(chip, flops=1e5, moved=100, sent=sent_bytes(found, mesh()))
    assert vars(least) == {"compute": 2000, "memory": 20, "ici": 3000, "dcn": 1000}
    assert (least.seconds, least.binds) == (3000, "ici")
    assert bound(chip, flops=1e6, moved=100, sent=(0, 0)).binds == "compute"


def test_what_is_moved():
    sizes = {"temporaries": 10**6, "code": 10**6, "other": 10**6}
    # A step reads 100 + 200 + 7, writes 100 + 200, and both with the gradients; an evaluation reads 100 + 7.
    assert moved_bytes(Memory(parameters=100, optimizer=200, batch=7, gradients=100, **sizes)) == 807
    evaluation = Memory(parameters=100, optimizer=200, batch=7, gradients=0, **sizes)
    assert moved_bytes(evaluation) == 107
    assert moved_bytes(evaluation, reread=900) == 1007

"""Lower bound of the time of a program."""

from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.planning.bounds import bound, moved_bytes, sent_bytes
from bertfam.planning.hlo.collectives import Collective
from bertfam.planning.hlo.memory import Memory
from bertfam.sharding.chips import Chip


def mesh(slices=2):
    """Return a mesh of eight devices, replica 2 x fsdp 4."""
    devices = [SimpleNamespace(platform="tpu", slice_index=place * slices // 8) for place in range(8)]
    return SimpleNamespace(devices=np.array(devices).reshape(2, 4))


def collective(kind, devices, *axes, times=1):
    return Collective(kind, axes, devices, 1000, times, "f32[250]", "")


@pytest.mark.parametrize(
    ("operation", "within", "between"),
    [
        (collective("all-reduce", 4, "fsdp"), 1500, 0),
        (collective("all-gather", 4, "fsdp", times=12), 12 * 750, 0),
        (collective("reduce-scatter", 4, "fsdp"), 750, 0),
        (collective("all-to-all", 4, "fsdp"), 750, 0),
        (collective("collective-permute", 2, "fsdp"), 1000, 0),
        (collective("collective-permute", 2, "replica"), 0, 1000),
        (collective("collective-broadcast", 4, "fsdp"), 750, 0),
        (collective("all-reduce", 2, "replica"), 0, 1000),
        # Each of the 4 devices of a slice sends a quarter of the sum to the other slice.
        (collective("all-reduce", 8, "replica", "fsdp"), 1500, 250),
        # Each device sends one part to each of the others: 3 in its slice and 4 in the other.
        (collective("all-to-all", 8, "replica", "fsdp"), 375, 500),
        (collective("ragged-all-to-all", 8, "replica", "fsdp"), 375, 500),
    ],
)
def test_sent_bytes_of_every_collective(operation, within, between):
    assert sent_bytes([operation], mesh()) == (within, between)


def test_replicas_within_one_slice_use_its_links():
    operations = [collective("all-reduce", 2, "replica"), collective("all-gather", 8, "replica", "fsdp")]
    assert sent_bytes(operations, mesh(slices=1)) == (1000 + 875, 0)


def test_several_replicas_per_slice():
    two_slices = mesh()
    two_slices.devices = two_slices.devices.reshape(8, 1)
    assert sent_bytes([collective("all-reduce", 8, "replica")], two_slices) == (1500, 250)


def test_bound_is_the_largest_of_its_parts():
    chip = Chip("toy", "toy", 100.0, 10**9, 10.0, "", ici_bandwidth=1.0, dcn_bandwidth=0.5, devices=2)
    operations = [collective("all-reduce", 8, "replica", "fsdp")]
    # A device is half a chip.
    lower_bound = bound(chip, flops=1e5, moved=100, sent=sent_bytes(operations, mesh()))
    assert vars(lower_bound) == {"compute": 2000, "memory": 20, "ici": 3000, "dcn": 1000}
    assert (lower_bound.seconds, lower_bound.binds) == (3000, "ici")
    assert bound(chip, flops=1e6, moved=100, sent=(0, 0)).binds == "compute"


def test_moved_bytes_of_a_step_and_an_evaluation():
    sizes = {"temporaries": 10**6, "code": 10**6, "other": 10**6}
    # A step reads 100 + 200 + 7, writes 100 + 200, and does both with the gradients; an evaluation reads 100 + 7.
    assert moved_bytes(Memory(parameters=100, optimizer=200, batch=7, gradients=100, **sizes)) == 807
    evaluation = Memory(parameters=100, optimizer=200, batch=7, gradients=0, **sizes)
    assert moved_bytes(evaluation) == 107
    assert moved_bytes(evaluation, reread=900) == 1007

"""Slices by Google's names and the compiler's notation, and their devices."""

import dataclasses
import importlib.util

import pytest

from bertfam.errors import UserError
from bertfam.planning.slices import parse
from bertfam.sharding.mesh import MeshShape


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v5e-1", "v5e:1x1"),
        ("v5e-16", "v5e:4x4"),
        ("v5litepod-16", "v5e:4x4"),
        ("v6e-256", "v6e:16x16"),
        ("v5p-8", "v5p:2x2x1"),
        ("v5p-128", "v5p:4x4x4"),
        ("2xv5e-256", "2xv5e:16x16"),
        ("4xv5p:4x4x12", "4xv5p:4x4x12"),
        ("tpu7x:2x2x1", "tpu7x:2x2x1"),
        ("here", ""),
    ],
)
def test_names_of_slices(name, topology):
    parsed = parse(name)
    assert parsed.topology == topology
    if topology:
        assert dataclasses.replace(parse(topology), name=name) == parsed


@pytest.mark.parametrize(
    "name",
    [
        "v4-8",
        "tpu7x-8",
        "v5e:4",
        "v5e:0x4",
        "0xv5e-4",
        "v5p:4x4",
        "v5e:4x4x4",
        "v5p:16x16x32",
        "999999xv5e-256",
        "9" * 5000 + "xv5e-8",
        "v5e-" + "9" * 5000,
        "",
    ],
)
def test_unknown_names_are_refused(name):
    with pytest.raises(UserError, match=f"--slice={name[:20]}"):
        parse(name)


def test_mesh_puts_every_slice_into_one_replica():
    devices = parse("2xv5e:2x4").devices()
    assert len(devices) == 16 and {device.slice_index for device in devices} == {0, 1}
    mesh = MeshShape(fsdp=8).build(devices)
    assert dict(mesh.shape) == {"replica": 2, "data": 1, "fsdp": 8, "sequence": 1, "tensor": 1}
    # A slice is a replica, so that only the sum of gradients is sent between slices.
    assert [{device.slice_index for device in part.flat} for part in mesh.devices] == [{0}, {1}]
    assert len(parse("v5p-128").devices()) == 64
    assert len(parse("tpu7x:2x2x1").devices()) == 8  # two devices per chip


def test_missing_compiler_is_reported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        parse("v5e-16").devices()
    assert str(caught.value) == "--slice=v5e-16 requires the TPU compiler (it runs without a TPU): pip install 'bertfam[tpu]'"
    parse("here").devices()


def test_incompatible_compiler_is_reported(monkeypatch):
    def fails(**_):
        raise RuntimeError("the PJRT API is 0.99\nand more")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", fails)
    with pytest.raises(
        UserError, match=r"^libtpu \S+ and jax \S+ cannot compile for --slice=v5e-16 together \(the PJRT API is 0.99\)"
    ):
        parse("v5e-16").devices()

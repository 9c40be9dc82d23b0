"""Table of chips: peak FLOPs and memory of their devices."""

from types import SimpleNamespace

import pytest

from bertfam.sharding.chips import CHIPS, chip_of, memory_bytes, peak_flops


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("TPU v5", 459e12),
        ("TPU v6 lite", 918e12),
        ("cpu", None),
    ],
)
def test_peak_flops(kind, peak):
    assert peak_flops(SimpleNamespace(device_kind=kind)) == peak


def test_no_row_hides_another():
    for chip in CHIPS:
        assert chip_of(SimpleNamespace(device_kind=chip.kind)) is chip


def test_devices_of_a_two_device_chip_have_half_of_it():
    half = SimpleNamespace(device_kind="TPU7x", memory_stats=lambda: None)
    assert peak_flops(half) == 2307e12 / 2
    assert memory_bytes(half) == int(94.74 * 2**30)


def test_reported_memory_takes_precedence_over_the_table():
    assert memory_bytes(SimpleNamespace(device_kind="NVIDIA H100", memory_stats=lambda: {"bytes_limit": 7})) == 7
    assert memory_bytes(SimpleNamespace(device_kind="cpu", memory_stats=lambda: None)) is None

"""The table of learning rates, and lengths that are easily got wrong."""

import numpy as np
import pytest

from bertfam.training.schedules import LinearDecay


def rates(peak, warmup, total):
    schedule = LinearDecay(peak, warmup).build(total)
    return [float(schedule(step)) for step in range(total)]


def test_the_documented_table():
    assert rates(1.0, 4, 10) == pytest.approx([0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0], abs=1e-7)


@pytest.mark.parametrize(
    ("warmup", "total", "expected"),
    [
        (0, 4, [0.75, 0.5, 0.25, 0]),  # no warm-up
        (4, 4, [0.25, 0.5, 0.75, 1]),  # no decay
        (8, 4, [0.125, 0.25, 0.375, 0.5]),  # a warm-up longer than the run never reaches the peak
        (0, 1, [0]),
        (1, 1, [1]),
        (3, 4, [1 / 3, 2 / 3, 1, 0]),
    ],
)
def test_degenerate_lengths(warmup, total, expected):
    assert rates(2.0, warmup, total) == pytest.approx([2 * rate for rate in expected], abs=1e-6)


def test_long_runs_are_exact_enough():
    schedule = LinearDecay(1.0, 10_000).build(1_000_000)
    for step in (0, 9_999, 10_000, 499_999, 999_998):
        done = step + 1
        expected = done / 10_000 if done <= 10_000 else (1_000_000 - done) / 990_000
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5)
    assert float(schedule(999_999)) == 0 and float(schedule(2_000_000)) == 0
    assert np.isfinite(float(schedule(2**31 - 1)))


@pytest.mark.parametrize("settings", [{"peak": -1.0}, {"warmup_steps": -1}])
def test_negative_settings_are_refused(settings):
    with pytest.raises(ValueError, match="must not be negative"):
        LinearDecay(**settings)

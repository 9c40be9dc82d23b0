"""Learning-rate schedules against tables, and degenerate lengths of warm-up, decay and run."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertfam.training.schedules import (
    ConstantRate,
    CosineDecay,
    InverseSquareRoot,
    LinearDecay,
    PolynomialDecay,
    WarmupStableDecay,
)


def rates(schedule, total):
    built = schedule.build(total)
    return [float(built(step)) for step in range(total)]


TABLES = {
    "linear": (LinearDecay(1.0, 4), [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
    "linear to a floor": (LinearDecay(2.0, 4, 0.1), [0.5, 1, 1.5, 2, 1.7, 1.4, 1.1, 0.8, 0.5, 0.2]),
    # BERT's code: the rate drops from 3/4 to 1 - 4/10 where the warm-up ends, and the first update has none.
    "BERT": (LinearDecay(1.0, 4, variant="bert"), [0, 0.25, 0.5, 0.75, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
    "ELECTRA": (LinearDecay(1.0, 4, variant="electra"), [0, 0.225, 0.4, 0.525, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
    "cosine": (
        CosineDecay(1.0, 4),
        [0.25, 0.5, 0.75, 1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0],
    ),
    "cosine to a floor": (CosineDecay(1.0, 0, 0.5), [0.5 + 0.25 * (1 + math.cos(math.pi * n / 10)) for n in range(1, 11)]),
    "cosine over half of the run": (
        CosineDecay(1.0, 0, 0.5, decay_share=0.5),
        [*(0.5 + 0.25 * (1 + math.cos(math.pi * n / 5)) for n in range(1, 6)), *[0.5] * 5],
    ),
    "polynomial": (
        PolynomialDecay(8.0, 2, power=3.0),
        [4, 8, *(8 * (left / 8) ** 3 for left in range(7, -1, -1))],
    ),
    "a line is a polynomial": (PolynomialDecay(1.0, 4), [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
    "inverse square root": (
        InverseSquareRoot(1.0, 4, warmup="linear"),
        [0.25, 0.5, 0.75, 1, *(2 / math.sqrt(n) for n in range(5, 11))],
    ),
    "T5": (InverseSquareRoot(1.0, 4), [1, 1, 1, 1, *(2 / math.sqrt(n) for n in range(5, 11))]),
    "inverse square root to a floor": (InverseSquareRoot(1.0, 1, 0.5), [1, 1 / math.sqrt(2), 1 / math.sqrt(3), *[0.5] * 7]),
    "stable": (WarmupStableDecay(1.0, 2, decay_steps=4, tail="linear"), [0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]),
    "stable, root": (
        WarmupStableDecay(1.0, 2, 0.2, decay_steps=4),
        [0.5, 1, 1, 1, 1, 1, *(0.2 + 0.8 * (1 - math.sqrt(n / 4)) for n in range(1, 5))],
    ),
    "constant": (ConstantRate(3.0, 4), [0.75, 1.5, 2.25, 3, 3, 3, 3, 3, 3, 3]),
}


@pytest.mark.parametrize("name", TABLES)
def test_rates_match_tables(name):
    schedule, expected = TABLES[name]
    assert rates(schedule, 10) == pytest.approx(expected, abs=2e-7 * schedule.peak)
    # The rates on the device are the same, of all steps at once and of single steps, as a resumed run computes them.
    built = schedule.build(10)
    np.testing.assert_allclose(built(jnp.arange(10)), expected, atol=2e-7 * schedule.peak, rtol=1e-6)
    on_device = jax.jit(built)
    assert [float(on_device(jnp.int32(step))) for step in (3, 7)] == pytest.approx([expected[3], expected[7]], abs=1e-6)
    assert float(built(np.int64(7))) == float(built(7))


DEGENERATE = [
    (LinearDecay, 0, 4, [0.75, 0.5, 0.25, 0]),  # no warm-up
    (LinearDecay, 4, 4, [0.25, 0.5, 0.75, 1]),  # no decay
    (LinearDecay, 8, 4, [0.125, 0.25, 0.375, 0.5]),  # a warm-up longer than the run never reaches the peak
    (LinearDecay, 0, 1, [0]),
    (LinearDecay, 1, 1, [1]),
    (LinearDecay, 3, 4, [1 / 3, 2 / 3, 1, 0]),
    (CosineDecay, 4, 4, [0.25, 0.5, 0.75, 1]),
    (CosineDecay, 8, 4, [0.125, 0.25, 0.375, 0.5]),
    (CosineDecay, 0, 1, [0]),
    (PolynomialDecay, 4, 4, [0.25, 0.5, 0.75, 1]),
    (PolynomialDecay, 0, 1, [0]),
    (InverseSquareRoot, 0, 4, [1, 1 / math.sqrt(2), 1 / math.sqrt(3), 0.5]),
    (InverseSquareRoot, 8, 4, [1, 1, 1, 1]),
    (ConstantRate, 0, 2, [1, 1]),
    (ConstantRate, 8, 2, [0.125, 0.25]),
]


@pytest.mark.parametrize(("make", "warmup", "total", "expected"), DEGENERATE)
def test_degenerate_lengths(make, warmup, total, expected):
    assert rates(make(2.0, warmup), total) == pytest.approx([2 * rate for rate in expected], abs=1e-6)


@pytest.mark.parametrize(
    ("warmup", "decay", "total", "expected"),
    [
        (0, 0, 3, [1, 1, 1]),  # never decays
        (2, 10, 4, [0.5, 1, 0.5, 0]),  # a decay longer than what is left after the warm-up
        (4, 2, 4, [0.25, 0.5, 0.75, 1]),
        (0, 1, 1, [0]),
    ],
)
def test_degenerate_lengths_of_the_stable_schedule(warmup, decay, total, expected):
    schedule = WarmupStableDecay(1.0, warmup, decay_steps=decay, tail="linear")
    assert rates(schedule, total) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("variant", ["bert", "electra"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 3), (3, 3), (5, 3), (0, 1)])
def test_degenerate_lengths_of_the_published_variants(variant, warmup, total):
    expected = []
    for step in range(total):
        warming = step / warmup if step < warmup else 1.0
        if variant == "bert":
            expected.append(warming if step < warmup else 1 - step / total)
        else:
            expected.append((1 - step / total) * warming)
    assert rates(LinearDecay(1.0, warmup, variant=variant), total) == pytest.approx(expected, abs=1e-6)


def test_longer_run_has_the_rates_of_its_new_length():
    short, long = (WarmupStableDecay(1.0, 2, decay_steps=4).build(total) for total in (10, 20))
    assert [float(short(step)) for step in range(6)] == [float(long(step)) for step in range(6)]
    assert float(long(9)) == 1 and float(short(9)) == 0 and float(long(19)) == 0


def test_rates_of_long_runs_are_accurate():
    schedule = LinearDecay(1.0, 10_000).build(1_000_000)
    for step in (0, 9_999, 10_000, 499_999, 999_998):
        updates = step + 1
        expected = updates / 10_000 if updates <= 10_000 else (1_000_000 - updates) / 990_000
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5)
    assert float(schedule(999_999)) == 0 and float(schedule(2_000_000)) == 0
    assert np.isfinite(float(schedule(2**31 - 1)))


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (LinearDecay, {"peak": -1.0}, "peak -1.0 is not a valid rate"),
        (ConstantRate, {"warmup_steps": -1}, "warmup_steps -1 is negative"),
        (CosineDecay, {"decay_share": 0.0}, "decay_share 0.0 is not in"),
        (CosineDecay, {"floor": 1.5}, "floor 1.5 is not in"),
        (InverseSquareRoot, {"floor": -0.1}, "floor -0.1 is not in"),
        (PolynomialDecay, {"power": 0.0}, "power 0.0 must be above 0"),
        (WarmupStableDecay, {"decay_steps": -1}, "decay_steps -1 is negative"),
    ],
)
def test_invalid_settings_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)

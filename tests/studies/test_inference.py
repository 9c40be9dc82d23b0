"""Inference over seeds: values by hand and from published tables."""

import math

import pytest

from bertfam.studies.inference import difference, holm, interval, seeds_to_decide


def test_an_interval_is_that_of_students_t():
    found = interval([1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)  # t of 97.5 % with 2 degrees of freedom; the deviation is 1
    assert (found.mean, found.deviation, found.seeds) == (2.0, 1.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-5)
    assert interval([5.0]) == (5.0, None, None, None, 1)


def test_differences_are_paired_by_seed():
    # Differences 1, 2 and 3: mean 2, deviation 1, t = 2 sqrt 3 with 2 degrees of freedom, whose p is 1 - t / sqrt(t^2 + 2).
    found = difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    t = 2 * math.sqrt(3)
    assert (found.mean, found.deviation, found.seeds) == (2.0, 1.0, 3)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(t * t + 2))
    assert found.effect == pytest.approx(2 / math.sqrt((121 + 100) / 2))
    same = difference([1.0, 2.0], [1.0, 2.0])
    assert (same.mean, same.p_value, same.low, same.high) == (0, 1, 0, 0)
    assert difference([2.0, 3.0], [1.0, 2.0]).p_value == 0


def test_p_values_are_corrected_by_holms_method():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5), (1e6, 2)])
def test_the_number_of_seeds_is_that_of_tables_of_power(effect, seeds):
    # Paired t-test, two-sided, level 5 %, power 80 %; the first three as in Cohen's tables.
    assert seeds_to_decide(effect, 1.0, 1) == seeds == seeds_to_decide(-effect, 1.0, 1)
    assert seeds_to_decide(effect, 1.0, 3) >= seeds


def test_a_difference_that_is_too_small_is_never_decided():
    assert seeds_to_decide(0.0, 1.0, 1) is None and seeds_to_decide(0.01, 1.0, 1) is None

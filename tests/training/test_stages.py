"""Stage and position of each step."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.rows.batches import Batches
from bertfam.training.schedules import ConstantRate
from bertfam.training.stages import Ramp, Stage, StagedBatches, expanded, locate, seen, total_steps

STAGES = (Stage(3, 16, 4), Stage(1, 32, 2), Stage(5, 64, 1))


def test_every_step_is_located():
    places = [locate(STAGES, step) for step in range(total_steps(STAGES))]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]
    with pytest.raises(IndexError):
        locate(STAGES, 9)


def test_each_stage_counts_the_steps_of_its_own_source():
    class Source:
        def __init__(self, number):
            self.number = number

        def rows(self, step, start, stop):
            return {"x": np.array([self.number, step, start, stop])}

    batches = StagedBatches(STAGES, [Source(number) for number in range(3)])
    assert [batches.rows(step, 1, 2)["x"].tolist() for step in (2, 3, 8)] == [[0, 2, 1, 2], [1, 0, 1, 2], [2, 4, 1, 2]]


def test_tokens_and_epochs_seen():
    rows = [SimpleNamespace(epoch_rows=count) for count in (24.0, 4.0, 2.0)]
    batches = [Batches(sequence, stage.batch_size) for sequence, stage in zip(rows, STAGES, strict=True)]
    assert [seen(STAGES, batches, step) for step in (0, 2, 3, 4, 6, 9)] == [
        {"tokens_seen": tokens, "epoch": epoch}
        for tokens, epoch in ((0, 0), (128, 1 / 3), (192, 0.5), (256, 1), (384, 2), (576, 3.5))
    ]


@pytest.mark.parametrize("settings", [{"steps": 0}, {"steps": 1, "length": 0}, {"steps": 1, "batch_size": 0}])
def test_empty_stages_are_refused(settings):
    with pytest.raises(ValueError, match="0 must be at least 1"):
        Stage(**settings)


def test_batches_that_no_machine_holds_are_refused():
    assert Stage(1, 2048, 2048)
    with pytest.raises(ValueError, match="batch_size 2097152 of length 128 is 268,435,456 tokens, and a batch has fewer"):
        Stage(1, 128, 2**21)


EARLY, LATE = BertMasking(rate=0.3), BertMasking(rate=0.05)


def test_early_noise_is_a_stage_of_its_own():
    """The stages have `steps` updates together, however few they are."""
    stage = Stage(10, 16, 4, corruption=LATE, early_corruption=EARLY, early_steps=7)
    assert expanded((stage, Stage(2, 32, 4))) == (
        Stage(7, 16, 4, corruption=EARLY), Stage(3, 16, 4, corruption=LATE), Stage(2, 32, 4)
    )  # fmt: skip
    for steps in (1, 7):
        assert expanded((replace(stage, steps=steps),)) == (Stage(steps, 16, 4, corruption=EARLY),)


@pytest.mark.parametrize(
    "settings", [{"early_steps": 3}, {"early_corruption": EARLY}, {"early_corruption": EARLY, "early_steps": -1}]
)
def test_early_noise_has_a_number_of_steps(settings):
    with pytest.raises(ValueError, match="give both, or leave both out"):
        Stage(5, **settings)


def test_stage_of_two_noises_has_no_schedule_of_its_own():
    """Each of its two stages would run the whole schedule."""
    with pytest.raises(ValueError, match="a Stage with early_corruption has no schedule of its own"):
        Stage(10, early_corruption=EARLY, early_steps=7, schedule=ConstantRate(1e-3))


def test_ramp_has_no_early_noise():
    with pytest.raises(ValueError, match="early_corruption"):
        Ramp(8, early_corruption=EARLY, early_steps=2)

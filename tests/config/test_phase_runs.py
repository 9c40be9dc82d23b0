"""Run files with phases have the published phases, which share one set of parameters."""

import pytest

from bertfam.config import load
from bertfam.objectives.mlm import CausalAndMasked, Mlm
from bertfam.training.run import Run
from bertfam.training.schedules import ConstantRate, WarmupStableDecay


def phases(name: str, *lines: str) -> tuple[Run, list[int]]:
    """Return a run and the indices of the stages that begin a phase."""
    run = load([f"runs/{name}.gin"], lines).build("Run").sized(128)
    own = [stage.own_settings for stage in run.stages]
    return run, [index for index in range(len(own)) if index == 0 or own[index] != own[index - 1]]


def test_modernbert_has_three_phases_and_old_files_still_load():
    run, begins = phases("modernbert_base_phases")
    assert [(stage.steps, stage.length, stage.batch_size) for stage in run.stages[-3:]] == [
        (350_000, 1_024, 4_608),
        (53_000, 8_192, 576),
        (10_600, 8_192, 576),
    ]
    assert begins == [0, len(run.stages) - 2, len(run.stages) - 1]
    assert [run.objective_of(index).model.global_theta for index in begins] == [1e4, 1.6e5, 1.6e5]
    steps = [sum(stage.steps for stage in run.stages[:index]) for index in (*begins, len(run.stages))]
    rates = [float(run.schedule(step)) for step in (steps[1] - 1, steps[1], steps[2] - 1, steps[2], steps[3] - 1)]
    assert rates == pytest.approx([8e-4, 3e-4, 3e-4, 3e-4 * (1 - (1 / 10_600) ** 0.5), 0], rel=1e-5, abs=1e-9)
    assert len(set(run.phases)) == 2  # the long phases differ in their schedules alone
    long = load(["runs/modernbert_base_long.gin"]).build("Run")
    assert [(stage.length, stage.own_settings) for stage in long.stages] == [(8_192, {})]


def test_mmbert_masks_less_and_flattens_the_languages_in_each_phase():
    run, begins = phases("mmbert_base", "first/Shares.names = ('de', 'en')")
    assert [run.data_of(index).corruption.rate for index in begins] == [0.3, 0.15, 0.05]
    shares = [run.stages[index].shares for index in begins]
    assert [1 / own.temperature for own in shares] == pytest.approx([0.7, 0.5, 0.3])
    assert shares[0].of(("de", "en", "fo"), (400, 100, 50))[2] == 0
    assert sum(shares[2].of(("de", "en", "fo"), (400, 100, 50))) == pytest.approx(1)
    assert {stage.shares for stage in run.stages[: begins[1]]} == {shares[0]}


def test_a_causal_phase_comes_before_a_masked_one():
    run, begins = phases("causal_then_masked")
    causal, masked = (run.objective_of(index) for index in begins)
    assert isinstance(causal, CausalAndMasked) and causal.causal_share == 1 and type(masked) is Mlm
    assert causal.model == masked.model and run.total_steps == 42_000
    assert run.boxed_params.keys() == {"encoder", "mlm_head"} and run.phases[0].idle.parts == {}
    assert isinstance(run.optimizer.schedule, WarmupStableDecay) and run.data.corruption.rate == 0.4
    assert float(run.schedule(21_000)) == pytest.approx(5e-4)  # one schedule over both phases


def test_gpt_bert_mixes_both_objectives_in_each_batch():
    run, begins = phases("gpt_bert")
    objective = run.objective
    assert isinstance(objective, CausalAndMasked) and (objective.causal_share, objective.shifted) == (1 / 16, True)
    assert begins == [0] and [stage.length for stage in run.stages] == [128, 512]


def test_settings_of_a_stage_are_bound_in_its_scope():
    lines = ["late/Stage.schedule = @late/ConstantRate()", "late/ConstantRate.peak = 2e-5", "late/Stage.steps = 5"]
    run = load(["runs/quickstart.gin"], ["Run.stages = (@Stage(), @late/Stage())", *lines]).build("Run")
    assert run.stages[1].schedule == ConstantRate(2e-5) and run.stages[0].schedule is None

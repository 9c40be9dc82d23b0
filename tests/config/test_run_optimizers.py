"""Run files with other optimizers and schedules."""

import pytest

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.training import optimizers, schedules
from bertfam.training.stages import Stage

QUICKSTART = "runs/quickstart_bert.gin"


def build_run(*bindings):
    return load([QUICKSTART], bindings).build("Run")


@pytest.mark.parametrize("name", ["AdamW", "BertAdam", "Lamb", "Lion", "Muon", "StableAdamW"])
def test_one_binding_changes_the_optimizer_and_keeps_the_schedule(name):
    optimizer = build_run(f"Run.optimizer = @{name}()").optimizer
    assert type(optimizer) is getattr(optimizers, name)
    variant = "bert" if name == "BertAdam" else "joined"
    assert optimizer.schedule == schedules.LinearDecay(2e-3, 200, variant=variant)


def test_adafactor_has_its_own_schedule():
    assert build_run("Run.optimizer = @Adafactor()").optimizer == optimizers.Adafactor()
    relative = build_run("Run.optimizer = @Adafactor()", "InverseSquareRoot.peak = 1e-3", "Adafactor.factored = False").optimizer
    assert relative.schedule.peak == 1e-3 and not relative.factored


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("ConstantRate", "peak = 1e-3"),
        ("CosineDecay", "floor = 0.1"),
        ("InverseSquareRoot", "warmup = 'linear'"),
        ("LinearDecay", "variant = 'electra'"),
        ("PolynomialDecay", "power = 3.0"),
        ("WarmupStableDecay", "tail = 'linear'"),
    ],
)
def test_schedule_is_replaced_by_one_binding(name, setting):
    schedule = build_run(f"AdamW.schedule = @{name}()", f"{name}.{setting}").optimizer.schedule
    parameter, value = setting.split(" = ")
    assert type(schedule) is getattr(schedules, name) and repr(getattr(schedule, parameter)) == repr(eval(value))


def test_ramp_is_expanded_into_stages():
    ramp = ("Ramp.steps = 9", "Ramp.batch_size = 32", "Ramp.first_batch_size = 8", "Ramp.sizes = 4", "Stage.steps = 5")
    run = build_run("Run.stages = (@Ramp(), @Stage())", *ramp)
    expected = [(2, 8), (2, 16), (2, 24), (3, 32), (5, 64)]
    assert [(stage.steps, stage.batch_size) for stage in run.stages] == expected and run.total_steps == 14
    assert all(type(stage) is Stage for stage in run.stages)
    with pytest.raises(UserError, match="steps 3 is less than sizes 4"):
        build_run("Run.stages = (@Ramp(), @Stage())", *ramp[1:], "Ramp.steps = 3")


def test_bindings_of_the_wrong_type_are_refused():
    with pytest.raises(UserError, match=r"Run.optimizer must be Optimizer, not @LinearDecay\(\)"):
        build_run("Run.optimizer = @LinearDecay()")
    with pytest.raises(UserError, match=r"Lamb.schedule must be Schedule, not @Lamb\(\)"):
        build_run("Run.optimizer = @Lamb()", "Lamb.schedule = @Lamb()")
    with pytest.raises(UserError, match="non_finite must be one of 'raise', 'skip', not 'ignore'"):
        build_run("Run.non_finite = 'ignore'")
    with pytest.raises(UserError, match="nu_dtype bfloat16 cannot follow"):
        build_run("AdamW.nu_dtype = 'bfloat16'", "AdamW.b2 = 0.999")

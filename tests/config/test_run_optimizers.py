"""Run files with any optimizer and schedule."""

import pytest

from bertfam.config import load
from bertfam.errors import UserError
from bertfam.training import optimizers, schedules
from bertfam.training.stages import Stage

QUICKSTART = "runs/quickstart.gin"


def built(*bindings):
    return load([QUICKSTART], bindings).build("Run")


@pytest.mark.parametrize("name", ["AdamW", "BertAdam", "Lamb", "Lion", "Muon"])
def test_one_binding_changes_the_optimizer_and_the_runs_schedule_stays(name):
    optimizer = built(f"Run.optimizer = @{name}()").optimizer
    assert type(optimizer) is getattr(optimizers, name)
    variant = "bert" if name == "BertAdam" else "joined"
    assert optimizer.schedule == schedules.LinearDecay(2e-3, 200, variant=variant)


def test_adafactor_comes_with_its_own_schedule():
    assert built("Run.optimizer = @Adafactor()").optimizer == optimizers.Adafactor()
    relative = built("Run.optimizer = @Adafactor()", "InverseSquareRoot.peak = 1e-3", "Adafactor.factored = False").optimizer
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
def test_any_schedule(name, setting):
    schedule = built(f"AdamW.schedule = @{name}()", f"{name}.{setting}").optimizer.schedule
    parameter, value = setting.split(" = ")
    assert type(schedule) is getattr(schedules, name) and repr(getattr(schedule, parameter)) == repr(eval(value))


def test_a_ramp_becomes_stages():
    ramp = ("Ramp.steps = 9", "Ramp.batch_size = 32", "Ramp.first_batch_size = 8", "Ramp.sizes = 4", "Stage.steps = 5")
    run = built("Run.stages = (@Ramp(), @Stage())", *ramp)
    expected = [(2, 8), (2, 16), (2, 24), (3, 32), (5, 64)]
    assert [(stage.steps, stage.batch_size) for stage in run.stages] == expected and run.total_steps == 14
    assert all(type(stage) is Stage for stage in run.stages)
    with pytest.raises(UserError, match="steps 3 is less than sizes 4"):
        built("Run.stages = (@Ramp(), @Stage())", *ramp[1:], "Ramp.steps = 3")


def test_what_does_not_fit_is_refused():
    with pytest.raises(UserError, match=r"Run.optimizer must be Optimizer, not @LinearDecay\(\)"):
        built("Run.optimizer = @LinearDecay()")
    with pytest.raises(UserError, match=r"Lamb.schedule must be Schedule, not @Lamb\(\)"):
        built("Run.optimizer = @Lamb()", "Lamb.schedule = @Lamb()")
    with pytest.raises(UserError, match="non_finite must be one of 'raise', 'skip', not 'ignore'"):
        built("Run.non_finite = 'ignore'")
    with pytest.raises(UserError, match="nu_dtype bfloat16 cannot follow"):
        built("AdamW.nu_dtype = 'bfloat16'", "AdamW.b2 = 0.999")

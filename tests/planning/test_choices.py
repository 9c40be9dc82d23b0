"""Choice of each "auto": by the kind of devices, the depth of the model, and estimates of memory."""

import dataclasses
from types import SimpleNamespace

import planned_bert
import pytest

from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.planning import choices
from bertfam.planning.choices import Choice, choose_execution, choose_memory, value_of, with_choices
from bertfam.sharding.mesh import MeshShape
from bertfam.training.run_plan import execution_settings, execution_text

GIB = 2**30


AUTOMATIC = Execution()


def objective(*layers, execution=AUTOMATIC, encoder_layers=0):
    """Return what a choice reads of an objective whose networks have so many layers."""
    networks = {
        str(index): SimpleNamespace(num_layers=count, encoder_layers=encoder_layers) for index, count in enumerate(layers)
    }
    return SimpleNamespace(networks=networks, teachers={}, execution=execution)


@pytest.mark.parametrize(
    ("platform", "layers", "dtype", "loop", "bits"),
    [
        ("cpu", 12, "float32", "scan", "threefry"),
        ("gpu", 12, "bfloat16", "unroll", "hash"),
        ("gpu", 48, "bfloat16", "unroll", "hash"),
        ("gpu", 49, "bfloat16", "scan", "hash"),
        ("tpu", 2, "bfloat16", "scan", "hash"),
        ("another", 12, "float32", "scan", "threefry"),
    ],
)
def test_kind_of_devices_and_depth_choose_precision_loop_and_bits(platform, layers, dtype, loop, bits):
    chosen = choose_execution(objective(layers), platform)
    expected = {"Execution.dtype": dtype, "Execution.layers": loop, "Execution.dropout_bits": bits}
    assert {name: choice.value for name, choice in chosen.items()} == expected
    assert all(platform in choice.reason for choice in chosen.values())


def test_float32_keeps_its_bits():
    assert choose_execution(objective(12, execution=Execution("float32")), "gpu")["Execution.dropout_bits"].value == "threefry"


def test_layers_of_all_networks_count():
    networks = objective(12, 24, encoder_layers=6)
    networks.teachers = {"teacher": SimpleNamespace(model=SimpleNamespace(num_layers=10)), "unnamed": None}
    assert choices.layer_count(networks) == 12 + 24 + 2 * 6 + 10


def test_bound_values_are_not_chosen():
    bound = Execution("float32", "scan", dropout_bits="threefry")
    assert choose_execution(objective(12, execution=bound), "gpu") == {}
    run = planned_bert.run(['Execution.remat = "dots"', "Run.microbatches = 2"])
    assert choose_memory(run, 1, 1, 1, required=None) == {}
    assert with_choices(run, {"Execution.remat": Choice("full", ""), "Run.microbatches": Choice(8, "")}) == run


BYTES = {"none": 64, "dots": 32, "full": 12}  # GiB of one microbatch


@pytest.fixture
def estimated(monkeypatch):
    """Replace estimates by `BYTES` and 8 GiB for parameters; return the estimated settings in order."""
    settings = []

    def estimate(run, devices, slices):
        remat, count = value_of(run, "Execution.remat"), value_of(run, "Run.microbatches")
        settings.append((remat, count))
        return int((8 + BYTES[remat] / count) * GIB)

    monkeypatch.setattr(choices, "_estimated", estimate)
    return settings


def chosen_for(memory, lines=(), required=None):
    """Return the recomputation and the number of microbatches for devices with so many GiB."""
    compiled = []

    def compile_with(run):
        compiled.append((value_of(run, "Execution.remat"), value_of(run, "Run.microbatches")))
        return required * GIB

    found = choose_memory(planned_bert.run(["BATCH_SIZE = 4096", *lines]), 1, 1, memory * GIB, compile_with if required else None)
    return {name.rpartition(".")[2]: choice.value for name, choice in found.items()}, found, compiled


def test_memory_chooses_the_cheapest_setting_that_fits(estimated):
    assert chosen_for(100)[0] == {"remat": "none", "microbatches": 1} and estimated == [("none", 1)]
    assert chosen_for(55)[0] == {"remat": "none", "microbatches": 2}
    assert chosen_for(55, ["Run.microbatches = 1"])[0] == {"remat": "dots"}
    assert chosen_for(30, ["Run.microbatches = 1"])[0] == {"remat": "full"}
    assert chosen_for(55, ['Execution.remat = "none"'])[0] == {"microbatches": 2}
    assert chosen_for(55, ["Run.microbatches = 1"])[1]["Execution.remat"].reason == "estimated 40.00 of 55.00 GiB"


def test_an_estimate_near_the_limit_is_compiled(estimated):
    values, found, compiled = chosen_for(75, required=71)
    assert values == {"remat": "none", "microbatches": 1} and compiled == [("none", 1)]
    assert found["Execution.remat"].reason == "compiled 71.00 of 75.00 GiB"
    # The program is larger than its estimate, by a factor that holds for the others: those of 40 GiB are not compiled.
    values, _, compiled = chosen_for(75, required=80)
    assert values == {"remat": "none", "microbatches": 2} and compiled == [("none", 1)]


def test_nothing_that_fits_is_said(estimated):
    values, found, _ = chosen_for(5, ["Run.microbatches = 1"])
    assert values == {"remat": "full"} and found["Execution.remat"].reason == "too large, estimated 20.00 of 5.00 GiB"


def test_unknown_memory_changes_nothing():
    found = choose_memory(planned_bert.run(), 1, 1, None, required=None)
    assert {name: choice.value for name, choice in found.items()} == {"Execution.remat": "none", "Run.microbatches": 1}


def test_sizes_that_do_not_divide_are_refused(estimated):
    mesh = dataclasses.replace(planned_bert.run(), mesh=MeshShape(data=3))
    with pytest.raises(UserError, match="64"):
        choose_memory(mesh, 3, 1, GIB, required=None)


def test_an_objective_without_options_has_one_microbatch():
    @dataclasses.dataclass(frozen=True)
    class Plain:
        execution = AUTOMATIC

    run = dataclasses.make_dataclass("Run", ["objective", "microbatches"])(Plain(), "auto")
    assert {name: choice.value for name, choice in choices.choose(run, [None], 1).items()} == {"Run.microbatches": 1}
    assert value_of(run, "Execution.layers") == "scan"


def test_what_an_unrolled_step_requires_is_compiled(monkeypatch):
    """Its own estimate is too low, that of scanned layers too high."""
    monkeypatch.setattr(choices, "_estimated", lambda run, *_: {"scan": 25, "unroll": 8}[value_of(run, "Execution.layers")] * GIB)
    for loop, memory, count in (("unroll", 20, 1), ("unroll", 40, 0), ("unroll", 6, 0), ("scan", 18, 0)):
        _, _, compiled = chosen_for(memory, [f"Execution.layers = '{loop}'", "Run.microbatches = 1"], required=14)
        assert len(compiled) == count, (loop, memory)


def test_real_estimates_choose():
    run = with_choices(planned_bert.run(["Run.microbatches = 1"]), choose_execution(planned_bert.run().objective, "tpu"))
    none, full = (
        choices._estimated(with_choices(run, {"Execution.remat": Choice(remat, "")}), 1, 1) for remat in ("none", "full")
    )
    assert full < none
    found = choose_memory(run, 1, 1, int(0.8 * none), lambda run: choices._estimated(run, 1, 1))
    assert found["Execution.remat"].value != "none"


def test_line_of_the_plan():
    run = planned_bert.run(['Execution.layers = "unroll"', "Run.microbatches = 2"])
    reasons = {"Execution.remat": "estimated 1.00 of 2.00 GiB"}
    assert execution_text(execution_settings(run), reasons) == (
        "dtype bfloat16, layers unroll, remat none (estimated 1.00 of 2.00 GiB), dropout_bits threefry, microbatches 2"
    )

"""Estimates of a step on a mesh, exact for the state and in the order of the compiled programs otherwise."""

import dataclasses
import json
from pathlib import Path

import planned_bert
import pytest
import xla
from fork_server import run_program

from bertfam.config.build import load
from bertfam.errors import UserError
from bertfam.planning.estimate import estimate
from bertfam.planning.layouts import describe_layout, heaviest, layouts
from bertfam.planning.tracing import traces_for
from bertfam.sharding.chips import CHIPS
from bertfam.sharding.mesh import MeshShape

GIB = 2**30


@pytest.fixture(scope="module")
def sizes_on_eight_devices():
    """Sizes that `layout_sizes.py` prints on eight simulated devices."""
    out, _ = run_program(Path(__file__).parent / "layout_sizes.py", environment=xla.device_environment(8))
    return json.loads(out.splitlines()[-1])


def test_estimated_state_is_exact(sizes_on_eight_devices):
    sizes = {name: entry["estimated"] for name, entry in sizes_on_eight_devices.items() if name != "compiled"}
    assert sizes == {name: entry["split"] for name, entry in sizes_on_eight_devices.items() if name != "compiled"}
    assert len({tuple(entry) for entry in sizes.values()}) == len(sizes)
    parameters, optimizer, other, total, estimated = sizes_on_eight_devices["compiled"]
    assert [parameters, optimizer] == sizes["zero1"]
    assert other < 2000  # besides them a step has its number and its metrics
    assert 0.3 < estimated / total < 1.5


def estimate_with(run, devices=1, **changed):
    return estimate(dataclasses.replace(run, **changed), devices)


@pytest.fixture(scope="module")
def base():
    """BERT-base with a batch of 128 rows."""
    bindings = ["Run.stages = (@Stage(),)", "BATCH_SIZE = 128"]
    return load(["runs/bert_base.gin"], bindings).build("Run").sized(30522)


def test_effect_of_every_option(base):
    plain = estimate_with(base)
    # Count 12 layers, the embeddings and the heads, forward and twice as much backward.
    assert plain.flops == pytest.approx(128 * base.objective.flops(base.shape(0)), rel=0.01)
    with_microbatches = estimate_with(base, microbatches=4)
    assert with_microbatches.activations == pytest.approx(plain.activations / 4, rel=0.1)
    assert (with_microbatches.gradients, with_microbatches.flops) == (2 * plain.gradients, plain.flops)

    data_parallel = estimate_with(base, 4)
    assert (data_parallel.parameters, data_parallel.optimizer) == (plain.parameters, plain.optimizer)
    assert data_parallel.activations == pytest.approx(plain.activations / 4, rel=0.1)
    # Each device sends the whole float32 gradient to the others and back.
    assert data_parallel.sent == pytest.approx(2 * 3 / 4 * plain.parameters, rel=0.01) and plain.sent == 0

    fully_sharded = estimate_with(base, 4, mesh=MeshShape(data=1, fsdp=-1))
    assert fully_sharded.parameters == pytest.approx(plain.parameters / 4, rel=0.01)
    tensor_parallel = estimate_with(base, 4, mesh=MeshShape(tensor=4))
    assert fully_sharded.activations < tensor_parallel.activations < plain.activations
    assert tensor_parallel.sent > fully_sharded.sent
    # The logits of masked tokens are the largest arrays.
    sequence_parallel = estimate_with(base, 4, mesh=MeshShape(sequence=4))
    assert sequence_parallel.temporaries == pytest.approx(plain.temporaries / 4, rel=0.01)
    # With two slices of two devices, each device sends its half of the sum to the other slice. In one slice, replica equals data.
    two_slices = estimate(dataclasses.replace(base, mesh=MeshShape(replica=2)), 4, slices=2)
    assert two_slices.sent_between == pytest.approx(plain.parameters / 2, rel=0.01)
    assert two_slices.sent == pytest.approx(plain.parameters, rel=0.01)
    one_slice = estimate_with(base, 4, mesh=MeshShape(replica=2))
    assert (one_slice.sent, one_slice.sent_between) == (data_parallel.sent, 0)


def test_remat_saves_activations_and_costs_flops(base):
    def with_remat(remat):
        execution = dataclasses.replace(base.objective.execution, remat=remat)
        return estimate_with(base, objective=dataclasses.replace(base.objective, execution=execution))

    no_remat, dots, full = map(with_remat, ("none", "dots", "full"))
    # The minimum is each layer's input, bfloat16[128, 128, 768], and the logits, float32[128, 20, 30592].
    minimum_bytes = 12 * 128 * 128 * 768 * 2 + 128 * 20 * 30592 * 4
    assert minimum_bytes < full.activations < 1.1 * minimum_bytes
    assert full.activations < dots.activations / 4 < no_remat.activations / 4
    assert full.flops == pytest.approx(4 / 3 * no_remat.flops, rel=0.03)
    assert no_remat.flops < dots.flops < 1.02 * no_remat.flops


def test_towers_that_share_parameters_and_compute_in_pieces():
    bindings = [f"BertConfig.{name} = {value}" for name, value in (("num_layers", 2), ("hidden_size", 128), ("num_heads", 2))]
    run = load(["runs/ict_base.gin"], [*bindings, "BertConfig.feed_forward_size = 512"]).build("Run").sized(1024)
    two_towers = dataclasses.replace(run, objective=dataclasses.replace(run.objective, shared=False))
    plain, pieces = (estimate_with(run, microbatches=count) for count in (1, 16))
    # Each tower has a gradient of the shared layers, but only one of the tables, which both add to.
    assert 1.5 * plain.parameters < plain.gradients < 2 * plain.parameters
    assert pieces.gradients == plain.gradients + plain.parameters
    towers = estimate_with(two_towers, microbatches=16)
    assert towers.gradients == 2 * towers.parameters
    # The towers are computed again, and a third of a gradient's products are those of the forward pass.
    assert pieces.flops == pytest.approx(4 / 3 * plain.flops, rel=0.01)
    assert pieces.activations < plain.activations / 8


def test_sizes_that_do_not_divide_are_refused(base):
    with pytest.raises(UserError, match="MeshShape|heads"):
        estimate_with(base, 8, mesh=MeshShape(tensor=8))
    with pytest.raises(UserError, match="microbatches"):
        estimate_with(base, microbatches=3)


def test_layouts_are_ordered_by_cost():
    run = planned_bert.run()
    chip = next(chip for chip in CHIPS if chip.name == "v5e")
    candidates = layouts(run, 8, 1, chip, chip.hbm_bytes)
    # A run that fits anyway gains nothing from sharding parameters, microbatches or recomputation.
    assert describe_layout(candidates[0].run).endswith("1 microbatch")
    assert candidates[0].order <= candidates[-1].order
    assert {layout.run.mesh.tensor for layout in candidates} == {1, 2}  # the model has two heads
    middle = sorted(layout.estimated.total for layout in candidates)[len(candidates) // 2]
    tight = layouts(run, 8, 1, chip, middle)
    assert len(tight) < len(candidates) and max(layout.estimated.total for layout in tight) == middle
    assert layouts(run, 8, 1, chip, 1000) == []


def test_layouts_fit_all_stages():
    chip = next(chip for chip in CHIPS if chip.name == "v5e")
    (stage,) = planned_bert.run().stages
    wide, long = dataclasses.replace(stage, length=16, batch_size=48), dataclasses.replace(stage, batch_size=8)
    run = dataclasses.replace(planned_bert.run(), stages=(wide, long))
    assert heaviest(run) == 0
    # 48 rows can be split into 16 microbatches, but 8 rows cannot.
    candidates = layouts(run, 2, 1, chip, chip.hbm_bytes)
    assert {layout.run.microbatches for layout in candidates} == {1, 2, 4, 8}
    largest_total = max(layout.estimated.total for layout in layouts(run, 1, 1, chip, chip.hbm_bytes))
    longer = dataclasses.replace(run, stages=(dataclasses.replace(wide, batch_size=8), long, wide))
    assert max(layout.estimated.total for layout in layouts(longer, 1, 1, chip, chip.hbm_bytes)) == largest_total


def test_attention_is_that_of_the_planned_platform():
    """On TPUs a kernel keeps no scores in memory, but computes as much."""
    run = planned_bert.run(["Stage.length = 1024", "BertConfig.max_length = 1024"])
    here = estimate(run, 1)
    with traces_for("tpu"):
        there = estimate(run, 1)
    assert there.activations < 0.7 * here.activations and there.parameters == here.parameters
    assert 0.9 * here.flops < there.flops < 1.5 * here.flops

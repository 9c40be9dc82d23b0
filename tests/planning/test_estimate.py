"""Estimates of a step on a mesh: exact where they say so, and in the order of what is compiled where not."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import small
import xla

from bertfam.config.build import load
from bertfam.errors import UserError
from bertfam.planning.estimate import estimate
from bertfam.planning.layouts import describe_layout, heaviest, layouts
from bertfam.sharding.chips import CHIPS
from bertfam.sharding.mesh import MeshShape

GIB = 2**30


@pytest.fixture(scope="module")
def on_eight():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "layouts.py")],
        env=os.environ | xla.devices(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_state_is_exact(on_eight):
    sizes = {name: found["estimated"] for name, found in on_eight.items() if name != "compiled"}
    assert sizes == {name: found["split"] for name, found in on_eight.items() if name != "compiled"}
    assert len({tuple(found) for found in sizes.values()}) == len(sizes)
    parameters, optimizer, other, total, estimated = on_eight["compiled"]
    assert [parameters, optimizer] == sizes["zero1"]
    assert other < 2000  # what a step takes beside them is its number, and it gives metrics
    assert 0.3 < estimated / total < 1.5


def of(run, devices=1, **changed):
    return estimate(dataclasses.replace(run, **changed), devices)


@pytest.fixture(scope="module")
def base():
    """BERT-base on a batch of 128 rows."""
    bindings = ["Run.stages = (@Stage(),)", "BATCH_SIZE = 128"]
    return load(["runs/bert_base.gin"], bindings).build("Run").sized(30522)


def test_what_each_option_changes(base):
    none = of(base)
    # 12 layers, and the embeddings and heads, forward and twice as much backward.
    assert none.flops == pytest.approx(128 * base.objective.flops(base.shape(0)), rel=0.01)
    pieces = of(base, microbatches=4)
    assert pieces.activations == pytest.approx(none.activations / 4, rel=0.1)
    assert (pieces.gradients, pieces.flops) == (2 * none.gradients, none.flops)

    spread = of(base, 4)
    assert (spread.parameters, spread.optimizer) == (none.parameters, none.optimizer)
    assert spread.activations == pytest.approx(none.activations / 4, rel=0.1)
    # The whole gradient, float32, to the others and back.
    assert spread.sent == pytest.approx(2 * 3 / 4 * none.parameters, rel=0.01) and none.sent == 0

    split = of(base, 4, mesh=MeshShape(data=1, fsdp=-1))
    assert split.parameters == pytest.approx(none.parameters / 4, rel=0.01)
    heads = of(base, 4, mesh=MeshShape(tensor=4))
    assert split.activations < heads.activations < none.activations
    assert heads.sent > split.sent
    # Two slices of two: each device sends its half of the sum to the other slice. In one slice, replica is as data.
    two = estimate(dataclasses.replace(base, mesh=MeshShape(replica=2)), 4, slices=2)
    assert two.sent_between == pytest.approx(none.parameters / 2, rel=0.01)
    assert two.sent == pytest.approx(none.parameters, rel=0.01)
    one = of(base, 4, mesh=MeshShape(replica=2))
    assert (one.sent, one.sent_between) == (spread.sent, 0)


def test_recomputing(base):
    def with_remat(remat):
        execution = dataclasses.replace(base.objective.execution, remat=remat)
        return of(base, objective=dataclasses.replace(base.objective, execution=execution))

    none, dots, full = map(with_remat, ("none", "dots", "full"))
    # Each layer's input, bfloat16[128, 128, 768], the logits, float32[128, 20, 30592], and little more.
    least = 12 * 128 * 128 * 768 * 2 + 128 * 20 * 30592 * 4
    assert least < full.activations < 1.1 * least
    assert full.activations < dots.activations / 4 < none.activations / 4
    assert full.flops == pytest.approx(4 / 3 * none.flops, rel=0.03)
    assert none.flops < dots.flops < 1.02 * none.flops


def test_sizes_that_do_not_divide(base):
    with pytest.raises(UserError, match="MeshShape|heads"):
        of(base, 8, mesh=MeshShape(tensor=8))
    with pytest.raises(UserError, match="microbatches"):
        of(base, microbatches=3)


def test_the_order_of_layouts():
    run = small.run()
    chip = next(chip for chip in CHIPS if chip.name == "v5e")
    found = layouts(run, 8, 1, chip, chip.hbm_bytes)
    # Nothing that fits in any way gains by splitting parameters, pieces, or computing anything twice.
    assert describe_layout(found[0].run).endswith("1 microbatch")
    assert found[0].order <= found[-1].order
    assert {layout.run.mesh.tensor for layout in found} == {1, 2}  # heads
    middle = sorted(layout.estimated.total for layout in found)[len(found) // 2]
    tight = layouts(run, 8, 1, chip, middle)
    assert len(tight) < len(found) and max(layout.estimated.total for layout in tight) == middle
    assert layouts(run, 8, 1, chip, 1000) == []


def test_layouts_of_two_stages_are_for_both():
    chip = next(chip for chip in CHIPS if chip.name == "v5e")
    (stage,) = small.run().stages
    wide, long = dataclasses.replace(stage, length=16, batch_size=48), dataclasses.replace(stage, batch_size=8)
    run = dataclasses.replace(small.run(), stages=(wide, long))
    assert heaviest(run) == 0
    # 48 rows make 16 microbatches, 8 do not.
    found = layouts(run, 2, 1, chip, chip.hbm_bytes)
    assert {layout.run.microbatches for layout in found} == {1, 2, 4, 8}
    most = max(layout.estimated.total for layout in layouts(run, 1, 1, chip, chip.hbm_bytes))
    longer = dataclasses.replace(run, stages=(dataclasses.replace(wide, batch_size=8), long, wide))
    assert max(layout.estimated.total for layout in layouts(longer, 1, 1, chip, chip.hbm_bytes)) == most

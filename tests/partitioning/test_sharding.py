"""Meshes, and sizes that do not divide: refused by name before anything is compiled."""

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from jax.sharding import AbstractMesh, PartitionSpec

from bertfam.errors import UserError
from bertfam.partitioning.mesh import AXES, MeshShape
from bertfam.partitioning.sharding import batch_shardings, check_batch, partition_spec, state_shardings


def mesh(data=1, fsdp=1, tensor=1):
    """A mesh of any size, without its devices."""
    return AbstractMesh((data, fsdp, tensor), AXES)


def refusal(function, *args):
    with pytest.raises(UserError) as caught:
        function(*args)
    return str(caught.value)


def boxed(objective):
    return jax.eval_shape(lambda key: objective.init(key, tiny.SHAPE)[0], jax.random.key(0))


def test_mesh_shapes():
    devices = np.arange(12)  # any objects will do
    assert dict(MeshShape().build(devices).shape) == {"data": 12, "fsdp": 1, "tensor": 1}
    assert dict(MeshShape(fsdp=2, tensor=3).build(devices).shape) == {"data": 2, "fsdp": 2, "tensor": 3}
    assert dict(MeshShape(data=4, fsdp=3).build(devices).shape) == {"data": 4, "fsdp": 3, "tensor": 1}
    ending = "; the product of its axes must be their number"
    assert refusal(MeshShape(data=5).build, devices) == f"a mesh of data=5, fsdp=1, tensor=1 does not fit 12 devices{ending}"
    assert refusal(MeshShape(fsdp=8).build, devices) == f"a mesh of data=-1, fsdp=8, tensor=1 does not fit 12 devices{ending}"
    assert refusal(MeshShape(fsdp=16).build, devices).startswith("a mesh of data=-1, fsdp=16, tensor=1 does not fit 12 devices")
    for wrong in ({"data": 0}, {"data": -2}, {"fsdp": 0}, {"tensor": -1}):
        with pytest.raises(ValueError, match="mesh axes must be at least 1"):
            MeshShape(**wrong)


def test_a_mesh_axis_is_used_once():
    assert partition_spec(("embed", "mlp")) == PartitionSpec("fsdp", "tensor")
    assert partition_spec(("heads", "mlp")) == PartitionSpec("tensor", None)
    assert partition_spec(("batch", "embed")) == PartitionSpec(("data", "fsdp"), None)
    assert partition_spec(("layers", None, "unheard of")) == PartitionSpec(None, None, None)


def test_every_parameter_is_split_as_its_axes_say():
    shardings = state_shardings(boxed(tiny.objective()), mesh(2, 4, 2))
    attention = shardings["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert attention.spec == PartitionSpec(None, "fsdp", "tensor", None)
    assert shardings["encoder"]["embeddings"]["word"]["table"].spec == PartitionSpec("tensor", "fsdp")
    split = [leaf for leaf in jax.tree.leaves(shardings) if any(leaf.spec)]
    assert len(split) > 20


def test_sizes_of_parameters_that_do_not_divide():
    objective = tiny.objective()
    assert refusal(state_shardings, boxed(objective), mesh(tensor=4)) == (
        "heads of encoder/layers/attention/key/bias is 2, which does not divide over the 4 parts of mesh axis tensor; "
        "use 4, or a mesh axis of 1, 2"
    )
    assert refusal(state_shardings, boxed(objective), mesh(fsdp=5)) == (
        "embed of encoder/embeddings/norm/bias is 16, which does not divide over the 5 parts of mesh axis fsdp; "
        "use 15 or 20, or a mesh axis of 1, 2, 4"
    )
    # A table is padded to a multiple of 128 rows once, and stays one.
    table = {"table": nn.LogicallyPartitioned(jax.ShapeDtypeStruct((30_592, 8), np.float32), ("vocab", "embed"))}
    assert refusal(state_shardings, table, mesh(tensor=3)) == (
        "vocab of table is 30592, which does not divide over the 3 parts of mesh axis tensor; use 30336 or 30720, or a mesh axis "
        "of 1, 2"
    )


def test_batches_that_do_not_divide():
    check_batch(96, 3, mesh(2, 4, 2))
    assert refusal(check_batch, 10, 3, mesh()) == (
        "batch size 10 is not divisible by 3 microbatches; change Stage.batch_size or Run.microbatches"
    )
    assert refusal(check_batch, 100, 1, mesh(4, 2)) == (
        "the number of rows in a microbatch is 100, which does not divide over the 8 parts of mesh axis data x fsdp; use 96 "
        "or 104, or a mesh axis of 1, 2, 4, 5"
    )
    assert refusal(check_batch, 16, 4, mesh(8)) == (
        "the number of rows in a microbatch is 4, which does not divide over the 8 parts of mesh axis data x fsdp; use 8, "
        "or a mesh axis of 1, 2, 4"
    )


def test_features_are_split_by_rows():
    features = tiny.objective().features(tiny.SHAPE)
    assert {sharding.spec[0] for sharding in batch_shardings(features, mesh(2, 2, 2)).values()} == {("data", "fsdp")}

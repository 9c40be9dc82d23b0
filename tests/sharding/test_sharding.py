"""Meshes and shardings; sizes that do not divide are refused by name before anything is compiled."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny
from flax import linen as nn
from jax.sharding import AbstractMesh, PartitionSpec

from bertfam.errors import UserError
from bertfam.features import RowShape, decoder_features, encoder_features
from bertfam.sharding.mesh import MeshShape
from bertfam.sharding.named_shardings import batch_shardings, check_batch, padded_decoder_rows, partition_spec, state_shardings
from bertfam.sharding.rules import AXES, Rules


def mesh(data=1, fsdp=1, tensor=1, sequence=1, replica=1):
    """Return a mesh of any size, without devices."""
    return AbstractMesh((replica, data, fsdp, sequence, tensor), AXES)


def refusal(function, *args):
    with pytest.raises(UserError) as caught:
        function(*args)
    return str(caught.value)


def boxed(objective):
    return jax.eval_shape(lambda key: objective.init(key, tiny.SHAPE)[0], jax.random.key(0))


def sizes(shape, devices):
    return dict(shape.build(devices).shape)


def test_mesh_shapes():
    devices = np.arange(12)  # any objects will do
    ones = {"replica": 1, "data": 1, "fsdp": 1, "sequence": 1, "tensor": 1}
    assert sizes(MeshShape(), devices) == ones | {"data": 12}
    assert sizes(MeshShape(fsdp=2, tensor=3), devices) == ones | {"data": 2, "fsdp": 2, "tensor": 3}
    assert sizes(MeshShape(data=4, fsdp=3), devices) == ones | {"data": 4, "fsdp": 3}
    assert sizes(MeshShape(replica=2, sequence=3), devices) == ones | {"replica": 2, "data": 2, "sequence": 3}
    product_must_match = "; the product of MeshShape's axes must be 12, or one of them -1 (all devices that the others leave)"
    rest_must_divide = "; the product of MeshShape's axes besides data=-1 must divide 12"
    assert refusal(MeshShape(data=5).build, devices) == f"a mesh of data=5 does not fit 12 devices{product_must_match}"
    assert refusal(MeshShape(fsdp=8).build, devices) == f"a mesh of fsdp=8 does not fit 12 devices{rest_must_divide}"
    assert refusal(MeshShape(fsdp=16).build, devices) == f"a mesh of fsdp=16 does not fit 12 devices{rest_must_divide}"
    assert sizes(MeshShape(data=1, fsdp=-1, tensor=2), devices) == ones | {"fsdp": 6, "tensor": 2}
    for axis, size in (("data", 0), ("data", -2), ("fsdp", 0), ("tensor", -3)):
        with pytest.raises(ValueError, match=f"the mesh axis {axis} must be at least 1, or -1, not {size}"):
            MeshShape(**{axis: size})
    with pytest.raises(ValueError, match="the mesh axes data and fsdp are both -1; give one of them a size"):
        MeshShape(fsdp=-1)


def test_replica_axis_spans_the_slices():
    devices = [SimpleNamespace(platform="tpu", slice_index=number // 4) for number in range(8)]
    assert refusal(MeshShape(replica=1).build, devices) == "MeshShape.replica=1 does not divide over the 2 slices: use 2, or -1"
    assert refusal(MeshShape(fsdp=8).build, devices).startswith("a mesh of replica=2, fsdp=8 does not fit 8 devices")


def test_rules_name_axes_of_the_mesh_once():
    with pytest.raises(ValueError, match="Rules.embed names 'fdsp', which is not a mesh axis; use one of replica, data, fsdp"):
        Rules(embed="fdsp")
    with pytest.raises(ValueError, match="Rules.mlp names a mesh axis twice"):
        Rules(mlp=("tensor", "tensor"))


def test_mesh_axis_is_used_once():
    assert partition_spec(("embed", "mlp")) == PartitionSpec("fsdp", "tensor")
    assert partition_spec(("heads", "mlp")) == PartitionSpec("tensor", None)
    assert partition_spec(("batch", "embed")) == PartitionSpec(("replica", "data", "fsdp"), None)
    assert partition_spec(("layers", None, "unheard of")) == PartitionSpec(None, None, None)
    wide = Rules(embed=("fsdp", "data"), heads=None)
    assert partition_spec(("embed", "heads", "mlp"), wide) == PartitionSpec(("fsdp", "data"), None, "tensor")


def test_parameters_are_split_by_their_logical_axes():
    shardings = state_shardings(boxed(tiny.objective()), mesh(2, 4, 2))
    attention = shardings["encoder"]["layers"]["attention"]["query"]["kernel"]
    assert attention.spec == PartitionSpec(None, "fsdp", "tensor", None)
    assert shardings["encoder"]["embeddings"]["word"]["table"].spec == PartitionSpec("tensor", "fsdp")
    split = [leaf for leaf in jax.tree.leaves(shardings) if any(leaf.spec)]
    assert len(split) > 20


def test_parameters_that_do_not_divide_are_refused():
    objective = tiny.objective()
    assert refusal(state_shardings, boxed(objective), mesh(tensor=4)) == (
        "heads of encoder/layers/attention/key/bias is 2, which does not divide over the 4 parts of mesh axis tensor; "
        "use 4, or a mesh axis of 1, 2"
    )
    assert refusal(state_shardings, boxed(objective), mesh(fsdp=5)) == (
        "embed of encoder/embeddings/norm/bias is 16, which does not divide over the 5 parts of mesh axis fsdp; "
        "use 15 or 20, or a mesh axis of 1"
    )
    # A table is padded to a multiple of 128 rows once, and keeps its size.
    table = {"table": nn.LogicallyPartitioned(jax.ShapeDtypeStruct((30_592, 8), np.float32), ("vocab", "embed"))}
    assert refusal(state_shardings, table, mesh(tensor=3)) == (
        "vocab of table is 30592, which does not divide over the 3 parts of mesh axis tensor; use 30336 or 30720, or a mesh axis "
        "of 1"
    )


def test_batches_that_do_not_divide_are_refused():
    check_batch(96, 3, mesh(2, 4, 2))
    assert refusal(check_batch, 10, 3, mesh()) == (
        "batch size 10 is not divisible by 3 microbatches; change Stage.batch_size or Run.microbatches"
    )
    assert refusal(check_batch, 100, 1, mesh(4, 2)) == (
        "the number of rows in a microbatch is 100, which does not divide over the 8 parts of mesh axis data x fsdp; use 96 "
        "or 104 (Stage.batch_size / Run.microbatches), or a mesh axis of 1, 2, 4"
    )
    assert refusal(check_batch, 16, 4, mesh(8)) == (
        "the number of rows in a microbatch is 4, which does not divide over the 8 parts of mesh axis data; use 8 "
        "(Stage.batch_size / Run.microbatches), or a mesh axis of 1, 2, 4"
    )


def test_features_are_split_by_rows():
    features = tiny.objective().features(tiny.SHAPE)
    assert {sharding.spec[0] for sharding in batch_shardings(features, mesh(2, 2, 2)).values()} == {("replica", "data", "fsdp")}


def test_lengths_that_do_not_divide_are_refused():
    features = tiny.objective().features(tiny.SHAPE)
    length = tiny.SHAPE.length
    specs = {name: sharding.spec for name, sharding in batch_shardings(features, mesh(sequence=2)).items()}
    assert specs["encoder_input_tokens"][1] == "sequence" and specs["masked_positions"][1] is None
    assert refusal(batch_shardings, features, mesh(sequence=5)).startswith(
        f"length of encoder_input_tokens is {length}, which does not divide over the 5 parts of mesh axis sequence; use "
    )


def test_decoder_rows_are_padded_until_they_divide():
    """Rows whose length a run states, those of an encoder or of a causal LM, are not."""
    shape = RowShape(length=16, predictions=0, targets=7)
    decoder, encoder = decoder_features(shape), encoder_features(shape, token_types=False)
    padded = padded_decoder_rows(encoder | decoder, mesh(sequence=3))
    assert {name: spec.shape for name, spec in padded.items()} == dict.fromkeys(encoder, (16,)) | dict.fromkeys(decoder, (9,))
    assert padded_decoder_rows(encoder | decoder, mesh(data=3)) == encoder | decoder
    assert padded_decoder_rows(decoder, mesh(sequence=3)) == decoder
    assert "length of decoder_input_tokens is 7" in refusal(batch_shardings, decoder, mesh(sequence=3))


def test_zero1_splits_unsplit_dimensions():
    tree = {
        "split": nn.LogicallyPartitioned(jax.ShapeDtypeStruct((3, 8, 4), np.float32), ("layers", "embed", "mlp")),
        "odd": nn.LogicallyPartitioned(jax.ShapeDtypeStruct((3,), np.float32), ("embed",)),
        "count": jax.ShapeDtypeStruct((), np.int32),
    }
    shardings = state_shardings(tree, mesh(data=4, tensor=2), over="data")
    assert shardings["split"].spec == PartitionSpec(None, ("fsdp", "data"), "tensor")
    assert shardings["odd"].spec == PartitionSpec("fsdp") and shardings["count"].spec == PartitionSpec()
    used_by_rule = state_shardings(tree, mesh(data=4), Rules(mlp="data"), over="data")
    assert used_by_rule["split"].spec == PartitionSpec(None, "fsdp", "data")

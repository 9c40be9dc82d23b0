"""Mistakes with the slices that a run is planned for; see `entries`."""

from catalogue import Entry

_PLAN = "plan --gin_file={trained}/run.gin --vocab_size=2000"
_EXAMPLES = "v5e-16, v5p-128, v6e-256, v5e:4x4, 2xv5e-256 (two slices), or here (the devices of this machine)"

PLANNING = {
    "no slice": Entry("plan --slice=here", "no configuration: give --gin_file=FILE (runs/quickstart.gin, say)"),
    "a slice that is none": Entry(f"{_PLAN} --slice=16", f"--slice=16 is no slice; write {_EXAMPLES}"),
    "a chip that is not known": Entry(
        f"{_PLAN} --slice=v9-16", f"--slice=v9-16: chips of the kind v9 are not known; write {_EXAMPLES}"
    ),
    "a size that is not offered": Entry(
        f"{_PLAN} --slice=v5e-12", "--slice=v5e-12: Google offers no such slice; the nearest are v5e-8 (2x4) and v5e-16 (4x4)"
    ),
    "chips where TensorCores are counted": Entry(
        f"{_PLAN} --slice=v5p-4",
        "--slice=v5p-4: Google offers no such slice (v5p counts TensorCores, 2 a chip); the nearest are v5p-8 (2x2x1) and v5p-16 "
        "(2x2x2)",
    ),
    "a topology that is not offered": Entry(
        f"{_PLAN} --slice=v6e:3x5", "--slice=v6e:3x5: Google offers no such slice; the nearest are v6e-8 (2x4) and v6e-16 (4x4)"
    ),
    "this machine and another": Entry(
        f"{_PLAN} --slice=here --slice=v5e-4",
        "--slice=here uses the accelerators that are here and other slices none: plan them one after the other",
    ),
    "two vocabularies": Entry(
        f"{_PLAN} --slice=here --vocab={{trained}}/vocab",
        "--vocab and --vocab_size both say how many tokens there are; give one of them",
    ),
    "a program that the run has not": Entry(
        f"{_PLAN} --slice=here --program=decode", "the run has no program to decode; leave --program=decode out"
    ),
    "a program that the run has not beside one that it has": Entry(
        f"{_PLAN} --slice=here --program=evaluate --program=decode",
        "the run has no program to decode; leave --program=decode out",
    ),
    "a batch that does not divide": Entry(
        f"{_PLAN} --slice=v5e-8 --gin.BATCH_SIZE=12",
        "v5e-8: the number of rows in a microbatch is 12, which does not divide over the 8 parts of mesh axis data; use 8 or 16 "
        "(Stage.batch_size / Run.microbatches), or a mesh axis of 1, 2, 4",
    ),
    "heads that do not divide": Entry(
        f"{_PLAN} --slice=v5e-8 --gin.MeshShape.tensor=8 --gin.MeshShape.data=1",
        "v5e-8: heads of params/encoder/layers/attention/key/bias is 2, which does not divide over the 8 parts of mesh axis "
        "tensor; use 8, or a mesh axis of 1, 2",
    ),
    "a search that writes nothing": Entry(
        f"{_PLAN} --slice=v5e-4 --search", "--search and --output=FILE go together, for one --slice"
    ),
    "a search for two slices": Entry(
        f"{_PLAN} --slice=v5e-4 --slice=v5e-8 --search --output=mesh.gin",
        "--search and --output=FILE go together, for one --slice",
    ),
    "a search with a flag of plans": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output=mesh.gin --most_rows",
        "--most_rows does not go with --search, which is for the training step alone: leave it out",
    ),
    "a search into a folder that is not there": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output={{trained}}/none/mesh.gin",
        "--output={trained}/none/mesh.gin: there is no folder {trained}/none; make it first",
    ),
    "a student without its teacher": Entry(
        "plan --gin_file=runs/distilbert_base.gin --slice=here",
        "Distillation has no teacher: plan the config.gin that bertfam distill has written, or bind the teacher as it does",
    ),
    "a search into a file that is there": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output={{trained}}/run.gin",
        "--output={trained}/run.gin exists; name a file that does not",
    ),
}

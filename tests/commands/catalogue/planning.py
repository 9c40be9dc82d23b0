"""Mistakes with the slices that a run is planned for; see `entries`."""

from catalogue import Entry

_PLAN = "plan --gin_file={trained}/run.gin --vocab_size=2000"

PLANNING = {
    "no shipped file of this name": Entry("configs electra fsdp", ("electra", "fsdp", "bertfam configs")),
    "no class of this name": Entry("explain Adamw", ("Adamw", "AdamW")),
    "no slice": Entry("plan --slice=here", ("--gin_file=FILE", "runs/quickstart.gin")),
    "a slice that is none": Entry(f"{_PLAN} --slice=16", ("--slice=16",)),
    "a chip that is not known": Entry(f"{_PLAN} --slice=v9-16", ("--slice=v9-16",)),
    "a size that is not offered": Entry(f"{_PLAN} --slice=v5e-12", ("--slice=v5e-12",)),
    "chips where TensorCores are counted": Entry(
        f"{_PLAN} --slice=v5p-4",
        ("--slice=v5p-4", "TensorCores", "2"),
    ),
    "a topology that is not offered": Entry(f"{_PLAN} --slice=v6e:3x5", ("--slice=v6e:3x5",)),
    "this machine and another": Entry(
        f"{_PLAN} --slice=here --slice=v5e-4",
        ("--slice=here", "plan"),
    ),
    "two vocabularies": Entry(
        f"{_PLAN} --slice=here --vocab={{trained}}/vocab",
        ("--vocab_size",),
    ),
    "characters of a vocabulary that is not named": Entry(
        "plan --gin_file=runs/elmo.gin --gin_file=models/elmo_characters_small.gin --vocab_size=2000 --slice=here",
        ("BilmConfig.filters", "--vocab=DIR"),
    ),
    "a program that the run has not": Entry(f"{_PLAN} --slice=here --program=decode", ("program", "decode")),
    "a program that the run has not beside one that it has": Entry(
        f"{_PLAN} --slice=here --program=evaluate --program=decode",
        ("program", "decode"),
    ),
    "a batch that does not divide": Entry(
        f"{_PLAN} --slice=v5e-8 --gin.BATCH_SIZE=12",
        ("v5e-8", "12"),
    ),
    "heads that do not divide": Entry(
        f"{_PLAN} --slice=v5e-8 --gin.MeshShape.tensor=8 --gin.MeshShape.data=1",
        ("v5e-8", "params/encoder/layers/attention/key/bias", "2", "tensor"),
    ),
    "a search that writes nothing": Entry(f"{_PLAN} --slice=v5e-4 --search", ("--search", "--output=FILE", "--slice")),
    "a search for two slices": Entry(
        f"{_PLAN} --slice=v5e-4 --slice=v5e-8 --search --output=mesh.gin",
        ("--search", "--output=FILE", "--slice"),
    ),
    "a search with a flag of plans": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output=mesh.gin --most_rows",
        ("--most_rows", "--search"),
    ),
    "a search into a folder that is not there": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output={{trained}}/none/mesh.gin",
        ("--output={trained}/none/mesh.gin",),
    ),
    "a student without its teacher": Entry(
        "plan --gin_file=runs/distilbert_base.gin --slice=here",
        ("plan", "config.gin"),
    ),
    "a search into a file that is there": Entry(
        f"{_PLAN} --slice=v5e-4 --search --output={{trained}}/run.gin",
        ("--output={trained}/run.gin",),
    ),
}

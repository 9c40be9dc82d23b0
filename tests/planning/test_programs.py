"""Which programs a run has on a mesh, and what is told of them before they are compiled."""

import jax
import pytest

from bertfam.config import load
from bertfam.kernels.attention_interface import Request
from bertfam.planning.programs import Program, jobs
from bertfam.planning.report import row
from bertfam.planning.slices import parse
from bertfam.sharding.mesh import MeshShape


@pytest.fixture(scope="module")
def mesh():
    return MeshShape().build(parse("v5e-4").devices())


def run(files, *lines):
    return load([f"{file}.gin" for file in files], lines).build("Run").sized(1000)


def test_a_step_for_each_length_and_the_evaluation_of_the_longest(mesh):
    found = jobs(run(["runs/bert_base", "models/bert_tiny"]), mesh)
    assert [job.name for job in found] == ["train 256 x 128", "train 256 x 512", "evaluate 256 x 512"]
    assert found[2].flops == found[1].flops // 3


def test_a_batch_that_grows_is_planned_at_its_largest(mesh):
    lines = (
        "Run.stages = (@Ramp(),)",
        "Ramp.steps = 40",
        "Ramp.length = 64",
        "Ramp.first_batch_size = 32",
        "Ramp.batch_size = 96",
    )
    assert [job.name for job in jobs(run(["runs/bert_base", "models/bert_tiny"], *lines), mesh, ["train"])] == ["train 96 x 64"]


def test_decoding(mesh):
    (decoder,) = jobs(run(["runs/quickstart_gpt2"], "Stage.length = 64"), mesh, ["decode"])
    # 8 prompts of half a row for each of the 4 devices; the other half is written, a token a turn.
    assert decoder.name == "decode 32 x 64"
    # After the first each of them reads, in two bytes, layers, last norm and 1,024 rows of the table, but no positions.
    layer = 4 * 128 * 128 + 2 * 128 * 512 + (4 + 4 + 1) * 128 + 512
    assert decoder.reread == 31 * 2 * (2 * layer + 2 * 128 + 1024 * 128)
    # 63 tokens are read, of which 32 have logits; attention to those before, causal, counts half.
    products = 63 * 2 * (2 * (4 * 128 * 128 + 2 * 128 * 512) + 63 * 2 * 128) + 32 * 2 * 128 * 1000
    assert decoder.flops == 32 * products

    (answers,) = jobs(run(["runs/quickstart_t5"], "Stage.length = 64"), mesh, ["decode"])
    new = int(answers.name.removeprefix("decode 32 x ")) - 64
    params = answers.trainer.abstract_state.params
    # Neither the encoder nor the maps of what it gives are read again, and the table of tied heads is.
    cross = params["decoder"]["layers"]["cross_attention"]
    read = [params["decoder"]["layers"], params["decoder"]["norm"], params["embeddings"]]
    once = sum(leaf.size for part in ("key", "value") for leaf in jax.tree.leaves(cross[part]))
    assert answers.reread == (new - 1) * 2 * (sum(leaf.size for leaf in jax.tree.leaves(read)) - once)


def test_attention_is_chosen_for_the_devices_of_the_mesh(mesh):
    def platform():
        return Request.here("bfloat16", 128, 64, False, 0.0).platform

    with jax.set_mesh(mesh):
        assert platform() == "tpu"
    assert platform() == jax.default_backend()


@pytest.mark.parametrize("name", ["quickstart_gpt2", "quickstart_t5"])
def test_what_is_told_of_a_program_that_is_too_large(mesh, name):
    (job,) = jobs(run([f"runs/{name}"]), mesh, ["train"])
    message = "the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G)"
    told = row(Program(job, None, message, 1.0), parse("v5e-4"))
    assert not told["fits"] and told["bound"] is None
    assert told["memory"]["total"] == 20 * 2**30 and told["memory_limit"] == int(15.75 * 2**30)
    assert "on tpu" in told["attention"]


def test_the_optimizer_stays_while_a_run_evaluates(mesh):
    (step, evaluation) = jobs(run(["runs/quickstart_gpt2"]), mesh, ["train", "evaluate"])
    message = "the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G)"
    beside = Program(step, None, message, 1.0).memory.optimizer
    found = Program(evaluation, None, message, 1.0).memory
    assert found.optimizer == beside > 0 and found.total == 20 * 2**30 + beside

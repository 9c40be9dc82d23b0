"""Programs of a run on a mesh, and their costs before compilation."""

import jax
import pytest

from bertfam.config import load
from bertfam.kernels.attention.interface import Request
from bertfam.planning.programs import Program, jobs
from bertfam.planning.report import row
from bertfam.planning.slices import parse
from bertfam.sharding.mesh import MeshShape


@pytest.fixture(scope="module")
def mesh():
    return MeshShape().build(parse("v5e-4").devices())


def load_run(files, *lines):
    return load([f"{file}.gin" for file in files], lines).build("Run").sized(1000)


def test_programs_are_one_step_per_length_and_the_longest_evaluation(mesh):
    programs = jobs(load_run(["runs/bert_base", "models/bert_tiny"]), mesh)
    assert [job.name for job in programs] == ["train 256 x 128", "train 256 x 512", "evaluate 256 x 512"]
    assert programs[2].flops == programs[1].flops // 3


def test_growing_batch_is_planned_at_its_largest_size(mesh):
    lines = (
        "Run.stages = (@Ramp(),)",
        "Ramp.steps = 40",
        "Ramp.length = 64",
        "Ramp.first_batch_size = 32",
        "Ramp.batch_size = 96",
    )
    assert [job.name for job in jobs(load_run(["runs/bert_base", "models/bert_tiny"], *lines), mesh, ["train"])] == [
        "train 96 x 64"
    ]


def test_costs_of_decoding(mesh):
    (decoder,) = jobs(load_run(["runs/quickstart_gpt2"], "Stage.length = 64"), mesh, ["decode"])
    # Each of the 4 devices has 8 prompts of half a row and writes the other half token by token.
    assert decoder.name == "decode 32 x 64"
    # Each token after the first reads, in two bytes, layers, last norm and 1,024 rows of the table, but no positions.
    layer = 4 * 128 * 128 + 2 * 128 * 512 + (4 + 4 + 1) * 128 + 512
    assert decoder.reread == 31 * 2 * (2 * layer + 2 * 128 + 1024 * 128)
    # The model reads 63 tokens, of which 32 have logits; causal attention to earlier tokens counts half.
    products = 63 * 2 * (2 * (4 * 128 * 128 + 2 * 128 * 512) + 63 * 2 * 128) + 32 * 2 * 128 * 1000
    assert decoder.flops == 32 * products

    (encoder_decoder,) = jobs(load_run(["runs/quickstart_t5"], "Stage.length = 64"), mesh, ["decode"])
    new_tokens = int(encoder_decoder.name.removeprefix("decode 32 x ")) - 64
    params = encoder_decoder.trainer.abstract_state.params
    # The encoder and the projections of its output are read once, and the table of tied heads every time.
    cross = params["decoder"]["layers"]["cross_attention"]
    read_params = [params["decoder"]["layers"], params["decoder"]["norm"], params["embeddings"]]
    read_once = sum(leaf.size for part in ("key", "value") for leaf in jax.tree.leaves(cross[part]))
    assert encoder_decoder.reread == (new_tokens - 1) * 2 * (sum(leaf.size for leaf in jax.tree.leaves(read_params)) - read_once)


def test_attention_backend_follows_the_devices_of_the_mesh(mesh):
    def platform():
        return Request("bfloat16", 128, 64).here().platform

    with jax.set_mesh(mesh):
        assert platform() == "tpu"
    assert platform() == jax.default_backend()


@pytest.mark.parametrize("name", ["quickstart_gpt2", "quickstart_t5"])
def test_report_of_a_program_that_is_too_large(mesh, name):
    (job,) = jobs(load_run([f"runs/{name}"]), mesh, ["train"])
    message = "the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G)"
    report_row = row(Program(job, None, message, 1.0), parse("v5e-4"))
    assert not report_row["fits"] and report_row["bound"] is None
    assert report_row["memory"]["total"] == 20 * 2**30 and report_row["memory_limit"] == int(15.75 * 2**30)
    assert "on tpu" in report_row["attention"]


def test_optimizer_state_stays_in_memory_during_evaluation(mesh):
    (step, evaluation) = jobs(load_run(["runs/quickstart_gpt2"]), mesh, ["train", "evaluate"])
    message = "the total memory required for HLO temporaries (20.00G) exceeds available HBM (15.75G)"
    optimizer_bytes = Program(step, None, message, 1.0).memory.optimizer
    memory = Program(evaluation, None, message, 1.0).memory
    assert memory.optimizer == optimizer_bytes > 0 and memory.total == 20 * 2**30 + optimizer_bytes

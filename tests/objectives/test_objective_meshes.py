"""Gradients of every objective are the same on every mesh, with dropout and sampling, and a teacher is split."""

import json
from pathlib import Path

import pytest
import xla
from fork_server import run_program
from once import once

from bertfam.sharding.rules import AXES

TERMS = {
    "distillation": {"soft_loss", "mlm_loss", "cosine_loss", "mse_loss"},
    "structure in microbatches": {"mlm_loss", "shuffled_loss", "structure_loss", "structure_accuracy"},
    "sbo of modernbert": {"mlm_loss", "mlm_accuracy", "sbo_loss"},
    "decoder": {"lm_loss", "lm_accuracy"},
    "padded encoder_decoder": {"lm_loss", "lm_accuracy"},
    "electra": {"mlm_loss", "rtd_loss", "rtd_accuracy"},
    "retromae": {"mlm_loss", "decoder_loss", "decoder_accuracy"},
    "dual encoder in microbatches": {"retrieval_loss", "retrieval_accuracy"},
    "realm in microbatches": {"mlm_loss", "mlm_accuracy", "retrieval_utility", "null_probability"},
    "entities": {"mlm_loss", "nsp_loss", "dea_loss", "dea_accuracy"},
    "rag in microbatches": {"rag_loss", "rag_token_loss"},
    "permutation": {"plm_loss", "plm_accuracy"},
    "bidirectional LSTMs over characters": {"forward_loss", "backward_loss", "forward_accuracy"},
    "skip-gram": {"skip_gram_loss", "skip_gram_accuracy"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results of objective_meshes.py and its stderr."""

    def make(directory):
        out, err = run_program(Path(__file__).parent / "objective_meshes.py", environment=xla.device_environment(8))
        (directory / "results.json").write_text(out.splitlines()[-1])
        (directory / "stderr.txt").write_text(err)

    directory = once(tmp_path_factory, "objective-meshes", make)
    return json.loads((directory / "results.json").read_text()), (directory / "stderr.txt").read_text()


@pytest.mark.parametrize("name", TERMS)
def test_eight_devices_match_one(results, name):
    """The meshes have fsdp, tensor and sequence axes. "structure in microbatches" computes the batch in four pieces on eight."""
    result = results[0][name]
    axes = {"distillation": {"tensor", "fsdp"}} | dict.fromkeys(("rag in microbatches", "realm in microbatches"), {str(AXES)})
    assert set(result["axes"]) >= axes[name] if name in axes else not result["axes"]
    assert result["one"].keys() >= TERMS[name] | {"loss"}
    # REALM's utility is a difference of two logarithms of about 4.
    assert result["eight"] == pytest.approx(result["one"], rel=2e-5, abs=1e-6 if "retrieval_utility" in result["one"] else None)
    assert 0 < result["difference"] < 2e-6 * result["largest"] and result["largest"] > 0.02


def test_no_involuntary_full_rematerialization(results):
    assert "nvoluntary full rematerialization" not in results[1]

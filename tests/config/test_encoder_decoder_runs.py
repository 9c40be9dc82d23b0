"""Run files of encoder-decoders, compared with the published settings."""

import math

import pytest

from bertfam.config import load
from bertfam.data.rows.mixture import Mixture
from bertfam.models.bart import BartConfig
from bertfam.models.mt5 import MT5Config
from bertfam.models.t5 import T5Config
from bertfam.objectives.sequence_to_sequence import SequenceToSequence
from bertfam.training.optimizers import Adafactor, AdamW

V1_1 = {"feed_forward_size": 2048, "activation": "gelu_tanh", "gated": True, "tie_embeddings": False, "scale_logits": False}


@pytest.mark.parametrize(
    ("name", "model", "stage"),
    [
        ("t5_base", T5Config(), (2**19, 128, 512)),
        ("t5_1_1_base", T5Config(**V1_1, dropout_rate=0.0), (1_000_000, 2048, 512)),
        ("mt5_base", MT5Config(dropout_rate=0.0), (1_000_000, 1024, 1024)),
    ],
)
def test_t5_runs_have_the_published_settings(name, model, stage):
    run = load([f"runs/{name}.gin"]).build("Run")
    assert run.objective.model == model and type(run.objective) is SequenceToSequence and run.objective.z_loss == 1e-4
    assert [(run_stage.steps, run_stage.batch_size, run_stage.length) for run_stage in run.stages] == [stage]
    assert type(run.optimizer) is Adafactor and run.optimizer.weight_decay == 0 and run.optimizer.clip_norm is None
    rates = run.optimizer.schedule.build(run.total_steps)
    assert all(float(rates(step)) == pytest.approx(1 / math.sqrt(max(step + 1, 10_000))) for step in (0, 9_999, 39_999, 499_999))
    # Rows of 512 inputs have 114 targets, and rows of 1,024 have 229.
    assert run.shape(0).targets == {512: 114, 1024: 229}[stage[2]]


def test_mt5_samples_languages_with_exponent_0_3():
    """The share of a language is its size to the power 0.3."""
    lines = ["TextData.corpus = @Mixture()", "Mixture.corpora = (@PythonDocs(),)", 'Mixture.names = ("en",)']
    mixture = load(["runs/mt5_base.gin"], lines).build("Run").data.corpus
    assert isinstance(mixture, Mixture) and 1 / mixture.temperature == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "model", "stage", "peak"),
    [
        ("bart_base", BartConfig(), (1_000_000, 256, 512), 1e-4),
        (
            "bart_large",
            BartConfig(num_layers=12, hidden_size=1024, num_heads=16, feed_forward_size=4096),
            (500_000, 8000, 512),
            4e-4,
        ),
    ],
)
def test_bart_runs_have_the_published_settings(name, model, stage, peak):
    run = load([f"runs/{name}.gin"]).build("Run")
    assert run.objective.model == model and type(run.objective) is SequenceToSequence and run.objective.z_loss == 0
    assert [(run_stage.steps, run_stage.batch_size, run_stage.length) for run_stage in run.stages] == [stage]
    optimizer = run.optimizer
    assert type(optimizer) is AdamW and (optimizer.b2, optimizer.epsilon, optimizer.weight_decay) == (0.98, 1e-6, 0.01)
    assert optimizer.schedule.peak == peak and run.shape(0).targets == 512

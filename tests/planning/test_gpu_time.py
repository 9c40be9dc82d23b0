"""Predicted times of training steps on GPUs."""

import dataclasses
from types import SimpleNamespace

import planned_bert
import pytest

from benchmarks.step_cases import CASES
from bertfam.kernels.attention import fa4, hopper
from bertfam.planning.changes import with_execution
from bertfam.planning.choices import choose_execution, with_choices
from bertfam.planning.gpu_time import predict
from bertfam.planning.programs import Job

H200 = SimpleNamespace(device_kind="NVIDIA H200")


@pytest.fixture(autouse=True)
def any_jax(monkeypatch):
    """Choose attention as with the versions of JAX that the steps were measured with, without FlashAttention-4."""
    monkeypatch.setattr(fa4, "_version", lambda distribution: None)
    monkeypatch.setattr(hopper, "_JAX_FROM", (0,))
    monkeypatch.setattr(hopper, "_JAX_BEFORE", (99,))


def on_gpu(run):
    chosen = with_choices(run, choose_execution(run.objective, "gpu"))
    return dataclasses.replace(with_execution(chosen, remat="none"), microbatches=1)


# Measured by `python -m benchmarks.step` on one H200 on 2026-11-29 (jax 0.11.2). No rate was fitted to these steps.
@pytest.mark.parametrize(
    ("case", "milliseconds"),
    [
        ("bert-large-512", 75.4),
        ("t5-1.1-base-512", 60.4),
        ("roberta-base-4096", 46.7),
        ("long-longformer-16384", 50.7),
        ("long-modernbert-8192", 122.2),
    ],
)
def test_measured_steps(case, milliseconds):
    time = predict(on_gpu(CASES[case].run()), 0, H200)
    assert 1e3 * time.seconds == pytest.approx(milliseconds, rel=0.15)
    assert all(part > 0 for part in vars(time).values())


def seconds(run, **changed):
    stage = dataclasses.replace(run.stages[0], **changed)
    return predict(dataclasses.replace(run, stages=(stage,)), 0, H200).seconds


def test_time_grows_with_rows_and_length_and_work():
    run = on_gpu(planned_bert.run(["BertConfig.max_length = 64"]))
    time = seconds(run)
    assert time < seconds(run, batch_size=128) < seconds(run, length=64, batch_size=128)
    assert time < seconds(run, length=64)
    assert time < seconds(with_execution(run, remat="dots")) < seconds(with_execution(run, remat="full"))
    assert time < seconds(with_execution(run, layers="scan"))
    assert time < seconds(on_gpu(planned_bert.run(["BertConfig.max_length = 64", "BertConfig.dropout_rate = 0.1"])))
    assert time < seconds(dataclasses.replace(run, microbatches=2)) < seconds(dataclasses.replace(run, microbatches=4))


@pytest.mark.parametrize("kind", ["cpu", "TPU v5 lite", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA RTX A6000"])
def test_devices_without_rates_have_no_prediction(kind):
    assert predict(on_gpu(planned_bert.run()), 0, SimpleNamespace(device_kind=kind)) is None


def test_float32_and_several_devices_have_no_prediction():
    run = on_gpu(planned_bert.run())
    assert predict(with_execution(run, dtype="float32"), 0, H200) is None
    trainer = SimpleNamespace(run=run, mesh=SimpleNamespace(size=2))
    assert Job("train", 0, 64, 32, 1, 0, trainer, None).predicted is None

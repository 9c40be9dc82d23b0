"""Benchmark of weak scaling: a model on the device that is here, and the table of two devices with models that do nothing."""

import sys
from types import SimpleNamespace

import jax
import pytest

from benchmarks import scaling
from bertfam.config import load

LINES = ["Run.stages = (@Stage(),)", "Stage.length = 32", "BATCH_SIZE = 2", "BertConfig.num_layers = 1"]
LINES += ["BertConfig.dropout_rate = 0.0", "BertConfig.attention_dropout_rate = 0.0"]
LINES += ["BertConfig.hidden_size = 16", "BertConfig.num_heads = 2", "BertConfig.feed_forward_size = 32"]


def test_model_is_trained_by_a_round(monkeypatch):
    monkeypatch.setattr(scaling, "_VOCABULARY", 500)
    run = load(["runs/quickstart_bert.gin"], LINES).build("Run").sized(scaling._VOCABULARY)
    entry = scaling.Entry(scaling.Course(run, scaling.MESHES["zero1"], jax.devices()[:1]))
    entry.round(2)
    (course,) = entry.courses
    assert course.bytes > 0 and 5 < course.loss < 9  # log(500) and that of next sentences
    assert (course.tokens, entry.devices, int(course.state.step)) == (64, 1, 2) and entry.rates[0] > 0


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that only the updates of the models advance: by a second, or two with the slow device 1."""
    now = SimpleNamespace(seconds=0)

    class Course:
        def __init__(self, run, mesh, devices):
            self.trainer = SimpleNamespace(mesh=SimpleNamespace(size=len(devices)))
            self.tokens = run.stages[0].batch_size * run.stages[0].length
            self.state = 0
            self.seconds, self.bytes, self.loss = 1 + max(device.id for device in devices), 2**31, 1.5

        def update(self):
            now.seconds += self.seconds

    monkeypatch.setattr(scaling, "Course", Course)
    monkeypatch.setattr(scaling, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(id=number, device_kind="cpu") for number in range(2)])


def test_rows_of_single_devices_all_devices_and_a_mesh(clock, monkeypatch, capsys):
    """The rate of each is per device, and its share is of the slowest device's rate."""
    common = ["--run=quickstart_bert", "--length=128", "--steps=3", "--rounds=2", "--gin=BertConfig.num_layers = 1"]

    def rows_of(*words):
        monkeypatch.setattr(sys, "argv", ["scaling", *common, *words])
        assert scaling.main() == 0
        lines = capsys.readouterr().out.splitlines()
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")][2:]

    assert rows_of("--rows=64", "--mesh=zero1") == [
        ["device 0 alone", "1", "8", "200.0%", "0.0%", "1,000.0", "2.0", "1.500000"],
        ["device 1 alone", "1", "4", "100.0%", "0.0%", "2,000.0", "2.0", "1.500000"],
        ["all at once", "2", "3", "66.7%", "0.0%", "3,000.0", "2.0", "1.500000"],
        ["zero1", "2", "4", "100.0%", "0.0%", "2,000.0", "2.0", "1.500000"],
    ]
    assert rows_of("--rows=64", "--mesh=sequence", "--same_rows")[-1][:6] == ["sequence", "2", "2", "50.0%", "0.0%", "2,000.0"]

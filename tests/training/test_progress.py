"""metrics.jsonl, TensorBoard event files, log intervals, speed and remaining time."""

import json
import os
import struct
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from bertfam.errors import UserError
from bertfam.objectives.objective import Sum
from bertfam.training.checkpoints import retention
from bertfam.training.logs import phase_timer
from bertfam.training.logs.metrics import MetricsWriter, means
from bertfam.training.logs.phase_timer import COMPILING, EVALUATING, TRAINING, WAITING, PhaseTimer, shares
from bertfam.training.logs.progress import ProgressLog, Rates
from bertfam.training.logs.trackers import Tracker, Wandb


def sums(**values):
    return {name: Sum(jnp.float32(total), jnp.float32(weight)) for name, (total, weight) in values.items()}


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def test_means_are_weighted_over_all_steps():
    steps = [sums(mlm=(20, 10), nsp=(0, 0)), sums(mlm=(100, 100), nsp=(0, 0))]
    assert means(steps) == {"mlm": 120 / 110}  # a weight of 0 has no mean
    assert means([]) == {}


def test_line_has_step_split_and_values(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.write(50, "train", {"loss": 1.5, "learning_rate": 1e-4})
    assert lines(tmp_path) == [{"step": 50, "split": "train", "loss": 1.5, "learning_rate": 1e-4}]  # written immediately
    writer.write(50, "eval", {"mlm_loss": 2.5})
    writer.close()
    assert lines(tmp_path)[1] == {"step": 50, "split": "eval", "mlm_loss": 2.5}
    assert {(50, "train/loss", 1.5), (50, "eval/mlm_loss", 2.5)} <= set(events(tmp_path))


def test_non_finite_values_are_written_as_null(tmp_path):
    """JSON has neither NaN nor infinity."""
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, "train", {"loss": float("nan"), "gradient_norm": float("inf")})
    writer.close()
    assert lines(tmp_path) == [{"step": 1, "split": "train", "loss": None, "gradient_norm": None}]


@dataclass(frozen=True)
class Recorder(Tracker):
    """Tracker that fails at step 3."""

    found: list = field(default_factory=list)

    def open(self, name, folder, settings):
        self.found.append((name, settings))
        return self

    def write(self, step, values):
        if step == 3:
            raise RuntimeError("no connection")
        self.found.append((step, values))

    def close(self):
        self.found.append("closed")


def test_trackers_follow_and_never_stop_a_run(tmp_path, capsys):
    trackers = (Recorder(), Recorder())
    (tmp_path / "model").mkdir()
    writer = MetricsWriter(tmp_path / "model", 0, trackers, {"steps": 4})
    writer.write(1, "train", {"loss": 1.5, "times": [1, 2]})
    writer.write(3, "eval", {"loss": 2.5})
    writer.write(4, "train", {"loss": 3.5})
    writer.close()
    assert [line["step"] for line in lines(tmp_path / "model")] == [1, 3, 4] and not writer.failed()
    for tracker in trackers:
        assert tracker.found == [("model", {"steps": 4}), (1, {"train/loss": 1.5})]
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all("Recorder" in line and "no connection" in line for line in errors)


def test_wandb_is_offline_by_default_and_named_where_it_is_missing(tmp_path, monkeypatch):
    calls = []
    run = SimpleNamespace(define_metric=lambda *args, **options: None, log=calls.append, finish=lambda: calls.append("finished"))
    fake = SimpleNamespace(Settings=lambda **options: None, init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    writer = MetricsWriter(tmp_path, 0, (Wandb(project="p"),), {"steps": 4})
    writer.write(2, "eval", {"loss": 1.0})
    writer.close()
    options, line, last = calls
    assert (options["mode"], options["project"], options["dir"]) == ("offline", "p", str(tmp_path)) and options["config"] == {
        "steps": 4
    }
    assert line == {"step": 2, "eval/loss": 1.0} and last == "finished"
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'bertfam\[wandb\]'"):
        MetricsWriter(tmp_path, 0, (Wandb(),))


def events(model_dir):
    """Yield (step, tag, value) of every scalar in the event files."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(model_dir.glob("events.out.tfevents.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack("<Q", data[place : place + 8])
            event = Event.FromString(data[place + 12 : place + 12 + size])
            place += 16 + size
            yield from ((event.step, value.tag, value.simple_value) for value in event.summary.value)


@pytest.mark.parametrize("tail", ["", '{"step": 8, "split": "tr', "not json\n", '{"split": "eval"}\n', "7\n"])
def test_lines_after_the_checkpoint_are_dropped(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "split": "train"}}\n' for step in (2, 4, 6, 8)) + tail)
    writer = MetricsWriter(tmp_path, 4)
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]
    writer.write(6, "train", {})
    writer.close()
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6]
    assert not list(tmp_path.glob(".*"))


DAMAGED_LINES = [
    b'{"step": 4, \xff"split": "train"}',
    b'{"step": 4, "spl',
    b"7",
    b"[]",
    b'{"split": "eval"}',
    b'{"step": "4", "split": "eval"}',
    b'{"step": 4, "split": "eval", "loss": "x"}',
    b"[" * 100_000,
    b'{"step": -4, "split": "train"}',
    b"",
]


@pytest.mark.parametrize("damaged", DAMAGED_LINES, ids=range(len(DAMAGED_LINES)))
def test_damaged_line_is_set_aside(tmp_path, capsys, damaged):
    good = [f'{{"step": {step}, "split": "eval", "loss": {step}}}'.encode() for step in (2, 4, 6)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([good[0], damaged, *good[1:], b""]))
    assert retention.held_out(tmp_path, "loss") == {2: 2, 4: 4, 6: 6}
    MetricsWriter(tmp_path, 4).close()
    (warning,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'metrics.jsonl'}: line 2 is damaged" in warning and "metrics.damaged.jsonl" in warning
    assert (tmp_path / "metrics.jsonl").read_bytes().splitlines() == good[:2]
    assert (tmp_path / "metrics.damaged.jsonl").read_bytes() == damaged + b"\n"
    MetricsWriter(tmp_path, 4).close()
    assert capsys.readouterr().err == ""


def test_terabytes_without_the_end_of_a_line_are_set_aside_by_their_length(tmp_path, capsys):
    """A power loss, or a stranger, leaves such files; the disk holds no data for most of them."""
    good = [f'{{"step": {step}, "split": "eval", "loss": {step}}}\n'.encode() for step in (2, 4, 6)]
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(good[0] + b"x" * 30_000_000)
    os.truncate(path, 1 << 40)
    with open(path, "ab") as file:
        file.write(b"\n" + good[1] + good[2] + b"\0" * 1000)
    assert retention.held_out(tmp_path, "loss") == {2: 2, 4: 4, 6: 6}
    MetricsWriter(tmp_path, 4).close()
    assert "metrics.jsonl: 2 lines, the first line 2, are damaged" in capsys.readouterr().err
    assert path.read_bytes() == good[0] + good[1]
    size = (1 << 40) - len(good[0]) + 1
    assert (tmp_path / "metrics.damaged.jsonl").read_bytes() == b"%b ... (%d bytes)\n%b\n" % (b"x" * 200, size, bytes(1000))


def test_metrics_that_cannot_be_read(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=f"{tmp_path / 'metrics.jsonl'} is not a regular file"):
        retention.held_out(tmp_path, "loss")


def test_incomplete_scores_are_dropped(tmp_path):
    """They are computed again, so that no line appears twice."""
    written = [(2, "eval_average"), (2, "eval"), (4, "train"), (4, "eval_average")]
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "split": "{split}"}}\n' for step, split in written))
    for step, kept in ((4, written[:3]), (2, written[:2])):
        MetricsWriter(tmp_path, step).close()
        assert [(line["step"], line["split"]) for line in lines(tmp_path)] == kept


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    fake_clock = Clock()
    monkeypatch.setattr(phase_timer, "time", SimpleNamespace(monotonic=fake_clock.monotonic))
    return fake_clock


class RecordedLines(list):
    def write(self, step, split, values):
        self.append({"step": step, "split": split, **values})


def test_intervals_speed_and_remaining_time(clock, capsys):
    """Seven steps of 100 tokens, then three of 400 tokens with four times the FLOPs; logged every four steps, from step 2."""
    rates = [Rates(100, 1000, 1e5)] * 7 + [Rates(400, 4000, 1e5)] * 3
    written, timer = RecordedLines(), PhaseTimer()
    seen = lambda step: {"tokens_seen": 1000 * step, "epoch": step / 8}  # noqa: E731
    log = ProgressLog(written, timer, 2, 10, 4, lambda step: sum(rate.flops_per_step for rate in rates[step:]), seen=seen)
    assert [step for step in range(3, 11) if log.ends_interval(step)] == [4, 8, 10]
    for step in range(2, 10):
        if step in (2, 7):
            with timer.during(COMPILING):
                clock.now += 30
        timer.begin(TRAINING)
        clock.now += 0.5 if step < 7 else 2
        timer.move(0.25 if step < 4 else 0, WAITING)
        ends = log.ends_interval(step + 1)
        log.add(sums(loss=(step, 1), mlm=(2 * step, 2)), rates[step], 0.1 if ends else None)
        if step == 7:
            log.flush()
            with timer.during(EVALUATING):
                clock.now += 4
    log.flush()
    assert [line["step"] for line in written] == [4, 8, 10] and all(line["split"] == "train" for line in written)
    assert [line["loss"] for line in written] == [2.5, 5.5, 8.5] == [line["mlm"] for line in written]
    assert all(line["learning_rate"] == 0.1 and "seconds_left" not in line for line in written)
    # 2 steps in 1 s; 3 steps of 100 and one of 400 tokens in 3.5 s; 2 of 400 in 4 s. Neither compiling nor evaluating counts.
    assert [line["tokens_per_second"] for line in written] == pytest.approx([200, 700 / 3.5, 200])
    assert [line["mfu"] for line in written] == pytest.approx([0.02, 0.02, 0.02])
    assert [line["waiting_for_data"] for line in written] == pytest.approx([0.5, 0, 0])
    # The remaining work at the speed so far: 3 steps of the first kind and 3 of the second are 15,000 at 2,000/s, then 8,000.
    printed = capsys.readouterr().out.splitlines()
    assert [line.rpartition("  ")[2] for line in printed] == ["8 s left", "4 s left", "0 s left"]
    assert printed[0] == (
        "step 4/10  loss 2.5  mlm 2.5  learning_rate 0.1  4 k tokens  epoch 0.5  200 tokens/s (50% waiting for data)  MFU 2.0%  "
        "8 s left"
    )
    assert [(line["tokens_seen"], line["epoch"]) for line in written] == [(4000, 0.5), (8000, 1.0), (10000, 1.25)]
    assert timer.seconds() == {"starting": 0, "compiling": 60, "training": 8, "waiting for data": 0.5, "evaluating": 4}
    assert shares(timer.seconds()) == "compiling 82.8%, training 11.0%, evaluating 5.5%, waiting for data 0.7%"


def test_remaining_time_includes_evaluations(clock, capsys):
    rates, timer = Rates(100, 1000, None), PhaseTimer()
    log = ProgressLog(RecordedLines(), timer, 0, 4, 1, lambda step: (4 - step) * 1000)
    for _ in range(2):
        timer.begin(TRAINING)
        clock.now += 1
        log.add(sums(loss=(1, 1)), rates, 0.1)
        timer.begin(EVALUATING)
        clock.now += 9
    log.flush()
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("100 tokens/s  3 s left") and second.endswith("100 tokens/s  11 s left")


def test_lines_of_a_run_whose_checkpoints_are_gone_are_dropped_with_a_warning(tmp_path, capsys):
    for _ in range(2):
        writer = MetricsWriter(tmp_path, 0)
        assert (tmp_path / "metrics.jsonl").read_text() == ""
        writer.write(7, "train", {"loss": 1.0})
        writer.close()
    warning = capsys.readouterr().err
    assert "reaches step 7" in warning and f"{tmp_path} has no checkpoint" in warning and warning.count("\n") == 1
    MetricsWriter(tmp_path, 5).close()
    assert capsys.readouterr().err == ""

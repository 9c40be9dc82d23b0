"""metrics.jsonl, TensorBoard's files, intervals, speeds and the time left."""

import json
import struct
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from bertfam.objectives.objective import Sum
from bertfam.training.logs import phase_timer
from bertfam.training.logs.metrics import MetricsWriter, means
from bertfam.training.logs.phase_timer import COMPILING, EVALUATING, TRAINING, WAITING, PhaseTimer, shares
from bertfam.training.logs.progress import ProgressLog, Rates


def sums(**values):
    return {name: Sum(jnp.float32(total), jnp.float32(weight)) for name, (total, weight) in values.items()}


def lines(model_dir):
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]


def test_means_are_of_all_weights_together():
    steps = [sums(mlm=(20, 10), nsp=(0, 0)), sums(mlm=(100, 100), nsp=(0, 0))]
    assert means(steps) == {"mlm": 120 / 110}  # without a weight there is no mean
    assert means([]) == {}


def test_a_line_is_a_step_a_split_and_the_values(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    writer.write(50, "train", {"loss": 1.5, "learning_rate": 1e-4})
    assert lines(tmp_path) == [{"step": 50, "split": "train", "loss": 1.5, "learning_rate": 1e-4}]  # at once
    writer.write(50, "eval", {"mlm_loss": 2.5})
    writer.close()
    assert lines(tmp_path)[1] == {"step": 50, "split": "eval", "mlm_loss": 2.5}
    assert {(50, "train/loss", 1.5), (50, "eval/mlm_loss", 2.5)} <= set(events(tmp_path))


def test_what_is_no_number_is_null(tmp_path):
    """NaN and infinity are no JSON."""
    writer = MetricsWriter(tmp_path, 0)
    writer.write(1, "train", {"loss": float("nan"), "gradient_norm": float("inf")})
    writer.close()
    assert lines(tmp_path) == [{"step": 1, "split": "train", "loss": None, "gradient_norm": None}]


def events(model_dir):
    """(step, tag, value) of every scalar in the event files."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(model_dir.glob("events.out.tfevents.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack("<Q", data[place : place + 8])
            event = Event.FromString(data[place + 12 : place + 12 + size])
            place += 16 + size
            yield from ((event.step, value.tag, value.simple_value) for value in event.summary.value)


@pytest.mark.parametrize("tail", ["", '{"step": 8, "split": "tr', "not json\n", '{"split": "eval"}\n', "7\n"])
def test_what_an_interrupted_run_wrote_beyond_its_checkpoint_is_dropped(tmp_path, tail):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "split": "train"}}\n' for step in (2, 4, 6, 8)) + tail)
    writer = MetricsWriter(tmp_path, 4)
    assert [line["step"] for line in lines(tmp_path)] == [2, 4]
    writer.write(6, "train", {})
    writer.close()
    assert [line["step"] for line in lines(tmp_path)] == [2, 4, 6]
    assert not list(tmp_path.glob(".*"))


def test_scores_that_were_cut_off_between_two_lines_are_dropped(tmp_path):
    """They are made anew, and no line is there twice."""
    places = [(2, "eval_average"), (2, "eval"), (4, "train"), (4, "eval_average")]
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "split": "{split}"}}\n' for step, split in places))
    for step, there in ((4, places[:3]), (2, places[:2])):
        MetricsWriter(tmp_path, step).close()
        assert [(line["step"], line["split"]) for line in lines(tmp_path)] == there


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(phase_timer, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


class Written(list):
    def write(self, step, split, values):
        self.append({"step": step, "split": split, **values})


def test_intervals_speeds_and_time_left(clock, capsys):
    """Seven steps of 100 tokens, then three of 400 with four times the work; logged every four, from step 2 on."""
    rates = [Rates(100, 1000, 1e5)] * 7 + [Rates(400, 4000, 1e5)] * 3
    written, doing = Written(), PhaseTimer()
    log = ProgressLog(written, doing, 2, 10, 4, lambda step: sum(rate.flops_per_step for rate in rates[step:]))
    assert [step for step in range(3, 11) if log.ends_interval(step)] == [4, 8, 10]
    for step in range(2, 10):
        if step in (2, 7):
            with doing.during(COMPILING):
                clock.now += 30
        doing.begin(TRAINING)
        clock.now += 0.5 if step < 7 else 2
        doing.move(0.25 if step < 4 else 0, WAITING)
        ends = log.ends_interval(step + 1)
        log.add(sums(loss=(step, 1), mlm=(2 * step, 2)), rates[step], 0.1 if ends else None)
        if step == 7:
            log.flush()
            with doing.during(EVALUATING):
                clock.now += 4
    log.flush()
    assert [line["step"] for line in written] == [4, 8, 10] and all(line["split"] == "train" for line in written)
    assert [line["loss"] for line in written] == [2.5, 5.5, 8.5] == [line["mlm"] for line in written]
    assert all(line["learning_rate"] == 0.1 and "seconds_left" not in line for line in written)
    # 2 steps in 1 s; 3 steps of 100 and one of 400 tokens in 3.5 s; 2 of 400 in 4 s. Neither compiling nor evaluating counts.
    assert [line["tokens_per_second"] for line in written] == pytest.approx([200, 700 / 3.5, 200])
    assert [line["mfu"] for line in written] == pytest.approx([0.02, 0.02, 0.02])
    assert [line["waiting_for_data"] for line in written] == pytest.approx([0.5, 0, 0])
    # The work left, at the speed so far: 3 steps of the first kind and 3 of the second are 15,000 at 2,000/s, then 8,000.
    shown = capsys.readouterr().out.splitlines()
    assert [line.rpartition("  ")[2] for line in shown] == ["8 s left", "4 s left", "0 s left"]
    assert shown[0] == "step 4/10  loss 2.5  mlm 2.5  200 tokens/s (50% waiting for data)  MFU 2.0%  8 s left"
    assert doing.seconds() == {"starting": 0, "compiling": 60, "training": 8, "waiting for data": 0.5, "evaluating": 4}
    assert shares(doing.seconds()) == "compiling 82.8%, training 11.0%, evaluating 5.5%, waiting for data 0.7%"


def test_evaluations_come_again_and_count_for_the_time_left(clock, capsys):
    rates, doing = Rates(100, 1000, None), PhaseTimer()
    log = ProgressLog(Written(), doing, 0, 4, 1, lambda step: (4 - step) * 1000)
    for _ in range(2):
        doing.begin(TRAINING)
        clock.now += 1
        log.add(sums(loss=(1, 1)), rates, 0.1)
        doing.begin(EVALUATING)
        clock.now += 9
    log.flush()
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("100 tokens/s  MFU -  3 s left") and second.endswith("100 tokens/s  MFU -  11 s left")

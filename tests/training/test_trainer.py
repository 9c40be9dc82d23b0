"""Training loop: non-finite updates, parameter averages, inspection, growing batches, and resuming from any step."""

import dataclasses
import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from toy_objective import LENGTH, Rows, Toy

from bertfam.data.text_data import TextData
from bertfam.errors import TrainingError, UserError
from bertfam.training import loop
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.hooks.base import PeriodicHook
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.optimizers import Adafactor, AdamW, BertAdam, Lamb, Lion, Muon
from bertfam.training.run import Run, check_resumable
from bertfam.training.run_plan import make_plan, plan_text
from bertfam.training.schedules import CosineDecay, LinearDecay
from bertfam.training.stages import Ramp, Stage, locate
from bertfam.training.trainer import Trainer

SCHEDULE = LinearDecay(0.05, warmup_steps=4)
RUN = Run(objective=Toy(), data=TextData(), stages=(Stage(10, LENGTH, 4),), optimizer=AdamW(SCHEDULE), log_every=4)


class RecordedLines(list):
    def write(self, step, split, values):
        self.append({"step": step, "split": split, **values})


class RecordingHook(PeriodicHook):
    """Hook that records the states that a checkpoint would hold."""

    phase = "keeping"

    def __init__(self, interval, last):
        super().__init__(interval, last)
        object.__setattr__(self, "states", {})

    def after(self, step, state):
        self.states[step] = jax.device_get(state)
        return state


def train(run, rows, *, state=None, trainer=None, interval=3):
    """Return the last state or the error, the logged lines and the recorded states."""
    trainer = trainer or Trainer(run, run.mesh.build(jax.devices()[:1]))
    written, recorder = RecordedLines(), RecordingHook(interval, run.total_steps)
    state = trainer.new_state() if state is None else state
    log = ProgressLog(written, trainer.phase_timer, int(state.step), run.total_steps, run.log_every, run.flops_after)
    error = None
    try:
        state = loop.train(trainer, state, rows, log, [recorder])
    except TrainingError as caught:
        error = str(caught)
    return jax.device_get(state) if error is None else error, written, recorder.states


def assert_same(left, right, **tolerance):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, **({"rtol": 0, "atol": 0} | tolerance))


def test_non_finite_update_ends_the_run_and_is_not_saved(capsys):
    error, written, saved = train(RUN, Rows(poisoned={4, 5}))
    assert error.startswith("the update that leads to step 5 has loss nan and gradient norm ")
    assert "neither it nor any later update is saved" in error
    assert "--gin.Run.non_finite='\"skip\"'" in error and "\n" not in error
    assert list(saved) == [3] and [line["step"] for line in written] == [3, 4]
    assert all(np.isfinite(line["loss"]) and "non_finite" not in line for line in written)
    capsys.readouterr()


@pytest.mark.parametrize("optimizer", [AdamW(SCHEDULE), Muon(SCHEDULE), Adafactor(SCHEDULE, min_size_to_factor=2)])
def test_skipped_update_changes_nothing(optimizer):
    """Only the step, the count of skipped updates and the learning rate advance."""
    run = dataclasses.replace(RUN, non_finite="skip", optimizer=optimizer, average_decay=0.5)
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    state, written, saved = train(run, Rows(poisoned={3, 4}), trainer=trainer)
    assert int(state.step) == 10 and int(state.skipped) == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    assert [line["skipped"] for line in written] == [0, 1, 1, 0, 0, 0]  # at 3, 4, 6, 8, 9, 10: since the line before
    assert all(np.isfinite(line["loss"]) for line in written if line["step"] != 4) and "loss" not in written[1]

    # A run without the two steps.
    cut = saved[3]._replace(step=np.int32(5), skipped=np.int32(2))
    expected, _, _ = train(run, Rows(), trainer=trainer, state=jax.device_put(cut, trainer.shardings))
    assert_same(state, expected)

    # A run that resumes before them skips the same steps again.
    again, _, _ = train(run, Rows(poisoned={3, 4}), trainer=trainer, state=jax.device_put(saved[3], trainer.shardings))
    assert_same(state, again)


def test_average_is_the_weighted_mean_of_all_parameters_so_far():
    run = dataclasses.replace(RUN, average_decay=0.8, log_every=1)
    state, _, saved = train(run, Rows(), interval=1)
    after = [saved[step].params for step in range(1, 11)]
    for count in (1, 2, 10):
        weights = 0.8 ** np.arange(count - 1, -1, -1.0)
        expected = jax.tree.map(
            lambda *leaves, weights=weights: np.average(np.stack(leaves), axis=0, weights=weights), *after[:count]
        )
        assert_same(saved[count].average, expected, rtol=1e-5, atol=1e-6)
    plain, _, _ = train(RUN, Rows())
    assert_same(plain.params, state.params)
    assert plain.average == {}


def test_inspection_changes_nothing():
    run = dataclasses.replace(RUN, inspect_every=4, microbatches=2)
    state, written, saved = train(run, Rows(), interval=1)
    plain, _, _ = train(dataclasses.replace(run, inspect_every=0), Rows(), interval=1)
    assert_same(state, plain)
    lines = {line["step"]: line for line in written if line["split"] == "inspect"}
    assert list(lines) == [4, 8]
    inspection = lines[4]
    kernel = saved[3].params["layers"]["kernel"]
    for layer in range(2):
        norm = np.linalg.norm(kernel[layer])
        assert inspection[f"parameter_norm/layers/{layer:02}"] == pytest.approx(norm, rel=1e-5)
        update_norm = np.linalg.norm(saved[4].params["layers"]["kernel"][layer] - kernel[layer])
        assert inspection[f"update_norm/layers/{layer:02}"] == pytest.approx(update_norm, rel=1e-3)
    assert inspection["update_norm/head"] == pytest.approx(
        np.linalg.norm(saved[4].params["head"]["bias"] - saved[3].params["head"]["bias"]), rel=1e-3
    )
    step = {line["step"]: line for line in train(dataclasses.replace(run, log_every=1), Rows(), interval=1)[1]}[4]
    gradient_norm = np.sqrt(sum(value**2 for name, value in inspection.items() if name.startswith("gradient_norm/")))
    assert gradient_norm == pytest.approx(step["gradient_norm"], rel=1e-5)
    rows = Rows().rows(3, 0, 4)
    hidden = np.asarray(Toy().hidden(saved[3].params, rows))[:, ::2, :6]  # the real tokens of the first microbatch
    for place in range(3):
        assert inspection[f"activation_rms/toy/{place:02}"] == pytest.approx(np.sqrt(np.mean(hidden[place] ** 2)), rel=1e-5)
        assert inspection[f"activation_max/toy/{place:02}"] == pytest.approx(np.abs(hidden[place]).max(), rel=1e-5)


def test_schedule_counts_updates_not_microbatches():
    run = dataclasses.replace(RUN, optimizer=Lion(CosineDecay(0.1, 0, 0.5), weight_decay=0.0), log_every=1)
    rates = []
    for microbatches in (1, 4):
        _, written, saved = train(dataclasses.replace(run, microbatches=microbatches), Rows(), interval=1)
        rates.append([line["learning_rate"] for line in written])
        # An update of Lion is as large as its rate.
        change = np.abs(saved[10].params["head"]["bias"] - saved[9].params["head"]["bias"])
        np.testing.assert_allclose(change, 0.05, rtol=1e-4)
    assert rates[0] == rates[1] == pytest.approx([0.075 + 0.025 * np.cos(np.pi * done / 10) for done in range(1, 11)])


@pytest.mark.parametrize(
    ("schedule", "total", "expected"),
    [
        (LinearDecay(1.0, 4), 10, [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]),
        (LinearDecay(1.0, 0), 4, [0.75, 0.5, 0.25, 0]),  # no warm-up
        (LinearDecay(1.0, 4), 4, [0.25, 0.5, 0.75, 1]),  # no decay
        (LinearDecay(1.0, 8), 4, [0.125, 0.25, 0.375, 0.5]),  # a warm-up longer than the run
    ],
)
def test_rates_of_runs_resumed_from_every_step(schedule, total, expected):
    """Logged rates and applied rates are compared: an update of Lion is as large as its rate."""
    optimizer = Lion(schedule, weight_decay=0.0)
    run = dataclasses.replace(RUN, optimizer=optimizer, stages=(Stage(total, LENGTH, 4),), log_every=1)
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    trainer.compile_step = functools.cache(trainer.compile_step)
    start = jax.device_get(trainer.new_state())
    _, written, saved = train(run, Rows(), trainer=trainer, interval=1)
    assert [line["learning_rate"] for line in written] == pytest.approx(expected, abs=1e-6)
    biases = [state.params["head"]["bias"] for state in (start, *saved.values())]
    for (before, after), rate in zip(itertools.pairwise(biases), expected, strict=True):
        np.testing.assert_allclose(np.abs(after - before), rate, atol=1e-6)
    for cut in range(1, total):
        state = jax.device_put(saved[cut], trainer.shardings)
        end, lines, resaved = train(run, Rows(), trainer=trainer, state=state, interval=1)
        assert [line["learning_rate"] for line in lines] == [line["learning_rate"] for line in written[cut:]]
        assert list(resaved) == list(range(cut + 1, total + 1))
        assert_same(end, saved[total])


def test_extended_run_has_the_rates_of_its_new_length():
    shorter, longer = (
        dataclasses.replace(RUN, optimizer=AdamW(LinearDecay(1.0, 4)), stages=(Stage(total, LENGTH, 4),), log_every=1)
        for total in (10, 22)
    )
    check_resumable(shorter, longer, 6)
    trainers = [Trainer(run, run.mesh.build(jax.devices()[:1])) for run in (shorter, longer)]
    _, _, saved = train(shorter, Rows(), trainer=trainers[0], interval=1)
    _, lines, _ = train(longer, Rows(), trainer=trainers[1], state=jax.device_put(saved[6], trainers[1].shardings))
    assert [line["step"] for line in lines] == list(range(7, 23))
    assert [line["learning_rate"] for line in lines] == pytest.approx([(22 - done) / 18 for done in range(7, 23)])


def test_rows_of_several_lengths_train_as_rows_with_more_padding_do_from_any_step(capsys):
    class ShortRows(Rows):
        def row_length(self, step):
            return (6, LENGTH)[step % 3 == 1]

        def rows(self, step, start, stop):
            return {name: value[:, : self.row_length(step)] for name, value in super().rows(step, start, stop).items()}

    trainer = Trainer(RUN, RUN.mesh.build(jax.devices()[:1]))
    trainer.compile_step = functools.cache(trainer.compile_step)
    expected, _, _ = train(RUN, Rows())
    state, written, saved = train(RUN, ShortRows(), trainer=trainer, interval=1)
    assert_same(state, expected, rtol=1e-5)
    assert capsys.readouterr().out.count("compiling stage 1 for rows of 6 tokens\n") == 1
    assert trainer.program(0, 6).rates.tokens_per_step == 24 and trainer.program(0).rates.tokens_per_step == 4 * LENGTH
    for start in (1, 2, 8):
        resumed, lines, _ = train(RUN, ShortRows(), trainer=trainer, state=jax.device_put(saved[start], trainer.shardings))
        assert_same(resumed, state)
        assert [line["toy_loss"] for line in lines[-1:]] == [written[-1]["toy_loss"]]


def test_steps_without_targets_are_reported_and_harmless(capsys):
    """Their loss of 0 enters no mean."""

    class RowsWithGaps(Rows):
        def rows(self, step, start, stop):
            rows = super().rows(step, start, stop)
            return {name: np.zeros_like(value) if step in (1, 4, 5) else value for name, value in rows.items()}

    run = dataclasses.replace(RUN, log_every=2, microbatches=2)
    state, written, saved = train(run, RowsWithGaps(), interval=2)
    assert int(state.step) == 10 and int(state.skipped) == 0
    assert all(np.isfinite(leaf).all() for kept in saved.values() for leaf in jax.tree.leaves(kept))
    assert [line.get("nothing_to_predict", 0) for line in written] == [1, 0, 2, 0, 0]
    assert "loss" not in written[2] and "toy_loss" not in written[2]
    assert all(line["loss"] == pytest.approx(line["toy_loss"]) for line in written if line["step"] != 6)
    assert "step 6/10  nothing_to_predict 2  gradient_norm 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "optimizer", [AdamW(SCHEDULE), BertAdam(), Lamb(SCHEDULE), Adafactor(min_size_to_factor=2), Muon(SCHEDULE)]
)
def test_run_resumed_from_any_step_equals_an_uninterrupted_run(optimizer, tmp_path):
    """State and learning rates are equal, for every optimizer and across the boundaries of a growing batch."""
    stages = (Ramp(6, LENGTH, batch_size=6, first_batch_size=2, sizes=3, multiple=2), Stage(4, LENGTH, 6))
    run = dataclasses.replace(RUN, optimizer=optimizer, stages=stages, average_decay=0.9, log_every=1)
    assert run.stages == (Stage(2, LENGTH, 2), Stage(2, LENGTH, 4), Stage(2, LENGTH, 6), Stage(4, LENGTH, 6))
    rows = Rows(batch_size=lambda step: run.stages[locate(run.stages, step)[0]].batch_size)
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    uninterrupted, written, saved = train(run, rows, trainer=trainer, interval=1)
    rates = [line["learning_rate"] for line in written]
    for step in (1, 2, 5, 6) if type(optimizer) is AdamW else (4,):
        checkpoints = Checkpoints(tmp_path / str(step))
        checkpoints.save(jax.device_put(saved[step], trainer.shardings))
        checkpoints.close()
        checkpoints = Checkpoints(tmp_path / str(step), read_only=True)
        restored = checkpoints.restore(step, trainer.abstract_state)
        checkpoints.close()
        assert_same(jax.device_get(restored), saved[step])
        end, lines, _ = train(run, rows, trainer=trainer, state=restored)
        assert_same(end, uninterrupted)
        assert [line["learning_rate"] for line in lines] == rates[step:]


def test_checkpoint_under_the_name_of_another_step_is_refused():
    """A copy of step 24 named 25 would save step 24 again, which exists."""
    checkpoints = cast(Any, SimpleNamespace(restore=lambda step, like: SimpleNamespace(step=24), directory=Path("checkpoints")))
    trainer = cast(Any, SimpleNamespace(abstract_state=None))
    with pytest.raises(UserError, match="checkpoints/25 holds the state of step 24"):
        Trainer.restored(trainer, checkpoints, 25)
    assert Trainer.restored(trainer, checkpoints, 24).step == 24


def test_plan_shows_optimizer_and_layer_rates():
    run = dataclasses.replace(RUN, optimizer=Lamb(SCHEDULE, layer_decay=0.5))
    trainer = Trainer(run, run.mesh.build(jax.devices()[:1]))
    plan = make_plan(run, trainer.mesh, trainer.abstract_state, trainer.tensors, {})
    assert plan["optimizer"] == "Lamb(schedule=LinearDecay(peak=0.05, warmup_steps=4), layer_decay=0.5)"
    assert plan["layer_rates"] == {"heads": 1.0, "layer 2": 0.5, "layer 1": 0.25, "embeddings": 0.125}
    assert "layer rates  heads x 1, layer 2 x 0.5, layer 1 x 0.25, embeddings x 0.125" in plan_text(plan)


def test_seeds_of_more_than_32_bits_have_their_own_initial_parameters():
    def initial_params(seed, bits=64):
        run = dataclasses.replace(RUN, seed=seed, seed_bits=bits)
        return jax.device_get(Trainer(run, run.mesh.build(jax.devices()[:1])).new_state().params)

    low, high = initial_params(7), initial_params(2**32 + 7)
    assert not np.array_equal(low["layers"]["kernel"], high["layers"]["kernel"])
    jax.tree.map(np.testing.assert_array_equal, low, initial_params(2**32 + 7, bits=32))


def test_parameters_that_are_replaced_are_not_drawn():
    trainer = Trainer(RUN, RUN.mesh.build(jax.devices()[:1]))
    whole, part = jax.device_get((trainer.new_state(), trainer.new_state(["layers/kernel"])))
    assert np.any(whole.params["layers"]["kernel"]) and not np.any(part.params["layers"]["kernel"])
    part.params["layers"]["kernel"] = whole.params["layers"]["kernel"]
    jax.tree.map(np.testing.assert_array_equal, part, whole)


def test_runs_that_differ_in_seed_and_schedule_share_a_program():
    mesh = RUN.mesh.build(jax.devices()[:1])
    longer = (dataclasses.replace(RUN.stages[0], steps=RUN.stages[0].steps + 5), *RUN.stages[1:])
    optimizer = dataclasses.replace(RUN.optimizer, schedule=LinearDecay(peak=0.3, warmup_steps=2))
    runs = RUN, dataclasses.replace(RUN, seed=7), dataclasses.replace(RUN, stages=longer, optimizer=optimizer)
    assert len({Trainer(run, mesh).lower_step(0).as_text() for run in runs}) == 1

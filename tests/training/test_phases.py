"""Stages with settings of their own: each changes what it says alone, and all share parameters and the optimizer's state."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util
from test_trainer import RecordedLines, RecordingHook, assert_same
from toy_objective import LENGTH, WIDTH, Rows, Toy

from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.objectives.objective import LossOut, Predictions, Sum
from bertfam.training import loop
from bertfam.training.logs.progress import ProgressLog
from bertfam.training.optimizers import Adafactor, AdamW, Muon
from bertfam.training.run import Run, check_resumable
from bertfam.training.schedules import ConstantRate, LinearDecay, WarmupStableDecay, joint_schedule
from bertfam.training.stages import Ramp, Stage
from bertfam.training.trainer import Trainer

SCHEDULE = ConstantRate(0.05, warmup_steps=2)


@dataclass(frozen=True)
class Headed(Toy):
    """Two layers and one of two heads, which learn a function of the tokens."""

    head: str = "left"
    layers: int = 2
    scale: float = 1.0
    execution: Execution = Execution()

    def init(self, key, shape):
        def normal(number, *sizes):
            return jax.random.normal(jax.random.fold_in(key, number), sizes, jnp.float32)

        kernel = nn.LogicallyPartitioned(normal(0, self.layers, WIDTH, WIDTH), ("layers", "embed", None))
        table = nn.LogicallyPartitioned(normal(1, WIDTH, WIDTH), ("vocab", "embed"))
        head = nn.LogicallyPartitioned(normal(2, WIDTH, WIDTH), ("embed", None))
        encoder = {"embeddings": {"table": table}, "layers": {"kernel": kernel}}
        return {"encoder": encoder, self.head: {"kernel": head}}, {}, {}

    def loss(self, params, carry, aux, batch, *, key, train):
        assert params.keys() == {"encoder", self.head}  # the parts of other stages are none of its business
        tokens, real = batch["encoder_input_tokens"] % WIDTH, (batch["encoder_segment_ids"] > 0).astype(jnp.float32)
        hidden = jax.nn.one_hot(tokens, WIDTH) @ params["encoder"]["embeddings"]["table"]
        for layer in range(self.layers):
            hidden = jnp.tanh(hidden @ params["encoder"]["layers"]["kernel"][layer])
        difference = hidden @ params[self.head]["kernel"] - jax.nn.one_hot((tokens + 1) % WIDTH, WIDTH)
        total = self.scale * jnp.sum(jnp.sum(difference**2, axis=-1) * real)
        return LossOut({"toy": total}, carry, {f"{self.head}_loss": Sum(total, jnp.sum(real))})

    def predictions(self, params, batch):
        return Predictions(*[batch["encoder_input_tokens"]] * 7)


LEFT, RIGHT = Headed(), Headed("right")
STAGES = (
    Stage(3, LENGTH, 4),
    Stage(3, LENGTH, 4, objective=RIGHT, frozen=("encoder",)),
    Stage(3, LENGTH, 4, objective=RIGHT, frozen=("encoder",), frozen_layers=1),
    Stage(3, LENGTH, 4),
)
RUN = Run(objective=LEFT, data=TextData(), stages=STAGES, optimizer=AdamW(SCHEDULE), average_decay=0.5, log_every=5)


def train(run, *, state=None, trainer=None):
    """Return the states after each update, the logged lines and the trainer."""
    trainer = trainer or Trainer(run, run.mesh.build(jax.devices()[:1]))
    lines, recorder = RecordedLines(), RecordingHook(1, run.total_steps)
    state = trainer.new_state() if state is None else jax.device_put(state, trainer.shardings)
    start = jax.device_get(state)
    log = ProgressLog(lines, trainer.phase_timer, int(state.step), run.total_steps, run.log_every, run.flops_after)
    loop.train(trainer, state, Rows(), log, [recorder])
    return {int(start.step): start} | recorder.states, lines, trainer


def parts(state):
    """Return the leaves of a state by the part of the model that they belong to: parameters, moments and the average."""
    leaves = jax.tree_util.tree_leaves_with_path((state.params, state.opt_state, state.average))
    by_name = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    places = {"left": "['left']", "right": "['right']", "embeddings": "['embeddings']", "layers": "['layers']"}
    return {part: [leaf for name, leaf in by_name.items() if text in name] for part, text in places.items()}


def values(line):
    return {name: value for name, value in line.items() if name not in ("tokens_per_second", "waiting_for_data")}


def has_changed(one, other, layers=slice(None)):
    """Return whether all leaves, or layers of them, differ; they must all be equal if they do not."""
    equal = [np.array_equal(left[layers], right[layers]) for left, right in zip(one, other, strict=True)]
    assert all(equal) or not any(equal)
    return not all(equal)


@pytest.mark.parametrize("optimizer", [AdamW(SCHEDULE), Adafactor(SCHEDULE, min_size_to_factor=2, b1=0.9, weight_decay=0.1)])
def test_a_stage_changes_only_what_it_trains(optimizer):
    run = dataclasses.replace(RUN, optimizer=optimizer)
    states, _, _ = train(run)
    assert states[0].params.keys() == {"encoder", "left", "right"}  # the union, from the first step on
    at = {step: parts(states[step]) for step in (0, 3, 6, 9, 12)}
    changed = {
        step: {part for part in at[step] if part != "layers" and has_changed(at[step - 3][part], at[step][part])}
        | {f"layer {layer}" for layer in (0, 1) if has_changed(at[step - 3]["layers"], at[step]["layers"], layer)}
        for step in (3, 6, 9, 12)
    }
    whole = {"embeddings", "layer 0", "layer 1"}
    assert changed == {3: {"left"} | whole, 6: {"right"}, 9: {"right", "layer 1"}, 12: {"left"} | whole}


def test_every_phase_resumes_and_logs_its_own_metrics():
    states, lines, trainer = train(RUN)
    assert [line["step"] for line in lines] == [*range(1, 13)]  # a hook is due after each
    for step in (1, 3, 4, 8, 11):
        again, rest, _ = train(RUN, state=states[step], trainer=trainer)
        assert_same(again[12], states[12])
        assert [values(line) for line in rest] == [values(line) for line in lines[step:]]
    for line in lines:
        assert ("right_loss" in line, "left_loss" in line) == ((True, False) if 3 < line["step"] < 10 else (False, True))
    assert {phase.parts for phase in RUN.phases} == {("encoder", "left"), ("encoder", "right")}
    assert len(trainer._by_phase) == 3  # the first and the last stage share their programs


def test_stages_with_equal_settings_are_one_run():
    plain = dataclasses.replace(RUN, stages=(Stage(6, LENGTH, 4),), optimizer=Muon(SCHEDULE))
    split = dataclasses.replace(plain, stages=(Stage(2, LENGTH, 4), Stage(4, LENGTH, 4, objective=Headed())))
    one, other = train(plain)[0], train(split)[0]
    assert_same(one[6], other[6])
    scaled = dataclasses.replace(plain, stages=(Stage(2, LENGTH, 4), Stage(4, LENGTH, 4, objective=Headed(scale=1e-3))))
    state = train(scaled)[0]
    assert_same(one[2], state[2])
    assert not np.array_equal(one[6].params["left"]["kernel"], state[6].params["left"]["kernel"])
    assert jax.tree.structure(one[6]) == jax.tree.structure(state[6])


def test_the_log_ends_an_interval_where_the_phase_does():
    assert RUN.phase_ends == {3, 6, 9}
    assert dataclasses.replace(RUN, stages=(Stage(6, LENGTH, 4), Stage(3, 16, 8))).phase_ends == frozenset()


def test_schedules_of_stages_count_their_own_updates():
    base, decay = LinearDecay(1.0, warmup_steps=2), WarmupStableDecay(0.5, warmup_steps=0, decay_steps=4, tail="linear")
    rate = joint_schedule(base, [(4, None), (3, ConstantRate(0.3, warmup_steps=0)), (2, None), (4, decay)])
    expected = [float(base.build(6)(step)) for step in range(4)] + [0.3] * 3
    expected += [float(base.build(6)(step)) for step in (4, 5)] + [0.375, 0.25, 0.125, 0]
    assert [float(rate(step)) for step in range(13)] == pytest.approx(expected)
    assert np.asarray(jax.vmap(rate)(jnp.arange(13))) == pytest.approx(expected)
    with pytest.raises(ValueError, match="a Ramp has no schedule of its own"):
        Ramp(10, schedule=base)


def test_all_stages_of_a_ramp_have_its_settings():
    ramp = Ramp(8, LENGTH, 8, first_batch_size=2, sizes=2, multiple=2, objective=RIGHT, frozen=("encoder",))
    assert [(stage.batch_size, stage.objective, stage.frozen) for stage in ramp.stages()] == [
        (size, RIGHT, ("encoder",)) for size in (2, 8)
    ]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"frozen": ("pooler",)}, r"Run.stages\[1\].frozen names pooler, which Headed has not: it has encoder, left$"),
        ({"frozen": ("encoder", "left")}, r"Run.stages\[1\].frozen names all parts, encoder, left, and nothing would be trained"),
        (
            {"objective": Headed("right", layers=3)},
            r"the models of Headed of a stage and of Run.objective differ: encoder/layers/kernel has the shape \(3, 4, 4\) there "
            r"and the shape \(2, 4, 4\) here",
        ),
    ],
)
def test_stages_that_do_not_fit_are_refused(stage, message):
    run = dataclasses.replace(RUN, stages=(Stage(3, LENGTH, 4), Stage(3, LENGTH, 4, **stage)))
    with pytest.raises(UserError, match=message):
        Trainer(run, run.mesh.build(jax.devices()[:1]))


def test_a_stage_that_has_begun_keeps_its_settings():
    changed = dataclasses.replace(RUN, stages=(*STAGES[:1], dataclasses.replace(STAGES[1], frozen=()), *STAGES[2:]))
    check_resumable(RUN, changed, 3)
    with pytest.raises(UserError, match=r"Run.stages\[1\].frozen was \('encoder',\) when this run started and is \(\) now"):
        check_resumable(RUN, changed, 4)
    plain = dataclasses.replace(RUN, stages=STAGES[:1])
    with pytest.raises(UserError, match="Run.stages use right now, which this run did not make at its first step; leave it out"):
        check_resumable(plain, RUN, 2)
    frozen = dataclasses.replace(RUN, stages=(Stage(3, LENGTH, 4, frozen=("encoder",)),))
    further = dataclasses.replace(frozen, stages=(*frozen.stages, Stage(3, LENGTH, 4)))
    with pytest.raises(UserError, match="Run.stages freeze other parts in all stages now than when this run started"):
        check_resumable(frozen, further, 3)
    assert RUN.at(3) is RUN
    right = RUN.at(5)
    assert (right.objective, len(right.stages), right.stages[0].frozen) == (RIGHT, 1, ("encoder",))


def test_a_stage_that_freezes_everything_alike_has_no_moments():
    frozen = dataclasses.replace(RUN, stages=tuple(Stage(3, LENGTH, 4, frozen=("encoder",)) for _ in range(2)))
    moments = traverse_util.flatten_dict(nn.meta.unbox(frozen.boxed_trained))
    assert set(moments) == {("left", "kernel")} and frozen.phases[0].idle.parts == {}

"""Settings of a run: refused values, changes that a resumed run may make, and the remaining FLOPs."""

import dataclasses
import shlex

import pytest
import tiny

from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.text_data import TextData
from bertfam.errors import UserError
from bertfam.layers.execution import Execution
from bertfam.objectives.mlm import Mlm
from bertfam.sharding.mesh import MeshShape
from bertfam.training.optimizers import AdamW, Lamb
from bertfam.training.run import Run, check_resumable, check_same_model
from bertfam.training.run_checks import schedule_warnings
from bertfam.training.run_plan import duration, si
from bertfam.training.schedules import CosineDecay, LinearDecay
from bertfam.training.stages import Stage

RUN = Run(objective=tiny.objective(), data=TextData(), stages=(Stage(10, 16, 8), Stage(5, 32, 4)))


@pytest.mark.parametrize(
    "settings",
    [
        {"stages": ()},
        {"microbatches": 0},
        {"log_every": 0},
        {"checkpoint_every": 0},
        {"eval_every": -1},
        {"eval_batches": 0},
        {"keep_checkpoints": 0},
        {"seed": -1},
        {"average_decay": 1.0},
        {"inspect_every": -1},
    ],
)
def test_invalid_settings_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        dataclasses.replace(RUN, **settings)


def test_evaluations_are_bounded_unless_all_rows_are_asked_for():
    for settings, most in (
        ({"eval_every": 40}, 16),
        ({"eval_every": 1000}, 100),
        ({"eval_batches": 3}, 3),
        ({"eval_batches": None}, None),
    ):
        assert dataclasses.replace(RUN, **settings).most_eval_batches == most


def test_an_average_that_keeps_little_is_named():
    usual, little = (schedule_warnings(dataclasses.replace(RUN, average_decay=decay)) for decay in (0.9, 0.001))
    (line,) = set(little) - set(usual)
    assert line.startswith("Run.average_decay is 0.001, the share of the moving average that an update keeps")


def test_rows_must_have_the_features_that_the_objective_reads():
    with pytest.raises(UserError, match=r"^stages\[0\]: MlmNsp reads next_sentence_labels, which rows of Chunks lack: set Text"):
        dataclasses.replace(RUN, data=TextData(rows=Chunks()))
    with pytest.raises(UserError, match="rows of Packed lack"):
        dataclasses.replace(RUN, data=TextData(rows=Packed()))
    masked = Mlm(RUN.objective.model)
    for rows in (Chunks(), Packed(), SentencePairs(), Packed(SentencePairs())):
        assert dataclasses.replace(RUN, objective=masked, data=TextData(rows=rows)).shape(1).length == 32


def test_resumed_run_may_change_where_and_how_it_computes():
    changed = dataclasses.replace(
        RUN,
        mesh=MeshShape(fsdp=2),
        microbatches=2,
        log_every=7,
        inspect_every=3,
        non_finite="skip",
        eval_every=0,
        eval_batches=3,
        checkpoint_every=2,
        keep_checkpoints=None,
        keep_every=7,
        watchdog_seconds=9,
        stages=(Stage(10, 16, 8), Stage(50, 32, 4)),
        objective=dataclasses.replace(RUN.objective, execution=Execution(dtype="bfloat16", layers="unroll", remat="full")),
        data=TextData(corpus=TextFiles(("a.txt",)), vocabulary="vocab", cache_dir="cache"),
    )
    unchanged = {field.name for field in dataclasses.fields(RUN) if getattr(RUN, field.name) == getattr(changed, field.name)}
    assert {"optimizer", "average_decay", "seed"} <= unchanged and len(dataclasses.fields(RUN)) - len(unchanged) >= 13
    for old, new in ((RUN, changed), (changed, RUN)):
        check_resumable(old, new, 0)
        # With one more change that matters it is refused, and only that one is named.
        with pytest.raises(UserError, match=r"^Run\.seed was 0 when this run started and is 1 now"):
            check_resumable(old, dataclasses.replace(new, seed=1), 0)


@pytest.mark.parametrize(
    ("stages", "step"),
    [
        ((Stage(9, 16, 8), Stage(5, 32, 4)), 9),  # the present stage ends here
        ((Stage(4, 16, 8), Stage(6, 16, 16), Stage(5, 32, 4)), 4),  # and another one follows
        ((Stage(12, 16, 8), Stage(5, 32, 4)), 10),
        ((Stage(10, 16, 8), Stage(7, 24, 2)), 10),  # the later stage has not begun
        ((Stage(10, 16, 8),), 10),
        ((Stage(10, 16, 8), Stage(90, 32, 4)), 15),  # the run is extended
        ((Stage(10, 16, 8), Stage(5, 32, 4), Stage(5, 24, 2)), 15),
        ((Stage(3, 24, 2),), 0),
    ],
)
def test_stages_that_have_not_begun_may_change(stages, step):
    check_resumable(RUN, dataclasses.replace(RUN, stages=stages), step)


@pytest.mark.parametrize(
    ("stages", "step", "message", "fix"),
    [
        ((Stage(8, 16, 8), Stage(5, 32, 4)), 9, "stages[0].steps was 10 when this run started and is 8 now", "at least 9,"),
        ((Stage(12, 16, 8), Stage(5, 32, 4)), 11, "stages[0].steps was 10 when this run started and is 12 now", "set it to 10,"),
        ((Stage(10, 16, 8), Stage(1, 32, 4)), 12, "stages[1].steps was 5 when this run started and is 1 now", "at least 2,"),
        ((Stage(10, 16, 8),), 12, "stages[1], of which 2 updates are done, is not in Run.stages now", "put it back"),
        (
            (Stage(10, 24, 8), Stage(5, 32, 4)),
            12,
            "stages[0].length was 16 when this run started and is 24 now",
            "change it back",
        ),
        (
            (Stage(10, 16, 8), Stage(5, 32, 6)),
            12,
            "stages[1].batch_size was 4 when this run started and is 6 now",
            "steps to 2 and",
        ),
    ],
)
def test_updates_that_are_done_may_not_change(stages, step, message, fix):
    with pytest.raises(UserError) as caught:
        check_resumable(RUN, dataclasses.replace(RUN, stages=stages), step, "runs/a")
    assert str(caught.value).startswith(f"Run.{message}") and fix in str(caught.value)
    start = "--gin_file=runs/a/config.gin --init_from=runs/a --init_optimizer"
    assert str(caught.value).endswith(f"a new run from this one by {start} and another --model_dir")


def test_refusal_of_another_batch_size_has_the_flags_that_change_it_from_here_on():
    old = dataclasses.replace(RUN, stages=(Stage(10, 16, 8),))
    with pytest.raises(UserError) as caught:
        check_resumable(old, dataclasses.replace(RUN, stages=(Stage(10, 16, 4),)), 6)
    words = shlex.split(str(caught.value).replace(", or start", " , or start"))
    assert [word.removeprefix("--gin.") for word in words if word.startswith("--gin.")] == [
        "Run.stages=(@done/Stage(), @next/Stage())",
        *("done/Stage.steps=6", "done/Stage.length=16", "done/Stage.batch_size=8"),
        *("next/Stage.steps=4", "next/Stage.length=16", "next/Stage.batch_size=4"),
    ]
    check_resumable(old, dataclasses.replace(RUN, stages=(Stage(6, 16, 8), Stage(4, 16, 4))), 6)


def test_imported_model_may_change_its_dropout_but_no_size():
    model = RUN.objective.model
    check_same_model(model, dataclasses.replace(model, dropout_rate=0.3))
    with pytest.raises(UserError, match="^Run.objective.model.num_layers was 2 in the imported model and is 3 now"):
        check_same_model(model, dataclasses.replace(model, num_layers=3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "Run.seed was 0 when this run started and is 1 now"),
        ({"optimizer": AdamW(weight_decay=0.0)}, "Run.optimizer.weight_decay was 0.01 when this run started and is 0.0 now"),
        (
            {"optimizer": AdamW(LinearDecay(1e-3))},
            "Run.optimizer.schedule.peak was 0.0001 when this run started and is 0.001 now",
        ),
        ({"optimizer": Lamb()}, "Run.optimizer was AdamW when this run started and is Lamb now"),
        (
            {"optimizer": AdamW(CosineDecay())},
            "Run.optimizer.schedule was LinearDecay when this run started and is CosineDecay now",
        ),
        ({"optimizer": AdamW(layer_decay=0.8)}, "Run.optimizer.layer_decay was 1.0 when this run started and is 0.8 now"),
        ({"average_decay": 0.99}, "Run.average_decay was None when this run started and is 0.99 now"),
        (
            {"data": TextData(corruption=BertMasking(rate=0.2))},
            "Run.data.corruption.rate was 0.15 when this run started and is 0.2",
        ),
        ({"objective": tiny.objective(mlm=2.0)}, "Run.objective.mlm was 1.0 when this run started and is 2.0 now"),
    ],
)
def test_resumed_run_may_not_change_what_it_learns(changes, message):
    with pytest.raises(UserError) as caught:
        check_resumable(RUN, dataclasses.replace(RUN, **changes), 0)
    assert str(caught.value).startswith(message)
    assert " now; change it back, or use another --model_dir, where --init_from=MODEL_DIR starts from" in str(caught.value)


def test_remaining_flops():
    short, long = (stage.batch_size * RUN.objective.flops(RUN.shape(index)) for index, stage in enumerate(RUN.stages))
    assert [RUN.flops_after(step) for step in (0, 1, 10, 12, 15)] == [
        10 * short + 5 * long,
        9 * short + 5 * long,
        5 * long,
        3 * long,
        0,
    ]


def test_human_readable_numbers():
    assert [duration(seconds) for seconds in (0.4, 59.4, 59.6, 185, 3599.6, 3720, 360_000)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 00 min",
        "1 h 02 min",
        "100 h 00 min",
    ]
    assert [si(value) for value in (0, 12.34, 1234, 12_340_000, 5.6e15)] == ["0 ", "12.3 ", "1.23 k", "12.3 M", "5.6 P"]

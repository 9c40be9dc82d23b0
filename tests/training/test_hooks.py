"""Evaluations that a resumed run still has to make."""

from bertfam.training.checkpoints.retention import evaluations_since_best
from bertfam.training.hooks.standard import EvaluateHook
from bertfam.training.logs.metrics import NoMetrics


def test_interrupted_evaluation_is_still_owed(capsys):
    results = [None, {"eval": {"loss": 1.0}}]
    hook = EvaluateHook(10, 24, lambda step, state: results.pop(0), NoMetrics(), {10: {"loss": 2.0}})
    assert not hook.owed(10) and not hook.owed(0) and not hook.owed(15)
    hook.after(20, None)
    assert hook.owed(20) and capsys.readouterr().out == ""
    hook.after(20, None)
    assert not hook.owed(20) and hook.owed(24)
    assert capsys.readouterr().out == "step 20 held out  loss 1\n"


def test_evaluations_are_counted_from_the_first_best_one():
    losses = {10: {"loss": 2.0}, 20: {"loss": 1.0}, 30: {"loss": 1.0}, 40: {"loss": float("nan")}, 50: {"loss": None}}
    assert evaluations_since_best(losses, "loss") == 3
    assert evaluations_since_best({step: {"accuracy": values["loss"]} for step, values in losses.items()}, "accuracy") == 4
    assert evaluations_since_best({}, "loss") == 0


def test_losses_of_several_corpora_are_printed_in_a_line(capsys):
    splits = {"eval/wiki": {"loss": 2.0}, "eval/books": {"loss": 4.0}, "eval": {"loss": 3.0}}
    EvaluateHook(10, 24, lambda step, state: splits, NoMetrics()).after(10, None)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "step 10 held out  loss 3" and second.endswith("wiki 2  books 4")

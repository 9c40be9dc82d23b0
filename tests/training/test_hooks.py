"""Which evaluations a run owes."""

from bertfam.training.hooks.standard import EvaluateHook
from bertfam.training.logs.metrics import NoMetrics


def test_an_evaluation_that_is_cut_short_is_owed_whatever_was_written_before(capsys):
    """A process that was killed had written the scores of 20; this one goes on from 10, and they are measured anew."""
    found = [None, {"eval": {"loss": 1.0}}]
    hook = EvaluateHook(10, 24, lambda step, state: found.pop(0), NoMetrics(), {10, 20})
    assert not hook.owed(10) and not hook.owed(0) and not hook.owed(15)
    hook.after(20, None)
    assert hook.owed(20) and capsys.readouterr().out == ""
    hook.after(20, None)
    assert not hook.owed(20) and hook.owed(24)
    assert capsys.readouterr().out == "step 20 held out  loss 1\n"

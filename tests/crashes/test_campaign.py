"""Short form of the campaign: a run that is killed once in each way ends as an undisturbed run."""

from campaign import short
from signalled_process import BOUNDARY, HITS


def test_run_that_is_killed_in_every_way_ends_as_an_undisturbed_run(tmp_path):
    row = short(tmp_path / "crashes", seed=0)
    assert row.faults == [] and row.kills >= 5
    assert set(HITS) - {BOUNDARY} <= set(row.hits), row.deaths

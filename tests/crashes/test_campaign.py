"""A short form of the campaign: one run that is killed in each way is in the end what a run is that nothing has hit."""

from campaign import short
from victims import BOUNDARY, HITS


def test_a_run_that_is_killed_in_every_way(tmp_path):
    row = short(tmp_path / "crashes", seed=0)
    assert row.faults == [] and row.kills >= 5
    assert set(HITS) - {BOUNDARY} <= set(row.hits), row.deaths

"""Short form of the campaign: a run that is killed in each of its parts equals an undisturbed run."""

import shared_programs
from campaign import short
from signalled_process import BOUNDARY, HITS


def test_run_that_is_killed_in_every_part_equals_an_undisturbed_run(tmp_path, monkeypatch):
    shared_programs.share(monkeypatch)
    row = short(tmp_path / "crashes", seed=0)
    assert row.faults == [] and row.kills >= 4
    assert set(HITS) - {BOUNDARY} <= set(row.hits), row.deaths

"""Short form of the campaign: a run that is killed in each of its parts equals an undisturbed run."""

import campaign  # noqa: F401 - makes the modules of the tests of commands importable
import fork_server
import pytest
import shared_programs
from fine_tuning import kill_at_the_end
from kills import one_kill_of_each_kind
from scenarios import Workspace
from signalled_process import BOUNDARY, HITS


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        shared_programs.share(patch)
        yield Workspace.create(tmp_path_factory.mktemp("campaign") / "crashes", seed=0, short=True)
        fork_server.stop()


def test_run_that_is_killed_in_every_part_equals_an_undisturbed_run(workspace):
    row = one_kill_of_each_kind(workspace)
    assert row.faults == [] and row.kills >= 4
    assert set(HITS) - {BOUNDARY} <= set(row.hits), row.deaths


def test_fine_tuning_that_is_killed_at_its_end_equals_an_undisturbed_one(workspace, caches_in_process):
    row = kill_at_the_end(workspace)
    assert row.faults == [] and row.kills == 1, row.deaths

"""What is advised when a run does not fit, and the search for a layout: lines of gin that make what was compiled."""

import dataclasses

import jax
import pytest
import small

from bertfam.config.build import load
from bertfam.errors import UserError
from bertfam.planning import advice, search
from bertfam.planning.advice import advice_text, advise, least_devices, most_rows, usable
from bertfam.planning.changes import changes, mesh_lines
from bertfam.planning.estimate import estimate
from bertfam.planning.search import fits, gin_text, rows, table
from bertfam.sharding.chips import CHIPS
from bertfam.sharding.mesh import MeshShape

V5E = next(chip for chip in CHIPS if chip.name == "v5e")


def pasted(tmp_path, lines, flags=()):
    """The run with the lines in a file that comes after its others."""
    file = tmp_path / "advised.gin"
    file.write_text("\n".join(lines) + "\n")
    return small.run(flags, files=[str(file)])


def test_advised_lines_are_compiled_and_fit(tmp_path):
    full = ['Execution.remat = "full"']
    needed = advice.required_bytes(small.run(full), jax.devices()[:1])
    memory = limit(0.95 * needed)
    told = []
    found = advise(lambda lines: small.run([*lines, *full]), jax.devices()[:1], memory, told.append)
    assert told == ["trying Run.microbatches = 2"]
    assert found.lines == ("Run.microbatches = 2",)
    run = pasted(tmp_path, found.lines, full)
    assert (run.microbatches, run.objective.execution.remat) == (2, "full")
    assert advice.required_bytes(run, jax.devices()[:1]) == found.bytes <= usable(memory) < needed


@pytest.fixture
def compiles(monkeypatch):
    """What is compiled, in the order of time; in place of compiling there are estimates."""
    found = []

    def required_bytes(run, devices):
        found.append(run)
        return estimate(run, len(devices)).total

    monkeypatch.setattr(advice, "required_bytes", required_bytes)
    return found


EIGHT = [None] * 8  # in place of devices


def total(lines=(), make=small.run):
    return estimate(make(lines), 8).total


def limit(size):
    """A device's memory of which so much may be used."""
    return int(size / advice._SHARE) + 1


def test_the_cheapest_change_that_fits(compiles, tmp_path):
    assert advise(small.run, EIGHT, limit(total(['Execution.remat = "dots"']))).lines == ('Execution.remat = "dots"',)
    assert advise(small.run, EIGHT, limit(total(["Run.microbatches = 8"]))).lines[0].startswith(("Run.mic", "MeshShape", "Exec"))
    # No single change is enough.
    least = total(['Execution.remat = "full"', "MeshShape.data = 1", "MeshShape.fsdp = -1", "Run.microbatches = 8"])
    compiles.clear()
    found = advise(small.run, EIGHT, limit(least))
    assert found.lines == (
        *('Execution.remat = "full"', "Run.microbatches = 8"),
        *("Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"),
    )
    assert len(found.costs) == 3 and found.bytes <= least
    assert pasted(tmp_path, found.lines) == compiles[-1]
    assert len(compiles) <= advice._TRIES
    # Of those that cannot fit none is compiled.
    compiles.clear()
    assert advise(small.run, EIGHT, least // 2) is None and not compiles


def test_changes_that_do_nothing_or_are_not_the_files(compiles):
    def scoped(lines):
        """Its execution is bound in a scope, which lines without one do not reach."""
        return small.run(["MlmNsp.execution = @own/Execution()", 'own/Execution.remat = "none"', *lines])

    found = advise(scoped, EIGHT, limit(total(['Execution.remat = "full"'])))
    assert not any("remat" in line for line in found.lines)
    with_chunk = load(["runs/gpt2_small.gin"], ["CausalLm.chunk = 64", "BATCH_SIZE = 8"]).build("Run").sized(4096)
    offered = [change.lines for chosen in changes(with_chunk, 1) if len(chosen) == 1 for change in chosen]
    assert offered[0] == ("CausalLm.chunk = 16",) and ("Run.microbatches = 8",) in offered
    assert not any("MeshShape" in line for lines in offered for line in lines)  # of one device
    *_, last = changes(with_chunk, 1)
    assert last[-1].lines == ("Stage.batch_size = 1",) and "changes training" in last[-1].cost


def test_a_mesh_in_place_of_another():
    old = MeshShape(fsdp=8, tensor=2)
    assert mesh_lines(MeshShape(data=1, fsdp=-1, tensor=2), old) == (
        *("Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1", "MeshShape.tensor = 2"),
    )
    assert "MeshShape.fsdp = 1" in mesh_lines(MeshShape(), old)


def test_a_mesh_without_data_is_not_split_further():
    run = small.run(["Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"])
    assert not any("MeshShape" in line for chosen in changes(run, 8) for change in chosen for line in change.lines)
    split = [chosen for chosen in changes(dataclasses.replace(run, mesh=MeshShape(fsdp=4)), 8) if len(chosen) == 1]
    assert sum("Run.mesh = @MeshShape()" in change.lines for (change,) in split) == 2


def test_words(compiles):
    found = advise(small.run, EIGHT, limit(total(['Execution.remat = "dots"'])))
    assert '  Execution.remat = "dots"' in advice_text(found, "v5e-8", 8, 2**30, None).splitlines()
    assert advice_text(None, "v5e-8", 8, 2**30, 64).endswith("by estimate it requires 64 or more of these devices")
    assert advice_text(None, "v5e-8", 8, 2**30, 8).endswith("another mesh or a smaller batch may fit: try --search")
    least = least_devices(small.run(), 1_500_000)
    assert estimate(small.run(["Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"]), 1).total > 1_500_000
    assert least is not None and 1 < least <= 64


def test_the_most_rows(compiles, monkeypatch):
    run = small.run()
    memory = limit(estimate(dataclasses.replace(run, stages=(dataclasses.replace(run.stages[0], batch_size=21),)), 1).total)
    told = []
    assert most_rows(run, [None], memory, told.append) in (20, 21)
    assert told == [f"trying {each.stages[0].batch_size} rows per device" for each in compiles]
    assert len(compiles) == 2
    assert most_rows(run, [None], 1000) == 0
    # The compiler needs more than is estimated, or less.
    room, tried = usable(memory), []
    for each, least, most in (
        (room / 10, 9, 10),
        (room / 100, 88, 100),
        (room, 1, 1),
        (1.1 * room, 0, 0),
        (room / 1000, 880, 1000),
    ):

        def required_bytes(run, devices, each=each):
            tried.append(run.stages[0].batch_size)
            return tried[-1] * each

        monkeypatch.setattr(advice, "required_bytes", required_bytes)
        tried.clear()
        assert least <= most_rows(run, [None], memory) <= most
        assert len(tried) == len(set(tried)) <= 8


def test_a_search(monkeypatch, tmp_path):
    monkeypatch.setattr(search, "COMPILED", 1)
    told = []
    (best,) = search.search(small.run, jax.devices()[:1], V5E, V5E.hbm_bytes, told.append)
    assert fits(best, V5E.hbm_bytes) and told[1:] == ["[1/1] 1 device, remat none, 1 microbatch"]
    text = gin_text(best, "v5e-1", V5E.hbm_bytes, "bertfam plan --search")
    assert "\n#   bertfam plan --search\n" in text and "not measured" in text
    assert pasted(tmp_path, [text]) == best.run
    (row,) = rows([best], V5E, V5E.hbm_bytes)
    assert row["bytes"] == best.program.memory.total and row["bound"]["compute"] == row["estimated_bound"]["compute"] > 0
    assert table([row]).splitlines()[1].startswith("1 device, remat none, 1 microbatch")
    assert "e-0" not in table([row])
    with pytest.raises(UserError, match="no mesh of 1 devices fits this run"):
        search.search(small.run, jax.devices()[:1], V5E, 1000)


def test_a_search_that_no_file_can_follow():
    def flagged(lines):
        return small.run(["MlmNsp.execution = @own/Execution()", 'own/Execution.remat = "dots"', *lines, "Run.microbatches = 8"])

    with pytest.raises(UserError, match="cannot set Run.microbatches and Execution.remat in its file"):
        search.search(flagged, jax.devices()[:1], V5E, V5E.hbm_bytes)

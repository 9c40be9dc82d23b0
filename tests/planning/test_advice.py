"""Advice for runs that do not fit, and the search for a layout, as gin lines that reproduce the compiled run."""

import dataclasses

import jax
import planned_bert
import pytest

from bertfam.config.build import load
from bertfam.errors import UserError
from bertfam.planning import advice, search
from bertfam.planning.advice import AdviceSearch, advice_text, advise, least_devices, most_rows, usable
from bertfam.planning.changes import changes, mesh_lines
from bertfam.planning.choices import choose_execution, with_choices
from bertfam.planning.estimate import estimate
from bertfam.planning.search import fits, gin_text, rows, table
from bertfam.sharding.chips import CHIPS
from bertfam.sharding.mesh import MeshShape

V5E = next(chip for chip in CHIPS if chip.name == "v5e")


def run_with_file(tmp_path, lines, flags=()):
    """Return the run with the lines in a file after its other files."""
    file = tmp_path / "advised.gin"
    file.write_text("\n".join(lines) + "\n")
    return planned_bert.run(flags, files=[str(file)])


def test_advised_lines_are_compiled_and_fit(tmp_path, monkeypatch):
    runs, required_bytes = [], advice.required_bytes

    def record_and_compile(run, devices):
        runs.append(run)
        return required_bytes(run, devices)

    monkeypatch.setattr(advice, "required_bytes", record_and_compile)
    full = ['Execution.remat = "full"']
    required = advice.required_bytes(planned_bert.run(full), jax.devices()[:1])
    memory = memory_limit(0.95 * required)
    messages = []
    advised = advise(lambda lines: planned_bert.run([*lines, *full]), jax.devices()[:1], memory, messages.append).advice
    assert messages == ["compiling 1 of at most 8: Run.microbatches = 2"]
    assert advised.lines == ("Run.microbatches = 2",)
    run = run_with_file(tmp_path, advised.lines, full)
    assert (run.microbatches, run.objective.execution.remat) == (2, "full")
    # Two runs were compiled, and the lines in a file give the second.
    assert len(runs) == 2 and run == runs[-1]
    assert 0.5 * required < advised.bytes <= usable(memory) < required


@pytest.fixture
def compiled_runs(monkeypatch):
    """Runs that would be compiled, in order; estimates replace the compilation."""
    runs = []

    def required_bytes(run, devices):
        runs.append(run)
        return estimate(run, len(devices)).total

    monkeypatch.setattr(advice, "required_bytes", required_bytes)
    return runs


EIGHT = [None] * 8  # placeholders for devices


def estimated_total(lines=(), make=planned_bert.run):
    return estimate(make(lines), 8).total


def memory_limit(size):
    """Return the device memory of which `size` bytes may be used."""
    return int(size / advice._SHARE) + 1


def test_cheapest_change_that_fits_is_advised(compiled_runs, tmp_path):
    assert advise(planned_bert.run, EIGHT, memory_limit(estimated_total(['Execution.remat = "dots"']))).advice.lines == (
        'Execution.remat = "dots"',
    )
    assert (
        advise(planned_bert.run, EIGHT, memory_limit(estimated_total(["Run.microbatches = 8"])))
        .advice.lines[0]
        .startswith(("Run.mic", "MeshShape", "Exec"))
    )
    # No single change suffices.
    least_bytes = estimated_total(
        ['Execution.remat = "full"', "MeshShape.data = 1", "MeshShape.fsdp = -1", "Run.microbatches = 8"]
    )
    compiled_runs.clear()
    advised = advise(planned_bert.run, EIGHT, memory_limit(least_bytes)).advice
    assert advised.lines == (
        *('Execution.remat = "full"', "Run.microbatches = 8"),
        *("Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"),
    )
    assert len(advised.costs) == 3 and advised.bytes <= least_bytes
    assert run_with_file(tmp_path, advised.lines) == compiled_runs[-1]
    assert len(compiled_runs) <= advice._TRIES
    # Changes that cannot fit are not compiled.
    compiled_runs.clear()
    assert advise(planned_bert.run, EIGHT, least_bytes // 2) == (None, True) and not compiled_runs
    # With no time left nothing is compiled, and the search is not complete.
    assert advise(planned_bert.run, EIGHT, memory_limit(least_bytes), seconds=-1.0) == (None, False) and not compiled_runs


def test_changes_without_effect_are_not_advised(compiled_runs):
    def scoped(lines):
        """Return a run whose execution is bound in a scope, which lines without the scope do not affect."""
        return planned_bert.run(["MlmNsp.execution = @own/Execution()", 'own/Execution.remat = "none"', *lines])

    advised = advise(scoped, EIGHT, memory_limit(estimated_total(['Execution.remat = "full"']))).advice
    assert not any("remat" in line for line in advised.lines)
    with_chunk = load(["runs/gpt2_small.gin"], ["CausalLm.chunk = 64", "BATCH_SIZE = 8"]).build("Run").sized(4096)
    offered = [change.lines for chosen in changes(with_chunk, 1) if len(chosen) == 1 for change in chosen]
    assert offered[0] == ("CausalLm.chunk = 16",) and ("Run.microbatches = 8",) in offered
    assert not any("MeshShape" in line for lines in offered for line in lines)  # the mesh has one device
    *_, last = changes(with_chunk, 1)
    assert last[-1].lines == ("Stage.batch_size = 1",) and "changes training" in last[-1].cost


def test_mesh_lines_replace_another_mesh():
    old = MeshShape(fsdp=8, tensor=2)
    assert mesh_lines(MeshShape(data=1, fsdp=-1, tensor=2), old) == (
        *("Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1", "MeshShape.tensor = 2"),
    )
    assert "MeshShape.fsdp = 1" in mesh_lines(MeshShape(), old)


def test_mesh_without_a_data_axis_is_not_split_further():
    run = planned_bert.run(["Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"])
    assert not any("MeshShape" in line for chosen in changes(run, 8) for change in chosen for line in change.lines)
    split = [chosen for chosen in changes(dataclasses.replace(run, mesh=MeshShape(fsdp=4)), 8) if len(chosen) == 1]
    assert sum("Run.mesh = @MeshShape()" in change.lines for (change,) in split) == 2


def test_text_of_the_advice(compiled_runs):
    advised = advise(planned_bert.run, EIGHT, memory_limit(estimated_total(['Execution.remat = "dots"'])))
    assert '  Execution.remat = "dots"' in advice_text(advised, "v5e-8", 8, 2**30, None).splitlines()
    assert advice_text(AdviceSearch(None, True), "v5e-8", 8, 2**30, 64).endswith(
        "by estimate it requires 64 or more of these devices"
    )
    text = advice_text(AdviceSearch(None, True), "v5e-8", 8, 2**30, 8)
    assert text.endswith("another mesh or a smaller batch may fit: try --search")
    assert "--advice_minutes=N" in advice_text(AdviceSearch(None, False), "v5e-8", 8, 2**30, None)
    num_devices = least_devices(planned_bert.run(), 1_500_000)
    assert (
        estimate(planned_bert.run(["Run.mesh = @MeshShape()", "MeshShape.data = 1", "MeshShape.fsdp = -1"]), 1).total > 1_500_000
    )
    assert num_devices is not None and 1 < num_devices <= 64


def test_most_rows_that_fit(compiled_runs, monkeypatch):
    run = planned_bert.run()
    memory = memory_limit(
        estimate(dataclasses.replace(run, stages=(dataclasses.replace(run.stages[0], batch_size=21),)), 1).total
    )
    messages = []
    assert most_rows(run, [None], memory, messages.append) in (20, 21)
    assert messages == [f"trying {tried_run.stages[0].batch_size} rows per device" for tried_run in compiled_runs]
    assert len(compiled_runs) == 2
    assert most_rows(run, [None], 1000) == 0
    # The compiler uses more memory than estimated, or less.
    room, tried = usable(memory), []
    for bytes_per_row, fewest_rows, largest_rows in (
        (room / 10, 9, 10),
        (room / 100, 88, 100),
        (room, 1, 1),
        (1.1 * room, 0, 0),
        (room / 1000, 880, 1000),
    ):

        def required_bytes(run, devices, bytes_per_row=bytes_per_row):
            tried.append(run.stages[0].batch_size)
            return tried[-1] * bytes_per_row

        monkeypatch.setattr(advice, "required_bytes", required_bytes)
        tried.clear()
        assert fewest_rows <= most_rows(run, [None], memory) <= largest_rows
        assert len(tried) == len(set(tried)) <= 8


def test_search_returns_a_layout_that_fits(monkeypatch, tmp_path):
    monkeypatch.setattr(search, "COMPILED", 1)
    messages = []
    (best,) = search.search(planned_bert.run, jax.devices()[:1], V5E, V5E.hbm_bytes, messages.append)
    assert fits(best, V5E.hbm_bytes) and messages[1:] == ["[1/1] 1 device, remat none, 1 microbatch"]
    text = gin_text(best, "v5e-1", V5E.hbm_bytes, "bertfam plan --search")
    assert "\n#   bertfam plan --search\n" in text and "not measured" in text
    written = run_with_file(tmp_path, [text])
    assert with_choices(written, choose_execution(written.objective, "cpu")) == best.run
    (row,) = rows([best], V5E, V5E.hbm_bytes)
    assert row["bytes"] == best.program.memory.total and row["bound"]["compute"] == row["estimated_bound"]["compute"] > 0
    assert table([row]).splitlines()[1].startswith("1 device, remat none, 1 microbatch")
    assert "e-0" not in table([row])
    with pytest.raises(UserError, match="no mesh of 1 device fits this run"):
        search.search(planned_bert.run, jax.devices()[:1], V5E, 1000)


def test_search_refuses_settings_that_its_file_cannot_set():
    def flagged(lines):
        return planned_bert.run(
            ["MlmNsp.execution = @own/Execution()", 'own/Execution.remat = "dots"', *lines, "Run.microbatches = 8"]
        )

    with pytest.raises(UserError, match="cannot set Run.microbatches and Execution.remat in its file"):
        search.search(flagged, jax.devices()[:1], V5E, V5E.hbm_bytes)

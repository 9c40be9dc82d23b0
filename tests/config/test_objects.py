"""Replacement of an object that a configuration describes."""

import pytest
from gin_toys import ToyModel, ToyRun, ToyStage

from bertfam.config import Defaults, Override, load
from bertfam.config.objects import bind_field, find_binding, replace_object
from bertfam.errors import UserError

FILE = """
    HEADS = 4
    ToyRun.model = %MODEL
    MODEL = @ToyModel()
    ToyModel.size = 8
    ToyModel.heads = %HEADS
    ToyModel.rate = 0.5
    MODEL/ToyModel.layout = "unroll"
"""
NEW = ToyModel(12, heads=3, rate=0.0, layout="scan", shape=(1, 2))


@pytest.fixture
def path(write):
    return str(write("run.gin", FILE))


def test_values_of_files_are_replaced_and_named(path):
    new = replace_object(load([path]), ("ToyRun", "model"), NEW, "--flag=F", kept=("rate",))
    assert new.config.build("ToyRun") == ToyRun(ToyModel(12, 3, 0.5, "scan", (1, 2)))
    assert sorted(map(str, new.replaced)) == [
        "MODEL/ToyModel.layout = 'unroll' (run.gin:7)",
        "ToyModel.heads = 4 (run.gin:1)",
        "ToyModel.size = 8 (run.gin:4)",
    ]
    assert "HEADS" not in new.config.text() and "# --flag=F" in new.config.show()
    again = replace_object(new.config, ("ToyRun", "model"), NEW, "--flag=F", kept=("rate",))
    assert not again.changed and again.config == new.config


def test_values_of_flags_stay(path):
    config = load([path], ["HEADS = 2", "ToyModel.size = 6"])
    new = replace_object(config, ("ToyRun", "model"), NEW, "--flag=F")
    assert new.config.build("ToyRun").model == ToyModel(6, 2, 0.0, "scan", (1, 2))


def test_an_object_of_another_class_must_fit(path):
    with pytest.raises(UserError, match=r"ToyRun.model must be ToyModel, not @ToyStage\(\) \(%MODEL from --flag=F\)"):
        replace_object(load([path]), ("ToyRun", "model"), ToyStage(5), "--flag=F")
    config = load([path], ["MODEL = @ToyModel()"])
    assert replace_object(config, ("ToyRun", "model"), ToyStage(5), "--flag=F").config == config


def test_a_path_that_leads_nowhere_changes_nothing(path):
    config = load([path])
    assert not replace_object(config, ("ToyRun", "teacher"), NEW, "--flag=F").changed


def test_files_override_defaults(path):
    defaults = Defaults(bindings=[Override(text, "--flag=F") for text in ("ToyModel.size = 4", "ToyRun.seed = 7", "OTHER = 1")])
    config = load([path], defaults=defaults.bindings)
    assert (config.value("ToyModel.size"), config.value("ToyModel.heads"), config.value("ToyRun.name")) == (8, 4, None)
    assert config.build("ToyRun").seed == 7


PLACE = ("Run", "objective", "execution")


@pytest.mark.parametrize(
    "lines",
    [
        ["Execution.layers = 'auto'"],
        ["MlmNsp.execution = @own/Execution()", "own/Execution.layers = 'auto'"],
        ["MlmNsp.execution = @own/Execution()"],
        ["Execution.layers = %LOOP", "LOOP = 'auto'"],
    ],
)
def test_a_field_is_bound_wherever_the_object_is_described(lines):
    bound = bind_field(load(["runs/bert_base.gin"], lines), PLACE, "layers", "unroll", "auto: gpu")
    assert bound.build("Run").objective.execution.layers == "unroll"
    assert find_binding(bound, PLACE, "layers").origin.source == "auto: gpu" and "auto" not in bound.text()


def test_an_object_that_is_a_default_gets_a_reference(tmp_path):
    text = "Run.objective = @Mlm()\nMlm.model = @BertConfig()\n"
    (tmp_path / "run.gin").write_text(f'include "runs/defaults.gin"\n{text}Stage.length = 16\n')
    config = load([str(tmp_path / "run.gin")])
    assert find_binding(config, PLACE, "layers") is None
    bound = bind_field(config, PLACE, "layers", "unroll", "auto: gpu")
    assert "Mlm.execution = @Execution()\n" in bound.text()
    assert bound.build("Run").objective.execution.layers == "unroll"

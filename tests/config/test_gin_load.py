"""Loading gin files, includes and flags, and writing the merged configuration so that it loads alone."""

import dataclasses
import subprocess
import sys
import typing

import pytest
from gin_toys import ToyFiles, ToyModel, ToyRun, ToyStage

from bertfam import cli, config
from bertfam.config import paths, registry
from bertfam.errors import UserError

BASE = """
    # A comment.
    STEPS = 10
    UNUSED_LATER = 3
    ToyRun:
      model = @ToyModel()
      stages = [@short/ToyStage(), @ToyStage()]
      seed = %UNUSED_LATER
    ToyModel.size = 4
    ToyStage.steps = %STEPS
    short/ToyStage.length = 64
    old/ToyModel.size = 6
    ToyRun.teacher = @old/ToyModel()
"""
RUN = """
    include "parts/base.gin"
    ToyRun.seed = 5
    ToyRun.teacher = None
    ToyModel.rate = 1
    ToyRun.weights = {"mlm": 1, "nsp": 0.5}
"""


@pytest.fixture
def run(write):
    write("parts/base.gin", BASE)
    return write("run.gin", RUN)


def test_later_files_and_flags_win(run):
    merged = config.load([run], ["STEPS = 20", "ToyModel.size = 8", "ToyModel.size = 16"])
    assert merged.build("ToyRun") == ToyRun(
        model=ToyModel(16, rate=1),
        stages=(ToyStage(20, 64), ToyStage(20)),
        seed=5,
        weights={"mlm": 1, "nsp": 0.5},
    )


def test_files_of_which_later_ones_override_every_binding_are_known(run, write):
    part = write("part.gin", "ToyModel.size = 4\nToyRun.seed = 9\n")
    assert config.load([part, run]).overridden == {part: (run,)}
    assert config.load([run, part]).overridden == {}
    assert config.load([run, part], ["ToyModel.size = 8"]).overridden == {}
    assert config.load([run, part], ["ToyModel.size = 8", "ToyRun.seed = 1"]).overridden == {
        part: ("--gin.ToyModel.size=8", "--gin.ToyRun.seed=1")
    }
    assert config.load([run, run]).overridden == {}  # the same values
    assert config.load([write("same.gin", "ToyRun.seed = 5\n"), run]).overridden == {}


def test_text_is_sorted_without_includes_and_overridden_values(run):
    assert config.load([run]).text() == (
        "STEPS = 10\n"
        "\n"
        "ToyModel.size = 4\n"
        "ToyModel.rate = 1\n"
        "\n"
        "ToyRun.model = @ToyModel()\n"
        "ToyRun.stages = (@short/ToyStage(), @ToyStage())\n"
        "ToyRun.seed = 5\n"
        "ToyRun.weights = {'mlm': 1, 'nsp': 0.5}\n"
        "ToyRun.teacher = None\n"
        "\n"
        "ToyStage.steps = %STEPS\n"
        "\n"
        "short/ToyStage.length = 64\n"
    )


def test_show_gives_the_origin_of_every_value(run):
    lines = config.load([run], ["STEPS = 20"]).show().splitlines()
    assert [line.split("  # ")[1] for line in lines if line] == [
        "--gin.STEPS=20",
        "parts/base.gin:8",
        "run.gin:4",
        "parts/base.gin:5",
        "parts/base.gin:6",
        "run.gin:2",
        "run.gin:5",
        "run.gin:3",
        "parts/base.gin:9",
        "parts/base.gin:10",
    ]
    assert len({line.index("  # ") for line in lines if line}) == 1


def test_written_text_loads_alone(run, write, tmp_path):
    write(
        "own_toys.py",
        """
        import gin

        @gin.configurable
        def own_model(size=2):
            import gin_toys
            return gin_toys.ToyModel(size)
    """,
    )
    bindings = [
        "ToyRun.model = @own_model()",
        "own_model.size = %SIZE",
        "SIZE = 6",
        "ToyRun.corpus = @ToyFiles()",
        f"ToyFiles.train = {[f'a long name of a file number {number}' for number in range(9)]}",
        "ToyRun.name = 'quo\"te\\n'",
        "ToyRun.make = @short/ToyStage",
        "ToyModel.rate = 3e-5",
    ]
    first = config.load([run], bindings, ["own_toys"])
    written = tmp_path / "elsewhere" / "config.gin"
    written.parent.mkdir()
    written.write_text(first.text())
    (tmp_path / "run.gin").unlink()
    second = config.load([str(written)])
    assert second.text() == first.text()
    assert max(map(len, first.text().splitlines())) <= 100
    built = [loaded.build("ToyRun") for loaded in (first, second)]
    assert dataclasses.replace(built[0], make=None) == dataclasses.replace(built[1], make=None)
    assert built[0].model.size == 6
    assert built[0].corpus.documents("train") == ["train"]
    assert built[0].make(steps=1) == ToyStage(1, 64)


def test_scopes_inherit_from_outer_ones(write):
    write(
        "a.gin",
        """
        ToyRun.model = @a/b/ToyModel()
        ToyRun.teacher = @a/ToyModel()
        ToyModel.size = 6
        a/ToyModel.heads = 3
        a/b/ToyModel.size = 9
    """,
    )
    built = config.load(["a.gin"]).build("ToyRun")
    assert (built.model, built.teacher) == (ToyModel(9, 3), ToyModel(6, 3))


def test_loads_are_independent(write):
    first = config.load([], ["ToyModel.size = 4", "ToyModel.heads = 4"])
    second = config.load([], ["ToyModel.size = 6"])
    assert second.build("ToyModel") == ToyModel(6)
    assert first.build("ToyModel") == ToyModel(4, 4)


def test_complete_configuration_adds_defaults_and_keeps_bindings(write):
    write("a.gin", "short/ToyModel.size = 4\nToyModel.heads = 1\nToyRun.model = @short/ToyModel()")
    text = config.load(["a.gin"], ["short/ToyModel.rate = 0.5"]).complete("ToyRun").text()
    assert "ToyRun.name = 'toy'\n" in text and "ToyModel.heads = 1\n" in text and "short/ToyModel.rate = 0.5\n" in text
    assert "ToyModel.rate = 0.1\n" in text and "ToyModel.layout = 'scan'\n" in text and "ToyModel.shape = None\n" in text
    assert "ToyModel.size = 4" in text and text.count("size") == 1  # size has no default


def test_rebound_changes_bound_values_only(write):
    write("a.gin", "ToyModel.size = 2")
    loaded = config.load(["a.gin"])
    assert loaded.rebound("ToyModel.size", 6).build("ToyModel") == ToyModel(6)
    assert loaded.rebound("ToyModel.heads", 1).bindings == loaded.bindings


RUN_OF_TEXT = """
    STEPS = 10
    FIELD = "body"
    Run.optimizer = @AdamW()
    Run.stages = [@Stage()]
    AdamW.schedule = @LinearDecay()
    LinearDecay.peak = 1e-3
    Stage.steps = %STEPS
    TextData.corpus = @own/TextFiles()
    TextFiles.train = ("a.txt",)
    TextFiles.input_format = "jsonl"
    own/TextFiles.text_field = %FIELD
"""


def test_restricted_keeps_bindings_within_reach_of_the_root(write):
    restricted = config.load([write("run.gin", RUN_OF_TEXT)]).restricted("TextData")
    assert restricted.text() == (
        'FIELD = "body"\n\nTextData.corpus = @own/TextFiles()\n\n'
        'TextFiles.train = ("a.txt",)\nTextFiles.input_format = "jsonl"\n\nown/TextFiles.text_field = %FIELD\n'
    ).replace('"', "'")
    assert config.load([write("restricted.gin", restricted.text())]).build("TextData").corpus.text_field == "body"


def test_restricted_keeps_all_bindings_for_a_user_configurable(run):
    merged = config.load([run])
    assert merged.restricted("ToyRun") == merged


def test_lists_become_tuples(write):
    write("a.gin", "ToyFiles.train = %FILES\nFILES = ['a', 'b']")
    assert config.load(["a.gin"]).build("ToyFiles") == ToyFiles(("a", "b"))


def test_files_are_searched_in_the_current_folder_and_then_in_the_package(write, tmp_path, monkeypatch):
    packaged = tmp_path / "site" / "gin_configs"
    monkeypatch.setattr(paths, "packaged_folder", lambda: packaged)
    write("site/gin_configs/models/m.gin", "ToyModel.size = 2")
    write("site/gin_configs/runs/r.gin", "include 'models/m.gin'\nToyModel.heads = 1")
    assert config.load(["runs/r.gin"]).show() == (
        "ToyModel.size = 2   # site/gin_configs/models/m.gin:1\nToyModel.heads = 1  # site/gin_configs/runs/r.gin:2\n"
    )
    write("models/m.gin", "ToyModel.size = 4")
    assert config.load(["models/m.gin"]).build("ToyModel").size == 4
    assert config.load(["runs/r.gin"]).build("ToyModel") == ToyModel(2, 1)  # which includes a shipped file


def test_includes_are_searched_beside_the_file_that_includes_them_first(write, tmp_path, monkeypatch):
    write("own/run.gin", "include 'm.gin'\ninclude 'parts/n.gin'")
    write("own/m.gin", "ToyModel.size = 2")
    write("own/parts/n.gin", "include 'o.gin'")
    write("own/parts/o.gin", "ToyModel.heads = 1")
    write("m.gin", "ToyModel.size = 4")
    assert config.load(["own/run.gin"]).build("ToyModel") == ToyModel(2, 1)
    monkeypatch.chdir(tmp_path / "own" / "parts")
    assert config.load(["../run.gin"]).build("ToyModel") == ToyModel(2, 1)


def test_model_without_an_objective_is_refused_by_name(write):
    write("model.gin", "MODEL = @T5Config()")
    with pytest.raises(UserError, match=r"^model\.gin:1: no objective .* MODEL: .* objectives/t5_random_spans\.gin$"):
        config.load(["model.gin"])


def test_loading_is_quiet(run, capfd):
    config.load([run]).build("ToyRun")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        (
            "Execution.dtype = 'bfloat'",
            "Execution.dtype must be one of 'auto', 'float32', 'bfloat16', not 'bfloat'; write 'bfloat16'",
        ),
        ("Execution.layers = 'loop'", "Execution.layers must be one of 'auto', 'scan', 'unroll', not 'loop'"),
        ("Execution.remat = None", "Execution.remat must be one of 'auto', 'none', 'full', 'dots', not None"),
        (
            "BertConfig.activation = 'mish'",
            "BertConfig.activation must be one of 'gelu', 'gelu_tanh', 'relu', 'silu', not 'mish'",
        ),
        (
            "TextFiles.input_format = 'line'",
            "TextFiles.input_format must be one of 'sentences', 'paragraphs', 'lines', 'jsonl', 'parquet', not 'line'; "
            "write 'lines'",
        ),
    ],
)
def test_values_outside_a_literal_are_reported_with_their_place(write, binding, message):
    with pytest.raises(UserError) as caught:
        config.load([write("a.gin", binding)])
    assert str(caught.value) == f"a.gin:1: {message}"


@pytest.mark.parametrize("path", registry.CONFIGURABLES)
def test_registry_contains_frozen_dataclasses_with_resolvable_annotations(path):
    (configurable,) = registry.find(path)
    assert registry.find(path)[0] is configurable  # registered once
    assert dataclasses.is_dataclass(configurable.wrapped)
    assert configurable.wrapped.__dataclass_params__.frozen
    assert typing.get_type_hints(configurable.wrapped).keys() >= registry.parameters(path).keys()


def test_registry_imports_neither_tensorflow_nor_kernels_for_tpus():
    code = (
        "import sys\n"
        "from bertfam.config import registry\n"
        "assert 'jax' not in sys.modules\n"
        "for path in registry.CONFIGURABLES: registry.find(path)\n"
        "sys.exit(', '.join({'tensorflow', 'seqio', 'jax.experimental.pallas.tpu'} & set(sys.modules)) or 0)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_shipped_file_includes_shipped_files_whatever_the_current_folder_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("models/modernbert_tiny.gin", "objectives/mlm.gin", "runs/defaults.gin", "tasks/text.gin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import no_such_module\n")
    config.load(["runs/quickstart.gin"])
    assert not capsys.readouterr().err
    assert cli.main(["explain", "TextData", "--gin_file=runs/quickstart.gin"]) == 0
    assert cli.main(["cache", "--gin_file=runs/quickstart.gin", "--vocab=none", "--output=c"]) == 2
    assert "no_such_module" not in capsys.readouterr().err
    assert paths.shipped("tasks/text.gin").endswith("gin_configs/tasks/text.gin") and paths.shipped("own.gin") == "own.gin"


def test_a_file_in_the_place_of_a_shipped_one_is_reported_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/quickstart.gin").write_text(f"include '{paths.shipped('runs/quickstart_bert.gin')}'\n")
    for _ in range(2):
        config.load(["runs/quickstart.gin"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--gin_file=runs/quickstart.gin" in line and "current folder" in line


def test_what_a_newer_version_has_saved_is_answered_with_an_update(write):
    saved = write("model/config.gin", "ToyModel.size = 3\nToyModel.noise = 0.5")
    with pytest.raises(UserError, match="^model/config.gin:2: ToyModel has no parameter noise; .*pip install --upgrade bertfam"):
        config.load([saved], saved=[saved])
    saved = write("model/config.gin", "ToyModel.size = @NewLayer()")
    with pytest.raises(UserError, match="^model/config.gin:1: unknown configurable NewLayer; .*pip install --upgrade bertfam"):
        config.load([saved], saved=[saved])
    with pytest.raises(UserError) as caught:
        config.load([saved])
    assert "pip" not in str(caught.value)


def test_a_share_of_the_updates_is_answered_with_their_number():
    with pytest.raises(UserError, match="number of updates, not a share of them: .* such as 300,"):
        config.load(["runs/quickstart.gin"], ["TRAIN_STEPS = 3000", "LinearDecay.warmup_steps = 0.1"])
    with pytest.raises(UserError, match="Stage.steps must be .*number of updates"):
        config.load(["runs/quickstart.gin"], ["Stage.steps = 0.5"])

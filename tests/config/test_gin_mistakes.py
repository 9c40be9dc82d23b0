"""Mistakes in a configuration, each reported in one line with its place and the fix."""

import os
import re

import pytest
from gin_toys import ToyRun

from bertfam import config
from bertfam.errors import UserError

GOOD = """
STEPS = 10
ToyRun.model = @ToyModel()
ToyModel.size = 4
ToyRun.stages = (@ToyStage(),)
ToyStage.steps = %STEPS
"""


def error_message(files, bindings=(), modules=()):
    with pytest.raises(UserError) as caught:
        config.load(files, bindings, modules).build("ToyRun")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_without_the_mistakes_is_valid(write):
    run = config.load([write("a.gin", GOOD)]).build("ToyRun")
    assert isinstance(run, ToyRun)
    assert (run.model.size, run.stages[0].steps) == (4, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ToyModel.size = 4\nToyRun.seed\u00a0= 3\n", "a.gin:2: cannot be parsed: column 12 has NO-BREAK SPACE (U+00A0)"),
        ("<!DOCTYPE html>\n<html><body>SEED = 3</body></html>\n", "a.gin:1: this is a web page"),
    ],
)
def test_text_copied_or_saved_from_a_web_page(write, text, message):
    assert error_message([write("a.gin", text)]).startswith(message)


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"steps": 5}'), ("a.yaml", "steps: 5\nname: toy\n")])
def test_file_of_another_format(write, name, text):
    assert error_message([write(name, text)]).startswith(f"{name}:1: this is a {name[2:].upper()} file, not a gin file")


def test_link_to_a_missing_file(tmp_path, monkeypatch):
    (tmp_path / "run.gin").symlink_to("moved.gin")
    monkeypatch.chdir(tmp_path)
    assert error_message(["run.gin"]) == "--gin_file=run.gin: run.gin is a link to moved.gin, which does not exist"


def test_learning_rate_in_the_place_of_a_schedule():
    files = ["runs/defaults.gin", "objectives/mlm.gin", "models/bert_tiny.gin"]
    with pytest.raises(UserError, match=r"must be Schedule, not 0.001; write @LinearDecay\(\), .*LinearDecay.peak = 0.001"):
        config.load(files, ["AdamW.schedule = 1e-3"])


@pytest.mark.parametrize("binding", ["EVAL_EVERY = None", "Run.watchdog_seconds = False"])
def test_none_in_place_of_the_0_that_disables(binding):
    files = ["runs/defaults.gin", "objectives/mlm.gin", "models/bert_tiny.gin"]
    with pytest.raises(UserError, match=r"must be (int|float), not (None|False).*; write 0, which disables (it|them)$"):
        config.load(files, [binding])


def test_a_word_that_is_longer_than_any_name_of_a_file(write):
    for sign, fix in (("n", "write a text in quotation marks"), ("1", "a number has at most 4,300 digits")):
        message = error_message([write("a.gin", f"ToyModel.size = {sign * 5000}\n")])
        assert message == f"a.gin:1: {sign * 20}..., a word of 5,000 characters, is not a value; {fix}"


def test_text_that_a_run_file_after_it_replaces_is_named_in_a_warning(write, capsys):
    own = write("own.gin", "TextData.corpus = @TextFiles()\nTextFiles.train = ('a.txt',)\n")
    config.load([own, "tasks/python_docs.gin"])
    (line,) = capsys.readouterr().err.splitlines()
    assert "own.gin:1: TextData.corpus = @TextFiles() has no effect: " in line
    assert "binds @PythonDocs(); give" in line and "own.gin after the other files" in line
    config.load(["tasks/python_docs.gin", own])
    config.load([own, "tasks/python_docs.gin"], [config.Override("TextData.corpus = @TextFiles()", "--input=a")])
    assert not capsys.readouterr().err


def test_value_that_an_include_after_it_overrides_is_named_in_a_warning(write, capsys):
    write("base.gin", GOOD)
    files = [write("own.gin", "STEPS = 9\nToyModel.size = 4\ninclude 'base.gin'\n"), write("good.gin", "include 'base.gin'\n")]
    assert config.load(files[:1]).build("ToyRun").stages[0].steps == 10
    (line,) = capsys.readouterr().err.splitlines()
    assert "own.gin:1: STEPS = 9 has no effect" in line and "base.gin:1, which line 3 includes after it, binds 10" in line
    config.load([files[1], write("over.gin", "STEPS = 9\n")])
    assert not capsys.readouterr().err


# Text added as line 6 of a.gin, and the error message.
MISTAKES_IN_LINES = [
    ("ToyModl.size = 3", "a.gin:6: unknown configurable ToyModl; did you mean ToyModel?"),
    ("ToyRun.teacher = @ToyModle()", "a.gin:6: unknown configurable ToyModle; did you mean ToyModel?"),
    ("Qwxyz.a = 3", "a.gin:6: unknown configurable Qwxyz; for one of your own add `import MODULE` to a "
     "gin file, or --module_import=MODULE (without --task)"),
    ("ToyModel.sise = 3", "a.gin:6: ToyModel has no parameter sise; did you mean size?"),
    ("ToyStage.qqq = 3", "a.gin:6: ToyStage has no parameter qqq; it has steps, length"),
    ("STEP = 3", "a.gin:6: nothing refers to the macro STEP; did you mean STEPS?"),
    ("steps = 3", "a.gin:6: nothing refers to the macro steps; did you mean STEPS?"),
    ("OTHER = 3", "a.gin:6: nothing refers to the macro OTHER; delete it, or use it as %OTHER"),
    ("heads = 3", "a.gin:6: nothing refers to the macro heads; did you mean ToyModel.heads?"),
    ("seq_length = 3", "a.gin:6: nothing refers to the macro seq_length; did you mean ToyStage.length?"),
    ("ToyModel = 3", "a.gin:6: nothing refers to the macro ToyModel; to bind a parameter write ToyModel.PARAMETER"),
    ("ToyRun.seed = %STEP", "a.gin:6: the macro %STEP is not defined; did you mean STEPS?"),
    ("ToyRun.seed = %QQ", "a.gin:6: the macro %QQ is not defined; define it with a line QQ = ..."),
    ("ToyRun.seed = %MODEL", "a.gin:6: the macro %MODEL is not defined; give a model's file, such as "
     "--gin_file=models/bert_tiny.gin, or define it with a line MODEL = ..."),
    ("ToyModel.size = 8", "a.gin:6: ToyModel.size is already bound in line 3; keep one of them"),
    ("gin_toys.ToyModel.size = 8", "a.gin:6: ToyModel.size is already bound in line 3; keep one of them"),
    ("STEPS = 8", "a.gin:6: STEPS is already bound in line 1; keep one of them"),
    ("tacher/ToyModel.size = 8", "a.gin:6: no reference enters the scope tacher of tacher/ToyModel.size; "
     "write the reference as @tacher/ToyModel()"),
    # wrong types
    ("ToyRun.seed = '3'", "a.gin:6: ToyRun.seed must be int or None, not '3'; write 3"),
    ("ToyRun.seed = 3.0", "a.gin:6: ToyRun.seed must be int or None, not 3.0; write 3"),
    ("ToyRun.seed = 3.5", "a.gin:6: ToyRun.seed must be int or None, not 3.5"),
    ("ToyRun.seed = True", "a.gin:6: ToyRun.seed must be int or None, not True"),
    ("ToyRun.name = None", "a.gin:6: ToyRun.name must be str, not None"),
    ("ToyRun.verbose = 1", "a.gin:6: ToyRun.verbose must be bool, not 1"),
    ("ToyModel.rate = '1e-4'", "a.gin:6: ToyModel.rate must be float, not '1e-4'; write 0.0001"),
    ("ToyModel.rate = False", "a.gin:6: ToyModel.rate must be float, not False"),
    ("ToyModel.layout = 'scna'", "a.gin:6: ToyModel.layout must be one of 'scan', 'unroll', not 'scna'; write 'scan'"),
    ("ToyModel.shape = (1, 2, 3)", "a.gin:6: ToyModel.shape must be tuple[int, int] or None, not (1, 2, 3)"),
    ("ToyFiles.train = 'a.txt'", "a.gin:6: ToyFiles.train must be tuple[str, ...], not 'a.txt'; write ('a.txt',)"),
    ("ToyFiles.train = ('a', 1)", "a.gin:6: ToyFiles.train must be tuple[str, ...], not ('a', 1)"),
    ("ToyRun.weights = {'mlm': 'x'}", "a.gin:6: ToyRun.weights must be Mapping[str, float], not {'mlm': 'x'}"),
    ("ToyRun.weights = 1", "a.gin:6: ToyRun.weights must be Mapping[str, float], not 1"),
    ("ToyRun.choices = '12'", "a.gin:6: ToyRun.choices must be Sequence[int], not '12'"),
    ("ToyRun.teacher = @ToyModel", "a.gin:6: ToyRun.teacher must be ToyModel or None, not @ToyModel; write @ToyModel()"),
    ("ToyRun.teacher = @ToyStage()", "a.gin:6: ToyRun.teacher must be ToyModel or None, not @ToyStage()"),
    ("ToyRun.teacher = 'ToyModel'", "a.gin:6: ToyRun.teacher must be ToyModel or None, not 'ToyModel'; write @ToyModel()"),
    ("ToyRun.corpus = @ToyStage()", "a.gin:6: ToyRun.corpus must be Corpus or None, not @ToyStage()"),
    ("ToyRun.corpus = 'a.txt'", "a.gin:6: ToyRun.corpus must be Corpus or None, not 'a.txt'"),
    ("ToyModel.layout = @ToyStage", "a.gin:6: ToyModel.layout must be one of 'scan', 'unroll', not @ToyStage"),
    ("ToyRun.seed = @ToyStage", "a.gin:6: ToyRun.seed must be int or None, not @ToyStage"),
    ("ToyRun.make = 3", "a.gin:6: ToyRun.make must be Callable[..., Any] or None, not 3"),
    ("ToyRun.name = @ToyModel()", "a.gin:6: ToyRun.name must be str, not @ToyModel()"),
    ("ToyRun.name = %STEPS", "a.gin:6: ToyRun.name must be str, not 10 (%STEPS from a.gin:1)"),
    # mistakes found by building only
    ("ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, ToyModel.heads from a.gin:6)"),
    ("ToyModel.rate = 2", "ToyModel: rate 2 is above 1 (ToyModel.rate from a.gin:6)"),
    ("ToyRun.teacher = @b/ToyModel()\nb/ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, b/ToyModel.heads from a.gin:7)"),
    ("ToyRun.make = @ToyLoop()\nToyLoop.inner = @ToyLoop()",
     "a.gin:6: ToyRun.make must be Callable[..., Any] or None, not @ToyLoop(); write @ToyLoop"),
    # syntax errors
    ("ToyRun.seed = 8k  # rows", "a.gin:6: 8k is not a number; write 8_192 or 8_000"),
    ("ToyRun.seed = 0,001  # rows", "a.gin:6: 0,001 is not a number; write 0.001"),
    ("ToyRun.seed = -1,234,567", "a.gin:6: -1,234,567 is not a number; write -1234567, or (-1, 234, 567) for several values"),
    ("ToyRun.seed = 1,5", "a.gin:6: 1,5 is not a number; write 1.5, or (1, 5) for several values"),
    ("ToyRun.seed = 1.5B", "a.gin:6: 1.5B is not a number; write 1_500_000_000"),
    ("ToyRun.seed = ", "a.gin:6: cannot be parsed: the text after the equals sign is not a value"),
    ("ToyRun.seed = 1 1", "a.gin:6: cannot be parsed: only one value may follow the equals sign"),
    *((f"ToyRun.seed = {text}", "a.gin:6: cannot be parsed: gin computes nothing; write the number itself")
      for text in ("1 + 1", "10**3", "%STEPS * 2")),
    ("ToyModel.rate = 1-e3", "a.gin:6: cannot be parsed: write 1e-3"),
    ("ToyRun.seed = 1;", "a.gin:6: cannot be parsed: no semicolon ends a line; remove it"),
    ("ToyRun.seed = 1 // first", "a.gin:6: cannot be parsed: a comment begins with #, not //"),
    ("ToyRun.teacher = @ToyModel(size=8)", "a.gin:6: a reference has no arguments; write @ToyModel(), and bind "
     "ToyModel.size = 8 by itself"),
    ('ToyRun.name = f"toy"', 'a.gin:6: f"toy" is not a value; write a text in plain quotes, without a letter before them'),
    (r'include "C:\x.gin"', r'a.gin:6: "C:\x.gin" is not a value; write / in place of each backslash, or two backslashes'),
    ("ToyRun.name = '\u00a0' ToyRun", "a.gin:6: cannot be parsed: only one value may follow the equals sign"),
    ("ToyModel.n_heads = 2", "a.gin:6: ToyModel has no parameter n_heads; did you mean heads?"),
    ("EPOCHS = 2", "a.gin:6: nothing refers to the macro EPOCHS; training is counted in updates, by TRAIN_STEPS"),
    ("MODEL_DIR = 'm'", "a.gin:6: nothing refers to the macro MODEL_DIR; the folder of the run is a flag, --model_dir=DIR"),
    ("STEPS.size = 3", "a.gin:6: STEPS is a macro, which has no parameters: write CLASS.size with the class that is used there "
     "(check --show lists all)"),
    ("ToyRun.model.size = 3", "a.gin:6: ToyRun.model is a path from ToyRun to another object, and gin binds the parameters of "
     "classes: write CLASS.size with the class that is used there (check --show lists all)"),
    ("from __gin__ import dynamic_registration", "a.gin:6: __gin__.dynamic_registration is of t5x's gin files; bertfam's classes "
     "need no import: remove the line"),
    ("ToyRun.seed := 1", "a.gin:6: cannot be parsed: a value follows an equals sign; write ToyRun.seed = 1"),
    ("ToyRun.seed: 1", "a.gin:6: cannot be parsed: a value follows an equals sign; write ToyRun.seed = 1"),
    ("ToyRun seed = 1", "a.gin:6: cannot be parsed: Couldn't parse statement, expected ':' or '='"),
    ("ToyRun.name = abc", 'a.gin:6: abc is not a value; write "abc" for a string, %abc for a macro, or @abc()'),
    ("ToyRun.name = toys/a.txt", 'a.gin:6: toys/a.txt is not a value; write "toys/a.txt" for a text'),
    ("ToyRun.name = a.txt", 'a.gin:6: a.txt is not a value; write "a.txt" for a text'),
    ("ToyRun.teacher = toy_model",
     'a.gin:6: toy_model is not a value; write "toy_model" for a string, %toy_model for a macro, or @ToyModel()'),
    ("ToyRun.model = bert_tiny", "a.gin:6: bert_tiny is not a value; a model is chosen by its file, "
     "--gin_file=models/bert_tiny.gin"),
    ("ToyModel.rate = 15%", "a.gin:6: cannot be parsed: 15% is not a number; write 0.15"),
    ("ToyRun.teacher = toymodel",
     'a.gin:6: toymodel is not a value; write "toymodel" for a string, %toymodel for a macro, or @ToyModel()'),
    ("ToyRun.verbose = true", "a.gin:6: true is not a value; write True"),
    ("ToyRun.stages = (\n", "a.gin:6: a bracket or string opened here is never closed"),
    ("include toys/a.gin", 'a.gin:6: a file is included by its name in quotes: write include "toys/a.gin"'),
    ('include("a.gin")', 'a.gin:6: a file is included by its name in quotes: write include "a.gin"'),
    ("include 'b.gin'", "a.gin:6: no gin file b.gin here or among those shipped with bertfam; did you mean a.gin?"),
    ("include 'a.gin'", "a.gin:6: a.gin includes a.gin; remove one include"),
    ("import gin_toyz", "a.gin:6: no module gin_toyz; did you mean gin_toys?"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), MISTAKES_IN_LINES, ids=[line for line, _ in MISTAKES_IN_LINES])
def test_mistake_in_a_line_is_reported(write, line, message):
    assert error_message([write("a.gin", GOOD + line)]) == message


def test_file_that_includes_itself_by_a_link_is_reported_at_once(write, tmp_path):
    (tmp_path / "again").symlink_to(".")
    message = error_message([write("a.gin", "include 'again/a.gin'")])
    assert message.startswith("a.gin:1: a.gin includes again/a.gin; ")


MISTAKES_IN_FLAGS = [
    ("STEP = 10", "--gin.STEP=10: nothing refers to the macro STEP; did you mean STEPS?"),
    ("ToyModel.sise = 1", "--gin.ToyModel.sise=1: ToyModel has no parameter sise; did you mean size?"),
    ("STEPS = 'x'", "a.gin:5: ToyStage.steps must be int, not 'x' (%STEPS from --gin.STEPS='x')"),
    ("STEPS = 1,000", "--gin.STEPS=1,000: 1,000 is not a number; write 1000 or 1.000"),
    ("STEPS = 2K", "--gin.STEPS=2K: 2K is not a number; write 2_048 or 2_000"),
    ("ToyRun.stages = ('toystage',)", "--gin.ToyRun.stages=('toystage',): ToyRun.stages must be tuple[ToyStage, ...], "
     "not ('toystage',); write (@ToyStage(),)"),
    ("ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, ToyModel.heads from --gin.ToyModel.heads=3)"),
    ("ToyRun.name = toy", "--gin.ToyRun.name=toy: toy is not a value; "
     "write '\"toy\"' for a string, %toy for a macro, or @ToyRun()"),
    ("ToyRun.name =", "--gin.ToyRun.name=: cannot be parsed: the text after the equals sign is not a value"),
    ("import = 3", "--gin.import=3: nothing refers to the macro import; delete it, or use it as %import"),
    ("include 'a.gin'", "--gin.include 'a.gin'=: is not a binding; write NAME=value, with one name and one value"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "message"), MISTAKES_IN_FLAGS, ids=[flag for flag, _ in MISTAKES_IN_FLAGS])
def test_mistake_in_a_flag_is_reported(write, flag, message):
    assert error_message([write("a.gin", GOOD)], [flag]) == message


def test_flag_for_an_unused_configurable_is_refused(write):
    # a file may bind unused configurables
    run = [write("a.gin", 'include "runs/quickstart_bert.gin"\nTextFiles.language = "de"\n')]
    with pytest.raises(UserError) as caught:
        config.load(run, ["Packed.max_examples = 3"]).build("Run")
    assert str(caught.value) == (
        "--gin.Packed.max_examples=3: nothing refers to Packed, so this has no effect; bind @Packed() in place of "
        "@SentencePairs() as TextData.rows, or set the parameter of SentencePairs"
    )
    with pytest.raises(UserError, match="nothing refers to Ramp, so this has no effect; bind @Ramp"):
        config.load(run, ["Ramp.length = 8"]).build("Run")
    assert config.load(run, ["SentencePairs.random_next_rate = 0.25"]).build("Run").data.rows.random_next_rate == 0.25


def test_override_is_reported_with_its_flag(write):
    override = config.Override("ToyFiles.train = 'a'", "--input=a")
    message = "--input=a: ToyFiles.train must be tuple[str, ...], not 'a'; write ('a',)"
    assert error_message([write("a.gin", GOOD)], [override]) == message


def test_missing_parameter_is_reported_at_the_reference(write):
    text = "ToyRun.model = @m/ToyModel()\n\nToyRun.stages = (@ToyStage(),)\n"
    assert error_message([write("a.gin", text)]) == (
        "a.gin:1: @m/ToyModel() requires size, which is not bound; add ToyModel.size = ..."
    )
    assert error_message([write("b.gin", text + "m/ToyModel.size = 2")]) == (
        "b.gin:3: @ToyStage() requires steps, which is not bound; add ToyStage.steps = ..."
    )
    assert error_message([write("c.gin", "ToyRun.seed = 1")]) == (
        "c.gin: ToyRun requires model, which is not bound; add ToyRun.model = ..."
    )


def test_missing_parameter_behind_a_macro_is_reported(write):
    write("a.gin", "ToyRun.model = %MODEL\nMODEL = @ToyModel()")
    assert error_message(["a.gin"]) == "a.gin:2: @MODEL/ToyModel() requires size, which is not bound; add ToyModel.size = ..."


def test_required_value_of_an_included_file_is_reported(write):
    write("base.gin", GOOD.replace("STEPS = 10", "STEPS = %gin.REQUIRED"))
    assert error_message(["base.gin"]) == "base.gin:1: STEPS has no value yet; add STEPS = ..."
    assert config.load(["base.gin"], ["STEPS = 3"]).build("ToyRun").stages[0].steps == 3
    write("own.gin", GOOD + "ToyRun.seed = %gin.REQUIRED")
    assert error_message(["own.gin"]) == "own.gin:6: ToyRun.seed has no value yet; add ToyRun.seed = ..."


def test_configurable_inside_itself_is_refused(write):
    write("a.gin", "ToyLoop.inner = (@ToyLoop(),)")
    with pytest.raises(UserError, match=re.escape("a.gin:1: @ToyLoop() is part of itself; remove one of the ref")):
        config.load(["a.gin"]).build("ToyLoop")


def test_macro_inside_itself_is_refused(write):
    write("a.gin", "A = %B\nB = (%A,)\nToyRun.seed = %A")
    assert error_message(["a.gin"]) == "a.gin:1: the macro A is defined in terms of itself; give it a value"


def test_macros_that_grow_without_bound_are_refused(write):
    doubled = "".join(f"M{i} = (%M{i - 1}, %M{i - 1})\n" for i in range(1, 60))
    write("a.gin", f"M0 = 1\n{doubled}ToyRun.seed = %M59")
    assert re.match(r"a.gin:18: the macro M17 has more than 100,000 values", error_message(["a.gin"]))
    write("a.gin", "".join(f"M{i} = %M{i + 1}\n" for i in range(2000)) + "M2000 = 1\nToyRun.seed = %M0")
    assert "more than 100 macros deep" in error_message(["a.gin"])


def test_objects_that_grow_without_bound_are_refused(write):
    def nested(levels, references):
        return "".join(f"s{i}/ToyLoop.inner = ({f'@s{i + 1}/ToyLoop(), ' * references})\n" for i in range(levels))

    for levels, references, problem in ((60, 2, "100,000 objects"), (1000, 1, "100 other objects")):
        write("a.gin", nested(levels, references) + f"s{levels}/ToyLoop.inner = ()\nToyLoop.inner = (@s0/ToyLoop(),)")
        with pytest.raises(UserError, match=rf"a.gin:\d+: @ToyLoop\(\) .*{problem}"):
            config.load(["a.gin"]).build("ToyLoop")


def test_byte_order_mark_of_windows_editors_is_skipped(write, tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xef\xbb\xbf" + GOOD.encode().replace(b"\n", b"\r\n"))
    assert config.load(["a.gin"]).build("ToyRun").model.size == 4


def test_pipe_in_place_of_a_gin_file_is_refused(write, tmp_path):
    write("b.gin", 'include "a.gin"')
    os.mkfifo(tmp_path / "a.gin")
    assert "b.gin:1: a.gin is a pipe or device" in error_message(["b.gin"])


def test_file_of_a_model_folder_includes_no_other(write):
    write("good.gin", GOOD)
    write("config.gin", '# saved\ninclude "good.gin"')
    config.load(["config.gin"])
    with pytest.raises(UserError, match="^config.gin:2: a saved configuration includes no file"):
        config.load(["config.gin"], saved=["config.gin"])


def test_missing_gin_file_is_reported_with_a_suggestion(write):
    write("tiny.gin", GOOD)
    assert error_message(["tny.gin"]) == (
        "--gin_file=tny.gin: no gin file tny.gin here or among those shipped with bertfam; did you mean tiny.gin?"
    )
    assert error_message(["zzz/qqqqqqqq"]).endswith("; give a path, or a name as in gin_configs/")


def test_binary_gin_file_is_refused(write, tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xff\xfe\x00")
    assert error_message(["a.gin"]) == ("--gin_file=a.gin: a.gin:1 is not UTF-8; save the gin file as UTF-8 text")


def test_name_of_a_file_is_answered_with_its_module(write, tmp_path):
    write("my_tasks.py", "raise SystemExit('imported')\n")
    (tmp_path / "pkg").mkdir()
    write("pkg/tasks.py", "")
    names = {"my_tasks.py": "my_tasks", "./my_tasks.py": "my_tasks", "my_tasks.pyc": "my_tasks"}
    for name, module in (names | {"pkg/tasks.py": "pkg.tasks", "pkg.tasks.py": "pkg.tasks"}).items():
        message = error_message([], modules=[name])
        assert message.startswith(f"--module_import={name}: ") and message.endswith(f"its module, {module}")
    assert error_message([write("imports.gin", "import my_tasks.py\n")]).endswith(
        "imports.gin:1: my_tasks.py is the name of a file; write that of its module, my_tasks"
    )


def test_failed_module_imports_are_reported(write):
    write("faulty.py", "import math\n\nmath.nothing\n")
    write("unclosed.py", "x = (\n")
    write("needy.py", "x = 1\nimport not_installed_anywhere\n")
    assert error_message([], modules=["fulty"]) == "--module_import=fulty: no module fulty; did you mean faulty?"
    assert error_message([], modules=["faulty"]) == (
        "--module_import=faulty: faulty.py:3: AttributeError: module 'math' has no attribute 'nothing'"
    )
    assert error_message([], modules=["unclosed"]).startswith("--module_import=unclosed: unclosed.py:1: SyntaxError: ")
    assert error_message([], modules=["needy"]) == (
        "--module_import=needy: needy.py:2: ModuleNotFoundError: No module named 'not_installed_anywhere'"
    )


def test_ambiguous_configurable_name_is_refused(write):
    write(
        "second_toys.py",
        """
        import dataclasses
        from bertfam import config

        @dataclasses.dataclass(frozen=True)
        class ToyLoop:
            inner: int = 0

        config.register(ToyLoop)
    """,
    )
    assert error_message([], ["ToyLoop.inner = 1"], ["second_toys"]) == (
        "--gin.ToyLoop.inner=1: ToyLoop is ambiguous: gin_toys.ToyLoop or second_toys.ToyLoop; write one of them in full"
    )


def test_missing_parameter_without_a_file_is_reported():
    assert error_message([], ["ToyRun.seed = 1"]) == (
        "command line: ToyRun requires model, which is not bound; add ToyRun.model = ..."
    )


def test_unexpected_exceptions_are_raised_unchanged(write):
    with pytest.raises(ArithmeticError, match="a fault"):
        config.load([write("a.gin", GOOD)], ["ToyModel.rate = -1"]).build("ToyRun")

"""Every mistake in a configuration is one line with its place and the fix."""

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


def mistake(files, bindings=(), modules=()):
    with pytest.raises(UserError) as caught:
        config.load(files, bindings, modules).build("ToyRun")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_file_that_the_mistakes_are_added_to_is_good(write):
    run = config.load([write("a.gin", GOOD)]).build("ToyRun")
    assert isinstance(run, ToyRun)
    assert (run.model.size, run.stages[0].steps) == (4, 10)


# What is added as line 6 of a.gin, and the error line.
IN_A_LINE = [
    ("ToyModl.size = 3", "a.gin:6: unknown configurable ToyModl; did you mean ToyModel?"),
    ("ToyRun.teacher = @ToyModle()", "a.gin:6: unknown configurable ToyModle; did you mean ToyModel?"),
    ("Qwxyz.a = 3", "a.gin:6: unknown configurable Qwxyz; `import MODULE` in a gin file brings in your own, "
     "as does --module_import=MODULE without --task"),
    ("ToyModel.sise = 3", "a.gin:6: ToyModel has no parameter sise; did you mean size?"),
    ("ToyStage.qqq = 3", "a.gin:6: ToyStage has no parameter qqq; it has steps, length"),
    ("STEP = 3", "a.gin:6: nothing refers to the macro STEP; did you mean STEPS?"),
    ("steps = 3", "a.gin:6: nothing refers to the macro steps; did you mean STEPS?"),
    ("OTHER = 3", "a.gin:6: nothing refers to the macro OTHER; delete it, or use it as %OTHER"),
    ("ToyModel = 3", "a.gin:6: nothing refers to the macro ToyModel; to bind a parameter write ToyModel.PARAMETER"),
    ("ToyRun.seed = %STEP", "a.gin:6: the macro %STEP is not defined; did you mean STEPS?"),
    ("ToyRun.seed = %QQ", "a.gin:6: the macro %QQ is not defined; define it by a line QQ = ..."),
    ("ToyModel.size = 8", "a.gin:6: ToyModel.size is bound in line 3 already; keep one of them"),
    ("gin_toys.ToyModel.size = 8", "a.gin:6: ToyModel.size is bound in line 3 already; keep one of them"),
    ("STEPS = 8", "a.gin:6: STEPS is bound in line 1 already; keep one of them"),
    ("tacher/ToyModel.size = 8", "a.gin:6: no reference enters the scope tacher of tacher/ToyModel.size; "
     "write the reference as @tacher/ToyModel()"),
    # types
    ("ToyRun.seed = '3'", "a.gin:6: ToyRun.seed wants int or None, got '3'; write 3"),
    ("ToyRun.seed = 3.0", "a.gin:6: ToyRun.seed wants int or None, got 3.0; write 3"),
    ("ToyRun.seed = 3.5", "a.gin:6: ToyRun.seed wants int or None, got 3.5"),
    ("ToyRun.seed = True", "a.gin:6: ToyRun.seed wants int or None, got True"),
    ("ToyRun.name = None", "a.gin:6: ToyRun.name wants str, got None"),
    ("ToyRun.verbose = 1", "a.gin:6: ToyRun.verbose wants bool, got 1"),
    ("ToyModel.rate = '1e-4'", "a.gin:6: ToyModel.rate wants float, got '1e-4'; write 0.0001"),
    ("ToyModel.rate = False", "a.gin:6: ToyModel.rate wants float, got False"),
    ("ToyModel.layout = 'scna'", "a.gin:6: ToyModel.layout wants one of 'scan', 'unroll', got 'scna'; write 'scan'"),
    ("ToyModel.shape = (1, 2, 3)", "a.gin:6: ToyModel.shape wants tuple[int, int] or None, got (1, 2, 3)"),
    ("ToyFiles.train = 'a.txt'", "a.gin:6: ToyFiles.train wants tuple[str, ...], got 'a.txt'; write ('a.txt',)"),
    ("ToyFiles.train = ('a', 1)", "a.gin:6: ToyFiles.train wants tuple[str, ...], got ('a', 1)"),
    ("ToyRun.weights = {'mlm': 'x'}", "a.gin:6: ToyRun.weights wants Mapping[str, float], got {'mlm': 'x'}"),
    ("ToyRun.weights = 1", "a.gin:6: ToyRun.weights wants Mapping[str, float], got 1"),
    ("ToyRun.choices = '12'", "a.gin:6: ToyRun.choices wants Sequence[int], got '12'"),
    ("ToyRun.teacher = @ToyModel", "a.gin:6: ToyRun.teacher wants ToyModel or None, got @ToyModel; write @ToyModel()"),
    ("ToyRun.teacher = @ToyStage()", "a.gin:6: ToyRun.teacher wants ToyModel or None, got @ToyStage()"),
    ("ToyRun.teacher = 'ToyModel'", "a.gin:6: ToyRun.teacher wants ToyModel or None, got 'ToyModel'"),
    ("ToyRun.corpus = @ToyStage()", "a.gin:6: ToyRun.corpus wants Corpus or None, got @ToyStage()"),
    ("ToyRun.corpus = 'a.txt'", "a.gin:6: ToyRun.corpus wants Corpus or None, got 'a.txt'"),
    ("ToyModel.layout = @ToyStage", "a.gin:6: ToyModel.layout wants one of 'scan', 'unroll', got @ToyStage"),
    ("ToyRun.seed = @ToyStage", "a.gin:6: ToyRun.seed wants int or None, got @ToyStage"),
    ("ToyRun.make = 3", "a.gin:6: ToyRun.make wants Callable[..., Any] or None, got 3"),
    ("ToyRun.name = @ToyModel()", "a.gin:6: ToyRun.name wants str, got @ToyModel()"),
    ("ToyRun.name = %STEPS", "a.gin:6: ToyRun.name wants str, got 10 (%STEPS from a.gin:1)"),
    # what only building shows
    ("ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, ToyModel.heads from a.gin:6)"),
    ("ToyModel.rate = 2", "ToyModel: rate 2 is above 1 (ToyModel.rate from a.gin:6)"),
    ("ToyRun.teacher = @b/ToyModel()\nb/ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, b/ToyModel.heads from a.gin:7)"),
    ("ToyRun.make = @ToyLoop()\nToyLoop.inner = @ToyLoop()",
     "a.gin:6: ToyRun.make wants Callable[..., Any] or None, got @ToyLoop(); write @ToyLoop"),
    # syntax
    ("ToyRun.seed = ", "a.gin:6: cannot be parsed: no value that can be read stands behind the equals sign"),
    ("ToyRun.seed = 1 + 1", "a.gin:6: cannot be parsed: only one value may follow the equals sign"),
    ("ToyRun seed = 1", "a.gin:6: cannot be parsed: Couldn't parse statement, expected ':' or '='"),
    ("ToyRun.name = toy", 'a.gin:6: toy is no value; write "toy" for a string, %toy for a macro, or @toy()'),
    ("ToyRun.verbose = true", "a.gin:6: true is no value; write True"),
    ("ToyRun.stages = (\n", "a.gin:6: a bracket or string that opens here is never closed"),
    ("include toy", 'a.gin:6: toy is no value; write "toy" for a string, %toy for a macro, or @toy()'),
    ("include 'b.gin'", "a.gin:6: no gin file b.gin here or among those of bertfam; did you mean a.gin?"),
    ("include 'a.gin'", "a.gin:6: a.gin includes a.gin; take out one include"),
    ("import gin_toyz", "a.gin:6: no module gin_toyz; did you mean gin_toys?"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), IN_A_LINE, ids=[line for line, _ in IN_A_LINE])
def test_a_wrong_line(write, line, message):
    assert mistake([write("a.gin", GOOD + line)]) == message


IN_A_FLAG = [
    ("STEP = 10", "--gin.STEP=10: nothing refers to the macro STEP; did you mean STEPS?"),
    ("ToyModel.sise = 1", "--gin.ToyModel.sise=1: ToyModel has no parameter sise; did you mean size?"),
    ("STEPS = 'x'", "a.gin:5: ToyStage.steps wants int, got 'x' (%STEPS from --gin.STEPS='x')"),
    ("ToyModel.heads = 3", "ToyModel: size 4 is not a multiple of heads 3 "
     "(ToyModel.size from a.gin:3, ToyModel.heads from --gin.ToyModel.heads=3)"),
    ("ToyRun.name = toy", "--gin.ToyRun.name=toy: toy is no value; "
     "write '\"toy\"' for a string, %toy for a macro, or @toy()"),
    ("ToyRun.name =", "--gin.ToyRun.name=: cannot be parsed: no value that can be read stands behind the equals sign"),
    ("import = 3", "--gin.import=3: nothing refers to the macro import; delete it, or use it as %import"),
    ("include 'a.gin'", "--gin.include 'a.gin'=: binds nothing; write NAME=value, with one name and one value"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "message"), IN_A_FLAG, ids=[flag for flag, _ in IN_A_FLAG])
def test_a_wrong_flag(write, flag, message):
    assert mistake([write("a.gin", GOOD)], [flag]) == message


def test_a_flag_for_what_nothing_refers_to(write):
    run = [write("a.gin", 'include "runs/quickstart.gin"\nTextFiles.language = "de"\n')]  # a file may bind what is not chosen
    with pytest.raises(UserError) as caught:
        config.load(run, ["Packed.max_examples = 3"]).build("Run")
    assert str(caught.value) == (
        "--gin.Packed.max_examples=3: nothing refers to Packed, so this changes nothing; bind @Packed() where it belongs"
    )
    assert config.load(run, ["SentencePairs.random_next_rate = 0.25"]).build("Run").data.rows.random_next_rate == 0.25


def test_an_override_names_the_flag_that_it_stands_for(write):
    override = config.Override("ToyFiles.train = 'a'", "--input=a")
    message = "--input=a: ToyFiles.train wants tuple[str, ...], got 'a'; write ('a',)"
    assert mistake([write("a.gin", GOOD)], [override]) == message


def test_a_missing_parameter_is_named_where_the_configurable_is_referenced(write):
    text = "ToyRun.model = @m/ToyModel()\n\nToyRun.stages = (@ToyStage(),)\n"
    assert mistake([write("a.gin", text)]) == ("a.gin:1: @m/ToyModel() needs size, which nothing binds; add ToyModel.size = ...")
    assert mistake([write("b.gin", text + "m/ToyModel.size = 2")]) == (
        "b.gin:3: @ToyStage() needs steps, which nothing binds; add ToyStage.steps = ..."
    )
    assert mistake([write("c.gin", "ToyRun.seed = 1")]) == (
        "c.gin: ToyRun needs model, which nothing binds; add ToyRun.model = ..."
    )


def test_a_missing_parameter_behind_a_macro(write):
    write("a.gin", "ToyRun.model = %MODEL\nMODEL = @ToyModel()")
    assert mistake(["a.gin"]) == "a.gin:2: @MODEL/ToyModel() needs size, which nothing binds; add ToyModel.size = ..."


def test_a_value_left_to_whoever_includes_the_file(write):
    write("base.gin", GOOD.replace("STEPS = 10", "STEPS = %gin.REQUIRED"))
    assert mistake(["base.gin"]) == "base.gin:1: STEPS has no value yet; add STEPS = ..."
    assert config.load(["base.gin"], ["STEPS = 3"]).build("ToyRun").stages[0].steps == 3
    write("own.gin", GOOD + "ToyRun.seed = %gin.REQUIRED")
    assert mistake(["own.gin"]) == "own.gin:6: ToyRun.seed has no value yet; add ToyRun.seed = ..."


def test_a_configurable_within_itself(write):
    write("a.gin", "ToyLoop.inner = (@ToyLoop(),)")
    with pytest.raises(UserError, match=re.escape("a.gin:1: @ToyLoop() is part of itself; take out one of the ref")):
        config.load(["a.gin"]).build("ToyLoop")


def test_a_macro_within_itself(write):
    write("a.gin", "A = %B\nB = (%A,)\nToyRun.seed = %A")
    assert mistake(["a.gin"]) == "a.gin:1: the macro A is defined by itself; give it a value"


def test_a_gin_file_that_is_not_there(write):
    write("tiny.gin", GOOD)
    assert mistake(["tny.gin"]) == (
        "--gin_file=tny.gin: no gin file tny.gin here or among those of bertfam; did you mean tiny.gin?"
    )
    assert mistake(["zzz/qqqqqqqq"]).endswith("; write a path, or a name as in gin_configs/")


def test_a_gin_file_that_is_no_text(write, tmp_path):
    (tmp_path / "a.gin").write_bytes(b"\xff\xfe\x00")
    assert mistake(["a.gin"]) == ("--gin_file=a.gin: a.gin:1 is not UTF-8; a gin file is text, which is saved as UTF-8")


def test_modules_that_cannot_be_imported(write):
    write("faulty.py", "import math\n\nmath.nothing\n")
    write("unclosed.py", "x = (\n")
    write("needy.py", "x = 1\nimport not_installed_anywhere\n")
    assert mistake([], modules=["fulty"]) == "--module_import=fulty: no module fulty; did you mean faulty?"
    assert mistake([], modules=["faulty"]) == (
        "--module_import=faulty: faulty.py:3: AttributeError: module 'math' has no attribute 'nothing'"
    )
    assert mistake([], modules=["unclosed"]).startswith("--module_import=unclosed: unclosed.py:1: SyntaxError: ")
    assert mistake([], modules=["needy"]) == (
        "--module_import=needy: needy.py:2: ModuleNotFoundError: No module named 'not_installed_anywhere'"
    )


def test_a_name_that_two_modules_give(write):
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
    assert mistake([], ["ToyLoop.inner = 1"], ["second_toys"]) == (
        "--gin.ToyLoop.inner=1: ToyLoop may mean gin_toys.ToyLoop or second_toys.ToyLoop; write one of them in full"
    )


def test_a_missing_parameter_where_there_is_no_file():
    assert mistake([], ["ToyRun.seed = 1"]) == ("command line: ToyRun needs model, which nothing binds; add ToyRun.model = ...")


def test_faults_are_no_mistakes(write):
    with pytest.raises(ArithmeticError, match="a fault"):
        config.load([write("a.gin", GOOD)], ["ToyModel.rate = -1"]).build("ToyRun")

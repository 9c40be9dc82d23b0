"""Command line: commands on demand, one line for a mistake, exit codes."""

import argparse
import gc
import os
import shlex
import subprocess
import sys
import textwrap
import types
from importlib import import_module
from pathlib import Path

import pytest

from bertfam import __version__, cli, subprocesses
from bertfam.commands import flags, other_trainers
from bertfam.errors import UserError, warn

HEAVY = ("jax", "flax", "numpy", "tensorflow", "seqio", "orbax", "tokenizers", "torch", "transformers", "gin")
COMMANDS = list(cli.COMMANDS)


def backends():
    """Fail as JAX's function of this name does if the plugin of the only platform is missing."""
    raise AssertionError


def toy_main(args):
    if args.fail == "mistake":
        raise UserError("a.gin:3: two lines\nbecome one")
    if args.fail == "fault":
        raise ValueError("a fault")
    if args.fail == "interrupt":
        raise KeyboardInterrupt
    if args.fail == "plugin":
        backends()
    if args.fail:
        raise RuntimeError(args.fail)
    print(vars(args))
    return 7


def add_toy_arguments(parser):
    flags.add_config(parser)
    flags.add_model_dir(parser)
    flags.add_json(parser)
    flags.add_text(parser)
    parser.add_argument("--fail")


@pytest.fixture
def toy(monkeypatch):
    """Add a command that takes every shared flag, and one that takes none."""
    module = types.ModuleType("bertfam.commands.toy")
    vars(module).update(SUMMARY="a toy", EXAMPLE="  bertfam toy --json", add_arguments=add_toy_arguments, main=toy_main)
    bare = types.ModuleType("bertfam.commands.bare")
    vars(bare).update(SUMMARY="bare", add_arguments=lambda parser: None, main=lambda args: 0)
    for command_module in (module, bare):
        name = command_module.__name__.rpartition(".")[2]
        monkeypatch.setitem(sys.modules, command_module.__name__, command_module)
        monkeypatch.setitem(cli.COMMANDS, name, cli.Command(name, "a toy"))


def run(*argv, **kwargs):
    return subprocess.run([sys.executable, "-m", "bertfam", *argv], capture_output=True, text=True, **kwargs)


def test_the_module_of_the_command_line_runs_it():
    done = subprocess.run([sys.executable, "-m", "bertfam.cli", "configs", "quickstart_t5"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("runs/quickstart_t5.gin  ")


MISTAKES = [
    (["toy", "--model_dir=m", "--fail=mistake"], "a.gin:3: two lines become one"),
    (["toi"], "unknown command toi; did you mean toy?"),
    (
        ["toy --model_dir=m"],
        "unknown command toy --model_dir=m: this is one word; write the command without quotes around it: "
        "bertfam toy --model_dir=m",
    ),
    (["tokenize"], "unknown command tokenize; bertfam encode shows the tokens of a text, and bertfam cache tokenises a corpus"),
    (["qqqq"], "unknown command qqqq; see bertfam --help"),
    ([], "no command given; bertfam --help lists all (first come vocab, pretrain, evaluate, export)"),
    (["--json", "toy"], "unknown flag --json before the command; write bertfam COMMAND --json"),
    (["toy", "--modle_dir=m"], "bertfam toy has no flag --modle_dir; did you mean --model_dir?"),
    (["toy", "--model-dir", "m"], "bertfam toy has no flag --model-dir; did you mean --model_dir?"),
    (["toy", "--model_dir=m", "--qqqq"], "bertfam toy has no flag --qqqq; see bertfam toy --help"),
    (["toy", "--model_dir=m", "word"], "bertfam toy has no argument word; see bertfam toy --help"),
    (["toy", "--model_di=m"], "bertfam toy has no flag --model_di; did you mean --model_dir?"),
    (
        ["vocab", "--overwrite=false"],
        "--overwrite=false: the flag takes no value; write --overwrite alone, or leave it out (see bertfam vocab --help)",
    ),
    (
        ["vocab", "--lowercase"],
        "bertfam vocab has no flag --lowercase; that is the default: leave it out (--cased is the opposite)",
    ),
    (["vocab", "--uncased"], "bertfam vocab has no flag --uncased; that is the default: leave it out (--cased is the opposite)"),
    (["toy"], "the following arguments are required: --model_dir (see bertfam toy --help)"),
    (["toy", "--model_dir"], "--model_dir requires a value; write --model_dir=VALUE (see bertfam toy --help)"),
    (
        ["toy", "--model_dir=s3://bucket/m"],
        "--model_dir=s3://bucket/m: it is neither on this machine nor at gs://; copy it, or mount the bucket",
    ),
    (
        ["toy", "--model_dir=https://huggingface.co/bert"],
        "--model_dir=https://huggingface.co/bert: nothing is downloaded: hf download NAME --local-dir DIR, and name DIR",
    ),
    (
        ["toy", "--model_dir=gs:/bucket/m"],
        "--model_dir=gs:/bucket/m: an address in a bucket begins with gs://; write gs://bucket/m",
    ),
    (["toy", "--model_dir="], "--model_dir=: the value is empty; give one"),
    (["toy", "--model_dir=m", "--input_format=line"], "--input_format=line is not one of the choices; did you mean lines?"),
    (
        ["toy", "--model_dir=m", "--input_format=zzz"],
        "--input_format=zzz is not one of the choices; one of sentences, paragraphs, lines, jsonl, parquet",
    ),
    (
        ["toy", "--model_dir=m", "--gin.STEPS", "3"],
        "--gin.STEPS: write --gin.NAME=value, without spaces around the equals sign",
    ),
    (["bare", "--gin.STEPS=3"], "bertfam bare takes no gin configuration; leave out --gin.STEPS=3"),
]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["-model_dir=m"], "write --model_dir=m"),
        (["\u2013-model_dir=m"], "write --model_dir=m"),
        (["\u2014gin.STEPS=3", "--model_dir=m"], "write --gin.STEPS=3"),
        (["--model_dir=m", "gin.STEPS=3"], "write --gin.STEPS=3"),
        (["--model_dir=m", "--STEPS=3"], "--gin.STEPS=VALUE"),
        (["--model_dir=m", "--gin_param=STEPS=3"], "--gin.NAME=value"),
        (["--model_dir=m", "run.gin"], "write --gin_file=run.gin"),
        (["--model_dir=m", "--input", "a.txt", __file__], "--input='books/*.txt'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_words_that_are_meant_otherwise_are_recognised(toy, capsys, words, fix):
    assert cli.main(["toy", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fix in line


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("JAX_DEFAULT_MATMUL_PRECISION", 'Invalid value "hihg" for JAX flag jax_default_matmul_precision'),
        ("JAX_ENABLE_X64", "invalid truth value 'hihg' for environment 'JAX_ENABLE_X64'"),
    ],
)
def test_environment_variable_that_jax_refuses_is_named(toy, monkeypatch, capsys, name, words):
    def refuse(argv):
        raise ValueError(words)

    monkeypatch.setenv(name, "hihg")
    monkeypatch.setattr(cli, "_run", refuse)
    assert cli.main(["toy"]) == 2
    assert capsys.readouterr().err.startswith(f"bertfam: error: {name}=hihg: ")
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="hihg"):
        cli.main(["toy"])


def test_names_in_messages_do_not_steer_the_terminal(toy, capsys):
    assert cli.main(["toy", "--model_dir=m", "--input_format=\x1b[31m\u202ered"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable() and r"\x1b[31m\u202ered" in line
    warn(["\x1b]0;title\x07"])
    assert capsys.readouterr().err == r"bertfam: warning: \x1b]0;title\x07" + "\n"


@pytest.mark.parametrize(("argv", "message"), MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_mistake_is_one_line_and_exit_code_2(toy, capsys, argv, message):
    assert cli.main(argv) == 2
    assert capsys.readouterr() == ("", f"bertfam: error: {message}\n")


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [("> /dev/full", 2, "No space left"), (">&-", 0, ""), ("2>&-", 0, ""), ("<&- >&- 2>&-", 0, "")],
)
def test_output_that_cannot_be_written(redirection, status, message):
    command = f"{shlex.join([sys.executable, '-m', 'bertfam', 'configs', 'bert_tiny'])} {redirection}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert ended.returncode == status
    assert message in ended.stderr and ended.stderr.count("\n") == bool(message)


def test_bug_keeps_its_traceback(toy):
    with pytest.raises(ValueError, match="a fault"):
        cli.main(["toy", "--model_dir=m", "--fail=fault"])


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ("Unable to initialize backend 'rocm': Backend 'rocm' is not in the list of known backends: ['cpu']. (set X)", 2),
        ("Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices. (set X)", 2),
        ("Unable to initialize backend 'tpu': ABORTED: the chip is in use. (set X)", 1),
        ("plugin", 2),
    ],
)
def test_missing_devices_are_one_line(toy, capsys, monkeypatch, failure, status):
    monkeypatch.setenv("JAX_PLATFORMS", "other")
    assert cli.main(["toy", "--model_dir=m", f"--fail={failure}"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertfam: error: JAX_PLATFORMS=other: JAX ") and ("backend '" in line or "plugin is not" in line)


def test_former_variable_of_the_platform_is_named(toy, capsys, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("JAX_PLATFORM_NAME", "gpu")
    failure = "Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present."
    assert cli.main(["toy", "--model_dir=m", f"--fail={failure}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertfam: error: JAX_PLATFORM_NAME=gpu: JAX ") and "unset JAX_PLATFORM_NAME" in line


def test_streams_of_a_program_that_can_only_be_written_to_are_no_terminals(monkeypatch, tmp_path):
    class Tee:
        def write(self, text):
            return len(text)

        def flush(self):
            pass

    (tmp_path / "a.txt").write_text("A sentence of a page that ends with a full stop.\n")
    monkeypatch.setattr(sys, "stdout", Tee())
    monkeypatch.setattr(sys, "stderr", Tee())
    words = [f"--input={tmp_path}/a.txt", "--input_format=lines", f"--output={tmp_path}/a.jsonl"]
    assert cli.main(["clean", *words]) == 0
    assert cli.main(["clean", *words]) == 2  # it exists


def test_interrupt_is_one_line_and_exit_code_130(toy, capsys):
    assert cli.main(["toy", "--model_dir=m", "--fail=interrupt"]) == 130
    assert capsys.readouterr() == ("", "bertfam: interrupted\n")


def test_flags_reach_the_command_and_its_exit_code_is_returned(toy, capsys):
    argv = ["--gin.A.b=1 == 2", "--gin_file=a.gin", "--gin.s/C.d=%X", "--model_dir", "m", "--gin_file", "b.gin", "--json"]
    assert cli.main(["toy", *argv]) == 7
    args = eval(capsys.readouterr().out)
    assert args["gin_bindings"] == ["A.b = 1 == 2", "s/C.d = %X"]
    assert args["gin_file"] == ["a.gin", "b.gin"]
    assert (args["model_dir"], args["json"], args["module_import"]) == ("m", True, [])


@pytest.mark.parametrize("name", COMMANDS)
def test_repeated_flag_means_several_or_is_refused(name):
    """Each flag of each command that keeps one value is refused the second time, in every way of writing it."""
    module = import_module(f"bertfam.commands.{cli.COMMANDS[name].module}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    for action in parser._actions:
        if not action.option_strings or isinstance(action, argparse._HelpAction | argparse._AppendAction):
            continue
        (option,) = action.option_strings
        value = [*action.choices][0] if action.choices else "0@0" if "@STEP" in str(action.metavar) else "0"
        takes_value = action.nargs != 0
        first, second = ([f"{option}={value}"], [option, value]) if takes_value else ([option], [option])
        with pytest.raises(UserError, match=rf"^{option}(={value})? and {option}(={value})?: "):
            cli._parse(name, module, [*first, *second])


def test_repeated_task_names_both(toy, capsys):
    assert cli.main(["toy", "--model_dir=m", "--task=a", "--json", "--task", "b"]) == 2
    assert "--task=a and --task=b" in capsys.readouterr().err


def test_repeated_gin_binding_is_refused(toy, capsys):
    assert cli.main(["toy", "--model_dir=m", "--gin.A.b=1", "--gin.s/A.b=1", "--gin.A.b=2"]) == 2
    assert "--gin.A.b=1 and --gin.A.b=2" in capsys.readouterr().err


def test_repeatable_flags_do_not_remember_an_earlier_call(toy, capsys):
    cli.main(["toy", "--model_dir=m", "--input=a", "--gin_file=a"])
    cli.main(["toy", "--model_dir=m"])
    args = eval(capsys.readouterr().out.splitlines()[-1])
    assert (args["input"], args["gin_file"]) == ([], [])


def text_args(**values):
    names = ("task", "input_format", "text_field", "encoding", "language", "alpha", "marks", "vocab", "cache_dir")
    lists: dict[str, object] = {name: [] for name in ("input", "language_input", "validation_input", "module_import")}
    return types.SimpleNamespace(**lists | dict.fromkeys(names) | values)


def test_text_flags_become_bindings_with_their_origin():
    args = text_args(input=["a/*.txt", "b"], validation_input=["v"], language="de", vocab="V", cache_dir="C")
    assert [tuple(binding) for binding in flags.text_bindings(args)] == [
        ("TextData.corpus = @TextFiles()", "--input=a/*.txt"),
        ("TextFiles.train = ('a/*.txt', 'b')", "--input=a/*.txt"),
        ("TextFiles.validation = ('v',)", "--validation_input=v"),
        ("TextFiles.language = 'de'", "--language=de"),
        ("TextData.vocabulary = 'V'", "--vocab=V"),
        ("TextData.cache_dir = 'C'", "--cache_dir=C"),
    ]
    args = text_args(language_input=["de=d/*", "fi=f", "de=e"], input_format="lines", alpha=0.5)
    assert [tuple(binding) for binding in flags.text_bindings(args)] == [
        ("TextFiles.input_format = 'lines'", "--input_format=lines"),
        ("TextData.corpus = @Mixture()", "--language_input=de=d/*"),
        ("Mixture.corpora = (@de/TextFiles(), @fi/TextFiles(),)", "--language_input=de=d/*"),
        ("Mixture.names = ('de', 'fi')", "--language_input=de=d/*"),
        ("de/TextFiles.train = ('d/*', 'e')", "--language_input=de=d/*"),
        ("de/TextFiles.language = 'de'", "--language_input=de=d/*"),
        ("fi/TextFiles.train = ('f',)", "--language_input=fi=f"),
        ("fi/TextFiles.language = 'fi'", "--language_input=fi=f"),
        ("Mixture.temperature = 2.0", "--alpha=0.5"),
    ]
    args = text_args(task="books", module_import=["mine", "too"], language="de")
    assert [tuple(binding) for binding in flags.text_bindings(args)] == [
        ("TextData.corpus = @SeqioTask()", "--task=books"),
        ("SeqioTask.name = 'books'", "--task=books"),
        ("SeqioTask.language = 'de'", "--language=de"),
        ("SeqioTask.modules = ('mine', 'too')", "--module_import=mine"),
    ]
    args = text_args(task="both", module_import=["mine"], marks="names")
    assert [binding.text for binding in flags.text_bindings(args, {"wiki:en": 3.0, "wiki_en": 0.5})] == [
        "TextData.corpus = @Mixture()",
        "Mixture.corpora = (@wiki_en/MarkedText(), @wiki_en_/MarkedText(),)",
        "Mixture.names = ('wiki_en', 'wiki_en_')",
        "Mixture.rates = (3.0, 0.5)",
        "wiki_en/SeqioTask.name = 'wiki:en'",
        "wiki_en_/SeqioTask.name = 'wiki_en'",
        "wiki_en/MarkedText.corpus = @wiki_en/SeqioTask()",
        "wiki_en_/MarkedText.corpus = @wiki_en_/SeqioTask()",
        "MarkedText.marks = 'names'",
        "SeqioTask.modules = ('mine',)",
    ]
    args = text_args(task="python_docs", module_import=["mine"])
    assert [binding.text for binding in flags.text_bindings(args)] == ["TextData.corpus = @PythonDocs()"]
    assert flags.text_bindings(text_args()) == []


@pytest.mark.parametrize(
    ("task", "flag", "value"),
    [
        ("books", "validation_input", ["v"]),
        ("books", "input_format", "lines"),
        ("books", "text_field", "body"),
        ("books", "encoding", "latin-1"),
        ("python_docs", "validation_input", ["v"]),
        ("python_docs", "input_format", "lines"),
        ("python_docs", "language", "de"),
    ],
)
def test_file_flags_are_refused_with_a_task(task, flag, value):
    with pytest.raises(UserError, match=f"^--{flag} says how --input is read: it does not go with --task={task}$"):
        flags.text_bindings(text_args(task=task, **{flag: value}))


@pytest.mark.parametrize("flag", ["--validation_input=v", "--input_format=lines", "--language=de"])
def test_file_flags_need_files(flag, capsys, tmp_path):
    message = f"bertfam: error: {flag.partition('=')[0]} says how --input is read: give --input=GLOB with it\n"
    assert cli.main(["check", "--gin_file=runs/quickstart.gin", flag]) == 2
    assert capsys.readouterr() == ("", message)
    (tmp_path / "own.gin").write_text("TextData.corpus = @TextFiles()\nTextFiles.train = ('none.txt',)\n")
    assert cli.main(["check", "--gin_file=runs/quickstart.gin", f"--gin_file={tmp_path / 'own.gin'}", flag, "--vocab=none"]) == 2
    assert capsys.readouterr().err != message


# Flags of other trainers, and a part of the line that names ours.
ELSEWHERE = [
    ("pretrain --output_dir=m", "write --model_dir=DIR"),
    ("export --output_dir=m", "write --output=DIR"),
    ("pretrain --train-file=a.txt", "write --input=GLOB"),
    ("pretrain --learning_rate=1e-4", "write --gin.LinearDecay.peak=RATE"),
    ("pretrain --per_device_train_batch_size=8", "write --gin.BATCH_SIZE=ROWS, which are those of all devices"),
    ("distill --num_train_epochs=3", "write --gin.TRAIN_STEPS=N, a number of updates"),
    ("pretrain --model_name_or_path=m", "write --init_from=DIR"),
    ("fill --model=m", "write --model_dir=DIR"),
    ("pretrain --config=run.gin", "write --gin_file=FILE"),
    ("pretrain --resume_from_checkpoint", "the same command resumes"),
    ("pretrain --overwrite", "name another folder"),
    ("vocab --overwrite_output_dir", "write --overwrite"),
    ("vocab --vocab_size=9", "write --size=N"),
    ("plan --model_dir=m", "write --gin_file=MODEL_DIR/config.gin"),
    ("encode --model_dir=m", "write --vocab=MODEL_DIR/vocab"),
    ("report --model_dir=m --output=report.html", "write MODEL_DIR by itself, without a flag"),
    ("generate --num_beams=4", "write --strategy=beam --beams=N"),
    ("generate --prompt=a", 'write the text by itself, as "TEXT"'),
    ("evaluate --input=a", "write --cache_dir=DIR of a token cache"),
    ("fill --learning_rate=1", "has no flag --learning_rate; see bertfam fill --help"),
    ("finetune --num_train_epochs=3", "write --epochs=N"),
    ("finetune --per_device_train_batch_size=8", "write --batch_size=N"),
    ("finetune --lr=1e-4", "write --learning_rate=RATE"),
    ("finetune --train_file=a.csv", "write --train=FILE"),
    ("finetune --validation_file=a.csv", "write --validation=FILE"),
    ("finetune --test_file=a.csv", "bertfam predict --input=FILE"),
    ("finetune --do_predict", "bertfam predict"),
    ("finetune --label_column_name=y", "write --label=COLUMN"),
    ("finetune --load_best_model_at_end", "keep_best"),
    ("predict --test_file=a.csv", "write --input=GLOB"),
    ("predict --per_device_eval_batch_size=8", "write --batch_size=N"),
    ("evaluate --input=a", "bertfam predict --label=COLUMN"),
    ("configs --show", "has no flag --show; see bertfam configs --help"),
]


@pytest.mark.parametrize(("text", "fix"), ELSEWHERE, ids=[text for text, _ in ELSEWHERE])
def test_flags_of_other_trainers_are_answered_with_ours(capsys, text, fix):
    assert cli.main(text.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fix in line


def test_flags_that_other_trainers_are_answered_with_exist():
    entries = [entry for _, entries in other_trainers._FLAGS for entry in entries if entry.startswith("--")]
    parsers = [argparse.ArgumentParser() for _ in COMMANDS]
    for name, parser in zip(COMMANDS, parsers, strict=True):
        import_module(f"bertfam.commands.{cli.COMMANDS[name].module}").add_arguments(parser)
    known = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    names = {entry.partition("=")[0].split()[0] for entry in entries}
    assert {name for name in names if not name.startswith("--gin.")} <= known


@pytest.mark.parametrize(
    "name", ["'$HOME/m'", "'\"m\"'", "“m”", "None", "None/m", "runs/None", "'{folder}/m'", "'<DIR>'", "'m '", r"'C:\m'"]
)
def test_paths_with_what_a_script_was_to_replace_are_refused(toy, capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (word,) = shlex.split(f"--model_dir={name}")
    assert cli.main(["toy", word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bertfam: error: {word}: ")
    Path(word.partition("=")[2]).mkdir(parents=True)  # what is there is meant as it is
    assert cli.main(["toy", word]) == 7


@pytest.mark.parametrize(
    ("argv", "fix"),
    [("fill --model_dir=m", "shlex.split"), (["encode", 5], "argv[1] must be a text, not 5"), (["encode", None], "not None")],
    ids=str,
)
def test_command_lines_of_a_program_that_are_no_words_are_refused(capsys, argv, fix):
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert fix in line


def test_paths_are_words_of_a_program(toy, capsys):
    assert cli.main(["toy", "--model_dir", Path("m")]) == 7
    assert eval(capsys.readouterr().out)["model_dir"] == "m"


def test_home_folder_is_expanded_in_paths(monkeypatch, toy, capsys):
    monkeypatch.setenv("HOME", "/home/me")
    assert cli.main(["toy", "--model_dir=~/m", "--input=~/a*", "--vocab=v~", "--gin_file=~/a.gin"]) == 7
    args = eval(capsys.readouterr().out)
    assert (args["model_dir"], args["input"], args["vocab"]) == ("/home/me/m", ["/home/me/a*"], "v~")
    assert args["gin_file"] == ["/home/me/a.gin"]


def test_two_sources_of_text_are_refused():
    with pytest.raises(UserError, match="^--input and --task both say where the text comes from; give one of them$"):
        flags.text_bindings(text_args(input=["a"], task="books"))


def test_help_lists_every_command_and_explains_gin_flags(toy, capsys):
    assert cli.main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(f"  {name} " in overview and command.summary in overview for name, command in cli.COMMANDS.items())
    assert cli.main(["toy", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--gin.NAME=value" in shown
    assert shown.endswith("example:\n  bertfam toy --json\n")


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bertfam {__version__}\n"


@pytest.mark.parametrize("before, after", [(700, 50_000), (100_000, 100_000), (0, 0)])
def test_garbage_collector_runs_less_often_unless_the_caller_has_set_it(before, after):
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(before)
        cli.main(["--version"])
        assert gc.get_threshold() == (after, *thresholds[1:])
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    ("words", "tunables", "glibc", "anew"),
    [
        (["pretrain", "--help"], None, True, True),
        (["pretrain", "--help"], "glibc.malloc.arena_max=1", True, False),
        (["pretrain", "--help"], None, False, False),
        (["configs"], None, True, False),
        ([], None, True, False),
    ],
)
def test_training_starts_anew_with_huge_pages(words, tunables, glibc, anew, monkeypatch):
    class Replaced(Exception):
        pass

    def execve(program, argv, environment):
        assert (program, argv) == (sys.executable, sys.orig_argv) and environment["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "confstr_names", {"CS_GNU_LIBC_VERSION": 2} if glibc else {})
    monkeypatch.setattr(sys, "argv", ["bertfam", *words])
    monkeypatch.setattr(cli, "main", lambda: 7)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if tunables:
        monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    if anew:
        with pytest.raises(Replaced):
            cli.start()
    else:
        assert cli.start() == 7


def test_process_that_starts_anew_ends_as_others_do():
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    words = [sys.executable, "-m", "bertfam", "pretrain", "--no_flag"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "--no_flag" in done.stderr


def test_module_runs_as_a_program():
    done = run("pretrian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "bertfam: error: unknown command pretrian; did you mean pretrain?\n"
    assert run("--version").returncode == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_command_and_table_have_the_same_summary(name):
    module = import_module(f"bertfam.commands.{cli.COMMANDS[name].module}")
    assert cli.COMMANDS[name].summary == module.SUMMARY


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_imports_nothing_heavy(argv):
    code = (
        "import sys; from bertfam.cli import main; status = main(sys.argv[1:]);"
        f"heavy = set({HEAVY}) & set(sys.modules); sys.exit(f'{{heavy}}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: bertfam ")


def test_folder_without_a_model_is_refused_before_anything_heavy_is_imported(tmp_path):
    lines = [["evaluate"], ["fill", "a [MASK]"], ["generate", "a"], ["export", f"--output={tmp_path / 'out'}"]]
    code = (
        f"import sys; from bertfam.cli import main; statuses = [main([*line, sys.argv[1]]) for line in {lines!r}];"
        f"print(statuses, *(set({HEAVY}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, f"--model_dir={tmp_path}"], capture_output=True, text=True)
    errors = done.stderr.splitlines()
    assert done.stdout == "[2, 2, 2, 2]\n"
    assert len(errors) == 4 and all(f"{tmp_path} is n" in error and "config.gin" in error for error in errors)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_commands_that_exist(name):
    lines = import_module(f"bertfam.commands.{cli.COMMANDS[name].module}").EXAMPLE.splitlines()
    examples = [line.partition("bertfam ")[2] for line in lines if line.startswith(("  bertfam ", "  test -d"))]
    for command, words in (cli._choose(shlex.split(example)) for example in examples):
        cli._parse(command, import_module(f"bertfam.commands.{cli.COMMANDS[command].module}"), words)
    assert any(example.startswith(f"{name} ") for example in examples)


def test_closed_output_gives_no_traceback():
    code = """
        import sys, types
        from bertfam import cli, subprocesses

        module = types.ModuleType("bertfam.commands.talker")
        module.SUMMARY, module.add_arguments = "talks", lambda parser: None
        module.main = lambda args: print("x" * 100) or 0
        sys.modules[module.__name__] = module
        cli.COMMANDS["talker"] = cli.Command("talker", "talks")
        sys.exit(cli.main(["talker"]))
    """
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_carriage_return_of_a_windows_script_is_named(toy, capsys):
    for words in (["--json\r"], ["--input_format=\r"], ["\r"]):
        assert cli.main(["toy", "--model_dir=m", *words]) == 2
        assert "Windows line ends" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["check", "--gin_file=runs/quickstart.gin,own.gin"], "runs/quickstart.gin and own.gin"),
        (["vocab", "--input=own.gin,[o]wn.gin", "--size=99", "--output=v"], "own.gin and [o]wn.gin"),
        (["plan", "--gin_file=own.gin", "--slice=v5e-4,v5p-8"], "v5e-4 and v5p-8"),
        (["plan", "--gin_file=own.gin", "--slice=v5e-4", "--program=train,decode"], "train and decode"),
        (["explain", "--module_import=json,os"], "json and os"),
    ],
)
def test_values_with_commas_between_are_answered_with_a_flag_for_each(tmp_path, monkeypatch, capsys, words, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.gin").write_text("")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.endswith(f"; each has a flag of its own: {parts}\n")


def test_helper_processes_import_nothing_from_the_current_folder():
    package = Path(cli.__file__).parent
    modules = [path.name for path in package.rglob("*.py") if '"-m"' in path.read_text()]
    assert modules == ["subprocesses.py"] and "-P" in subprocesses.command("bertfam")

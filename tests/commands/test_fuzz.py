"""Malformed command lines, drawn with a seed: each ends with status 0, or with 2 and one line of error, and no exception."""

import os
import random
import re
import resource
import subprocess
import sys
from io import BytesIO, TextIOWrapper

import pytest
from command_line import in_process
from model_folders import copy_run
from time_limits import cpu_limit

from bertfam import cli
from bertfam.commands import doctor_run

_CPU_SECONDS = 60  # after which a command line counts as hanging
_GROWTH = 4 << 20  # KiB of memory that all of them may take
NAME = "n" * 300
NUMBERS = ("0", "-1", "99999999999", "10" * 40, "1e309", "nan", "-0", "1_0", "0x10", "٣", "True", " 1", "1 ")
WORDS = ("", "--", "---", "-", "=", "a=b", "\x00", NAME, "\udcff", "../..", "/", "/dev/null", "a[1]/*", "~nobody/x", "gs://", "s3://b/k",
         "file:///x", "%s{0}", "$(id)", "`id`", "\n", "\t", "'", '"', "ü", "\u202e", "None")  # fmt: skip
VALUES = (
    *NUMBERS,
    "[" * 500,
    "(" * 50,
    "'" * 3,
    "@Run()",
    "@nothing()",
    "%NOTHING",
    "{'a': 1}",
    "b'x'",
    "lambda: 0",
    "1 +",
    "f''",
    NAME,
)


@pytest.fixture
def commands(trained, tmp_path, monkeypatch):
    """Command lines that work, by command; nothing that they start takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_run, "_losses", lambda scratch: [4.0, 1.0])
    copy_run(trained.model_dir, tmp_path / "model")
    (tmp_path / "texts.tsv").write_text("text\nit is a list\nit is not\n")
    (tmp_path / "tags.conll").write_text("it\tPRON\n")
    text, vocab = f"--input={trained.folder}/text/held-out.txt", f"--vocab={trained.folder}/vocab"
    run, model = f"--gin_file={trained.folder}/run.gin", "--model_dir=model"
    return {
        "clean": [f"--input={trained.folder}/text/held-out.txt", "--output=cleaned.jsonl"],
        "vocab": [text, "--size=200", "--output=v"],
        "encode": [vocab, "a text"],
        "cache": [text, vocab, "--output=c", "--processes=0"],
        "preview": [model, "--examples=2", "--stat_rows=3"],
        "configs": ["runs"],
        "explain": ["AdamW"],
        "check": [run, text, vocab],
        "plan": [run, "--slice=nowhere"],
        "pretrain": [model],
        "distill": [run, "--teacher=nowhere", "--model_dir=m"],
        "finetune": [f"--init_from={trained.model_dir}", "--train=nowhere.tsv", "--model_dir=m"],
        "predict": [model, text, "--output=p.tsv"],
        "embed": [model, text, "--output=v.npy"],
        "index": [model, "--input=texts.tsv", "--output=passages"],
        "retrieve": ["--index=nowhere", "a question"],
        "evaluate": [model, "--batches=1"],
        "analyze attention": [model, "--text=it is a list", "--output=a.html"],
        "analyze heads": [model, "--input=texts.tsv", "--limit=2"],
        "analyze cloze": [model, "--kinds=arithmetic", "--limit=1"],
        "analyze importance": [model, "--batches=1"],
        # Probes of one label alone are refused, once the model is read.
        "analyze probes": [model, "--tags=tags.conll", "--tags_held_out=tags.conll", "--seeds=0"],
        "analyze layers": [model, text, "--limit=20"],
        "analyze neighbours": [model, text, "--word=list", "--limit=20"],
        "analyze similarity": [model, text, "--pairs=pairs.tsv"],
        "entities": ["--cache_dir=cache", model, "--output=x"],
        "ablate": [f"{trained.folder}/run.gin", "--output=study", "--dry_run"],
        "fill": [model, "a [MASK]"],
        "generate": [model, "a text"],
        "checkpoints": [model],
        "merge": ["--model_dir=model@20,24", "--output=x", "--skip_evaluation"],
        "prune": [model, "--layers=1", "--skip_evaluation", "--output=x"],
        "quantize": [model, "--output=q"],
        "replay": [model, "--step=nowhere"],
        "report": ["model", "--output=r.html"],
        "export": [model, "--output=e"],
        "import": ["--input=nowhere", "--output=i"],
        "doctor": ["--skip_training"],
        "completion": ["bash"],
    }


def mutated(words, generator, flags):
    """Return the command line with one thing changed or added."""
    words, value = list(words), generator.choice((*NUMBERS, *WORDS))
    match generator.randrange(6):
        case 0:
            place = generator.randrange(len(words))
            words[place] = f"{words[place].partition('=')[0]}={value}" if words[place].startswith("--") else value
        case 1:
            words.append(f"{generator.choice(flags)}={value}")
        case 2:
            words.append(generator.choice(flags))
        case 3:
            names = (
                "Run.seed",
                "AdamW.epsilon",
                "Stage.length",
                "BATCH_SIZE",
                "BertConfig.hidden_size",
                "Run.stages",
                "TextData.rows",
                NAME,
            )
            words.append(f"--gin.{generator.choice(names)}={generator.choice(VALUES)}")
        case 4:
            words.insert(generator.randrange(len(words) + 1), value)
        case 5:
            del words[generator.randrange(len(words))]
    return words


def flags_of(command):
    """Return the flags of a command, without those that make it wait for other processes."""
    found = sorted(set(re.findall(r"--[a-z_]+", in_process(*command.split(), "--help").stdout)))
    return ["--help"] * (found == ["--help"]) + [
        flag
        for flag in found
        if flag not in ("--help", "--beam", "--initialization_timeout", "--coordinator", "--num_processes", "--most_rows")
    ]


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_malformed_command_lines_end_with_one_line(commands, command, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO()))
    generator, flags = random.Random(f"{command} 1"), flags_of(command)
    count = 300 if "BERTFAM_LONG_TESTS" in os.environ else 12  # of `make campaign`
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        words = mutated(commands[command], generator, flags)
        with cpu_limit(_CPU_SECONDS, f"{command} {words}"):
            try:
                status = cli.main([*command.split(), *words])
            except SystemExit as stopped:  # of a child process, which has printed the line
                status = stopped.code
        err = capfd.readouterr().err
        errors = [line for line in err.splitlines() if line.startswith("bertfam: error: ")]
        assert status in (0, 2) and "Traceback" not in err, (words, err)
        assert len(errors) == (status == 2), (words, err)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _GROWTH


def test_current_folder_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["configs"]) == 2
    assert "current folder" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)


def test_output_is_escaped_where_its_encoding_lacks_a_character(trained):
    command = [sys.executable, "-m", "bertfam", "encode", f"--vocab={trained.folder}/vocab", "größe"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "") and r"\xf6" in done.stdout


def test_brackets_in_the_name_of_a_folder_are_explained(tmp_path, capsys):
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "x.txt").write_text("A sentence.\n")
    assert cli.main(["vocab", f"--input={tmp_path}/a[1]/*.txt", "--size=100", f"--output={tmp_path}/v"]) == 2
    assert "a[[]1]/*.txt" in capsys.readouterr().err


def test_memory_that_runs_out_is_one_line(monkeypatch, capsys):
    from bertfam.commands import configs

    class JaxRuntimeError(Exception):
        pass

    for error, words in (
        (MemoryError("Unable to allocate 9 TiB"), "9 TiB"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GiB"), "microbatches"),
    ):

        def fail(args, error=error):
            raise error

        monkeypatch.setattr(configs, "main", fail)
        assert cli.main(["configs"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_text_that_begins_with_dashes_needs_two_before_it(trained, capsys):
    assert cli.main(["fill", f"--model_dir={trained.model_dir}", "---x"]) == 2
    assert "put -- before it" in capsys.readouterr().err

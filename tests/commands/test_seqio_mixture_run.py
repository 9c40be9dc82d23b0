"""A registered seqio mixture, from the command line to held-out losses, in a process without TensorFlow."""

import json

import pytest
from command_line import bertfam, in_process

from bertfam import cli

RUN_FILE = """\
include "objectives/mlm.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 2
EVAL_EVERY = 2
BATCH_SIZE = 8
Stage.length = 32
Execution.layers = "unroll"
LinearDecay.warmup_steps = 1
Run.log_every = 1
BertConfig.num_layers = 1
BertConfig.hidden_size = 16
BertConfig.num_heads = 2
BertConfig.feed_forward_size = 32
BertConfig.max_length = 32
MODEL = @BertConfig()
"""

TASKS = """\
import seqio
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.seqio_tasks import tasks

for name in ("cats", "dogs"):
    files = TextFiles(train=("animals.txt",), input_format="lines", validation_fraction=0.3)
    seqio.TaskRegistry.add(
        f"animals:{name}", source=tasks.CorpusSource(files), preprocessors=[], output_features=tasks.SENTENCES
    )
seqio.MixtureRegistry.add("animals", [("animals:cats", 3), ("animals:dogs", lambda task: 1.0)])
print("registered", flush=True)  # must not mix with the rates, which a child process sends to the run
"""
FLAGS = ["--task=animals", "--module_import=animal_tasks"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("animals")
    (folder / "animals.txt").write_text("\n".join(f"The cat {n} saw the dog {n + 1}. Then it ran." for n in range(60)))
    (folder / "animal_tasks.py").write_text(TASKS)
    (folder / "run.gin").write_text(RUN_FILE)
    return folder


def test_train_on_a_registered_mixture(folder, monkeypatch, compilations):
    monkeypatch.chdir(folder)
    done = in_process("vocab", "--input=animals.txt", "--input_format=lines", "--size=80", "--output=vocab")
    assert done.returncode == 0, done.stderr
    done = bertfam(
        "pretrain", "--gin_file=run.gin", *FLAGS, "--vocab=vocab", "--model_dir=model", MODULES=folder / "modules.json"
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.partition(".")[0] for name in json.loads((folder / "modules.json").read_text())}
    assert not loaded & {"tensorflow", "seqio", "animal_tasks"}
    lines = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    assert [line["split"] for line in lines if line["split"].startswith("eval")] == [
        "eval/animals_cats",
        "eval/animals_dogs",
        "eval",
    ]
    saved = (folder / "model" / "config.gin").read_text()
    assert "Mixture.rates = (3.0, 1.0)" in saved and "animals_cats/SeqioTask.name = 'animals:cats'" in saved

    # The folder knows its mixture: it needs no module, and the rates are bindings.
    preview = ["preview", "--model_dir=model", "--examples=8", "--json"]
    rows = json.loads(in_process(*preview).stdout)
    assert [row["corpus"] for row in rows].count("animals_cats") == 6
    rows = json.loads(in_process(*preview, "--gin.Mixture.rates=(1.0, 3.0)").stdout)
    assert [row["corpus"] for row in rows].count("animals_cats") == 2


def test_mistakes_in_a_task_are_one_line(folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    (folder / "no_tasks.py").write_text("import no_such_package\n")
    words = ["preview", "--task=animals", "--module_import=no_tasks", "--vocab=vocab"]
    assert cli.main(words) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "no_tasks.py:1" in error and "no_such_package" in error

"""`bertfam distill` as a user runs it: a small BERT teaches a smaller DistilBERT."""

import json
import shutil
import weakref
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from command_line import in_process, launch_separately, listing, replaced
from initial_state import initial_state, leaves, skip_initialisation
from model_folders import arrays, copy_run, cut
from test_pretrain_processes import metrics

from bertfam import api, cli
from bertfam.interop import huggingface
from bertfam.training import loop, teachers
from bertfam.training.checkpoints import Checkpoints
from bertfam.training.trainer import Trainer

RUN = """
include "objectives/distillation.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 4
EVAL_EVERY = 4
CHECKPOINT_EVERY = 2
BATCH_SIZE = 8
MODEL = @{config}()
{config}.num_layers = {layers}
{config}.hidden_size = 16
{config}.num_heads = 2
{config}.feed_forward_size = 32
{config}.max_length = 24
Stage.length = 24
Execution.layers = "unroll"
Run.log_every = 1
Run.eval_batches = 2
Run.keep_checkpoints = None
LinearDecay.peak = 1e-2
LinearDecay.warmup_steps = 1
"""
TERMS = ("soft_loss", "mlm_loss", "cosine_loss", "mlm_accuracy", "teacher_agreement")


def words(trained, tmp_path, *more, config="DistilBertConfig", layers=1, teacher=None, name="student"):
    (tmp_path / "run.gin").write_text(RUN.format(config=config, layers=layers))
    return [
        "distill",
        f"--teacher={teacher or trained.model_dir}",
        f"--gin_file={tmp_path / 'run.gin'}",
        f"--cache_dir={trained.model_dir / 'cache'}",
        f"--model_dir={tmp_path / name}",
        *more,
    ]


def lines(model_dir, split):
    found = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["split"] == split]


@dataclass(frozen=True)
class Distilled:
    """A student that has made four updates.

    Attributes:
      student: its MODEL_DIR.
      words: the command that trained it.
      stdout: what the command printed.
      openings: how often the teacher was read.
      initial: the parameters that the student started from.
    """

    student: Path
    words: list[str]
    stdout: str
    openings: int
    initial: dict[str, np.ndarray]


@pytest.fixture(scope="module")
def teacher(trained, tmp_path_factory):
    """Return a copy of the trained run as it was at step 20."""
    return cut(trained.model_dir, tmp_path_factory.mktemp("teaching") / "teacher", 20)


@pytest.fixture(scope="module")
def distilled(trained, teacher, tmp_path_factory):
    """Train a student on text, without naming a vocabulary, by a teacher whose path is relative."""
    folder = tmp_path_factory.mktemp("distilled")
    flags = [word for word in words(trained, folder) if not word.startswith(("--teacher=", "--cache_dir="))]
    flags += [
        f"--{name}={trained.folder / 'text' / file}.txt" for name, file in (("input", "train"), ("validation_input", "held-out"))
    ]
    calls, states = [], []
    open_teacher, train = teachers.open_teacher, loop.train

    def opening(*args):
        calls.append(args)
        return open_teacher(*args)

    def training(trainer, state, *args, **options):
        states.append(leaves(jax.tree.map(np.array, state.params)))
        return train(trainer, state, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(teacher.parent)
        patch.setattr(teachers, "open_teacher", opening)
        patch.setattr(loop, "train", training)
        skip_initialisation(patch)  # the teacher has all values
        done = in_process(*flags, "--teacher=teacher")
    assert done.returncode == 0, done.stderr
    return Distilled(folder / "student", flags, done.stdout, len(calls), *states)


@pytest.fixture(scope="module")
def student(distilled):
    return distilled.student


def test_a_run_reports_and_saves_the_student_alone(teacher, distilled):
    student, out = distilled.student, distilled.stdout
    assert f"starts from layer 0 of {teacher}: encoder, mlm_head; of 300 tokens all keep their rows" in out
    assert "teacher      0.0 MiB on each device (neither trained nor saved)" in out
    (held_out,) = lines(student, "eval")
    for line in (*lines(student, "train"), held_out):
        assert set(TERMS) <= line.keys() and all(np.isfinite(line[name]) for name in TERMS)
        expected = 5 * line["soft_loss"] + 2 * line["mlm_loss"] + line["cosine_loss"]
        assert line["loss"] == pytest.approx(expected, rel=1e-4)
    # The teacher is in no checkpoint.
    assert Checkpoints(student, read_only=True).parts(4) == {"encoder", "mlm_head"}
    saved = {path.name for path in (student / "checkpoints" / "4").iterdir() if path.is_dir()}
    assert saved == {"params", "rest"}
    # Two moments of each parameter and some counts: other arrays would be more bytes.
    found = arrays(student, 4)
    size = {item: sum(value.nbytes for name, value in found.items() if name.startswith(f"['{item}']")) for item in saved}
    assert 2 * size["params"] < size["rest"] < 2 * size["params"] + 100


def test_a_student_starts_from_its_teacher(teacher, distilled):
    """With the vocabulary of the teacher, which is read once."""
    assert distilled.openings == 1
    old, new = (folder / "vocab" / "vocab.txt" for folder in (teacher, distilled.student))
    assert old.read_text() == new.read_text()
    named = (distilled.student / "config.gin").read_text()
    assert f"Teacher.folder = '{teacher}'" in named and "Teacher.step = 20" in named
    taught, initial = leaves(api.load(teacher).params), distilled.initial
    heads = {name for name in taught if name.startswith("['mlm_head']")}
    assert heads and heads < initial.keys() < taught.keys()
    for name, value in initial.items():
        expected = taught[name][:1] if "['layers']" in name else taught[name]
        assert np.array_equal(value[:300], expected[:300]), name


def test_a_resumed_run_equals_an_unbroken_one(trained, distilled, tmp_path):
    """The same command with a teacher that has moved and trained on: it uses the step that the run started with."""
    student, moved = distilled.student, copy_run(trained.model_dir, tmp_path / "moved")
    again = cut(student, tmp_path / "again", 2)  # as if it had been killed after 2 of 4
    command = replaced(distilled.words, [f"--teacher={moved}", f"--model_dir={again}"])
    refused = in_process(*command, "--teacher_step=24")
    assert refused.returncode == 2
    assert (
        f"{moved} at step 24 holds another teacher (digest " in refused.stderr
        and "; give --teacher_step=20, or " in refused.stderr
    )
    rest = in_process(*command)
    assert rest.returncode == 0, rest.stderr
    assert "resumed from step 2" in rest.stdout and "starts from" not in rest.stdout
    assert "Teacher.step = 20" in (again / "config.gin").read_text()
    before, after = (leaves(api.load(folder).params) for folder in (student, again))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    assert [line["loss"] for line in lines(student, "train")] == [line["loss"] for line in lines(again, "train")]
    assert lines(student, "eval")[-1] == lines(again, "eval")[-1]


def test_check_of_a_student(trained, student, tmp_path, capsys):
    """It passes with its teacher; a student that the teacher does not fit is refused."""
    assert cli.main(["check", f"--model_dir={student}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ok"
    named = [word for word in words(trained, tmp_path) if word.startswith("--cache_dir")]
    deeper = "--gin.DistilBertConfig.feed_forward_size=64"
    assert cli.main(["check", f"--gin_file={student / 'config.gin'}", *named, deeper]) == 2
    assert "(64,): the student cannot start" in capsys.readouterr().err


def test_two_processes_resume_the_run_of_one(student, tmp_path):
    """Each reads the teacher; the folder alone names it."""
    two = cut(student, tmp_path / "two", 2)
    (status, out, errors), (other_status, _, other_errors) = launch_separately(
        ["distill", f"--model_dir={two}", "--gin.Run.eval_every=0"]
    )
    assert (status, other_status) == (0, 0), errors + other_errors
    assert "resumed from step 2" in out and "mesh data 2" in out
    expected = {key: value for key, value in metrics(student).items() if key[1] == "train"}
    assert metrics(two) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_another_teacher_is_refused(trained, teacher, student, tmp_path, capsys):
    """By name, and where another one has taken its place."""
    run = cut(student, tmp_path / "student", 2)
    other = tmp_path / "other"
    copy_run(trained.model_dir, other)
    for step in (path for path in (other / "checkpoints").iterdir() if path.name not in ("5",)):
        shutil.rmtree(step)
    (run / "files.json").unlink()  # or edits of config.gin would be refused
    was = listing(run)
    assert cli.main(["distill", f"--model_dir={run}", f"--teacher={other}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"bertfam: error: {other} at step 5 holds another teacher (digest ") and err.count("\n") == 1
    assert "); give --teacher_step=20, or name the folder that has it, or use another --model_dir" in err
    named = (run / "config.gin").read_text()
    for old, new in (("Teacher.step = 20", "Teacher.step = 5"), (f"r.folder = '{teacher}'", f"r.folder = '{other}'")):
        assert old in named
        named = named.replace(old, new)
    (run / "config.gin").write_text(named)
    for command in ("distill", "check"):
        assert cli.main([command, f"--model_dir={run}"]) == 2
        assert f"{other} holds another teacher (digest " in capsys.readouterr().err
    shutil.rmtree(other)
    assert cli.main(["pretrain", f"--model_dir={run}"]) == 2
    assert f"{other} is neither a model folder" in capsys.readouterr().err
    assert {path for path in listing(run)} == set(was)


def test_evaluate_fill_export_import(teacher, student, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    assert cli.main(["evaluate", f"--model_dir={student}", "--json", "--batches=2"]) == 0
    found = json.loads(capsys.readouterr().out)
    (logged,) = lines(student, "eval")
    assert all(found[name] == pytest.approx(logged[name], rel=1e-5) for name in (*TERMS, "loss"))

    assert cli.main(["fill", f"--model_dir={student}", "--json", "the [MASK] of"]) == 0
    (filled,) = json.loads(capsys.readouterr().out)[0]["masks"]

    assert cli.main(["export", f"--model_dir={student}", f"--output={tmp_path / 'out'}"]) == 0
    assert "DistilBertForMaskedLM, float32" in capsys.readouterr().out
    model, info = transformers.DistilBertForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and model.config.n_layers == 1
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer("the [MASK] of", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        logits = model.eval()(**inputs).logits[0, filled["position"]]
    likely = torch.softmax(logits, -1).topk(5)
    assert likely.indices.tolist() == [each["token_id"] for each in filled["predictions"]]
    assert likely.values.tolist() == pytest.approx([each["probability"] for each in filled["predictions"]], rel=1e-3)

    assert cli.main(["import", f"--input={tmp_path / 'out'}", f"--output={tmp_path / 'back'}"]) == 0
    before, after = (api.load(folder) for folder in (student, tmp_path / "back"))
    assert type(after.config) is type(before.config)
    again = huggingface.read(tmp_path / "out").params
    for name, value in leaves(again).items():
        assert np.array_equal(leaves(after.params)[name], value), name

    # Without its teacher a student is measured all the same, and says so.
    alone = tmp_path / "alone"
    shutil.copytree(student, alone)
    (alone / "files.json").unlink()
    named = (alone / "config.gin").read_text()
    (alone / "config.gin").write_text(named.replace(f"r.folder = '{teacher}'", "r.folder = '/no/teacher'"))
    capsys.readouterr()
    assert cli.main(["evaluate", f"--model_dir={alone}", "--json", "--batches=2"]) == 0
    out, err = capsys.readouterr()
    assert (
        json.loads(out)["mlm_loss"] == pytest.approx(logged["mlm_loss"], rel=1e-5)
        and not {"soft_loss", "loss"} & json.loads(out).keys()
    )
    assert "warning: scores without the teacher" in err and err.count("\n") == 1


def test_hidden_states_alone(trained, tmp_path, monkeypatch):
    """A Hugging Face folder without a masked-token head, as a sentence encoder is, teaches by the cosine.

    A step of rate 0 shows the parameters that the student started from: the layers in the order of --layers.
    """
    model = api.load(trained.model_dir)
    params = {name: model.params[name] for name in ("encoder", "pooler")}
    files = sorted((trained.model_dir / "vocab").iterdir())
    headless = tmp_path / "headless"
    huggingface.write(headless, model.config, params, tokenizer_files=[path for path in files if path.is_file()])
    flags = ["--gin.TRAIN_STEPS=1", "--gin.LinearDecay.peak=1e-30", "--layers=1,0"]
    given = words(trained, tmp_path, *flags, config="BertConfig", layers=2, teacher=headless)
    refused = in_process(*given)
    assert refused.returncode == 2
    assert "has no masked-language-model head and gives hidden states but no logits" in refused.stderr
    assert not (tmp_path / "student").exists()
    skip_initialisation(monkeypatch)
    done = in_process(*given, "--gin.Distillation.soft=0")
    assert done.returncode == 0, done.stderr
    assert f"starts from layers 1, 0 of {headless}: encoder; of 300 tokens" in done.stdout
    (line,) = lines(tmp_path / "student", "eval")
    assert {"cosine_loss", "mlm_loss"} <= line.keys() and not {"soft_loss", "teacher_agreement"} & line.keys()
    taught, student = leaves({"encoder": params["encoder"]}), leaves(api.load(tmp_path / "student").params)
    assert taught.keys() < student.keys()
    for name, value in taught.items():
        expected = value[::-1] if "['layers']" in name else value
        assert np.allclose(student[name][:300], expected[:300], atol=1e-12), name


def test_a_student_of_random_parameters(trained, tmp_path, monkeypatch):
    """No array that was read is kept in host memory while the student is trained."""
    arrays_read, freed = [], []
    placed_aux = Trainer.placed_aux

    def place(trainer, aux):
        arrays_read.extend(weakref.ref(leaf) for leaf in jax.tree.leaves(aux))
        return placed_aux(trainer, jax.tree.map(np.copy, aux))  # what is on the CPU may be NumPy's array itself

    monkeypatch.setattr(Trainer, "placed_aux", place)
    flags = words(trained, tmp_path, "--layers=random", config="BertConfig", layers=2)
    out, state = initial_state(*flags, then=lambda: freed.extend(array() is None for array in arrays_read))
    assert freed and all(freed)
    assert "starts from" not in out
    taught, new = leaves(api.load(trained.model_dir).params), leaves(state.params)
    assert new.keys() == {name for name in taught if not name.startswith(("['pooler", "['nsp"))}
    for name, value in new.items():
        still = taught[name].std() < 1e-3  # keys' biases, which have no gradient
        assert still or not np.allclose(value[:300], taught[name][:300], atol=1e-3), name


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--teacher={folder}/none"], "{folder}/none is neither a model folder (config.gin) nor a Hugging Face folder"),
        (["--teacher_step=7"], "{model}/checkpoints has no step 7; it has 5, 10, "),
        (["--teacher_network=generator"], "{model} has no network generator; it has encoder"),
        (["--layers=2"], "Distillation: layers (2,) names 2, and the teacher's layers are 0 to 1 (Distillation.layers from "),
        (["--layers=0,1"], "Distillation: layers (0, 1) name 2 layers of the teacher, and the student has 1 layer"),
        (["--layers=0", "--init_from={model}"], "--layers and --init_from both say what the student starts as; give one"),
        (["--layers=0;1"], "--layers=0;1: write numbers with commas between, as 0,2,4, or random"),
        (["--gin.DistilBertConfig.num_layers=3"], "Distillation: the student has 3 layers and the teacher 2: name the layers"),
        (["--gin.DistilBertConfig.hidden_size=32"], "Distillation: the teacher {model} is 16 wide and the student 32"),
        (
            ["--gin.DistilBertConfig.feed_forward_size=64"],
            "layer 0 of the teacher has feed_forward/intermediate/bias (32,), and the student's (64,): the student cannot start",
        ),
        (["--gin.Distillation.alpha=2.0"], "Distillation: alpha 2.0 is not in [0, 1] (Distillation.alpha from --gin."),
        (["--gin.Run.objective=@Mlm()", "--gin.Mlm.model=%MODEL"], "run.gin does not distill: add --gin_file=objectives/dist"),
    ],
)
def test_mistakes(trained, tmp_path, capsys, flags, message):
    values = {"folder": tmp_path, "model": trained.model_dir}
    given = replaced(words(trained, tmp_path), [flag.format(**values) for flag in flags])
    before = set(tmp_path.rglob("*"))
    assert cli.main(given) == 2
    err = capsys.readouterr().err
    assert message.format(**values) in err and err.startswith("bertfam: error: ") and err.count("\n") == 1
    assert set(tmp_path.rglob("*")) == before


def test_more_mistakes(trained, tmp_path, capsys):
    """No teacher, another vocabulary, a run file without the objective."""
    given = [word for word in words(trained, tmp_path) if not word.startswith("--teacher")]
    assert cli.main(given) == 2
    refused = capsys.readouterr().err
    assert "Distillation has no teacher yet: name its folder with `bertfam distill --teacher=DIR`" in refused
    assert cli.main(["check", *given[1:]]) == 2
    assert capsys.readouterr().err == refused
    assert cli.main([*given, "--teacher_step=2"]) == 2
    assert "--teacher_step says which of --teacher; give that too" in capsys.readouterr().err
    text = trained.folder / "text" / "train.txt"
    other = [word for word in words(trained, tmp_path) if not word.startswith("--cache_dir")]
    assert cli.main([*other, f"--input={text}", f"--vocab={trained.folder / 'other-vocab'}"]) == 2
    err = capsys.readouterr().err
    assert f"vocabulary of the teacher {trained.model_dir} is not that of this run" in err
    assert not (tmp_path / "student").exists()

"""Benchmark tasks by their names: `bertfam finetune --task_name` and `bertfam predict --task_name`, on files in GLUE's layout."""

import json
from types import SimpleNamespace

import pytest

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.training.model_dir import read_run
from bertfam.training.warm_start.parameters import read_warm_start

SUBJECTS = ("the list", "a module", "this object", "the function", "a class", "the string", "an argument", "the value")
TRAINING = ("--epochs=1", "--learning_rate=1e-3", "--batch_size=8", "--length=24")


def pairs(first, last):
    return [
        (f"it returns {subject}", f"it {verb} {subject}", verb)
        for subject in SUBJECTS[first:last]
        for verb in ("returns", "raises")
    ]


def write_mrpc(folder):
    """Write MRPC's files, with 12 pairs to train on and 4 held out."""
    (folder / "MRPC").mkdir(parents=True)
    for name, rows in (("train", pairs(0, 6)), ("dev", pairs(6, 8))):
        lines = [f"{int(verb == 'returns')}\t1\t2\t{one}\t{two}\n" for one, two, verb in rows]
        (folder / f"MRPC/{name}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(lines))
    lines = [f"{index}\t1\t2\t{one}\t{two}\n" for index, (one, two, _) in enumerate(pairs(6, 8))]
    (folder / "MRPC/test.tsv").write_text("index\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + "".join(lines))


@pytest.fixture(scope="module")
def mrpc(random_model, caches_in_process, tmp_path_factory):
    """Fine-tune on files in MRPC's layout; return the folders."""
    folder = tmp_path_factory.mktemp("glue")
    write_mrpc(folder)
    words = ["finetune", f"--init_from={random_model}", "--task_name=mrpc", f"--data_dir={folder}", *TRAINING]
    assert cli.main([*words, f"--model_dir={folder / 'model'}"]) == 0
    return SimpleNamespace(folder=folder, model_dir=folder / "model", model=random_model)


def test_a_task_is_fine_tuned_scored_and_submitted(mrpc, capsys, tmp_path):
    corpus = read_run(mrpc.model_dir).data.corpus
    assert (corpus.text, corpus.text_pair, corpus.label, corpus.classes) == ("#1 String", "#2 String", "Quality", ("0", "1"))
    words = ["predict", f"--model_dir={mrpc.model_dir}"]
    task = ["--task_name=glue/mrpc", f"--data_dir={mrpc.folder}"]
    capsys.readouterr()
    assert cli.main([*words, *task, "--json"]) == 0
    assert cli.main([*words, f"--input={mrpc.folder / 'MRPC/dev.tsv'}", "--label=Quality", "--json"]) == 0
    scores, expected = map(json.loads, capsys.readouterr().out.splitlines())
    assert scores == {name: expected[name] for name in ("texts", "step", "f1", "accuracy")}
    assert cli.main([*words, *task, f"--output={tmp_path / 'submission'}"]) == 0
    columns = ["--text=#1 String", "--text_pair=#2 String", f"--output={tmp_path / 'out.jsonl'}"]
    assert cli.main([*words, f"--input={mrpc.folder / 'MRPC/test.tsv'}", *columns]) == 0
    predicted = [json.loads(line)["prediction"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    lines = ["index\tprediction", *(f"{index}\t{label}" for index, label in enumerate(predicted))]
    assert (tmp_path / "submission/MRPC.tsv").read_text().splitlines() == lines
    capsys.readouterr()
    for name, named in (
        ("glue/mrpc", "MRPC.tsv exists"),
        ("glue/qnli", "entailment, not_entailment, and the model predicts 0, 1"),
    ):
        task = [f"--task_name={name}", f"--data_dir={mrpc.folder}", f"--output={tmp_path / 'submission'}"]
        assert cli.main([*words, *task]) == 2
        assert named in capsys.readouterr().err


def test_a_model_of_another_task_and_cut_texts_are_named(mrpc, capsys, tmp_path):
    (tmp_path / "QQP").mkdir()
    lines = [f"1\t1\t2\t{'it returns ' * 12}\t{two}\t{index % 2}\n" for index, (_, two, _) in enumerate(pairs(6, 8))]
    for name in ("train", "dev"):
        (tmp_path / f"QQP/{name}.tsv").write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n" + "".join(lines))
    words = ["predict", f"--model_dir={mrpc.model_dir}"]
    capsys.readouterr()
    assert cli.main([*words, "--task_name=qqp", f"--data_dir={tmp_path}"]) == 0
    other, cut = capsys.readouterr().err.splitlines()
    assert f"--task_name=glue/qqp: {mrpc.model_dir} was fine-tuned on glue/mrpc, whose classes may mean" in other
    assert "4 of 4 texts do not fit into rows of 24 tokens, and their ends were cut off" in cut
    assert cli.main([*words, "--task_name=mrpc", f"--data_dir={mrpc.folder}"]) == 0
    assert not capsys.readouterr().err


def write_super_glue(folder):
    """Write COPA and MultiRC, with 12 texts to train on; MultiRC's questions have two answers each."""
    for name in ("COPA", "MultiRC"):
        (folder / name).mkdir(parents=True)
    for split in ("train", "val", "test"):
        choices, passages, asked = list[str](), list[str](), "effect" if split == "val" else "cause"
        for idx, subject in enumerate(SUBJECTS[:6]):
            label = {} if split == "test" else {"label": idx % 2}
            texts = {"premise": f"it returns {subject}", "question": asked, "choice1": "a list", "choice2": f"{subject}"}
            choices.append(json.dumps(texts | {"idx": idx} | label) + "\n")
            answers = [
                {"text": name, "idx": 2 * idx + order} | ({} if split == "test" else {"label": order})
                for order, name in enumerate(("a module", subject))
            ]
            question = {"question": f"{split} returns", "idx": idx, "answers": answers}
            passages.append(
                json.dumps({"idx": idx, "passage": {"text": f"it returns {subject}", "questions": [question]}}) + "\n"
            )
        (folder / f"COPA/{split}.jsonl").write_text("".join(choices))
        (folder / f"MultiRC/{split}.jsonl").write_text("".join(passages))


def test_choices_and_questions_of_superglue_are_fine_tuned_scored_and_submitted(mrpc, capsys, tmp_path):
    write_super_glue(tmp_path)
    for name, texts, scores in (("copa", 6, {"accuracy"}), ("multirc", 12, {"f1a", "exact_match"})):
        task = [f"--task_name={name}", f"--data_dir={tmp_path}"]
        model_dir = tmp_path / f"model_{name}"
        assert cli.main(["finetune", f"--init_from={mrpc.model}", *task, *TRAINING, f"--model_dir={model_dir}"]) == 0
        capsys.readouterr()
        words = ["predict", f"--model_dir={model_dir}", *task]
        assert cli.main([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.pop("texts") == texts and found.keys() - {"step"} == scores
        assert cli.main([*words, f"--output={tmp_path / 'submission'}"]) == 0
        assert f"{texts} predictions" in capsys.readouterr().out
    choices = [json.loads(line) for line in (tmp_path / "submission/COPA.jsonl").read_text().splitlines()]
    assert [line["idx"] for line in choices] == list(range(6)) and {line["label"] for line in choices} <= {0, 1}
    answers = [json.loads(line) for line in (tmp_path / "submission/MultiRC.jsonl").read_text().splitlines()]
    assert [answer["idx"] for line in answers for answer in line["passage"]["questions"][0]["answers"]] == list(range(12))


def test_a_run_may_take_the_network_and_no_parameters(mrpc):
    vocabulary = vocabularies.load(mrpc.model_dir / "vocab")
    start = read_warm_start(str(mrpc.model), "none", read_run(mrpc.model_dir).sized(vocabulary.size), vocabulary)
    assert not start.params and start.new == ["classifier", "encoder", "pooler"]
    assert start.description.startswith("starts with the network and the vocabulary of ")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--task_name=mrpc",), "--data_dir"),
        (("--data_dir=here",), "--task_name"),
        (("--task_name=mrpc", "--data_dir=here", "--tagging"), "--tagging does not go with --task_name"),
        (("--task_name=mrpc", "--data_dir=here", "--train=a.tsv"), "--train does not go with --task_name"),
        (("--task_name=mrpc", "--data_dir=here"), "MRPC/train.tsv and MRPC/dev.tsv"),
        (("--task_name=glue/mrcp", "--data_dir=here"), "did you mean"),
    ],
)
def test_mistakes_in_names_of_tasks(random_model, tmp_path, capsys, flags, named):
    assert cli.main(["finetune", f"--init_from={random_model}", f"--model_dir={tmp_path / 'model'}", *flags]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "model").exists()


def test_a_suite_compares_models_and_keeps_finished_runs(mrpc, tmp_path, capsys):
    words = ["evaluate", "--suite=glue", f"--data_dir={mrpc.folder}", f"--model_dir={mrpc.model}", "--random_init"]
    words += ["--tasks=mrpc", *TRAINING, f"--output={tmp_path / 'report'}"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "1 task x 2 models x 1 seed = 2 runs\n" in printed and "12 texts to train on, 4 held out" in printed
    report = json.loads((tmp_path / "report/report.json").read_text())
    own = report["tasks"]["glue/mrpc"]
    assert list(own["scores"]) == ["model", "random initialisation"] and own["tests"][0]["texts"] == 4
    assert cli.main(["predict", f"--model_dir={mrpc.model_dir}", "--task_name=mrpc", f"--data_dir={mrpc.folder}", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert {name: own["scores"]["model"][name]["mean"] for name in ("f1", "accuracy")} == {
        name: pytest.approx(alone[name]) for name in ("f1", "accuracy")
    }
    assert not list((tmp_path / "report/runs").rglob("config.gin")) and not list((tmp_path / "report/runs").rglob("cache"))
    for name in ("report.md", "report.html"):
        assert "glue/mrpc" in (tmp_path / "report" / name).read_text()
    assert cli.main(words) == 0
    again = capsys.readouterr().out
    assert "of which 2 finished" in again and "[" not in again and printed.splitlines()[-4:] == again.splitlines()[-4:]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--suite=glue",), "--suite=glue requires --data_dir"),
        (("--suite=glue", "--data_dir=here", "--output=o"), "glue/cola (CoLA/train.tsv and CoLA/dev.tsv), glue/sst2"),
        (
            ("--suite=glue", "--data_dir=here", "--output=o", "--tasks=cola,x,y"),
            "has no task x and no y; its tasks are cola",
        ),
        (("--suite=glue", "--data_dir=here", "--output=o", "--tasks=cola,sst-2"), "glue has no task sst-2; did you mean sst2?"),
        (("--suite=glu", "--data_dir=here", "--output=o"), "--suite=glu is not one of glue, superglue"),
        (("--suite=blimp", "--data_dir=here", "--output=o", "--seeds=1"), "--seeds is of training"),
        (("--suite=glue", "--data_dir=here", "--output=o", "--step=1"), "--step does not go with --suite"),
        (("--epochs=1",), "--epochs is of --suite"),
        (("--model_dir=b",), "the flag has one value"),
    ],
)
def test_mistakes_in_suites(random_model, capsys, flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["evaluate", f"--model_dir={random_model}", *flags]) == 2
    assert named in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_mistakes_in_suites_of_pairs(random_model, capsys, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "He sees.", "sentence_bad": "He see."}\n')
    words = ["evaluate", f"--model_dir={random_model}", "--suite=blimp", f"--data_dir={tmp_path}", f"--output={tmp_path / 'o'}"]
    for flag, named in (
        ("--tasks=pairs,nosuch", "--tasks=pairs,nosuch: blimp has no task nosuch; its tasks are pairs"),
        (f"--model_dir={random_model}/../{random_model.name}/", f"is given twice, as {random_model} too"),
    ):
        assert cli.main([*words, flag]) == 2
        assert named in capsys.readouterr().err and not (tmp_path / "o").exists()

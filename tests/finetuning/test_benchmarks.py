"""Benchmark tasks: files written by hand in the layouts of their publication, and the formats of submissions."""

import json
from pathlib import Path

import pytest

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.errors import UserError
from bertfam.finetuning.benchmarks import registry, submission
from bertfam.finetuning.benchmarks.task import BenchmarkTask
from bertfam.finetuning.survey import survey

PAIRS = "index\tsentence1\tsentence2\tlabel\n0\tHe left.\tHe was here.\t{}\n1\tHe came.\tHe left.\t{}\n"
RTE = PAIRS.format("entailment", "not_entailment")
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tgold_label\n"
    + "".join(
        f"{index}\t1\t1n\tfiction\t( He left )\t( He )\t(ROOT)\t(ROOT)\tHe left.\tHe {index}.\t{label}\t{label}\n"
        for index, label in enumerate(("neutral", "entailment", "contradiction"))
    )
)
STSB = (
    "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\tmain-captions\tMSRvid\t2012test\t1\tnone\tnone\tA plane.\tAn air plane.\t5.000\n"
    "1\tmain-captions\tMSRvid\t2012test\t4\tnone\tnone\tA man.\tA flute.\t0.500\n"
)
STS_BENCHMARK = (
    "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane.\tAn air plane.\n"
    "main-news\theadlines\t2015\t0024\t0.500\tA man.\tA flute.\thttp://a.org\thttp://b.org\n"
)
QQP = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWho?\tWhich?\t0\n1\t3\t4\tcut off\n2\t5\t6\tHow?\tHow so?\t1\n"
)
MRPC = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tHe said "yes.\tHe agreed.\n0\t3\t4\tHe left.\tShe came.\n'
COLA = "gj04\t1\t\tHe left.\ngj04\t0\t*\tHim left.\n"
SST2 = "sentence\tlabel\nfine \t1\ndull \t0\n"
QNLI = RTE.replace("sentence2", "sentence").replace("sentence1", "question")
BOOLQ = (
    '{"question": "is it so", "passage": "It is.", "idx": 0, "label": true}\n'
    '{"question": "was it", "passage": "No.", "idx": 1, "label": false}\n'
)
CB = "".join(
    json.dumps({"premise": "He left.", "hypothesis": f"He {label}.", "label": label, "idx": index}) + "\n"
    for index, label in enumerate(("neutral", "entailment", "contradiction"))
)
WIC = "".join(
    json.dumps({"word": "place", "sentence1": "A good place.", "sentence2": "We place it.", "idx": 0, "label": label}) + "\n"
    for label in (True, False)
)
SQUAD = json.dumps(
    {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "He left.",
                        "qas": [{"id": "a", "question": "Who?", "answers": [{"text": "He", "answer_start": 0}]}],
                    }
                ]
            }
        ]
    }
)
CONLL = "-DOCSTART- -X- -X- O\n\nPeter NNP B-NP B-PER\nleft VBD B-VP O\n"
WNUT = "Peter\tB-person\nleft\tO\n"
UD = "# text = He left\n1\tHe\the\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2\tleft\tleave\tVERB\tVBD\t_\t0\troot\t_\t_\n"

# Task -> files, and the first text with its label as they are read.
FILES = {
    "glue/cola": ({"CoLA/train.tsv": COLA, "CoLA/dev.tsv": COLA}, ["He left.", "1"]),
    "glue/sst2": ({"SST-2/train.tsv": SST2, "SST-2/dev.tsv": SST2}, ["fine", "1"]),
    "glue/mrpc": ({"MRPC/train.tsv": MRPC, "MRPC/dev.tsv": MRPC}, ['He said "yes.', "He agreed.", "1"]),
    "glue/stsb": ({"STS-B/train.tsv": STSB, "STS-B/dev.tsv": STSB}, ["A plane.", "An air plane.", "5.0"]),
    "glue/stsb as published first": (
        {"STS-B/sts-train.csv": STS_BENCHMARK, "STS-B/sts-dev.csv": STS_BENCHMARK},
        ["A plane.", "An air plane.", "5.0"],
    ),
    "glue/qqp": ({"QQP/train.tsv": QQP, "QQP/dev.tsv": QQP}, ["Who?", "Which?", "0"]),
    "glue/mnli": (
        {f"MNLI/{name}.tsv": MNLI for name in ("train", "dev_matched", "dev_mismatched")},
        ["He left.", "He 0.", "2"],
    ),
    "glue/qnli": ({"QNLI/train.tsv": QNLI, "QNLI/dev.tsv": QNLI}, ["He left.", "He was here.", "0"]),
    "glue/rte": ({"RTE/train.tsv": RTE, "RTE/dev.tsv": RTE}, ["He left.", "He was here.", "0"]),
    "glue/wnli": ({"WNLI/train.tsv": PAIRS.format(1, 0), "WNLI/dev.tsv": PAIRS.format(0, 1)}, ["He left.", "He was here.", "1"]),
    "superglue/boolq": ({"BoolQ/train.jsonl": BOOLQ, "BoolQ/val.jsonl": BOOLQ}, ["is it so", "It is.", "1"]),
    "superglue/cb": ({"CB/train.jsonl": CB, "CB/val.jsonl": CB}, ["He left.", "He neutral.", "2"]),
    "superglue/wic": ({"WiC/train.jsonl": WIC, "WiC/val.jsonl": WIC}, ["place: A good place.", "We place it.", "1"]),
    "squad/v1.1": ({"train-v1.1.json": SQUAD, "dev-v1.1.json": SQUAD}, ["Who?", "He left.", "0 2"]),
    "ner/conll2003": ({"conll2003/eng.train": CONLL, "conll2003/eng.testa": CONLL}, ["Peter", "left", "0 1"]),
    "ner/wnut17": ({"wnut17/wnut17train.conll": WNUT, "wnut17/emerging.dev.conll": WNUT}, ["Peter", "left", "0 1"]),
    "pos/ud": ({"en_x-ud-train.conllu": UD, "en_x-ud-dev.conllu": UD}, ["He", "left", "0 1"]),
}


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("name", FILES)
def test_published_files_are_read(name, tmp_path):
    contents, first = FILES[name]
    task = registry.find(name.split()[0])
    files = task.locate(write(tmp_path, contents))
    surveyed = survey(files.corpus)
    assert next(surveyed.corpus.texts("train")) == first and list(surveyed.corpus.texts("validation"))
    assert not files.warnings and sorted(task.classes) == sorted(surveyed.head_values.get("classes", ()) if task.tests else ())
    assert list(files.further) == (["mismatched"] if name == "glue/mnli" else [])


def test_all_missing_files_are_named_in_a_line(tmp_path):
    with pytest.raises(UserError, match=r"glue/stsb: STS-B/train.tsv and STS-B/dev.tsv, or STS-B/sts-train.tsv and "):
        registry.find("glue/stsb").locate(str(tmp_path))
    with pytest.raises(UserError, match=r"MNLI/test_matched.tsv and MNLI/test_mismatched.tsv and diagnostic/diagnostic.tsv"):
        registry.find("mnli").locate_tests(str(tmp_path))
    with pytest.raises(UserError, match="rte is a task of two suites: write glue/rte or superglue/rte"):
        registry.find("rte")
    with pytest.raises(UserError, match="did you mean glue/cola"):
        registry.find("glue/colla")


def test_files_with_other_columns_are_not_the_published_ones(tmp_path):
    folder = write(tmp_path, {"CoLA/train.tsv": "sentence\tlabel\tidx\nHe left.\t1\t0\n"})
    with pytest.raises(UserError, match="train.tsv:1: no column '4' but 1, 2, 3, so .* file of glue/cola"):
        registry.find("glue/cola").locate(folder)


def test_a_part_of_the_training_files_is_scored_on_a_fixed_tenth(tmp_path):
    rows = "".join(f"{index}\tHe left {index}.\tHe.\tneutral\n{index}\tHe {index}.\tHe.\tentailment\n" for index in range(50))
    files = registry.find("glue/mnli").locate(
        write(tmp_path, {"MNLI/train-100.tsv": "index\tsentence1\tsentence2\tgold_label\n" + rows})
    )
    assert "MNLI/dev_matched.tsv" in files.warnings[0] and Path(files.corpus.train[0]).name == "train-100.tsv"
    corpus = survey(files.corpus).corpus
    train, held_out = (list(corpus.texts(split)) for split in ("train", "validation"))
    assert 2 <= len(held_out) <= 25 and len(train) + len(held_out) == 100


def test_a_task_of_ones_own_is_registered_under_a_free_name(monkeypatch):
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    task = BenchmarkTask("own/colours", (LabelledFiles(("train.tsv",), ("dev.tsv",)),), ("accuracy",))
    assert registry.register(task) is registry.register(task) is registry.find("colours")
    assert registry.of_suite("own") == [task] and registry.suites()[-1] == "own"
    for name, named in (("colours", "SUITE/TASK"), ("glue/cola", "another task")):
        with pytest.raises(UserError, match=named):
            registry.register(BenchmarkTask(name, task.layouts, task.metrics))


def test_lines_of_submissions():
    assert "".join(submission._lines(["entailment", "neutral"], "MNLI-m.tsv")) == "index\tprediction\n0\tentailment\n1\tneutral\n"
    assert "".join(submission._lines([4.25], "STS-B.tsv")) == "index\tprediction\n0\t4.250\n"
    assert "".join(submission._lines(["true"], "BoolQ.jsonl")) == '{"idx": 0, "label": "true"}\n'

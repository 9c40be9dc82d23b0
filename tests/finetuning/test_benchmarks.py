"""Benchmark tasks: files written by hand in the layouts of their publication, and the formats of submissions."""

import json
from pathlib import Path

import numpy as np
import pytest

from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.records import read_records
from bertfam.errors import UserError
from bertfam.finetuning.benchmarks import registry, submission
from bertfam.finetuning.benchmarks.task import BenchmarkTask, read_layout
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
COPA = "".join(
    json.dumps(
        {"premise": "It shone.", "choice1": "Sun.", "choice2": "Rain.", "question": question, "label": label, "idx": label}
    )
    + "\n"
    for label, question in enumerate(("cause", "effect"))
)
MULTIRC = "".join(
    json.dumps(
        {
            "idx": passage,
            "version": 1.1,
            "passage": {
                "text": "Ann and Bo left.",
                "questions": [
                    {
                        "question": f"Who {verb}?",
                        "idx": 2 * passage + number,
                        "answers": [
                            {"text": name, "idx": 10 * passage + 3 * number + order, "label": label}
                            for order, (name, label) in enumerate((("Ann", 1), ("Bo", 1), ("Cy", 0)))
                        ],
                    }
                    for number, verb in enumerate(("left", "went"))
                ],
            },
        }
    )
    + "\n"
    for passage in (0, 1)
)
RECORD = json.dumps(
    {
        "source": "news",
        "idx": 0,
        "passage": {
            "text": "Ann Lee met Bo in Rome.\n@highlight\nBo left Rome",
            "entities": [{"start": 0, "end": 6}, {"start": 12, "end": 13}, {"start": 18, "end": 21}, {"start": 35, "end": 36}],
        },
        "qas": [
            {"query": "@placeholder met him.", "idx": 5, "answers": [{"start": 0, "end": 6, "text": "Ann Lee"}]},
            {"query": "He met @placeholder.", "idx": 6, "answers": [{"start": 12, "end": 13, "text": "Bo"}]},
        ],
    }
)
WSC = "".join(
    json.dumps(
        {
            "text": "The old man, who was Mark's friend, told him a story.",
            "target": {"span1_index": first, "span1_text": text, "span2_index": 8, "span2_text": "him"},
            "idx": first,
            "label": first == 0,
        }
    )
    + "\n"
    for first, text in ((0, "The old man"), (5, "mark's"))
)
BLIMP = "".join(
    json.dumps({"sentence_good": f"The {noun} sleeps.", "sentence_bad": f"The {noun} sleep.", "UID": "agreement"}) + "\n"
    for noun in ("cat", "dog", "man", "bird", "mouse", "horse") * 8
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
    "superglue/copa": (
        {"COPA/train.jsonl": COPA, "COPA/val.jsonl": COPA},
        ["It shone. What was the cause?", "Sun.", "Rain.", "0"],
    ),
    "superglue/multirc": (
        {"MultiRC/train.jsonl": MULTIRC, "MultiRC/val.jsonl": MULTIRC},
        ["Ann and Bo left.", "Who left? Ann", "1"],
    ),
    "superglue/record": (
        {"ReCoRD/train.jsonl": RECORD, "ReCoRD/val.jsonl": RECORD},
        ["Ann Lee met Bo in Rome. Bo left Rome", "Ann Lee met him.", "1"],
    ),
    "superglue/wsc": (
        {"WSC/train.jsonl": WSC, "WSC/val.jsonl": WSC},
        ["* The old man *, who was Mark's friend, told # him # a story.", "1"],
    ),
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


def test_sentences_of_minimal_pairs_are_in_an_order_that_says_nothing(tmp_path):
    files = registry.find("blimp").locate(write(tmp_path, {"data/agreement.jsonl": BLIMP}))
    corpus = survey(files.corpus).corpus
    records = {tuple(texts): label for _, texts, label in corpus.records(corpus.train[0])}
    assert len(records) == 6 and set(records.values()) == {0, 1} == {int(name) for name in corpus.classes}
    for (_, *sentences), label in records.items():
        assert sentences[label].endswith("sleeps.") and sentences[1 - label].endswith("sleep.")
    with pytest.raises(UserError, match="grammar/blimp: data/\\*.jsonl, or \\*.jsonl"):
        registry.find("blimp").locate(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "line", "named"),
    [
        (
            "multirc",
            '{"idx": 0, "passage": {"text": "a"}}',
            r"a.jsonl:1: not a line of MultiRC \(it lacks 'questions'\)",
        ),
        ("record", '{"passage": {"text": "a", "entities": [{"start": "0"}]}}', "a.jsonl:1: not a line of ReCoRD"),
        ("wsc", WSC.splitlines()[0].replace('"span2_index": 8', '"span2_index": 80'), "a.jsonl:1: not a line of WSC"),
        ("wsc", WSC.splitlines()[0].replace('"span2_index": 8', '"span2_index": -1'), "-1 is no place, which counts from 0"),
        ("minimal_pairs", '{"sentence_good": "a"}', r"a.jsonl:1: not a line of minimal pairs \(it lacks 'sentence_bad'"),
        ("multirc", "[1]", "a.jsonl:1: JSON value is a list"),
    ],
)
def test_lines_of_another_layout_are_named(tmp_path, name, line, named):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=named):
        list(read_records(tmp_path / "a.jsonl", name, "utf-8"))


def records_of(name, folder):
    contents, _ = FILES[name]
    files = registry.find(name).locate(write(folder, contents))
    return files.task.questions, list(read_layout(files.corpus))


def test_answers_of_multirc_are_scored_together_and_by_question(tmp_path):
    questions, records = records_of("superglue/multirc", tmp_path)
    right = np.tile([1, 1, 0], 4)
    predicted = np.array([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0])
    outputs = np.eye(2, dtype=np.float32)[predicted]
    # 5 of 6 predicted and of 8 true answers.
    assert questions.scores(records, outputs) == {"f1a": 2 * 5 / (6 + 8), "exact_match": 1 / 4}
    assert questions.outcomes(records, outputs).tolist() == [1, 0, 0, 0]
    assert questions.scores(records, np.eye(2)[right]) == {"f1a": 1, "exact_match": 1}
    lines = [json.loads(line) for line in questions.lines(records, outputs)]
    assert [line["idx"] for line in lines] == [0, 1]
    assert lines[0]["passage"]["questions"][1] == {
        "idx": 1,
        "answers": [{"idx": 3, "label": 1}, {"idx": 4, "label": 0}, {"idx": 5, "label": 0}],
    }


def test_entities_of_record_are_scored_by_the_best_true_answer(tmp_path):
    questions, records = records_of("superglue/record", tmp_path)
    assert [record["answer"] for record in records] == ["Ann Lee", "Bo", "Rome"] * 2
    assert [record["query"] for record in records[3:]] == ["He met Ann Lee.", "He met Bo.", "He met Rome."]
    outputs = np.zeros((6, 2), np.float32)
    outputs[[0, 4], 1] = 1
    assert questions.scores(records, outputs) == {"f1": 1, "exact_match": 1}
    outputs[[1, 5]] = ((-3, 0), (-1, 2))
    assert questions.scores(records, outputs) == {"f1": 0, "exact_match": 0}
    assert questions.outcomes(records, outputs).tolist() == [0, 0]
    lines = ['{"idx": 5, "label": "Bo"}\n', '{"idx": 6, "label": "Rome"}\n']
    assert list(questions.lines(records, outputs)) == lines
    several = [{**record, "answers": ["Lee", "the Bo"]} for record in records[:3]]
    assert questions.scores(several, np.array([[0, 1], [0, 0], [0, 0]])) == {"f1": pytest.approx(2 / 3), "exact_match": 0}
    assert questions.scores(several, np.array([[0, 0], [0, 1], [0, 0]])) == {"f1": 1, "exact_match": 1}


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
    labels = registry.find("copa").tests[0].labels, registry.find("wsc").tests[0].labels
    assert "".join(submission._lines([labels[0]["1"]], "COPA.jsonl")) == '{"idx": 0, "label": 1}\n'
    assert "".join(submission._lines([labels[1]["true"]], "WSC.jsonl")) == '{"idx": 0, "label": "True"}\n'

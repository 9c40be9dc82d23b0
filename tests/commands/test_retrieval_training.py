"""`bertfam finetune --retrieval`: questions with passages, mined hard negatives, rows, and a run from files to recall."""

import argparse
import dataclasses
import json
import os
import pydoc_data.topics
import shutil
import signal
from types import SimpleNamespace

import bertfam_process
import jax
import numpy as np
import pytest
from model_folders import arrays, assert_equal_arrays
from numbered_documents import IDS

from bertfam import cli
from bertfam.commands import retrieval_flags
from bertfam.corruption.token_ids import ControlToken, TextFrame
from bertfam.data.corpora.labelled.passage_files import PassageFiles
from bertfam.data.rows.labelled.passage_texts import PassageTexts
from bertfam.data.token_cache.documents import Documents
from bertfam.embedding.towers import TowerSettings, open_towers
from bertfam.errors import RowMistake, UserError
from bertfam.finetuning.survey import survey
from bertfam.interop import huggingface
from bertfam.retrieval.index import Index

HOMER, WARSAW, CAPITAL = "The Iliad is by Homer.", "Warsaw lies on the Vistula.", "The capital of Poland is Warsaw."
LINES = [
    {"question": " Who wrote the Iliad? ", "positive": HOMER, "hard_negatives": ["The Odyssey is a poem.", "A wall."]},
    {"question": "Where does Warsaw lie?", "positive": [WARSAW, CAPITAL], "answer": "vistula", "hard_negatives": []},
    {"question": "What is the capital of Poland, Warsaw or a wall?", "positive": CAPITAL, "answer": ["Warsaw"]},
]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def squad(path, paragraphs):
    """Write a file of SQuAD's format: {context: [(question, answer)]}; a question whose answer is None has none."""
    articles = []
    for context, pairs in paragraphs.items():
        qas = []
        for question, answer in pairs:
            answers = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
            qas.append({"id": question, "question": question, "answers": answers, "is_impossible": answer is None})
        articles.append({"paragraphs": [{"context": context, "qas": qas}]})
    path.write_text(json.dumps({"data": articles}))
    return str(path)


def test_documents_of_lines(tmp_path):
    """A question that has no list of hard negatives has those of BM25, without its own passages and those with its answer."""
    pytest.importorskip("bm25s")
    path = write_lines(tmp_path / "a.jsonl", LINES)
    *given, mined = PassageFiles((path,), hard_negatives=2).read(path)
    assert given == [
        ["Who wrote the Iliad?", HOMER, "The Odyssey is a poem.", "A wall.", "0"],
        ["Where does Warsaw lie?", WARSAW, "", "", "0"],
        ["Where does Warsaw lie?", CAPITAL, "", "", "0"],
    ]
    assert mined[:3] == [LINES[2]["question"], CAPITAL, "A wall."] and mined[3] in (HOMER, "The Odyssey is a poem.")


def test_documents_of_squad(tmp_path):
    pytest.importorskip("bm25s")
    contexts = {
        "A list is mutable.": [("Is a list mutable?", "mutable"), ("Why is a list?", None)],
        "A tuple is an immutable list.": [("What is immutable?", "tuple")],
        "Such a list is mutable too.": [("Which list?", "Such")],
    }
    path = squad(tmp_path / "squad.json", contexts)
    first, second, third = contexts
    documents = list(PassageFiles((path,)).read(path))
    assert [document[:2] for document in documents] == [
        ["Is a list mutable?", first],
        ["What is immutable?", second],
        ["Which list?", third],
    ]
    assert documents[0][2] == second  # the third passage has the answer, too
    assert documents[2][2] in (first, second)
    assert [len(document) for document in PassageFiles((path,), hard_negatives=0).read(path)] == [3, 3, 3]


def test_a_question_is_held_out_with_all_its_passages(tmp_path):
    lines = [{"question": f"Question {number}?", "positive": [f"One {number}", f"Two {number}"]} for number in range(40)]
    corpus = PassageFiles((write_lines(tmp_path / "a.jsonl", lines),), hard_negatives=0, validation_fraction=0.3)
    training, held_out = ({document[0] for document in corpus.texts(split)} for split in ("train", "validation"))
    assert len(training) + len(held_out) == 40 and len(held_out) > 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"question": ""}, "a.jsonl:2: the field 'question' is missing or has no text; a line is {"),
        ({"positive": []}, "a.jsonl:2: the field 'positive' is missing or has no text"),
        ({"positive": [1]}, "a.jsonl:2: the field 'positive' is missing or has no text"),
        ({"hard_negatives": ["one", " "]}, "a.jsonl:2: the field 'hard_negatives' is no list of texts"),
        ({"answer": 3}, "a.jsonl:2: the field 'answer' is no list"),
        ({"hard_negatives": [f"{CAPITAL} "]}, "a.jsonl:2: the hard negative 'The capital of Poland is Warsaw.' is a positive"),
    ],
)
def test_mistakes_in_lines(tmp_path, change, named):
    path = write_lines(tmp_path / "a.jsonl", [LINES[0], LINES[1] | change])
    with pytest.raises(UserError) as error:
        list(PassageFiles((path,)).read(path))
    assert named in str(error.value)


def test_rows():
    """Two documents of a question and two passages, of which the first has no second one, with 1, 2, ... tokens."""
    lengths = [2, 5, 0, 6, 1, 3]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(10, 10 + starts[-1], dtype=np.uint32)
    control = {name: ControlToken(getattr(IDS, name), 0) for name in ("cls", "sep")}
    frame = TextFrame((control["cls"],), (), (control["sep"],), (), 0)
    ids = dataclasses.replace(IDS, frame=frame)
    documents = Documents("text", tokens, starts, np.array([0, 3, 6]), labels=np.zeros(2, np.float32), label_count=1)
    examples = PassageTexts(query_length=5, passages=2).examples(documents, 5 + 2 * 6, 0, ids)
    rows = examples.rows(np.array([1, 0]), np.zeros(2, np.uint64))
    assert rows["encoder_input_tokens"].tolist() == [
        [2, 17, 18, 19, 3, 2, 23, 3, 0, 0, 0, 2, 24, 25, 26, 3, 0],
        [2, 10, 11, 3, 0, 2, 12, 13, 14, 15, 3, 0, 0, 0, 0, 0, 0],
    ]
    assert rows["encoder_segment_ids"].tolist() == [
        [1, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 3, 3, 3, 3, 3, 0],
        [1, 1, 1, 1, 0, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0],
    ]
    assert rows["sequence_start_positions"].shape == (2, 3) and not rows["sequence_start_positions"].any()
    assert len(examples) == examples.cut == 2
    assert [line.partition(" have ")[0] for line in examples.warnings] == [
        "1 of the 2 questions of text",
        "1 of the 4 passages of text",
    ]
    with pytest.raises(UserError, match=r"leaves 13 positions .* do not divide into passages \(2\)"):
        PassageTexts(query_length=4).check_length(17)
    with pytest.raises(RowMistake, match=r"questions of 3 tokens.* at least 4 \(--gin.QUERY_LENGTH\)"):
        PassageTexts(query_length=3).examples(documents, 15, 0, ids)


TEXTS = [" ".join(topic.split())[:90] for _, topic in sorted(pydoc_data.topics.topics.items())[:12]]


@pytest.fixture(scope="module")
def trained(random_model, tmp_path_factory):
    """Return a folder with a model that was trained on questions about the topics of Python's help, and these topics."""
    pytest.importorskip("bm25s")
    folder = tmp_path_factory.mktemp("dpr")
    questions = {text: [(f"Where is {text[10:40]}?", text[10:14])] for text in TEXTS}
    path = squad(folder / "questions.json", questions)
    write_lines(folder / "passages.jsonl", [{"text": text} for text in TEXTS])
    assert cli.main([*training(random_model, path), f"--model_dir={folder / 'model'}"]) == 0
    return folder


def training(random_model, path):
    words = ["finetune", f"--init_from={random_model}", "--retrieval", f"--train={path}", "--batch_size=4", "--epochs=1"]
    return [*words, "--length=24", "--gin.QUERY_LENGTH=16", "--gin.Execution.layers='unroll'"]


def test_from_questions_to_recall(trained, tmp_path, capsys):
    """The towers of a run differ, and embed an index whose recall is measured."""
    model, index = trained / "model", tmp_path / "index"
    assert cli.main(["index", f"--model_dir={model}", f"--input={trained / 'questions.json'}", f"--output={index}"]) == 0
    assert "12 passages in 1 shard, 1 to compute; vectors of 32 numbers (cls pooling)" in capsys.readouterr().out
    assert list(Index.open(index).texts()) == [text.strip() for text in TEXTS]  # the contexts
    assert cli.main(["evaluate", f"--index={index}", f"--questions={trained / 'questions.json'}", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]["index"]
    assert scores.keys() >= {"recall@1", "answer@20"} and scores["recall@20"] == 1
    towers = open_towers(model, TowerSettings())
    query, passage = (tower.embed(TEXTS[:1]).vectors for tower in (towers.query, towers.passage))
    assert np.abs(query - passage).max() > 1e-5
    assert cli.main(["finetune", f"--model_dir={model}"]) == 0
    assert "finished already" in capsys.readouterr().out


def test_an_interrupted_run_ends_with_the_weights_of_the_undisturbed_one(trained, random_model, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "model"
    words = [*training(random_model, trained / "questions.json"), f"--model_dir={folder}"]
    with monkeypatch.context() as patch:
        bertfam_process.at_step(1, lambda step: os.kill(os.getpid(), signal.SIGTERM), patch.setattr)
        assert cli.main(words) == 75
    assert "stopped after step 2 of 3" in capsys.readouterr().out
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    assert "resumed from step 2" in printed and "train        12 questions, " in printed
    assert_equal_arrays(arrays(folder, 3), arrays(trained / "model", 3))


@pytest.mark.parametrize(
    ("lines", "batch_size", "named"),
    [
        (LINES[:1], None, "there is one question to train on, so that a question has its hard negatives alone as wrong"),
        (LINES[1:2], None, "there is one question to train on, without hard negatives, so that a question has no wrong"),
        (LINES[:2], 1, "--batch_size=1, so that a question has its hard negatives alone as wrong passages"),
        (LINES[:2], None, ""),
    ],
)
def test_questions_without_passages_of_others_are_reported(tmp_path, lines, batch_size, named):
    pytest.importorskip("bm25s")
    train, held_out = write_lines(tmp_path / "a.jsonl", lines), write_lines(tmp_path / "b.jsonl", LINES[2:])
    args = argparse.Namespace(batch_size=batch_size, hard_negatives=None, train=[train], validation=[held_out])
    contents, config = survey(retrieval_flags.corpus(args)), SimpleNamespace(value={"Stage.batch_size": 128}.get)
    if "without hard negatives" in named:
        with pytest.raises(UserError, match=named):
            retrieval_flags.check_negatives(args, config, contents)
    else:
        found = retrieval_flags.check_negatives(args, config, contents)
        assert len(found) == bool(named) and all(line.startswith(named) for line in found)


def test_export_to_the_classes_of_dpr(trained, tmp_path, capsys):
    """transformers reads, computes and writes the towers as we do, and they are indexed as two folders."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    assert cli.main(["export", f"--model_dir={trained / 'model'}", f"--output={tmp_path / 'dpr'}", "--dpr"]) == 0
    assert "query DPRQuestionEncoder, passage DPRContextEncoder" in capsys.readouterr().out
    ours, theirs = (open_towers(folder, TowerSettings(length=24)) for folder in (trained / "model", tmp_path / "dpr"))
    for name, kind in (("query", "DPRQuestionEncoder"), ("passage", "DPRContextEncoder")):
        folder, tower = tmp_path / "dpr" / name, getattr(ours, name)
        model, found = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
        assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        tokens = transformers.AutoTokenizer.from_pretrained(folder)(
            TEXTS, padding=True, return_tensors="pt", truncation=True, max_length=24
        )
        with torch.no_grad():
            vectors = model.eval()(**tokens).pooler_output
        np.testing.assert_allclose(tower.embed(TEXTS).vectors, vectors, atol=1e-4)
        model.save_pretrained(tmp_path / "again" / name)
        read, again = (huggingface.read(place) for place in (folder, tmp_path / "again" / name))
        assert read.config == again.config and not again.ignored
        jax.tree.map(np.testing.assert_array_equal, read.params, again.params)
        np.testing.assert_array_equal(getattr(theirs, name).embed(TEXTS).vectors, tower.embed(TEXTS).vectors)
    words = [
        "index",
        f"--model_dir={tmp_path / 'dpr'}",
        f"--input={trained / 'passages.jsonl'}",
        f"--output={tmp_path / 'index'}",
    ]
    assert cli.main(words) == 0
    assert "vectors of 32 numbers (cls pooling)" in capsys.readouterr().out


def test_models_that_are_no_dpr(random_model, trained, tmp_path, capsys):
    words = ["export", f"--model_dir={trained / 'model'}", f"--output={tmp_path / 'out'}", "--dpr"]
    assert cli.main([*words, "--sentence_transformers"]) == 2
    assert "--dpr and --sentence_transformers write two kinds" in capsys.readouterr().err
    folder = shutil.copytree(random_model, tmp_path / "projected")
    content = json.loads((folder / "config.json").read_text()) | {"model_type": "dpr", "projection_dim": 8}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="projection_dim = 8 is not supported"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--hard_negatives=2"], "--hard_negatives describes retrieval: give --retrieval too"),
        (["--normalize"], "--normalize describes retrieval: give --retrieval too"),
        (["--retrieval", "--hard_negatives=-1"], "(--hard_negatives): it must be at least 0"),
        (["--retrieval", "--freeze"], "--freeze does not go with questions with passages"),
        (["--retrieval", "--questions"], "--questions and --retrieval are two kinds of labels"),
        (
            ["--retrieval", "--length=3"],
            "passages of 3 tokens, of which 2 are control tokens, are too short: give at least 4 (--l",
        ),
        (["--retrieval", "--length=99"], "reads: give at most 64 (BertConfig.max_length)"),
        (["--retrieval", "--gin.QUERY_LENGTH=3"], "questions of 3 tokens, of which 2 are control tokens"),
        (["--retrieval", "--batch_size=1", "--hard_negatives=0"], "--batch_size=1, without hard negatives, so that a question"),
    ],
)
def test_flags_that_do_not_go_together(random_model, tmp_path, capsys, flags, named):
    path = write_lines(tmp_path / "a.jsonl", LINES[:2] * 20)
    words = ["finetune", f"--init_from={random_model}", f"--train={path}", f"--model_dir={tmp_path / 'model'}", *flags]
    assert cli.main(words) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "model").exists()

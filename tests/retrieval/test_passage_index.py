"""An index from file to search: its shards, a build that resumes or is shared, the commands, recall beside BM25."""

import json
import shutil

import numpy as np
import pytest

import bertfam
from bertfam import cli
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.open_questions import OpenQuestion, read_questions
from bertfam.embedding.passage_index import build_index, plan_index
from bertfam.embedding.towers import TowerSettings, open_towers
from bertfam.errors import UserError
from bertfam.evaluation.passage_recall import at_random, recall
from bertfam.retrieval.index import Index

PASSAGES = [
    "Assignment statements bind names to values.",
    "A class definition defines a class object.",
    "The return statement leaves the current function call.",
    "Return it.",
    "Names refer to objects.",
    "A block is executed in a frame.",
    "The del statement deletes a name.",
]
SHARD = 3


@pytest.fixture(scope="module")
def folder(random_model, tmp_path_factory):
    """Return a folder with passages, questions and the index of the passages."""
    folder = tmp_path_factory.mktemp("retrieval")
    (folder / "passages.tsv").write_text("text\n" + "".join(f"{text}\n" for text in PASSAGES))
    qas = [{"id": "1", "question": "What binds names?", "answers": [{"text": "Assignment statements", "answer_start": 0}]}]
    impossible = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    paragraphs = [{"context": PASSAGES[0], "qas": [*qas, impossible]}]
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    (folder / "lines.jsonl").write_text('{"question": "What deletes a name?", "answer": ["DEL  statement", "del"]}\n')
    assert cli.main(words(random_model, folder)) == 0
    return folder


def words(model, folder, *more):
    return [
        "index",
        f"--model_dir={model}",
        f"--input={folder}/passages.tsv",
        f"--output={folder}/index",
        f"--shard_size={SHARD}",
        *more,
    ]


@pytest.fixture
def copy(folder, tmp_path):
    """Return a copy of the index that a test may change."""
    return Index.open(shutil.copytree(folder / "index", tmp_path / "index"))


def test_vectors_and_texts(random_model, folder):
    index = Index.open(folder / "index")
    assert (index.passages, index.shards, index.missing()) == (len(PASSAGES), 3, [])
    np.testing.assert_allclose(index.vectors(), bertfam.load(random_model).embed(PASSAGES), atol=1e-6)
    assert list(index.texts()) == PASSAGES
    assert index.texts_of([6, 0]) == {0: PASSAGES[0], 6: PASSAGES[6]}


def test_a_killed_build_resumes_and_processes_share_it(random_model, folder, tmp_path):
    towers = open_towers(random_model, TowerSettings())
    corpus = LabelledFiles((str(folder / "passages.tsv"),), label=None, validation_fraction=0.0)
    index = plan_index(tmp_path / "index", towers, corpus, SHARD)
    index.create()
    build_index(index, towers, corpus, 4, process=1, processes=2)
    assert index.missing() == [0, 2]
    with pytest.raises(UserError, match=r"lacks 2 of 3 shards \(0, 2\): the same bertfam index command"):
        index.check_complete()
    (tmp_path / "index/shards/00000.npy").write_bytes(b"half")  # of a process that was killed
    build_index(index, towers, corpus, 4, process=0, processes=2)
    index.check_complete()
    np.testing.assert_allclose(index.vectors(), Index.open(folder / "index").vectors(), atol=1e-6)


def test_the_command_resumes(random_model, folder, capsys):
    marker = folder / "index/shards/00001.json"
    content = marker.read_bytes()
    marker.unlink()
    assert cli.main(words(random_model, folder)) == 0
    assert "7 passages in 3 shards, 1 to compute" in capsys.readouterr().out and marker.read_bytes() == content
    assert cli.main(words(random_model, folder, "--pooling=max")) == 2
    assert "holds the index of another model: name another folder" in capsys.readouterr().err
    assert cli.main(["index", f"--model_dir={random_model}", f"--input={folder}/passages.tsv", f"--output={folder}"]) == 2
    assert f"{folder} exists already" in capsys.readouterr().err


def test_damage_is_found(copy):
    path = copy.folder / "shards/00001.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"00001.npy is damaged.*remove 00001.json"):
        copy.check_complete()
    for text, match in (
        ("{}", "passages is None"),
        ('{"version": 1, "passages": 1e9}', "passages is 1000000000.0, and must be a whole number"),
        ('{"version": 2, "passages": 7, "width": 32, "shard_size": 3, "source": {}}', "another version"),
    ):
        (copy.folder / "index.json").write_text(text)
        with pytest.raises(UserError, match=match):
            Index.open(copy.folder)
    with pytest.raises(UserError, match="is no index"):
        Index.open(copy.folder.parent)


def test_retrieve(random_model, folder, tmp_path, capsys):
    question = "Which statement binds names?"
    assert cli.main(["retrieve", f"--index={folder}/index", question, PASSAGES[3], "--k=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = bertfam.load(random_model)
    scores = model.embed([question, PASSAGES[3]]) @ model.embed(PASSAGES).T
    for row, result in zip(scores, found, strict=True):
        best = np.argsort(-row)[:2]
        assert [one["passage"] for one in result["passages"]] == best.tolist()
        assert [one["score"] for one in result["passages"]] == pytest.approx(row[best].tolist(), rel=1e-5)
        assert [one["text"] for one in result["passages"]] == [PASSAGES[number] for number in best]
    assert cli.main(["retrieve", f"--index={folder}/index", question, "--k=0"]) == 2
    moved = shutil.copytree(random_model, tmp_path / "moved")
    assert cli.main(["retrieve", f"--index={folder}/index", question, "--k=1", f"--model_dir={moved}"]) == 0
    assert f"{scores[0].max():.4f}" in capsys.readouterr().out
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-2] ^= 1
    (moved / "model.safetensors").write_bytes(weights)
    assert cli.main(["retrieve", f"--index={folder}/index", question, f"--model_dir={moved}"]) == 2
    assert "another model than the one that the index" in capsys.readouterr().err


def test_questions(folder, tmp_path):
    assert list(read_questions(folder / "squad.json")) == [
        OpenQuestion("What binds names?", ("Assignment statements",), (PASSAGES[0],))
    ]
    assert list(read_questions(folder / "lines.jsonl")) == [OpenQuestion("What deletes a name?", ("DEL  statement", "del"))]
    (tmp_path / "bad.jsonl").write_text('{"question": "Why?", "answer": []}\n')
    with pytest.raises(UserError, match="bad.jsonl:1: the line is no"):
        list(read_questions(tmp_path / "bad.jsonl"))


def test_recall_by_hand():
    passages = ["a Del-statement deletes", "delta", *map(str, range(30))]
    questions = [OpenQuestion("one", ("del STATEMENT",), (passages[1],)), OpenQuestion("two", ("10",), ("12", "none"))]
    found = np.array([[1, *range(2, 22), 0], [5, 12, 14, *range(15, 32), 2, 3]])
    zero_half_one = {"recall@1": 0.5, "recall@5": 1.0, "recall@20": 1.0, "answer@1": 0.0, "answer@5": 0.5, "answer@20": 0.5}
    assert recall(questions, passages, found) == zero_half_one
    assert "recall@1" not in recall([question._replace(passages=()) for question in questions], passages, found)
    assert recall([question._replace(answers=()) for question in questions], passages, found).keys() == {
        "recall@1",
        "recall@5",
        "recall@20",
    }
    with pytest.raises(UserError, match="others no passage"):
        recall([questions[0]._replace(passages=()), questions[1]._replace(answers=())], passages, found)
    drawn = at_random(50, 32, 20)
    assert drawn.shape == (50, 20) and all(len(set(row)) == 20 for row in drawn.tolist())
    assert at_random(2, 3, 20).shape == (2, 3)


def test_evaluate(folder, capsys):
    pytest.importorskip("bm25s")
    command = ["evaluate", f"--index={folder}/index", f"--questions={folder}/squad.json"]
    assert cli.main([*command, "--baselines", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["questions"], result["passages"], result["scores"].keys()) == (1, 7, {"index", "BM25", "random"})
    assert result["scores"]["BM25"]["recall@1"] == result["scores"]["random"]["recall@20"] == 1.0
    assert cli.main([*command, f"--questions={folder}/lines.jsonl"]) == 0
    assert "2 questions with an answer" in capsys.readouterr().out
    for more, message in (([], "requires --questions"), ([command[2], "--step=3"], "give them to bertfam index")):
        assert cli.main([*command[:2], *more]) == 2
        assert message in capsys.readouterr().err
    assert cli.main(["evaluate"]) == 2
    assert "--model_dir is missing" in capsys.readouterr().err

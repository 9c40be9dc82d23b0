"""Retrieval: scores by hand and by scikit-learn, search, files, and the command."""

import json

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

import bertfam
from bertfam import cli
from bertfam.errors import UserError
from bertfam.evaluation.retrieval import evaluate_retrieval, read_collection, score_ranking, search

CORPUS = [
    {"_id": "d1", "title": "Assignment", "text": "Assignment statements bind names to values."},
    {"_id": "d2", "title": "", "text": "A class definition defines a class object."},
    {"_id": "d3", "text": "The return statement leaves the current function call."},
    {"_id": "q2", "title": "Return", "text": "Return it."},
]
QUERIES = [{"_id": "q1", "text": "bind names"}, {"_id": "q2", "text": "Return it."}, {"_id": "q3", "text": "not judged"}]
JUDGEMENTS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\nq1\td3\t0\nq2\td3\t1\nq2\tq2\t1\n"


def write(folder, corpus=CORPUS, queries=QUERIES, judgements=JUDGEMENTS, split="test"):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / f"qrels/{split}.tsv").write_text(judgements)
    return folder


def test_scores_by_hand():
    relevant = {"a": 3, "b": 1, "c": 1}
    scores = score_ranking(["x", "a", "y", "b"], relevant)
    ideal = 3 + 1 / np.log2(3) + 1 / 2
    assert scores["ndcg@10"] == pytest.approx((3 / np.log2(3) + 1 / np.log2(5)) / ideal)
    assert scores["mrr@10"] == 1 / 2 and scores["recall@10"] == scores["recall@100"] == 2 / 3
    late = score_ranking([*"0123456789", "a"], relevant)
    assert late["mrr@10"] == late["ndcg@10"] == late["recall@10"] == 0 and late["recall@100"] == 1 / 3
    assert score_ranking(["a", "c", "b"], relevant) == dict.fromkeys(scores, 1.0) and score_ranking([], relevant)["mrr@10"] == 0


def test_scores_of_a_library():
    generator = np.random.default_rng(0)
    for _ in range(20):
        relevance = generator.integers(0, 4, 30) * (generator.random(30) < 0.4)
        similarity = generator.permutation(30).astype(float)
        ranking = [str(index) for index in np.argsort(-similarity)]
        relevant = {str(index): int(value) for index, value in enumerate(relevance) if value}
        expected = ndcg_score(relevance[None], similarity[None], k=10)
        assert score_ranking(ranking, relevant)["ndcg@10"] == pytest.approx(expected, rel=1e-9)


def test_search_finds_the_most_similar():
    generator = np.random.default_rng(0)
    queries, corpus = (generator.standard_normal((count, 5)).astype(np.float32) for count in (70, 40))
    corpus[7] = corpus[3]  # a tie
    products = queries @ corpus.T
    norms = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(corpus, axis=1)
    for similarity, expected in (("dot", products), ("cosine", products / norms)):
        for row, (_, scores) in zip(expected, search(queries, corpus, 12, similarity), strict=True):
            best = np.argsort(-row, kind="stable")[:12]
            np.testing.assert_allclose(scores, row[best], rtol=1e-5, atol=1e-6)
    (found, _), *_ = search(queries, corpus, 99, "dot")
    assert sorted(found.tolist()) == list(range(40)) and found.tolist().index(3) + 1 == found.tolist().index(7)


def test_a_collection(tmp_path):
    found = read_collection(write(tmp_path), "test")
    assert found.corpus == {
        "d1": "Assignment Assignment statements bind names to values.",
        "d2": "A class definition defines a class object.",
        "d3": "The return statement leaves the current function call.",
        "q2": "Return Return it.",
    }
    assert found.queries == {"q1": "bind names", "q2": "Return it."}
    assert found.relevance == {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 1, "q2": 1}}
    # q1 finds d2, d1, ...; q2 finds itself, which is left out, and d1, d3, ...
    vectors = {"bind names": [1, 0], "Return it.": [0, 1]}
    places = dict(zip(found.corpus.values(), [[0.8, 0.9], [0.9, 0.1], [0.1, 0.5], [0, 1]], strict=True))

    def embed(table):
        return lambda texts: np.array([table[text] for text in texts], np.float32)

    scores = evaluate_retrieval(found, embed(vectors), embed(places), "dot")
    assert scores["mrr@10"] == (1 + 1 / 2) / 2 and scores["recall@10"] == (1 + 1 / 2) / 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"corpus": [*CORPUS, CORPUS[0]]}, "corpus.jsonl:5: the _id 'd1' is there twice"),
        ({"corpus": [{"_id": 1, "text": "a"}]}, "corpus.jsonl:1: _id is 1, and must be a text"),
        ({"queries": [{"_id": "q1"}]}, "queries.jsonl:1: text is missing"),
        ({"queries": []}, "queries.jsonl"),
        ({"judgements": JUDGEMENTS + "q9\td1\t1\n"}, "test.tsv:7: the query 'q9' is not in"),
        ({"judgements": JUDGEMENTS + "q1\td9\t1\n"}, "test.tsv:7: the document 'd9' is not in"),
        ({"judgements": JUDGEMENTS + "q1\td1\t1\n"}, "test.tsv:7: .* judged twice"),
        ({"judgements": "q1 0 d1 1\n"}, "test.tsv:1: 1 columns, and a judgement has query-id, corpus-id, score"),
        ({"judgements": "q1\td1\tyes\n"}, "test.tsv:1: the score 'yes' is no whole number"),
        ({"judgements": "q1\td1\t--5\n"}, "test.tsv:1: the score '--5' is no whole number"),
        ({"judgements": "q1\td1\t1234567890\n"}, "test.tsv:1: the score '1234567890' is no whole number of at most 9 digits"),
        ({"judgements": "q1\td1\t0\n"}, "test.tsv has no query with a relevant document"),
        ({"split": "dev"}, r"test.tsv is missing: .* its splits are dev \(--split=NAME\)"),
    ],
)
def test_bad_files_are_located(tmp_path, files, words):
    with pytest.raises(UserError, match=words):
        read_collection(write(tmp_path, **files), "test")


def test_the_command(random_model, tmp_path, capsys):
    write(tmp_path / "docs", split="dev")
    words = [f"--model_dir={random_model}", f"--retrieval={tmp_path / 'docs'}", "--split=dev"]
    assert cli.main(["evaluate", *words, "--json", "--pooling=max"]) == 0
    found = json.loads(capsys.readouterr().out)
    model = bertfam.load(random_model)
    collection = read_collection(tmp_path / "docs", "dev")
    expected = evaluate_retrieval(collection, *[lambda texts: model.embed(texts, pooling="max")] * 2)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert (found["queries"], found["documents"], found["split"]) == (2, 4, "dev")
    assert cli.main(["evaluate", *words]) == 0
    assert "by cosine of mean pooling" in capsys.readouterr().out
    for flag, name in (("--batches=2", "--batches"), ("--limit=2", "--limit"), ("--blimp=x", "--blimp")):
        assert cli.main(["evaluate", *words, flag]) == 2
        assert name in capsys.readouterr().err
    assert cli.main(["evaluate", words[0], "--similarity=dot"]) == 2
    assert "--similarity is of --retrieval" in capsys.readouterr().err

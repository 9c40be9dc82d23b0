"""Cloze measurements: every number by brute force on tiny models, and the command from files to tables."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.special
from flax import linen as nn

from bertfam import api, cli
from bertfam.analysis.cloze.bias_pairs import BiasPair, bias_report, score_bias_pairs, unmodified
from bertfam.analysis.cloze.blanks import fill_blank, score_blanks, summarize
from bertfam.analysis.cloze.calibration import calibrate
from bertfam.analysis.cloze.facts import Fact, fact_report, score_facts
from bertfam.analysis.cloze.items import KINDS, Item, shipped_items
from bertfam.analysis.cloze.unigram import UnigramPredictor
from bertfam.commands import analyze_cloze
from bertfam.decoding.end_tokens import end_tokens
from bertfam.decoding.hidden_tokens import CausalPredictor, DenoisingPredictor, MaskedPredictor
from bertfam.evaluation.sentence_scores import scorer
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model
from bertfam.models.t5 import T5Config

ITEMS = [
    Item("the ", " statement is executed", ("class", "assignmentexpression"), ("names",), "words", "f:1"),
    Item("it returns ", ".", ("zxzx", "\u2603"), ("the value", "an object"), "words", "f:2"),
    Item("an expression", " evaluated", (" is",), (), "more", "f:3"),
]


@pytest.fixture(scope="module")
def model(random_model):
    return api.load(random_model)


@pytest.fixture(scope="module")
def predictor(model):
    return MaskedPredictor(model)


def language_model(config, vocabulary, seed=0):
    generator = np.random.default_rng(seed)
    shapes = nn.meta.unbox(jax.eval_shape(lambda key: init_language_model(config, key), jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.float32(0.3 * generator.standard_normal(leaf.shape)), shapes)
    return api.LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids))


def padded(tokens, length=16):
    """Return one row of tokens with its segment ids, of a length that is compiled once."""
    return np.pad(tokens, (0, length - len(tokens)))[None], (np.arange(length) < len(tokens)).astype(np.int32)[None]


def masked_logs(model, tokens, places):
    """Return the log-probabilities float64[places, vocabulary] of one row in which the tokens at some places are masked."""
    hidden = tokens.copy()
    hidden[places] = model.vocabulary.token_ids.mask
    row, segments = padded(hidden)
    return scipy.special.log_softmax(
        np.asarray(model.apply(row, segment_ids=segments)["mlm_logits"][0], np.float64)[places], axis=-1
    )


def check_blanks(scores, predictor, logs_of):
    """Compare scores with those of one filler at a time.

    `logs_of(filler)`: log-probabilities float64[n, vocabulary] of the n tokens from the blank on, with what is predicted hidden.
    """
    unknown = predictor.vocabulary.token_ids.unk
    for item, own in zip(ITEMS, scores, strict=True):
        assert own.item == item
        for number, text in enumerate(item.answers + item.distractors):
            filler = fill_blank(predictor, item, text)
            ids = filler.tokens[filler.places]
            assert predictor.vocabulary.decode(ids).replace(" ", "") == text.replace(" ", "") or unknown in ids
            if unknown in ids:
                assert (own.probabilities[number], own.ranks[number]) == (0, predictor.vocabulary.size)
                assert own.scores[number] == -np.inf
                continue
            logs = logs_of(filler)
            likelihoods = logs[np.arange(len(ids)), ids]
            ranks = [sorted(-row).index(-row[id]) + 1 for row, id in zip(logs, ids, strict=False)]
            assert own.ranks[number] == max(ranks)
            assert own.probabilities[number] == pytest.approx(np.exp(likelihoods.sum()), rel=1e-4)
            expected = likelihoods.mean()
            if not predictor.sees_behind:
                rest = filler.tokens[filler.places[0] :]
                expected = logs[np.arange(len(rest)), rest].sum()
            assert own.scores[number] == pytest.approx(expected, rel=1e-4)
        pieces = predictor.vocabulary.pieces(np.argsort(-logs[0])[:10])
        assert len(own.best) == 10
        if len(ids) == 1 or not predictor.sees_behind:  # the last filler leaves the row that the single token is predicted in
            assert [token for token, _ in own.best] == pieces


def test_blanks_of_a_masked_model(model, predictor):
    scores = score_blanks(predictor, ITEMS, batch_size=4)
    check_blanks(scores, predictor, lambda filler: masked_logs(model, filler.tokens, filler.places))
    assert len(fill_blank(predictor, ITEMS[0], "assignmentexpression").places) > 1
    assert [one.is_right is None for one in scores] == [False, True, False]
    # A text with more tokens than the model reads is left out.
    longer = ITEMS[2]._replace(before="a " * 70)
    assert [one.item for one in score_blanks(predictor, [longer, *ITEMS], batch_size=4)] == ITEMS


def test_blanks_of_a_causal_model(vocabulary):
    config = Gpt2Config(vocab_size=vocabulary.size, hidden_size=32, num_layers=1, num_heads=2, max_length=24)
    model = language_model(config, vocabulary)

    def logs(filler):
        row, segments = padded(filler.tokens[:-1])
        logits = np.asarray(model.apply(row, segment_ids=segments)["logits"][0], np.float64)
        return scipy.special.log_softmax(logits[filler.places[0] - 1 : len(filler.tokens) - 1], axis=-1)

    predictor = CausalPredictor(model)
    check_blanks(score_blanks(predictor, ITEMS, batch_size=4), predictor, logs)


def test_blanks_of_an_encoder_decoder(vocabulary):
    ids = dataclasses.replace(vocabulary.token_ids, sentinels=(vocabulary.size - 1, vocabulary.size - 2))
    functions = {name: getattr(vocabulary, name) for name in ("encode", "decode", "pieces", "size")}
    sizes = {"hidden_size": 32, "num_layers": 1, "num_encoder_layers": 1, "num_heads": 2, "head_dim": 8, "feed_forward_size": 32}
    model = language_model(T5Config(vocab_size=vocabulary.size, **sizes), SimpleNamespace(token_ids=ids, **functions))

    def logs(filler):
        first, last = filler.places[0], filler.places[-1]
        read = np.array([*filler.tokens[:first], ids.sentinels[0], *filler.tokens[last + 1 :]])
        written = np.array([model.ends.start, ids.sentinels[0], *filler.tokens[first:last]])
        rows = [*padded(written, 8), *padded(read)]
        names = ("tokens", "segment_ids", "encoder_tokens", "encoder_segment_ids")
        logits = np.asarray(model.apply(**dict(zip(names, rows, strict=True)))["logits"][0], np.float64)
        return scipy.special.log_softmax(logits[1 : len(written)], axis=-1)

    predictor = DenoisingPredictor(model)
    check_blanks(score_blanks(predictor, ITEMS, batch_size=4), predictor, logs)


def test_unigram_baseline_and_means(predictor):
    counts = np.arange(predictor.vocabulary.size) % 97
    unigram = UnigramPredictor(predictor, counts)
    scores = score_blanks(unigram, ITEMS[:1], batch_size=4)
    fillers = [fill_blank(unigram, ITEMS[0], text) for text in ("class", "names")]
    ids = [int(one.tokens[one.places[0]]) for one in fillers]
    frequencies = (counts + 1) / (counts + 1).sum()
    assert scores[0].probabilities[[0, 2]] == pytest.approx(frequencies[ids])
    assert scores[0].ranks[[0, 2]].tolist() == [1 + int(np.sum(counts > counts[id])) for id in ids]
    fields = {"item": ITEMS[0], "probabilities": np.array([0.2, 0.1, 0.3]), "scores": np.array([-2.0, -1.0, -1.0])}
    first = dataclasses.replace(scores[0], ranks=np.array([10, 400, 2]), best=[("class", 0.75)], is_right=True, **fields)
    second = dataclasses.replace(first, ranks=np.array([2, 1, 5]), scores=np.array([-3.0, -2.0, -1.0]), is_right=False)
    without = dataclasses.replace(first, item=ITEMS[2], ranks=np.array([11]), probabilities=np.array([0.4]), is_right=None)
    found = summarize([first, second, without])
    assert (found["rank"], found["top1"], found["top10"]) == (10, 1 / 3, 2 / 3)
    assert found["probability"] == pytest.approx(0.8 / 3)
    assert (found["choice"], found["chance"]) == (0.25, pytest.approx(2 / 3))  # a tie and a loss
    assert (found["calibration"]["items"], found["calibration"]["error"]) == (2, 0.25)


def test_calibration_by_hand():
    error, bins = calibrate(np.array([0.05, 0.1, 0.25, 0.95, 1.0]), np.array([0, 1, 1, 1, 0]))
    assert [(own.predictions, own.confidence, own.accuracy) for own in bins if own.predictions] == [
        (2, pytest.approx(0.075), 0.5),
        (1, 0.25, 1.0),
        (2, pytest.approx(0.975), 0.5),
    ]
    assert error == pytest.approx((2 * 0.425 + 0.75 + 2 * 0.475) / 5)
    assert len(bins) == 10 and calibrate(np.zeros(0), np.zeros(0)).error == 0


def test_facts_by_brute_force(model, predictor):
    """Rank by sorting the vocabulary, without the other objects of a subject."""

    def fact(relation, subject, answer):
        return Fact(relation, subject, Item(f"the {subject} is ", ".", (answer,), (), relation, "f:1"))

    objects = {"class": ["object", "name", "value"], "function": ["value"], "list": ["value", "assignmentexpression"]}
    facts = [fact("kind", subject, answer) for subject, answers in objects.items() for answer in answers]
    found = score_facts(predictor, [*facts, fact("none", "it", "assignmentexpression")], batch_size=4)
    assert [(own.relation, len(own.ranks), own.left_out) for own in found] == [("kind", 5, 1), ("none", 0, 1)]
    single = {answer: int(fill_blank(predictor, facts[0].item, answer).tokens[4]) for answer in ("object", "name", "value")}
    place = 0
    for own in facts[:5]:
        filler = fill_blank(predictor, own.item, own.item.answers[0])
        (logs,) = masked_logs(model, filler.tokens, filler.places)
        valid = {single[answer] for answer in objects[own.subject] if answer in single}
        target = single[own.item.answers[0]]
        for ranks, among in ((found[0].ranks, range(len(logs))), (found[0].typed_ranks, single.values())):
            kept = [id for id in among if id == target or id not in valid]
            assert ranks[place] == 1 + sum(logs[id] > logs[target] for id in kept)
        assert found[0].confidences[place] == pytest.approx(np.exp(logs.max()), rel=1e-4)
        assert found[0].is_right[place] == (int(logs.argmax()) in valid)
        place += 1
    report = fact_report(found)
    assert (report["facts"], report["left_out"], report["majority"]) == (5, 2, 3 / 5)
    assert report["p_at_1"] == report["relations"]["kind"]["p_at_1"] == np.mean(found[0].ranks == 1)
    assert report["relations"]["none"] == {"facts": 0, "left_out": 1}


def test_pairs_about_bias_by_brute_force(model, predictor):
    """Mask each token that both sentences have in a row of its own, given those that differ."""
    pairs = [
        BiasPair("the class is a name", "the function is a name", "stereo", "one", "f:2"),
        BiasPair("an object is the value of it", "a list of names is the value", "antistereo", "two", "f:3"),
        BiasPair("the same", "the same", "stereo", "one", "f:4"),
    ]
    scores = score_bias_pairs(predictor, {"encoder": model}, pairs)
    left, right = (np.array([*predictor.before, *ids, *predictor.behind]) for ids in ([7, 8, 9, 8], [8, 9, 9, 7]))
    assert unmodified(left, right, 1, 1) == ([2, 3], [1, 2])
    for pair, both in zip(pairs, scores, strict=True):
        rows = [np.array([*predictor.before, *model.vocabulary.encode(text).ids, *predictor.behind]) for text in pair[:2]]
        for row, places, score in zip(rows, unmodified(*rows, 1, 1), both, strict=True):
            expected = sum(masked_logs(model, row, [place])[0, row[place]] for place in places)
            assert score == pytest.approx(expected, rel=1e-4)
    report = bias_report(pairs, np.array([[-1.0, -2.0], [-3.0, -2.0], [-1.0, -1.0]]))
    assert report["types"]["one"] == {
        "ties": 1,
        "all": {"pairs": 2, "prefers": 0.75},
        "stereo": {"pairs": 2, "prefers": 0.75},
        "antistereo": {"pairs": 0, "prefers": None},
    }
    assert (report["all"], report["antistereo"]) == ({"pairs": 3, "prefers": 0.5}, {"pairs": 1, "prefers": 0})


def test_pseudo_log_likelihood_within_words(model):
    """Mask with each token the later pieces of its word too."""
    sentence = "an assignmentexpression is"
    (score,) = scorer({"encoder": model}, within_word=True).score([sentence], ["f:1"])
    ids = model.vocabulary.token_ids
    tokens = np.array([ids.cls, *model.vocabulary.encode(sentence).ids, ids.sep])
    pieces, expected = model.vocabulary.pieces(tokens), 0.0
    for place in range(1, len(tokens) - 1):
        end = next(one for one in range(place + 1, len(tokens)) if not pieces[one].startswith("##"))
        expected += masked_logs(model, tokens, np.arange(place, end))[0, tokens[place]]
    assert any(piece.startswith("##") for piece in pieces) and score == pytest.approx(expected, rel=1e-4)


def test_shipped_items_are_read():
    for kind in KINDS:
        items = shipped_items(kind)
        assert 15 <= len(items) <= 30 and {item.kind for item in items} == {kind}
        assert all(item.distractors for item in items) and len({item.text for item in items}) == len(items)


FILES = {
    "mine.jsonl": '{"text": "The ___ is sorted.", "answers": ["list"], "distractors": ["class"]}\n',
    "facts.jsonl": '{"relation": "P1", "template": "[X] is a [Y] .", "subject": "it", "object": "list"}\n',
    "bias.csv": "id,sent_more,sent_less,stereo_antistereo,bias_type\n0,it is a list,it is a class,stereo,kind\n",
    "gap.tsv": "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    "1\tA list is a class, if it is.\tit\t22\tA list\t0\tTRUE\ta class\t10\tFALSE\tu\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_command_prints_tables_and_json(folder, random_model, cache_dir, capsys, monkeypatch):
    measured = []

    def once(*arguments, measure=analyze_cloze._measure):
        measured[:] = measured or [measure(*arguments)]
        return measured[0]

    words = ["analyze", "cloze", f"--model_dir={random_model}", f"--cache_dir={cache_dir}", "--input=mine.jsonl"]
    words += ["--facts=facts.jsonl", "--bias=bias.csv", "--coreference=gap.tsv"]
    with monkeypatch.context() as patch:
        patch.setattr(analyze_cloze, "_measure", once)
        assert cli.main([*words, "--show_items"]) == 0
        text = capsys.readouterr().out
        assert cli.main([*words, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
    assert text.startswith(f"{random_model}: 2 items, 1 fact, 1 pair\neach token masked, beside a unigram baseline\n")
    assert list(report["blanks"]["kinds"]) == ["mine", "gap"] and set(report["blanks"]["kinds"]["gap"]) == {"model", "unigram"}
    first, second = report["blanks"]["items"]
    assert second["text"] == "A list is a class, if ___ is." and second["answers"] == ["A list"]
    assert [one["text"] for one in first["fillers"]] == ["list", "class"] and len(first["best"]) == 10
    assert report["facts"]["model"]["facts"] == 1 and report["bias"]["types"]["kind"]["all"]["pairs"] == 1
    summary = report["blanks"]["kinds"]["mine"]["model"]
    row = next(line.split() for line in text.splitlines() if line.startswith("mine"))
    assert row[:4] == ["mine", "1", "model", f"{first['rank']:,}"] and row[7] == f"{summary['choice']:.1%}"
    assert f"{first['best'][0]['token']} {first['best'][0]['probability']:.1%}" in text
    assert cli.main(["analyze", "cloze", f"--model_dir={random_model}", "--kinds=bias", "--limit=2", "--json"]) == 0
    assert {name: set(own) for name, own in json.loads(capsys.readouterr().out)["blanks"]["kinds"].items()} == {"bias": {"model"}}


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("mine.jsonl", "{", "mine.jsonl:2: not JSON"),
        ("mine.jsonl", '{"answers": ["a"]}', "mine.jsonl:2: no field 'text'"),
        ("mine.jsonl", '{"text": "a", "answers": ["a"]}', "mine.jsonl:2: the text has 0 blanks; write ___ once"),
        ("mine.jsonl", '{"text": "a ____.", "answers": ["a"]}', "mine.jsonl:2: the blank is longer than ___; write it with 3"),
        ("mine.jsonl", '{"text": "___", "answers": []}', "mine.jsonl:2: the text has no answers; each line must be"),
        ("mine.jsonl", '{"text": "___", "answers": "a"}', 'mine.jsonl:2: "answers" is no list of texts'),
        (
            "mine.jsonl",
            '{"text": "___", "answers": ["a"], "distractors": ["b", "a"]}',
            "mine.jsonl:2: 'a' is both an answer and a distractor; remove one of them",
        ),
        ("mine.jsonl", '{"text": "___", "answers": ["\\u200d"]}', r"mine.jsonl:2: '\u200d' has no token"),
        ("mine.jsonl", None, "every item is longer than the model reads; shorten them"),
        ("facts.jsonl", '{"relation": "P1"}', "facts.jsonl:2: no field 'template'"),
        (
            "facts.jsonl",
            '{"relation": "P1", "template": "[X] is", "subject": "a", "object": "b"}',
            "facts.jsonl:2: the template must have [X] and [Y] once each, and is '[X] is'",
        ),
        ("bias.csv", "1,a,b,neither,kind", "bias.csv:3: stereo_antistereo is 'neither', and must be stereo or antistereo"),
        ("bias.csv", "1,,b,stereo,kind", "bias.csv:3: a sentence is empty"),
    ],
)
def test_malformed_files_are_one_line(folder, random_model, capsys, name, line, message):
    content = FILES[name].replace("The", "The " * 70) if line is None else f"{FILES[name]}{line}\n"
    (folder / name).write_text(content)
    flag = {"mine.jsonl": "input", "facts.jsonl": "facts", "bias.csv": "bias"}[name]
    assert cli.main(["analyze", "cloze", f"--model_dir={random_model}", f"--{flag}={name}"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"bertfam: error: {message}") and output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--kinds=sintax"], "--kinds=sintax: there is no kind 'sintax'; did you mean syntax?"),
        (["--limit=0"], "--limit=0 is less than 1"),
        (["--input=none.jsonl"], "no such file: none.jsonl"),
        (
            ["--bias=mine.jsonl"],
            "mine.jsonl:1: no column 'sent_more' but text, answers, distractors; --bias reads files with the",
        ),
        (["--bias=bias.txt"], "bias.txt: the name does not end in .tsv, .csv, .jsonl or .parquet; rename"),
    ],
)
def test_mistakes(folder, random_model, capsys, words, message):
    assert cli.main(["analyze", "cloze", f"--model_dir={random_model}", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith(f"bertfam: error: {message}") and output.err.count("\n") == 1

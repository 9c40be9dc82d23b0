"""Roles of heads: every count by brute force on a tiny model, and the command from files to tables and a page."""

import gzip
import json
import string

import jax
import numpy as np
import pytest

import bertfam
from bertfam import cli
from bertfam.analysis.attention_sums import AttentionSums
from bertfam.analysis.coreference import CoreferenceTask, read_passages
from bertfam.analysis.cross_attention import NEAR, cross_statistics, measure_cross_attention
from bertfam.analysis.dependencies import ALL, DependencyTask, read_sentences
from bertfam.analysis.head_statistics import OFFSETS, head_statistics, head_sums, statistic_features
from bertfam.analysis.subject import batches, open_subject
from bertfam.commands import analyze_heads
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.interop import huggingface
from bertfam.models.bart import BartConfig

MEANS = ("confidence", "entropy", "previous", "next", "same", "cls", "sep", "punctuation", "rare")
TEXTS = [
    "The assignment statement binds names to values, and the values to names.",
    "Return it.",
    "A class definition defines a class object; it is an executable statement.",
]
CONLLU = """\
# text = Statements bind names.
1\tStatements\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\tbind\t_\tVERB\t_\t_\t0\troot\t_\t_
3-4\tnames.\t_\t_\t_\t_\t_\t_\t_\t_
3\tnames\t_\tNOUN\t_\t_\t2\tobj\t_\t_
4\t.\t_\tPUNCT\t_\t_\t2\tpunct\t_\t_

1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\treimplementation\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\treturned\t_\tVERB\t_\t_\t0\troot\t_\t_
4\tvalues\t_\tNOUN\t_\t_\t3\tobj\t_\t_
"""
GAP_COLUMNS = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
GAP = [
    "1\tAnn met Barbara when she came.\tshe\t21\tAnn\t0\tFALSE\tBarbara\t8\tTRUE\tu",
    "2\tThe class of Carl calls it, and Don uses him.\thim\t41\tCarl\t13\tTRUE\tDon\t32\tFALSE\tu",
    "3\tAnn met Eve, she said.\tshe\t13\tAnn\t0\tFALSE\tEve\t8\tFALSE\tu",
]


@pytest.fixture(scope="module")
def subject(random_model):
    return open_subject(str(random_model), length=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the three files."""
    folder = tmp_path_factory.mktemp("heads")
    (folder / "texts.tsv").write_text("\n".join(["text", *TEXTS]) + "\n")
    (folder / "tree.conllu.gz").write_bytes(gzip.compress(CONLLU.encode()))
    (folder / "gap.tsv").write_text("\n".join([GAP_COLUMNS, *GAP]) + "\n")
    return folder


def weights_of(subject, row):
    """Return the attention weights of one row alone: [layers, heads, length, length]."""
    found = subject.model.apply(row.ids[None], token_type_ids=row.types[None], collect=["attention_probs"])
    return np.asarray(found["attention_probs"])[:, 0]


def test_statistics_by_brute_force(subject):
    rows = [subject.row(text) for text in TEXTS]
    sums = AttentionSums(subject, head_sums).total(subject.model.params, batches(statistic_features(subject, rows), 2), "")
    pieces = [subject.vocabulary.pieces(row.ids.tolist()) for row in rows]
    counts = {}
    for id in np.concatenate([row.ids[row.texts >= 0] for row in rows]).tolist():
        counts[id] = counts.get(id, 0) + 1
    queries = sum(int((row.texts >= 0).sum()) for row in rows)
    assert sums["queries"] == queries and sums["cls_queries"] == sums["sep_queries"] == len(TEXTS)
    uniform = sum((len(row.ids) - 2) * np.log(len(row.ids)) for row in rows)
    assert sums["uniform_entropy"] == pytest.approx(np.array([uniform, uniform]), rel=1e-5)
    for own in head_statistics(sums):
        expected = dict.fromkeys(
            (
                "confidence",
                "entropy",
                "previous",
                "next",
                "same",
                "cls",
                "sep",
                "punctuation",
                "rare",
                "cls_entropy",
                "sep_to_sep",
            ),
            0.0,
        )
        offsets = []
        for row, names in zip(rows, pieces, strict=True):
            weights = weights_of(subject, row)[own.layer - 1, own.head - 1].astype(np.float64)
            length, fewest = len(names), min(counts[id] for id in row.ids[1:-1].tolist())
            for query in range(length):
                w = weights[query]
                entropy = -sum(value * np.log(value) for value in w)
                if query == 0:
                    expected["cls_entropy"] += entropy / len(TEXTS)
                elif query == length - 1:
                    expected["sep_to_sep"] += w[-1] / len(TEXTS)
                else:
                    best = int(np.argmax(w))
                    offsets.append(best - query)
                    marks = [place for place, name in enumerate(names) if all(char in string.punctuation for char in name)]
                    is_rare = 0 < best < length - 1 and counts[int(row.ids[best])] == fewest
                    for name, value in {
                        "confidence": w.max(),
                        "entropy": entropy,
                        "previous": w[query - 1],
                        "next": w[query + 1],
                        "same": w[query],
                        "cls": w[0],
                        "sep": w[-1],
                        "punctuation": w[marks].sum(),
                        "rare": is_rare,
                    }.items():
                        expected[name] += value / queries
        for name, value in expected.items():
            assert getattr(own, name) == pytest.approx(value, abs=1e-5), name
        hits = [offsets.count(offset) for offset in OFFSETS]
        assert own.offset_share == pytest.approx(max(hits) / queries) and hits[OFFSETS.index(own.offset)] == max(hits)


@pytest.fixture(scope="module")
def encoder_decoder(tmp_path_factory):
    """Return a Hugging Face folder of a random BART."""
    folder = tmp_path_factory.mktemp("bart")
    vocabulary = ByteBpe.train(TEXTS * 4, size=280, layout=LAYOUTS["roberta"])
    vocabulary.save(folder / "tokenizer")
    sizes = {
        "num_layers": 2,
        "num_encoder_layers": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "feed_forward_size": 24,
        "max_length": 80,
    }
    config = BartConfig(vocab_size=vocabulary.size, **sizes)
    shapes = huggingface.shapes_of(config, frozenset({"embeddings", "encoder", "decoder"}))
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), shapes)
    huggingface.write(folder / "model", config, params, tokenizer_files=sorted((folder / "tokenizer").iterdir()))
    return folder / "model"


TARGETS = ["Names are bound.", "Returns the value, and ends; it is short.", "Yes."]


def test_cross_attention_by_brute_force(encoder_decoder):
    model, subject = bertfam.load(encoder_decoder), open_subject(str(encoder_decoder))
    pairs = [*zip(TEXTS, TARGETS, strict=True)]
    found = measure_cross_attention(subject, {"trained": model.params}, pairs, 2)
    rows = [(subject.row(text), model.vocabulary.encode(target).ids) for text, target in pairs]
    counts = {}
    for source, _ in rows:
        for id in source.ids[1:-1].tolist():
            counts[id] = counts.get(id, 0) + 1
    names = ("confidence", "entropy", "cls", "sep", "punctuation", "same_place", "rare")
    expected = {(layer, head): dict.fromkeys(names, 0.0) for layer in (1, 2) for head in (1, 2)}
    queries, near_by_chance = sum(len(ids) for _, ids in rows), 0.0
    for source, ids in rows:
        inputs = np.concatenate([[model.ends.start], ids])[None]
        weights = model.apply(inputs, encoder_tokens=source.ids[None], collect=["cross_attention_probs"])
        weights = np.asarray(weights["cross_attention_probs"], np.float64)[:, 0]
        length, fewest = len(source.ids), min(counts[id] for id in source.ids[1:-1].tolist())
        text = [model.vocabulary.decode([id]).strip() for id in source.ids.tolist()]
        marks = [place for place in range(1, length - 1) if text[place] and set(text[place]) <= set(string.punctuation)]
        for query in range(len(ids)):
            place = (query + 0.5) / len(ids)
            near = [key for key in range(1, length - 1) if abs((key - 0.5) / (length - 2) - place) <= NEAR]
            near_by_chance += len(near) / length / queries
            for (layer, head), sums in expected.items():
                w = weights[layer - 1, head - 1, query + 1]
                best = int(np.argmax(w))
                sums["confidence"] += w.max() / queries
                sums["entropy"] -= sum(value * np.log(value) for value in w if value) / queries
                sums["cls"] += w[0] / queries
                sums["sep"] += w[-1] / queries
                sums["punctuation"] += w[marks].sum() / queries
                sums["same_place"] += (best in near) / queries
                sums["rare"] += (0 < best < length - 1 and counts[int(source.ids[best])] == fewest) / queries
    assert found["pairs"] == 3 and found["tokens"] == queries
    assert found["place_by_chance"] == pytest.approx(near_by_chance, rel=1e-5)
    assert [(own["layer"], own["head"]) for own in found["heads"]["trained"]] == list(expected)
    for own in found["heads"]["trained"]:
        for name, value in expected[own["layer"], own["head"]].items():
            assert own[name] == pytest.approx(value, abs=1e-5), name
        assert ("same place" in own["roles"]) == (own["same_place"] >= 0.5)


def test_roles_of_cross_attention():
    shares = {"confidence": 0.9, "entropy": 0.1, "cls": 0.1, "sep": 0.5, "punctuation": 0.0, "same_place": 0.8, "rare": 0.0}
    sums = {name: np.array([[10 * share]]) for name, share in shares.items()} | {"queries": np.array(10.0)}
    (head,) = cross_statistics(sums)
    assert head.roles == ["same place", "[SEP]"] and head.confidence == pytest.approx(0.9)


def test_command_measures_the_cross_attention_of_targets(encoder_decoder, random_model, tmp_path, capsys):
    path = tmp_path / "pairs.tsv"
    path.write_text("text\tsummary\n" + "".join(f"{text}\t{target}\n" for text, target in zip(TEXTS, TARGETS, strict=True)))
    words = ["analyze", "heads", f"--input={path}", "--target=summary", "--random_init", f"--output={tmp_path / 'heads.html'}"]
    assert cli.main([*words, f"--model_dir={encoder_decoder}"]) == 0
    printed = capsys.readouterr().out
    for title in ("Heads, trained\n", "Cross-attention, trained\n", "Cross-attention, random initialisation\n"):
        assert title in printed
    assert "3 texts with targets, whose" in printed and "[SEP]  punct  rare  place  roles" in printed
    assert (tmp_path / "heads.html").read_text().count("<svg") == 28  # twice 8 and twice 6
    assert cli.main([*words[:-1], f"--model_dir={random_model}"]) == 2
    assert "--target: the model is an encoder, without cross-attention" in capsys.readouterr().err


def word_weights(weights, row, words):
    """Return the attention between words by loops: the sum over the pieces attended to, the mean over those that attend."""
    ends = np.cumsum([len(word) + 1 for word in words])
    pieces = [
        [place for place in range(len(row.ids)) if row.texts[place] >= 0 and end - len(word) - 1 <= row.offsets[place, 0] < end]
        for word, end in zip(words, ends, strict=True)
    ]
    return np.array([[np.mean([sum(weights[q, k] for k in to) for q in own]) for to in pieces] for own in pieces])


def test_dependencies_by_brute_force(subject, folder):
    sentences = read_sentences(folder / "tree.conllu.gz")
    assert [sentence.words for sentence in sentences] == [
        ["Statements", "bind", "names", "."],
        ["The", "reimplementation", "returned", "values"],
    ]
    task = DependencyTask(subject, sentences)
    assert (np.bincount(task.features["words"][1] + 1)[1:] > 1).any()  # a word of several pieces
    sums = AttentionSums(subject, task.sums).total(subject.model.params, batches(task.features, 4), "")
    layers, heads = sums["correct"].shape[1:3]
    expected = np.zeros((2, layers, heads, len(task.relations)))
    for sentence in sentences:
        row = subject.row(" ".join(sentence.words))
        weights = weights_of(subject, row)
        for layer, head in np.ndindex(layers, heads):
            words = word_weights(weights[layer, head], row, sentence.words)
            for direction, table in enumerate((words, words.T)):
                for word, (target, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
                    others = [other for other in range(len(words)) if other != word]
                    predicted = max(others, key=lambda other: table[word, other])
                    expected[direction, layer, head, task.relations.index(relation)] += target == predicted
    np.testing.assert_allclose(sums["correct"][..., task.relations.index("root")], 0)
    np.testing.assert_allclose(sums["correct"], expected)
    scores = {score.relation: score for score in task.scores(sums)}
    # Offsets: nsubj +1 twice, obj -1 twice, det +1; punct -2 is not among all.
    assert {name: (own.count, own.offset, own.offset_accuracy) for name, own in scores.items()} == {
        ALL: (5, 1, 0.6),
        "nsubj": (2, 1, 1.0),
        "obj": (2, -1, 1.0),
        "det": (1, 1, 1.0),
        "punct": (1, -2, 1.0),
    }
    for name in ("nsubj", "obj"):
        assert scores[name].accuracy == expected[..., task.relations.index(name)].max() / 2


def test_coreference_by_brute_force(subject, folder):
    passages = read_passages(folder / "gap.tsv")
    assert [passage.text[slice(*passage.name)] for passage in passages] == ["Barbara", "Carl"]
    task = CoreferenceTask(subject, passages)
    sums = AttentionSums(subject, task.sums).total(subject.model.params, batches(task.features, 4), "")
    expected = np.zeros(sums["correct"].shape)
    for passage in passages:
        row = subject.row(passage.text)
        weights = weights_of(subject, row)
        pronoun, name, other = (
            [place for place in range(1, len(row.ids) - 1) if row.offsets[place, 0] < end and row.offsets[place, 1] > start]
            for start, end in (passage.pronoun, passage.name, passage.other)
        )
        for layer, head in np.ndindex(expected.shape[1:]):
            own = weights[layer, head]
            to = [np.mean([own[q, keys].sum() for q in pronoun]) for keys in (name, other)]
            back = [np.mean([own[q, pronoun].sum() for q in queries]) for queries in (name, other)]
            expected[0, layer, head] += to[0] > to[1]
            expected[1, layer, head] += back[0] > back[1]
    np.testing.assert_array_equal(sums["correct"], expected)
    assert sums["count"] == 2 and task.scores(sums)[0].accuracy == expected.max() / 2
    assert task.baselines() == {"the nearer name": 0.5, "the first name": 0.5}


def test_command_prints_tables_and_writes_a_page(random_model, folder, tmp_path, capsys, monkeypatch):
    reports = []

    def kept(args, report, *rest, write=analyze_heads.write_report):
        reports.append(report)
        write(args, report, *rest)

    monkeypatch.setattr(analyze_heads, "write_report", kept)
    flags = ["analyze", "heads", f"--model_dir={random_model}", "--length=32", "--batch_size=4"]
    flags += [f"--coreference={folder / 'gap.tsv'}"]
    more = ["--random_init", f"--input={folder / 'texts.tsv'}", f"--dependencies={folder / 'tree.conllu.gz'}"]
    assert cli.main([*flags, *more, f"--output={tmp_path / 'heads.html'}"]) == 0
    text = capsys.readouterr().out
    for title in ("Heads, trained\n", "Heads, random initialisation\n", "Dependencies\n", "Coreference\n"):
        assert title in text
    page = (tmp_path / "heads.html").read_text()
    assert page.count("<svg") == 16 and "<script" not in page and "http:" not in page
    report = json.loads(json.dumps(reports[0]))  # as --json prints it
    trained, fresh = report["statistics"]["heads"].values()
    assert [f"{own['layer']}-{own['head']}" for own in trained] == ["1-1", "1-2", "2-1", "2-2"]
    # Attention of new parameters, small as they are, is nearly uniform.
    assert all(abs(own["entropy"] - report["statistics"]["uniform_entropy"][0]) < 0.05 for own in fresh)
    assert report["coreference"]["passages"] == 2 and len(report["coreference"]["scores"]["trained"]) == 8
    assert cli.main([*flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coreference"]["scores"]["trained"] == report["coreference"]["scores"]["trained"]


@pytest.mark.parametrize(
    ("flags", "content", "message"),
    [
        ([], "", "nothing to measure: give --input=GLOB, --dependencies=FILE or --coreference=FILE"),
        (["--dependencies=FILE", "--limit=0"], "", "--limit=0 is less than 1"),
        (["--dependencies=FILE"], "", "FILE has no sentences"),
        (["--dependencies=FILE"], "1\tA\n", "FILE:1: 2 columns, and CoNLL-U has 10, separated by tabs; name another file"),
        (
            ["--dependencies=FILE"],
            "1\tA\t_\t_\t_\t_\tx\tdet\t_\t_\n",
            "FILE:1: the head is 'x', and must be the number of a word",
        ),
        (
            ["--dependencies=FILE"],
            "1\tA\t_\t_\t_\t_\t7\tdet\t_\t_\n",
            "FILE:1: the head of 'A' is word 7, and the sentence",
        ),
        (["--dependencies=FILE"], "2\tA\t_\t_\t_\t_\t0\troot\t_\t_\n", "FILE:1: word '2' follows word 0"),
        (["--coreference=FILE"], "ID\tText\n1\ta\n", "FILE:2: no column 'Pronoun' but ID, Text; --coreference reads files"),
        (
            ["--coreference=FILE"],
            f"{GAP_COLUMNS}\n{GAP[0].replace('21', '22')}\n",
            "FILE:2: Pronoun-offset is '22', and 'she'",
        ),
        (
            ["--coreference=FILE"],
            f"{GAP_COLUMNS}\n{GAP[0].replace('TRUE', 'YES')}\n",
            "FILE:2: B-coref is 'YES', and must be",
        ),
        (
            ["--coreference=FILE"],
            f"{GAP_COLUMNS}\n{GAP[2]}\n",
            "FILE has no passage whose pronoun stands for",
        ),
        (["--dependencies=FILE", "--length=99"], CONLLU, "--length=99 is more than 64, the tokens of the model's longest row"),
        (["--dependencies=FILE", "--length=3"], CONLLU, "no sentence of --dependencies fits into rows of 3 tokens"),
    ],
)
def test_mistakes_are_one_line(random_model, tmp_path, capsys, flags, content, message):
    path = tmp_path / "file.txt"
    path.write_text(content)
    flags = [flag.replace("FILE", str(path)) for flag in flags]
    assert cli.main(["analyze", "heads", f"--model_dir={random_model}", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bertfam: error: {message.replace('FILE', str(path), 1) if message.startswith('FILE') else message}")


def test_random_parameters_have_the_shapes_of_the_trained_ones(subject):
    fresh, trained = subject.random_params(), subject.model.params
    assert jax.tree.map(np.shape, fresh) == jax.tree.map(np.shape, trained)
    again = subject.random_params()
    assert all(np.array_equal(one, other) for one, other in zip(jax.tree.leaves(fresh), jax.tree.leaves(again), strict=True))

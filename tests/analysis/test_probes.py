"""Probes: features, networks and scores against loops and by hand, and the command from files to tables and a page."""

import gzip
from contextlib import redirect_stdout
from io import StringIO

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from browser import needs_chromium, opened

from bertfam import cli
from bertfam.analysis.probes.control import baselines, control_labels
from bertfam.analysis.probes.data import ProbeData, ProbeSplit, encode_targets
from bertfam.analysis.probes.features import LayerFeatures, standardize
from bertfam.analysis.probes.measures import centre_of_gravity, expected_layer
from bertfam.analysis.probes.networks import PROBES
from bertfam.analysis.probes.probing import Probing
from bertfam.analysis.probes.targets import Columns, Target, TargetSentence, read_targets
from bertfam.analysis.probes.training import ProbeSettings, ProbeTrainer
from bertfam.analysis.subject import Subject, open_subject
from bertfam.api import LanguageModel
from bertfam.decoding.end_tokens import end_tokens
from bertfam.errors import UserError
from bertfam.layers.heads.scalar_mix import ScalarMix
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.language_model import init_language_model

CONLLU = """\
1\tStatements\t_\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tbind\t_\tVERB\tVBP\t_\t0\troot\t_\t_
3-4\tnames.\t_\t_\t_\t_\t_\t_\t_\t_
3\tnames\t_\tNOUN\tNNS\t_\t2\tobj\t_\t_
4\t.\t_\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\tThe\t_\tDET\tDT\t_\t2\tdet\t_\t_
2\tnaïve\u00a0reimplementation's\t_\tNOUN\tNN\t_\t3\tnsubj\t_\t_
3\treturned\t_\tVERB\tVBD\t_\t0\troot\t_\t_
4\tvalues\t_\tNOUN\tNNS\t_\t3\tobj\t_\t_
"""
CONLL = """\
Guido\tB-person
van\tI-person
Rossum\tI-person
left\tO
Google\tB-company

It\tO
was\tO
Dropbox\tB-company
"""
EDGES = [
    '{"text": "names are bound", "targets": [{"span1": [0, 1], "span2": [1, 3], "label": "a"}]}',
    '{"text": "it is", "targets": [{"span1": [1, 2], "span2": [0, 1], "label": "b"}], "info": {}}',
]
PAIRS = [
    TargetSentence(["a", "b", "c"], [Target(((0, 1), (1, 3)), "x"), Target(((2, 3), (0, 1)), "y")]),
    TargetSentence(["the", "reimplementation", "returns"], [Target(((1, 2), (2, 3)), "x")]),
]


@pytest.fixture(scope="module")
def subject(random_model):
    return open_subject(str(random_model), length=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a file of each kind."""
    folder = tmp_path_factory.mktemp("probes")
    (folder / "tree.conllu.gz").write_bytes(gzip.compress(CONLLU.encode()))
    (folder / "entities.conll").write_text(CONLL)
    (folder / "edges.jsonl").write_text("\n".join(EDGES) + "\n")
    return folder


@pytest.mark.parametrize(
    ("task", "file", "columns", "expected"),
    [
        ("tags", "tree.conllu.gz", Columns(), [["NOUN", "VERB", "NOUN", "PUNCT"], ["DET", "NOUN", "VERB", "NOUN"]]),
        ("tags", "tree.conllu.gz", Columns(tags="5"), [["NNS", "VBP", "NNS", "."], ["DT", "NN", "VBD", "NNS"]]),
        ("relations", "tree.conllu.gz", Columns(), [["nsubj", "obj", "punct"], ["det", "nsubj", "obj"]]),
        ("entities", "entities.conll", Columns(), [["person", "company"], ["company"]]),
        ("edges", "edges.jsonl", Columns(), [["a"], ["b"]]),
    ],
)
def test_targets_of_files(folder, task, file, columns, expected):
    sentences = read_targets(task, str(folder / file), columns)
    assert [[target.label for target in sentence.targets] for sentence in sentences] == expected
    spans = {
        "relations": [((0, 1), (1, 2)), ((2, 3), (1, 2)), ((3, 4), (1, 2))],
        "entities": [((0, 3),), ((4, 5),)],
        "edges": [((0, 1), (1, 3))],
    }
    if task in spans:
        assert [target.spans for target in sentences[0].targets] == spans[task]
    assert read_targets(task, str(folder / file), columns, limit=1) == sentences[:1]


def test_text_that_is_no_unicode_is_replaced(tmp_path):
    (tmp_path / "edges.jsonl").write_text('{"text": "a \\ud800 b", "targets": [{"span1": [1, 2], "label": "\\udfff"}]}\n')
    assert read_targets("edges", str(tmp_path / "edges.jsonl"), Columns()) == [
        TargetSentence(["a", "\ufffd", "b"], [Target(((1, 2),), "\ufffd")])
    ]


def test_pieces_of_a_span_are_those_of_its_words(subject, folder):
    """The pieces of each span spell its words, on sentences with words of several pieces, accents and a space in a word."""
    sentences = read_targets("tags", str(folder / "tree.conllu.gz"), Columns())
    sentences += read_targets("entities", str(folder / "entities.conll"), Columns())
    data = encode_targets("tags", subject.rows, sentences, sentences)
    split, numbers = data.train, np.concatenate([[0], np.cumsum([len(own) for own in data.train.positions])])
    targets = [(sentence, target) for sentence in sentences for target in sentence.targets]
    assert split.skipped == 0 and len(split.labels) == len(targets) and (split.sizes > 1).any()
    starts = np.concatenate([[0], np.cumsum(split.sizes.sum(axis=1))])
    for target, (sentence, expected) in enumerate(targets):
        pieces = []
        for token in split.tokens[starts[target] : starts[target + 1]]:
            row = int(np.searchsorted(numbers, token, side="right")) - 1
            position = split.positions[row][token - numbers[row]]
            start, end = split.rows[row].offsets[position]
            pieces.append(" ".join(sentence.words)[start:end])
        text = " ".join(sentence.words[slice(*expected.spans[0])])
        assert "".join(pieces) == "".join(text.split())
        assert data.classes[split.labels[target]] == expected.label
        assert split.types[target] == text


def test_features_are_the_hidden_states_of_each_row_alone(subject, vocabulary):
    config = Gpt2Config(vocab_size=vocabulary.size, num_layers=1, hidden_size=16, num_heads=2, max_length=32)
    params = nn.meta.unbox(init_language_model(config, jax.random.key(0)))
    causal = Subject(LanguageModel(config, params, vocabulary, end_tokens(config, vocabulary.token_ids)), 32)
    for own, layers, width in ((subject, 3, 32), (causal, 2, 16)):
        split = encode_targets("edges", own.rows, PAIRS, PAIRS).train
        features = LayerFeatures(own, 2)
        assert features.shape == (layers, width) and features.size(split) == 4 * split.token_count * layers * width
        found = features.compute(own.model.params, split, "")
        expected = []
        for row, positions in zip(split.rows, split.positions, strict=True):
            tokens, segments = (np.pad(values, (0, 32 - len(row.ids)))[None] for values in (row.ids, np.ones_like(row.ids)))
            states = own.model.apply(tokens, segment_ids=segments, collect=["hidden_states"])["hidden_states"]
            expected.append(np.asarray(states)[:, 0, positions])
        np.testing.assert_allclose(found, np.concatenate(expected, axis=1).swapaxes(0, 1), atol=1e-5)


def test_sentences_beyond_a_row_are_left_out(random_model):
    short = open_subject(str(random_model), length=6)
    split = encode_targets("edges", short.rows, PAIRS, PAIRS).train
    assert (split.skipped, split.labels.tolist()) == (1, [0, 1])  # the second sentence has too many pieces


def test_features_are_standardized_by_those_to_train_on():
    generator = np.random.default_rng(0)
    train, held_out = (generator.normal(3, 2, (size, 2, 3)).astype(np.float32) for size in (50, 7))
    train[:, 1, 2] = held_out[:, 1, 2] = 4  # a constant
    mean, deviation = train.mean(0), train.std(0)
    expected = (held_out - mean) / np.where(deviation, deviation, 1)
    standardize(train, held_out)
    np.testing.assert_allclose(held_out, expected, atol=1e-4)
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)


def test_measures_by_hand():
    assert centre_of_gravity(np.array([0.5, 0.25, 0.25])) == pytest.approx(0.75)
    # Differences 0.2 and 0.1: (1 * 0.2 + 2 * 0.1) / 0.3.
    assert expected_layer(np.array([0.5, 0.7, 0.8])) == pytest.approx(4 / 3)
    assert np.isnan(expected_layer(np.array([0.5, 0.7, 0.5])))


def test_mix_by_hand():
    hidden = jnp.array([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    params = {"params": {"weights": jnp.log(jnp.array([1.0, 3.0, 7.0])), "gamma": jnp.array([2.0])}}
    mixed = ScalarMix().apply(params, hidden, jnp.array([True, True, False]))
    np.testing.assert_allclose(mixed, 2 * (0.25 * hidden[0] + 0.75 * hidden[1]), rtol=1e-6)


@pytest.mark.parametrize("name", ["linear", "mlp", "edge"])
def test_networks_by_loops(subject, name):
    """The logits of a batch with padding are those of each target by itself."""
    split = encode_targets("edges", subject.rows, PAIRS, PAIRS).train
    features = np.random.default_rng(0).standard_normal((split.token_count, 3, 5)).astype(np.float32)
    among, network = np.array([True, False, True]), PROBES[name](4, 6)
    tokens, segments = split.span_tokens(np.array([2, 0, 1]))
    inputs = np.pad(features[tokens], ((0, 4), (0, 0), (0, 0))), np.pad(segments, (0, 4), constant_values=6)
    inputs = (*inputs, split.sizes[[2, 0, 1]].astype(np.float32), among)
    shapes = nn.meta.unbox(jax.eval_shape(network.init, jax.random.key(0), *inputs))
    generator = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), shapes)
    found = jax.jit(network.apply)(params, *inputs)
    own = jax.tree.map(np.asarray, params["params"])
    shares = np.exp(own["mix"]["weights"]) * among
    mixed = np.einsum("l,tle->te", own["mix"]["gamma"] * shares / shares.sum(), features)
    starts = np.concatenate([[0], np.cumsum(split.sizes.ravel())])

    def dense(layer, values):
        return values @ own[layer]["kernel"] + own[layer]["bias"]

    for logits, target in zip(found, [2, 0, 1], strict=True):
        spans = [mixed[split.tokens[starts[span] : starts[span + 1]]] for span in (2 * target, 2 * target + 1)]
        if name == "edge":
            pooled = []
            for number, span in enumerate(spans):
                projected = dense(f"projection_{number}", span)
                weights = np.exp(dense(f"attention_{number}", projected)[:, 0])
                pooled.append(weights @ projected / weights.sum())
            expected = dense("labels", np.maximum(dense("units", np.concatenate(pooled)), 0))
        else:
            means = np.concatenate([span.mean(0) for span in spans])
            expected = dense("Dense_0", means) if name == "linear" else dense("Dense_1", np.maximum(dense("Dense_0", means), 0))
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def single_tokens(labels, types):
    """Return a split of targets of one span of one token each."""
    count = len(labels)
    numbers = np.arange(count)
    return ProbeSplit([], [numbers], numbers, np.ones((count, 1), int), np.asarray(labels, np.int32), list(types), 0)


def test_probes_find_what_features_have_and_nothing_else():
    """Layer 0 is noise, layer 1 has the label, layer 2 the word type, each as a vector of its own."""
    generator = np.random.default_rng(0)
    known, types = 24, 32  # types that occur in training, and all
    splits, features = [], []
    for count, most in ((768, known), (256, types)):
        labels, kinds = generator.integers(0, 4, count), generator.integers(0, most, count)
        own = generator.standard_normal((count, 3, types)).astype(np.float32)
        own[:, 1], own[:, 2] = np.eye(types)[labels], np.eye(types)[kinds]
        splits.append(single_tokens(labels, [f"word {kind}" for kind in kinds]))
        features.append(own)
    data = ProbeData(("a", "b", "c", "d"), *splits)
    settings = ProbeSettings(epochs=8, batch_size=64, learning_rate=0.03)
    trainer = ProbeTrainer(data, (3, types), settings)
    scores = trainer.scores(*features, seed=0)
    assert scores.layers[1] == 1 and scores.layers[[0, 2]].max() < 0.4
    assert scores.cumulative[0] == scores.layers[0] and scores.cumulative[1:].min() > 0.95
    assert scores.weights.sum() == pytest.approx(1, abs=1e-6) and scores.weights[1] > 0.5
    # Types that are seen are memorised, others are left to chance.
    control = data.labels(data.held_out)[1]
    seen = np.array([int(kind.split()[1]) < known for kind in data.held_out.types])
    assert data.seen == seen.mean()
    chance = max(np.mean(control[~seen] == label) for label in range(4)) * (1 - seen.mean())
    assert seen.mean() <= scores.control[2] <= seen.mean() + chance + 1e-9
    assert scores.control[:2].max() < 0.5
    again = trainer.scores(*features, seed=0)
    assert all(np.array_equal(one, other) for one, other in zip(scores, again, strict=True))
    assert not np.array_equal(trainer.scores(*features, seed=1).layers, scores.layers)
    with pytest.raises(UserError, match="the probes of seed 2 are NaN or infinite after training with --learning_rate=0.03"):
        trainer.scores(np.full_like(features[0], np.inf), features[1], seed=2)


def test_control_task_has_a_label_for_each_type():
    labels = np.repeat(np.arange(3, dtype=np.int32), [700, 200, 100])
    known = [f"word {number}" for number in range(2000)]
    types = [*known, *known]
    found = control_labels(types, types, labels)
    np.testing.assert_array_equal(found[:2000], found[2000:])
    np.testing.assert_allclose(np.bincount(found) / len(found), [0.7, 0.2, 0.1], atol=0.04)
    np.testing.assert_array_equal(control_labels(types[:5], types, labels), found[:5])
    assert (control_labels(types, types, labels, seed=1) != found).any()


def test_baselines_by_hand():
    train = ["a", "a", "a", "b", "c"], np.array([0, 0, 1, 1, 1])
    held_out = ["a", "b", "d", "a"], np.array([0, 1, 1, -1])
    assert baselines(train, held_out) == {"commonest label": 0.5, "commonest label of the word": 0.75}


@pytest.fixture(scope="module")
def probed(random_model, folder, tmp_path_factory):
    """Return the page, the lines and the report of the command."""
    path, report, out = tmp_path_factory.mktemp("page") / "probes.html", {}, StringIO()

    def kept(self, parameters, whole=Probing.report):
        report.update(whole(self, parameters))
        return report

    files = {"tags": "tree.conllu.gz", "relations": "tree.conllu.gz"}
    words = [f"--{task}{end}={folder / file}" for task, file in files.items() for end in ("", "_held_out")]
    words += [f"--model_dir={random_model}", "--epochs=2", "--seeds=0,1", "--random_init", f"--output={path}"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(Probing, "report", kept)
        assert cli.main(["analyze", "probes", *words]) == 0
    return path, out.getvalue().splitlines(), report


def test_command_prints_a_plan_and_tables(probed):
    path, lines, report = probed
    assert lines[0] == "linear probes of 2 layers and the embeddings, 32 wide, with 2 seeds on 2 sets of parameters"
    expected = "tags: 8 targets and 8 held out, 4 labels; features of 0.00 GB; 9 probes at once, 2 updates"
    assert lines[1] == expected and lines[-1] == f"wrote {path}"
    place = lines.index("relations: accuracy")
    assert "6 targets to train on and 6 held out, of 4 labels; 0 left out" in lines[place + 1]
    assert lines[place + 2].split() == ["parameters", "0", "1", "2", "mix", "sd"]
    own = report["tasks"]["relations"]["scores"]["trained"]
    assert lines[place + 3].split()[1] == f"{np.mean([seed[0] for seed in own['accuracy']]):.1%}"
    assert lines[place + 4].startswith("random initialisation")
    np.testing.assert_allclose(own["selectivity"], np.subtract(own["accuracy"], own["control"]))


def test_page_has_plots_and_no_script(probed):
    text = probed[0].read_text()
    assert text.count("<svg") == 4 and "<script" not in text and "http:" not in text
    for title in ("tags: accuracy", "relations: selectivity", "random initialisation, control task"):
        assert title in text


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(probed, width):
    with opened(probed[0], width) as shown:
        assert shown.locator("svg circle").count() == 24 and shown.locator("table").count() == 12


@pytest.mark.parametrize(
    ("flags", "content", "message"),
    [
        ([], "", "nothing to probe: give --tags=FILE, --relations=FILE, --entities=FILE, --edges=FILE, or several of them"),
        (["--tags_held_out=FILE"], "", "--tags_held_out goes with --tags=FILE, the sentences to train on"),
        (["--tags=FILE", "--probe=liner"], CONLL, "--probe=liner is none of linear, mlp, edge; did you mean linear?"),
        (["--tags=FILE", "--epochs=0"], CONLL, "--epochs=0 is less than 1"),
        (["--tags=FILE", "--learning_rate=nan"], CONLL, "--learning_rate=nan must be a finite number above 0"),
        (["--tags=FILE"], "\n", "FILE has no tags: name another file with --tags"),
        (["--tags=FILE"], "a\tX\n", "too few sentences to hold a tenth of them out: give --tags_held_out=FILE"),
        (["--tags=FILE", "--tags_held_out=FILE"], "a\tX\n", "--tags has only the label 'X': probes tell two labels or more"),
        (["--entities=FILE"], "a\tX\n", "FILE:1: a word of the sentence has the tag 'X'; entities have O, B-KIND and I-KIND"),
        (["--entities=FILE"], "a\tB-\n", "FILE:1: a word of the sentence has the tag 'B-'; entities have O, B-KIND and I-KIND"),
        (
            ["--edges=FILE", "--label=2"],
            EDGES[0],
            "--label is a column of --tags and --entities: give one of them, or leave it out",
        ),
        (["--relations=FILE"], "1\tA\n", "FILE:1: 2 columns, and CoNLL-U has 10, separated by tabs; name another file"),
        (["--edges=FILE"], '{"text": "a"}\n', "FILE:1: the object must have a text, and a list of targets"),
        (["--edges=FILE"], '{"text": "a", "targets": [1]}\n', "FILE:1: a target must be an object with span1 and a label"),
        (
            ["--edges=FILE"],
            '{"text": "a", "targets": [{"span1": [0, 2], "label": "x"}]}\n',
            "FILE:1: span1 is [0, 2], and must be [FIRST, END] within the 1 word of the text",
        ),
        (
            ["--edges=FILE"],
            '{"text": "a", "targets": [{"span1": [0, 1], "label": "x"}]}\n' + EDGES[0] + "\n",
            "FILE:2: some targets have span2 and others have not; put them into files of their own",
        ),
        (
            ["--tags=FILE", "--tags_held_out=FILE", "--length=3"],
            CONLL,
            "no sentence of tags has targets and fits into rows of 3 tokens",
        ),
    ],
)
def test_mistakes_are_one_line(random_model, tmp_path, capsys, flags, content, message):
    path = tmp_path / "file.txt"
    path.write_text(content)
    flags = [flag.replace("FILE", str(path)) if flag.endswith("=FILE") else flag for flag in flags]
    assert cli.main(["analyze", "probes", f"--model_dir={random_model}", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    expected = message.replace("FILE", str(path), 1) if message.startswith("FILE") else message
    assert line.startswith(f"bertfam: error: {expected}")

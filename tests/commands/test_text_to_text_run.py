"""A small T5 on running text and pairs in one run, from the command line, and its metrics on a seqio task."""

import json
import pydoc_data.topics
from types import SimpleNamespace

import numpy as np
import pytest
from command_line import bertfam

from bertfam import cli

RUN_FILE = """\
include "objectives/t5_random_spans.gin"
include "runs/defaults.gin"
include "tasks/text_and_pairs.gin"

TRAIN_STEPS = 4
EVAL_EVERY = 4
CHECKPOINT_EVERY = 2
BATCH_SIZE = 8
SEED = 1
Run.eval_batches = 2
Run.log_every = 1
Stage.length = 48
Execution.layers = "unroll"
LinearDecay.warmup_steps = 1
text/TextFiles.train = ("text.txt",)
pairs/PairFiles.train = ("pairs.tsv",)
pairs/PairFiles.prefix = "turn: "
PairFiles.input_format = "tsv"
PairFiles.inputs = 1
PairFiles.targets = 2
TextFiles.validation_fraction = 0.2
PairFiles.validation_fraction = 0.2
TextData.vocabulary = "vocab"
MODEL = @T5Config()
T5Config.num_layers = 1
T5Config.hidden_size = 16
T5Config.num_heads = 2
T5Config.head_dim = 8
T5Config.feed_forward_size = 32
T5Config.dropout_rate = 0.0
"""

TASKS = """\
import seqio
import tensorflow as tf
from bertfam.data.seqio_tasks import tasks

PAIRS = [("turn: is it", "it is"), ("turn: you are", "are you"), ("", "nothing"), ("turn: a longer one with more words", "no")]


def pairs(split, shuffle_files, seed=None):
    inputs, targets = zip(*PAIRS)
    return tf.data.Dataset.from_tensor_slices({"inputs": list(inputs), "targets": list(targets)})


def seen(targets, predictions):
    assert [*targets] == [target for _, target in PAIRS] and all(isinstance(text, str) for text in predictions)
    return {"pairs": len(targets), "exact": sum(a == b for a, b in zip(targets, predictions)) / len(targets)}


def likelihood(targets, scores):
    assert len(targets) == len(scores)
    return {f"score_{number}": float(score) for number, score in enumerate(scores)}


def of_predictions(targets, predictions, aux_values):
    return {"likeliest": float(max(aux_values["scores"]))}


source = seqio.FunctionDataSource(pairs, splits=["train", "validation"])
seqio.TaskRegistry.add(
    "turning", source=source, preprocessors=[], output_features=tasks.PAIRS, metric_fns=[seen, likelihood, of_predictions]
)
# As T5's own tasks are: tokenised by a vocabulary of theirs.
features = {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}
seqio.TaskRegistry.add(
    "turning_tokens",
    source=source,
    preprocessors=[
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos_after_trim,
    ],
    output_features=features,
    metric_fns=[seen, likelihood],
)
seqio.MixtureRegistry.add("both", ["turning", "turning_tokens"], default_rate=1)
seqio.TaskRegistry.add("unmeasured", source=source, preprocessors=[], output_features=tasks.PAIRS)
seqio.TaskRegistry.add("untokenised", source=source, preprocessors=[], output_features=features, metric_fns=[seen])
"""


TASK_MISTAKES = [
    (["--task=turnin"], "--task=turnin is no registered seqio task; did you mean turning"),
    (["--task=turning", "--split=test"], "task turning has no split test: give --split=train or --split=validation"),
    (["--task=unmeasured"], "task unmeasured has no metric function: register it with metric_fns=[...]"),
    (["--task=untokenised"], "--task=untokenised cannot be read of validation: Task dataset has incorrect type"),
    (["--task=untokenised"], "Got string, expected int32; strings need output_features=bertfam.data.seqio_tasks.tasks.PAIRS"),
    (["--task=python_docs"], "task python_docs has the features text: what is predicted needs inputs and targets"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text_to_text")
    topics = [" ".join(text.split()) for _, text in sorted(pydoc_data.topics.topics.items())]
    (folder / "text.txt").write_text("\n\n".join(text[:2000] for text in topics))
    generator = np.random.default_rng(0)
    words = "is it you are they we were not a an the this".split()
    rows = [generator.choice(words, generator.integers(1, 6)) for _ in range(120)]
    (folder / "pairs.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows) + "nothing\t \n")
    (folder / "run.gin").write_text(RUN_FILE)
    (folder / "turning_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        flags = ("--gin_file=run.gin", "--kind=unigram", "--layout=t5", "--size=280", "--output=vocab")
        assert cli.main(["vocab", *flags]) == 0
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_from_text_and_pairs_to_metrics(here, capsys):
    config = "--gin_file=run.gin"
    assert cli.main(["cache", config, "--vocab=vocab", "--output=cache", "--processes=0"]) == 0
    manifest = json.loads((here / "cache" / "cache.json").read_text())
    assert manifest["corpora"]["pairs"]["train"]["pairs"] is True and "pairs" not in manifest["corpora"]["text"]["train"]
    skipped = [manifest["corpora"]["pairs"][split]["counts"]["skipped_documents"] for split in ("train", "validation")]
    assert sum(skipped) == 1  # the pair without targets
    capsys.readouterr()

    # preview: rows of both kinds, alike in shape; those of the pairs packed.
    assert cli.main(["preview", config, "--cache_dir=cache", "--examples=24", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    kinds = {row["corpus"] for row in rows}
    assert kinds == {"text", "pairs"}
    for row in rows:
        features = row["features"]
        assert len(features["encoder_input_tokens"]) == len(features["encoder_positions"])
        assert len(features["decoder_target_tokens"]) == len(features["decoder_positions"])
        assert (max(features["encoder_segment_ids"]) > 1) <= (row["corpus"] == "pairs")
        assert set(features["encoder_segment_ids"]) - {0} == set(features["decoder_segment_ids"]) - {0}
    assert any(max(row["features"]["decoder_segment_ids"]) > 1 for row in rows)
    assert cli.main(["check", config, "--cache_dir=cache"]) == 0
    assert "ok" in capsys.readouterr().out
    assert cli.main(["check", config]) == 0  # from the text itself
    capsys.readouterr()

    # pretrain: no TensorFlow in it, and a resumed run sees what the whole one sees.
    flags = (config, "--cache_dir=cache")
    done = bertfam("pretrain", *flags, "--model_dir=model", MODULES="modules.json")
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads((here / "modules.json").read_text()))
    assert not {name.partition(".")[0] for name in loaded} & {"tensorflow", "seqio"}
    lines = [json.loads(line) for line in (here / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = {(line["split"], line["step"]): line["loss"] for line in lines if "loss" in line}
    assert {("train", 1), ("train", 4), ("eval", 4)} <= losses.keys()
    assert all(np.isfinite(loss) for loss in losses.values())

    # evaluate --task: in this process, which may import seqio.
    command = ["evaluate", "--model_dir=model", "--module_import=turning_tasks", "--json"]
    assert cli.main([*command, "--task=both", "--max_new_tokens=8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 4 and found["split"] == "validation"
    strings, tokens = found["tasks"]["turning"], found["tasks"]["turning_tokens"]
    assert strings["pairs"] == 4 and strings["examples"] == 4 and 0 <= strings["exact"] <= 1
    assert strings["likeliest"] < 0
    # The vocabulary is the model's, whatever a task was registered with.
    assert {name: value for name, value in strings.items() if name != "likeliest"} == pytest.approx(tokens)
    assert all(strings[f"score_{number}"] < -1 for number in range(4))
    for flags, words in TASK_MISTAKES:
        assert cli.main([*command, *flags]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task=turning", "--batches=3"], "--batches is of held-out text: it does not go with --task"),
        (["--max_new_tokens=3"], "--max_new_tokens is of --task: it does not go with held-out text"),
        (["--task=turning", "--blimp=x.zip"], "--blimp and --task both say what to measure"),
        (["--task=turning", "--limit=0"], "--limit=0 is less than 1"),
        (["--split=test"], "--split=test is not one of the choices; one of validation, train"),
    ],
)
def test_mistakes(here, capsys, flags, words):
    assert cli.main(["evaluate", "--model_dir=model", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_pairs_of_a_seqio_task(here, capsys):
    """The same pairs from the registry, as strings or as tokens of another vocabulary, through the token cache."""
    for name in ("turning", "turning_tokens"):
        flags = ["--gin_file=tasks/text_to_text.gin", f"--task={name}", "--module_import=turning_tasks", "--vocab=vocab"]
        assert cli.main(["cache", *flags, "--gin.SeqioTask.pairs=True", f"--output=cache_{name}", "--processes=0"]) == 0
    first, second = ((here / f"cache_{name}" / "text/train/tokens.bin").read_bytes() for name in ("turning", "turning_tokens"))
    assert first == second and len(first) > 20
    capsys.readouterr()
    assert cli.main(["preview", "--gin_file=tasks/text_to_text.gin", "--cache_dir=cache_turning", "--length=32", "--json"]) == 0
    (row, *_) = json.loads(capsys.readouterr().out)
    assert max(row["features"]["decoder_segment_ids"]) == 3


@pytest.mark.parametrize("start", ["pad", "eos"])
def test_texts_are_framed_as_in_training(monkeypatch, start):
    """What a metric of a seqio task is of has the tokens that rows of `TextPairs` have: <s> text </s> of a BART."""
    import tensorflow as tf

    from bertfam.api import LanguageModel
    from bertfam.corruption.token_ids import TokenIds
    from bertfam.data.rows.text_pairs import PairFrame, TextPairs
    from bertfam.data.token_cache.documents import Documents
    from bertfam.evaluation import seqio_tasks

    ids = TokenIds(size=40, pad=1, unk=3, cls=0, sep=2, eos=2, special=(0, 1, 2, 3))
    pairs = {"inputs": [10, 11, 12], "targets": [13, 14]}
    config = SimpleNamespace(start=start, kind="encoder_decoder", max_length=16)
    model = LanguageModel(config, {}, SimpleNamespace(token_ids=ids), None)
    seen = []
    monkeypatch.setattr(seqio_tasks, "log_likelihoods", lambda model, *texts, **options: seen.append(texts) or np.zeros(1))
    ended = {name: tf.constant([[*tokens, 2]]) for name, tokens in pairs.items()}
    seqio_tasks._Evaluation(model, None, 1, None).score(tf.data.Dataset.from_tensor_slices(ended).enumerate())
    documents = Documents("pairs", np.arange(10, 15), np.array([0, 3, 5]), np.array([0, 2]), pairs=True)
    trained = TextPairs().examples(documents, (8, 8), 0, PairFrame(ids, start)).rows(np.zeros(1, int), np.zeros(1, np.uint64))
    (inputs,), (targets,) = seen[0]
    assert inputs.tolist() == trained["encoder_input_tokens"][trained["encoder_segment_ids"] > 0].tolist()
    assert targets.tolist() == trained["decoder_target_tokens"][trained["decoder_segment_ids"] > 0].tolist()

"""Text of registered seqio tasks as a corpus, corpora as seqio sources, and finished rows as tasks."""

import dataclasses
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from late_import import late_import

from bertfam import cli
from bertfam.config import load
from bertfam.corruption.bart.denoising import Denoising
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.masked_lm.selection import WholeWords
from bertfam.corruption.masked_lm.shuffled_windows import ShuffledWindows
from bertfam.corruption.masked_lm.span_selection import WordSpans
from bertfam.corruption.next_tokens import NextTokens
from bertfam.data.corpora.corpus import Corpus
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, DocSentences, FullSentences
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.seqio_tasks.corpus import SeqioTask
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.builder import build
from bertfam.errors import UserError

seqio, tf, tasks = map(late_import, ("seqio", "tensorflow", "bertfam.data.seqio_tasks.tasks"))

DOCUMENTS = [["One cat sat.", "Two cats ran."], ["A dog barked."], ["Birds flew.", "They sang.", "It rained."]]


@dataclass(frozen=True)
class Lists(Corpus):
    train: tuple = tuple(map(tuple, DOCUMENTS))
    validation: tuple = (("Held out.",),)

    def texts(self, split):
        return map(list, getattr(self, split))

    def fingerprint(self):
        return {"kind": "lists"}


@pytest.fixture
def register_task():
    """Register tasks for one test."""
    names = []

    def register(name, source, preprocessors=(), output_features=None):
        names.append(name)
        features = output_features or tasks.DOCUMENTS
        return seqio.TaskRegistry.add(name, source=source, preprocessors=preprocessors, output_features=features)

    yield register
    for name in names:
        seqio.TaskRegistry.remove(name)


def text_source(*documents, **splits):
    """Return a `FunctionDataSource` of {"text": ...}."""
    texts_by_split = {"train": documents, **splits}

    def make(split, shuffle_files, seed=None):
        assert not shuffle_files
        return tf.data.Dataset.from_tensor_slices({"text": list(texts_by_split[split])})

    return seqio.FunctionDataSource(make, splits=list(texts_by_split))


# The text of tasks


def test_text_of_a_task_is_split_into_sentences(register_task):
    register_task("a_text", text_source("He met Dr. Smith. She left!\nThey ate.\n\n It rained. ", " \n ", "Two é."))
    corpus = SeqioTask("a_text", validation_fraction=0.0)
    assert list(corpus.documents("train")) == [["He met Dr. Smith.", "She left!", "They ate.", "It rained."], ["Two é."]]
    assert list(corpus.documents("validation")) == []


def test_sentences_of_a_task_are_used_as_they_are(register_task):
    def make(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"sentences": [" One. Two.", "", "Three\nlines."], "id": 7})

    register_task("some_sentences", seqio.FunctionDataSource(make, splits=["train"]))
    assert list(SeqioTask("some_sentences", validation_fraction=0.0).documents("train")) == [["One. Two.", "Three\nlines."]]


def test_preprocessors_run_up_to_the_placeholder(register_task):
    def shout(dataset):
        return dataset.map(lambda element: {"text": tf.strings.upper(element["text"])})

    def fail(dataset):
        raise AssertionError("runs after the placeholder")

    register_task("shouted", text_source("one."), [shout, seqio.CacheDatasetPlaceholder(), fail])
    assert list(SeqioTask("shouted", validation_fraction=0.0).documents("train")) == [["ONE."]]
    register_task("shouted_twice", text_source("one."), [shout, shout])
    assert list(SeqioTask("shouted_twice", validation_fraction=0.0).documents("train")) == [["ONE."]]


def test_lines_of_files_keep_their_order(register_task, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{number}.\n" for number in range(40)))
    register_task(
        "some_lines", seqio.TextLineDataSource({"train": str(tmp_path / "a.txt"), "validation": str(tmp_path / "b.txt")})
    )
    corpus = SeqioTask("some_lines")
    assert list(corpus.documents("train")) == [[f"a{number}."] for number in range(40)]
    assert list(corpus.documents("validation")) == [[f"b{number}."] for number in range(40)]


def test_shards_are_parts(register_task, tmp_path):
    for name in "cab":
        (tmp_path / f"{name}.txt").write_text(f"{name} one. {name} two.\n{name} three.\n")
    register_task("three_files", seqio.TextLineDataSource({"train": str(tmp_path / "*.txt")}))
    corpus = SeqioTask("three_files", validation_fraction=0.0)
    parts = corpus.parts("train")
    assert [part.name for part in parts] == ["0/3", "1/3", "2/3"]
    assert [list(corpus.part("train", part)) for part in parts] == [[[f"{c} one. {c} two."], [f"{c} three."]] for c in "abc"]
    assert list(corpus.texts("train")) == [text for part in parts for text in corpus.part("train", part)]
    (tmp_path / "b.txt").write_bytes(b"b one.\n\xff")
    with pytest.raises(
        UserError, match="^--task=three_files cannot be read after document 1 of shard 1/3 of train: 'utf-8' codec"
    ):
        list(corpus.texts("train"))


def test_pickled_task_splits_sentences_without_tensorflow(register_task):
    register_task("a_text", text_source("One. Two."))
    register_task("some_sentences", tasks.CorpusSource(Lists()))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).sentences(['One. Two.']), 'tensorflow' in sys.modules)"
    for name, expected in {"a_text": "['One.', 'Two.'] False", "some_sentences": "['One. Two.'] False"}.items():
        data = pickle.dumps(SeqioTask(name))
        process = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True)
        assert process.stdout.decode().strip() == expected


def test_same_documents_are_held_out_as_from_text_files(register_task, tmp_path):
    lines = [f"Document {number}. It ends." for number in range(300)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    register_task("many", text_source(*lines))
    files = TextFiles(str(tmp_path / "a.txt"), input_format="lines", validation_fraction=0.1)
    for split in ("train", "validation"):
        assert list(SeqioTask("many", validation_fraction=0.1).documents(split)) == list(files.documents(split))


def test_fingerprint_depends_on_files_and_modules(register_task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.txt").write_text("One.\n")
    (tmp_path / "my_module.py").write_text("x = 1\n")
    register_task("a_file", seqio.TextLineDataSource({"train": str(tmp_path / "a.txt")}))
    corpus = SeqioTask("a_file", ("my_module",))
    first = corpus.fingerprint()
    assert first == corpus.fingerprint() and first["source"]["files"]["train"][0]["size"] == 5
    assert "validation_fraction" in first and len(first["modules"]["my_module"]) == 64
    (tmp_path / "a.txt").write_text("Two.\n")
    second = corpus.fingerprint()
    assert first["source"] != second["source"] and first["modules"] == second["modules"]
    (tmp_path / "my_module.py").write_text("x = 2\n")
    assert corpus.fingerprint()["modules"] != first["modules"]
    register_task("a_corpus", tasks.CorpusSource(Lists()))
    assert SeqioTask("a_corpus").fingerprint()["source"]["corpus"] == {"kind": "lists"}
    assert "validation_fraction" not in SeqioTask("a_corpus").fingerprint()


def test_tasks_without_text_are_refused(register_task, tmp_path):
    numbers = seqio.FunctionDataSource(lambda split, shuffle_files: tf.data.Dataset.range(3), splits=["train"])
    register_task("numbers", numbers)
    register_task("a_list", seqio.FunctionDataSource(lambda split, shuffle_files: [1, 2], splits=["train"]))
    register_task("ids", text_source("one"), [lambda dataset: dataset.map(lambda element: {"text": [1, 2], "n": 3})])
    register_task("eval_only", seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["test"]))
    register_task("no_files", seqio.TextLineDataSource({"train": str(tmp_path / "none*.txt")}))
    register_task("latin", text_source(b"one", "caf\xe9".encode("latin-1")))
    seqio.MixtureRegistry.add("mixed", [("numbers", 1.0)])
    for name, message in (
        ("nubmers", "^--task=nubmers is no registered seqio task or mixture; did you mean numbers\\?$"),
        (
            "qwxyz",
            "^--task=qwxyz is no registered seqio task or mixture; give the module that registers it ",
        ),
        ("numbers", "^--task=numbers yields int64 of rank 0, not one string `text`"),
        ("ids", r"^--task=ids yields n \(int32 of rank 0\), text \(int32 of rank 1\), not one string `text`"),
        ("a_list", "^--task=a_list: its source or a preprocessor returns a list; return a tf.data.Dataset$"),
        ("eval_only", "^--task=eval_only has no train split, only test$"),
        ("no_files", "^--task=no_files cannot be read after document 0 of train: No file is found for the file pattern"),
        ("latin", "^--task=latin cannot be read after document 1 of train: 'utf-8' codec can't decode byte 0xe9 in position 3"),
        ("mixed", "^SeqioTask.name is 'mixed', which is a mixture: give --task=mixed, "),
    ):
        with pytest.raises(UserError, match=message):
            list(SeqioTask(name).documents("train"))
    seqio.MixtureRegistry.remove("mixed")
    with pytest.raises(UserError, match=r"^--module_import=no_such_thing_xyz: no module no_such_thing_xyz; install it, or "):
        list(SeqioTask("numbers", ("no_such_thing_xyz",)).documents("train"))
    with pytest.raises(UserError, match="language 'xx' has no sentence rules"):
        SeqioTask("numbers", language="xx")
    with pytest.raises(UserError, match="validation_fraction is 1"):
        SeqioTask("numbers", validation_fraction=1)


# Corpora as sources


def test_corpus_source_shards_by_document(register_task):
    task = register_task("lists", tasks.CorpusSource(Lists()), output_features=tasks.SENTENCES)

    def read(split="train", shards=1, index=0):
        info = seqio.ShardInfo(index, shards)
        dataset = task.get_dataset(split=split, shuffle=False, shard_info=info)
        return [[sentence.decode() for sentence in element["sentences"]] for element in dataset.as_numpy_iterator()]

    assert read() == DOCUMENTS and read("validation") == [["Held out."]]
    assert [read(shards=2, index=index) for index in range(2)] == [DOCUMENTS[::2], DOCUMENTS[1::2]]
    assert [len(read(shards=5, index=index)) for index in range(5)] == [1, 1, 1, 0, 0]
    assert list(SeqioTask("lists").documents("train")) == DOCUMENTS
    joined = register_task("joined", tasks.CorpusSource(Lists()), [tasks.join_sentences])
    texts = [element["text"].decode() for element in joined.get_dataset(split="train", shuffle=False).as_numpy_iterator()]
    assert texts == ["\n".join(document) for document in DOCUMENTS]


MODELS = {
    "bart": "bart_base",
    "causal_lm": "gpt2_small",
    "mlm": "bert_tiny",
    "mlm_nsp": "bert_tiny",
    "t5_random_spans": "t5_1_1_small",
}


@pytest.mark.parametrize("name", MODELS)
def test_own_tasks_have_the_rows_and_noise_of_the_objective_files(name):
    data = load([f"models/{MODELS[name]}.gin", f"objectives/{name}.gin", "runs/defaults.gin"]).build("Run").data
    features = {feature: (spec.dtype, spec.shape) for feature, spec in data.features(128).items()}
    task = seqio.TaskRegistry.get(f"python_docs_{name}")
    assert {feature: entry.dtype.name for feature, entry in task.output_features.items()} == {
        feature: dtype for feature, (dtype, _) in features.items()
    }
    assert (task.source.data.rows, task.source.data.corruption) == (data.rows, data.corruption)


# Finished rows


KINDS = {
    "pairs": TextData(),
    "packed_pairs": TextData(rows=Packed(SentencePairs(), max_examples=4)),
    "whole_words": TextData(rows=FullSentences(), corruption=BertMasking(choice=WholeWords())),
    "structure": TextData(
        rows=Packed(SentencePairs(relation="structure"), max_examples=4), corruption=BertMasking(shuffling=ShuffledWindows())
    ),
    "spans": TextData(
        rows=DocSentences(), corruption=BertMasking(choice=WordSpans(), boundaries=True, drawn_by="unit", random_tokens="text")
    ),
}


@pytest.fixture(scope="module")
def cache(corpus, vocabulary, tmp_path_factory):
    """A cache of a part of the corpus: seqio reads row by row."""
    splits = [
        tuple(tuple(document[:40]) for document in islice(corpus.documents(split), count))
        for split, count in (("train", 24), ("validation", 2))
    ]
    return build({"text": Lists(*splits)}, vocabulary, tmp_path_factory.mktemp("lists") / "cache")


@pytest.fixture(scope="module")
def cache_dir(cache):
    return cache.directory


@pytest.fixture(scope="module", params=KINDS)
def data(request):
    """Return the data of a kind, by default of each."""
    return KINDS[request.param]


@pytest.fixture(scope="module")
def rows_task(cache_dir, data):
    yield tasks.add_pretraining_task("reference_rows", dataclasses.replace(data, cache_dir=str(cache_dir)), length=48)
    seqio.TaskRegistry.remove("reference_rows")


def read(task, count=None, shards=1, index=0, **settings):
    info = seqio.ShardInfo(index, shards) if shards > 1 else None
    dataset = task.get_dataset(**{"sequence_length": None, "split": "train", "shard_info": info, **settings})
    # Rows are batched for speed: as_numpy_iterator would convert each of them separately.
    batches = list((dataset if count is None else dataset.take(count)).batch(1024).as_numpy_iterator())
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]} if batches else {}


def equal(a, b):
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a)


def test_rows_of_a_task_equal_those_of_the_loader(rows_task, data, cache, tokens):
    source = data.training(cache, tokens, 48, 8, seed=3)
    size = len(source.sequence.examples)
    batches = [source.rows(step, 0, 8) for step in range(2 * size // 8)]
    expected = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    assert equal(read(rows_task, len(batches) * 8, seed=3, num_epochs=None), expected)
    held_out = data.held_out(cache, tokens, 48, 1000)
    validation_rows = read(rows_task, split="validation", shuffle=False)
    assert equal(validation_rows, held_out.source.rows(0, 0, len(validation_rows["masked_positions"])))
    assert len(validation_rows["masked_positions"]) == len(held_out.source.sequence) == rows_task.num_input_examples("validation")


@pytest.mark.parametrize(
    ("text_data", "side"),
    [
        (TextData(rows=Chunks(), corruption=NextTokens()), "decoder"),
        (TextData(rows=DocSentences(), corruption=Denoising()), "encoder"),
    ],
    ids=["next tokens", "denoising"],
)
def test_rows_of_a_task_for_decoders(text_data, side, cache_dir, cache, tokens):
    task = tasks.add_pretraining_task("reference_written", dataclasses.replace(text_data, cache_dir=str(cache_dir)), length=48)
    try:
        for length, sequence_length in ((48, None), (64, {f"{side}_input_tokens": 64})):
            source = text_data.training(cache, tokens, length, 20, seed=3)
            assert equal(read(task, 20, seed=3, sequence_length=sequence_length), source.rows(0, 0, 20))
            assert source.rows(0, 0, 1)["decoder_target_tokens"].shape == (1, length)
    finally:
        seqio.TaskRegistry.remove("reference_written")


def test_output_features_are_declared(rows_task, data, vocabulary):
    dataset = seqio.get_mixture_or_task("reference_rows").get_dataset({"encoder_input_tokens": 64}, split="train")
    specs = data.features(64)
    assert dataset.element_spec == {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}
    features = rows_task.output_features
    assert {name: (feature.dtype.name, feature.rank, feature.add_eos) for name, feature in features.items()} == {
        name: (spec.dtype, 1, False) for name, spec in specs.items()
    }
    pieces = features["encoder_input_tokens"].vocabulary
    assert (pieces.vocab_size, pieces.pad_id, pieces.eos_id) == (vocabulary.size, vocabulary.token_ids.pad, None)
    ids = pieces.encode("The statement is executed.")
    assert ids == vocabulary.encode_batch(["The statement is executed."])[0].tolist()
    assert pieces.encode_tf(tf.constant("The statement is executed.")).numpy().tolist() == ids
    mapped = tf.data.Dataset.from_tensors("The statement is executed.").map(pieces.encode_tf)
    assert next(mapped.as_numpy_iterator()).tolist() == ids
    assert pieces.decode(ids) == pieces.decode_tf(tf.constant(ids)).numpy().decode() == "the statement is executed."


@pytest.mark.parametrize("data", ["packed_pairs", "spans"], indirect=True)
def test_every_epoch_has_all_examples_in_a_new_order_with_new_noise(rows_task, data, cache, tokens):
    size = len(data.training(cache, tokens, 48, 1, seed=1).sequence.examples)
    rows = read(rows_task, num_epochs=2, seed=1)
    assert len(rows["masked_positions"]) == 2 * size
    first, second = ({name: value[part] for name, value in rows.items()} for part in (slice(size), slice(size, None)))
    assert equal(first, read(rows_task, seed=1)) and not equal(first, second)
    assert not equal(first, read(rows_task, seed=2))
    plain = read(rows_task, seed=1, shuffle=False)
    order = data.training(cache, tokens, 48, 1, seed=1).sequence.order.index(np.arange(size))[1]
    assert equal(first, {name: value[order] for name, value in plain.items()})


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("data", ["packed_pairs", "spans"], indirect=True)
def test_shards_partition_the_rows(rows_task, data, cache, tokens, shuffle):
    size = len(data.training(cache, tokens, 48, 1, seed=4).sequence.examples)
    whole = read(rows_task, seed=4, shuffle=shuffle, num_epochs=2)
    for index in range(3):
        places = np.concatenate([np.arange(index, size, 3), size + np.arange(index, size, 3)])
        part = read(rows_task, shards=3, index=index, seed=4, shuffle=shuffle, num_epochs=2)
        assert equal(part, {name: value[places] for name, value in whole.items()})


@pytest.mark.parametrize("data", ["packed_pairs"], indirect=True)
def test_shards_without_rows_are_empty(tmp_path, vocabulary, rows_task):
    size = rows_task.num_input_examples("validation")
    assert read(rows_task, split="validation", shards=size + 1, index=size, num_epochs=None) == {}
    assert len(read(rows_task, split="validation", shards=size + 1, index=0)["masked_positions"]) == 1
    vocabulary.save(tmp_path / "vocab")
    data = TextData(Lists(validation=()), str(tmp_path / "vocab"), str(tmp_path / "cache"))
    task = tasks.add_pretraining_task("no_validation", data)
    assert read(task, split="validation", num_epochs=None) == {}
    assert task.get_dataset(split="validation").element_spec["masked_positions"].shape == (20,)
    seqio.TaskRegistry.remove("no_validation")


@pytest.mark.parametrize("data", ["packed_pairs"], indirect=True)
def test_sequence_lengths_must_agree(rows_task):
    lengths = {"encoder_input_tokens": 32, "encoder_segment_ids": 32}
    assert read(rows_task, 1, sequence_length=lengths)["encoder_input_tokens"].shape == (1, 32)
    with pytest.raises(ValueError, match=r"sequence_length has several lengths, \[16, 32\]"):
        read(rows_task, 1, sequence_length=lengths | {"encoder_token_type_ids": 16})


@pytest.mark.parametrize("data", ["packed_pairs"], indirect=True)
def test_task_works_in_a_mixture_with_a_converter_and_batches(rows_task):
    seqio.MixtureRegistry.add("mixed_rows", [("reference_rows", 1.0)])
    dataset = seqio.get_dataset(
        "mixed_rows",
        {"encoder_input_tokens": 32},
        feature_converter=seqio.PassThroughFeatureConverter(),
        num_epochs=None,
        shuffle=True,
        seed=5,
        batch_size=4,
    )
    batch = next(dataset.as_numpy_iterator())
    expected = read(rows_task, 4, sequence_length={"encoder_input_tokens": 32}, seed=5)
    assert equal({name: batch[name] for name in expected}, expected)
    seqio.MixtureRegistry.remove("mixed_rows")


def test_cache_is_built_at_first_use_and_reused(tmp_path, monkeypatch, corpus, capsys):
    monkeypatch.setenv("BERTFAM_CACHE", str(tmp_path))
    registered = [tasks.add_pretraining_task(name, TextData(corpus), vocabulary_size=300) for name in ("lazy", "lazy_too")]
    assert not list(tmp_path.iterdir())
    first = read(registered[0], 3, seed=1)
    assert equal(first, read(registered[1], 3, seed=1)) and first["encoder_input_tokens"].max() < 300
    (folder,) = (tmp_path / "tasks").iterdir()  # equal text and vocabulary share a cache
    assert capsys.readouterr().err.count("tokenising train") == 1
    again = tasks.add_pretraining_task("lazy_again", TextData(corpus, cache_dir=str(folder)))
    assert equal(first, read(again, 3, seed=1)) and not capsys.readouterr().err
    other = tasks.add_pretraining_task("lazy_other", TextData(Lists(), cache_dir=str(folder)))
    with pytest.raises(UserError, match='corpora.text.kind was "language_reference" and is "lists" now'):
        read(other, 1)
    for name in ("lazy", "lazy_too", "lazy_again", "lazy_other"):
        seqio.TaskRegistry.remove(name)
    with pytest.raises(UserError, match="^task none requires a corpus, or a cache_dir that holds a token cache$"):
        tasks.add_pretraining_task("none", TextData())


# The command line, as the README shows it

MY_TASKS = """\
import seqio
from bertfam.data.seqio_tasks import tasks
from bertfam.data.corpora.text_files import TextFiles

seqio.TaskRegistry.add(
    "my_books",
    source=tasks.CorpusSource(TextFiles(train=("books/*.txt",), input_format="paragraphs")),
    preprocessors=[],
    output_features=tasks.SENTENCES,
)
"""


PROGRAM = """\
import sys
sys.path.pop(0)  # the current folder, which an installed command does not have there, as `python -m` does
from bertfam.data.seqio_tasks import tasks
import seqio
print(*sorted(name for name in seqio.TaskRegistry.names() if name.startswith("python_docs")))
from bertfam.cli import main
sys.exit(main())
"""


def test_commands_read_a_registered_task(tmp_path, monkeypatch, capfd):
    """The vocabulary is trained as by an installed command; bertfam's own tasks are registered without reading text."""
    (tmp_path / "books").mkdir()
    for book in range(3):
        text = "\n\n".join(f"Chapter {chapter} of book {book} begins. It goes on.\nIt ends." for chapter in range(20))
        (tmp_path / "books" / f"{book}.txt").write_text(text)
    (tmp_path / "my_tasks.py").write_text(MY_TASKS)
    path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"BERTFAM_CACHE": str(tmp_path / "docs")}
    flags = ["--module_import=my_tasks", "--task=my_books"]
    command = [sys.executable, "-c", PROGRAM, "vocab", *flags, "--size=80", "--output=vocab"]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=path)
    assert process.returncode == 0 and "vocab: 80 pieces from 58 documents" in process.stdout, process.stderr
    kinds = ("bart", "causal_lm", "mlm", "mlm_nsp", "mlm_nsp_packed", "mlm_whole_words", "t5_random_spans")
    assert process.stdout.splitlines()[0].split() == ["python_docs", *(f"python_docs_{kind}" for kind in kinds)]
    assert not (tmp_path / "docs").exists()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)
    capfd.readouterr()
    try:
        assert cli.main(["cache", *flags, "--vocab=vocab", "--output=cache"]) == 0
    finally:
        seqio.TaskRegistry.remove("my_books")
        sys.modules.pop("my_tasks")
    output = capfd.readouterr()
    assert output.out == "token cache: cache\n"
    assert [line.split(":")[0] for line in output.err.splitlines()] == ["tokenising train", "tokenising validation"]
    assert cli.main(["cache", "--module_import=my_task", "--task=my_books", "--vocab=vocab", "--output=other"]) == 2
    error = "bertfam: error: --module_import=my_task: no module my_task; did you mean my_tasks?\n"
    assert capfd.readouterr() == ("", error)

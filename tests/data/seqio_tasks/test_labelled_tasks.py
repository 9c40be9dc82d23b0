"""Labelled texts, and texts with targets, of registered seqio tasks, and `bertfam finetune --task`."""

import functools
import json
import pickle

import pytest
from late_import import late_import

from bertfam import cli
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.labelled.target_files import TargetFiles
from bertfam.data.seqio_tasks.corpus import SeqioTask
from bertfam.data.seqio_tasks.labelled_tasks import LabelledTask, TargetTask
from bertfam.data.token_cache.builder import build
from bertfam.errors import UserError
from bertfam.finetuning.task_survey import survey_task

seqio, tf = map(late_import, ("seqio", "tensorflow"))

ROWS = [(f" Text {number} ü ", "good" if number % 3 else "bad", number % 3, number / 4) for number in range(12)]


@functools.cache
def features():
    return {name: seqio.Feature(seqio.ByteVocabulary()) for name in ("inputs", "targets")}


def examples(split, shuffle_files, seed=None):
    texts, labels, numbers, shares = zip(*(ROWS[:8] if split == "train" else ROWS[8:]), strict=True)
    columns = {"inputs": texts, "targets": labels, "number": numbers, "share": shares}
    dataset = tf.data.Dataset.from_tensor_slices({name: list(column) for name, column in columns.items()})
    return dataset.map(lambda element: element | {"list": tf.stack([element["targets"], "more"]), "flag": element["number"] > 0})


def ids_alone(dataset):
    return seqio.preprocessors.tokenize(dataset, features(), copy_pretokenized=False)


def prompt(dataset):
    return dataset.map(lambda element: element | {"inputs": tf.strings.join(["Rate: ", element["inputs"]])})


@pytest.fixture(scope="module", autouse=True)
def _tasks():
    both = seqio.FunctionDataSource(examples, splits=["train", "validation"])
    alone = seqio.FunctionDataSource(examples, splits=["train"])
    tasks = {
        "reviews": (both, [prompt]),
        "reviews_tokens": (both, [prompt, seqio.preprocessors.tokenize]),
        "reviews_ids": (both, [ids_alone]),
        "reviews_alone": (alone, []),
    }
    for name, (source, preprocessors) in tasks.items():
        seqio.TaskRegistry.add(name, source=source, preprocessors=preprocessors, output_features=features())
    yield
    for name in tasks:
        seqio.TaskRegistry.remove(name)


def labelled(name="reviews", **settings):
    return LabelledTask(SeqioTask(name, pairs=True, validation_fraction=0.3), **settings)


def in_files(folder, rows=ROWS[:8], held_out=ROWS[8:], prefix="Rate: "):
    """Write the examples of the task as JSON lines; return the files."""
    for name, part in (("train", rows), ("validation", held_out)):
        lines = [
            {"inputs": prefix + a, "targets": b, "number": c, "share": d, "list": [b, "more"], "flag": c > 0}
            for a, b, c, d in part
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder / "train.jsonl"), str(folder / "validation.jsonl")


def test_the_token_cache_is_that_of_the_same_rows_in_files(tmp_path, vocabulary):
    task = survey_task(labelled("reviews_tokens")).corpus
    files = LabelledFiles(*in_files(tmp_path), text="inputs", label="targets", classes=("bad", "good"))
    assert task.classes == files.classes
    for split in ("train", "validation"):
        assert list(task.texts(split)) == list(labelled(classes=files.classes).texts(split)) == list(files.texts(split))
    caches = [build({"text": corpus}, vocabulary, tmp_path / kind, processes=0) for kind, corpus in (("a", task), ("b", files))]
    paths = [path.relative_to(tmp_path / "b") for path in sorted((tmp_path / "b").rglob("*.bin"))]
    assert len(caches) == 2 and len(paths) > 4
    assert all((tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes() for path in paths)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        ({"label": "number"}, "01201201"),
        ({"label": "flag", "text_pair": "targets"}, "01101101"),
        ({"label": "share", "kind": "number"}, [str(number / 4) for number in range(8)]),
        ({"label": "list", "kind": "classes"}, ["1 0 1", "0 1 1", "0 1 1"] * 2 + ["1 0 1", "0 1 1"]),
        ({"text": "{inputs}{targets}", "label": "number"}, "01201201"),
    ],
)
def test_labels_of_every_kind_are_those_of_files(tmp_path, settings, labels):
    task = survey_task(labelled(**settings)).corpus
    files = LabelledFiles(*in_files(tmp_path), **{"text": "inputs"} | settings, classes=task.classes)
    assert [lines[-1] for lines in task.texts("train")] == list(labels)
    assert list(task.texts("train")) == list(files.texts("train"))
    columns = task.in_files(("new.jsonl",))
    assert (columns.text, columns.label, columns.classes) == (task.text, task.label, task.classes)


def test_a_task_without_a_validation_split_is_held_out_by_a_hash(tmp_path):
    task = labelled("reviews_alone", classes=("bad", "good"))
    train, held_out = (list(task.texts(split)) for split in ("train", "validation"))
    own = {"validation_fraction": 0.3, "text": "inputs", "label": "targets", "classes": task.classes}
    files = LabelledFiles(in_files(tmp_path, prefix="")[0], **own)
    assert train == list(files.texts("train")) and held_out == list(files.texts("validation")) and held_out
    assert len(list(task.without_held_out().texts("train"))) == 8
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task and copy.bare.reads_seqio


def test_targets(tmp_path):
    task = TargetTask(SeqioTask("reviews", pairs=True), "tl;dr {inputs}")
    files = TargetFiles(*in_files(tmp_path), text="tl;dr {inputs}", target="targets")
    for split in ("train", "validation"):
        assert list(task.texts(split)) == list(files.texts(split))
    assert survey_task(task).texts == 8 and task.pairs and not task.joins_pairs
    assert task.in_files(("new.jsonl",)).filled("x") == "tl;dr x"


def test_fingerprint_depends_on_every_setting_that_changes_the_documents():
    changes = {"task": SeqioTask("reviews_alone", pairs=True), "text": "list", "text_pair": "flag", "label": "number"}
    changes |= {"kind": "number", "classes": ("bad",), "skip_empty": True, "choices": ("a",)}
    variants = [labelled(), *(labelled() if name == "task" else labelled(**{name: value}) for name, value in changes.items())]
    variants[1] = LabelledTask(changes["task"])
    assert len({json.dumps(one.fingerprint(), sort_keys=True) for one in variants}) == len(changes) + 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--task=reviews_ids"], "inputs (int32 of rank 1), list (string of rank 1), number (int32 of rank 0), "),
        (["--task=reviews_tokens", "--text=list"], "'list' is no string; name one with --text, or put seqio.CacheDatasetPlaceh"),
        (["--task=reviews", "--label=list"], "'list' is no string; name one with --label"),
        (["--task=reviews", "--text=number"], "'number' is no string; name one with --text"),
        (["--task=reviews", "--text=body"], ", but no 'body'; name one of them with --text"),
        (["--task=reviews", "--label=share"], "--task=reviews: example 1 of train: the label 0.0 is no class"),
        (["--task=reviews", "--regression"], "--task=reviews: example 1 of train: the label 'bad' is no number"),
        (["--task=review"], "--task=review is no registered seqio task or mixture; did you mean reviews"),
        (["--task=reviews", "--train=a.tsv"], "--train does not go with --task"),
        (["--task=reviews", "--tagging"], "--tagging does not go with --task"),
        (["--task=reviews", "--format=jsonl"], "--format does not go with --task"),
        (["--task=reviews", "--task_name=glue/cola", "--data_dir=GLUE"], "--task does not go with --task_name"),
        (["--task=reviews", "--target=targets"], "is an encoder, which generates none"),
    ],
)
def test_mistakes_are_named(random_model, tmp_path, capsys, flags, named):
    words = ["finetune", f"--init_from={random_model}", f"--model_dir={tmp_path / 'model'}"]
    assert cli.main([*words, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and not (tmp_path / "model").exists()


def test_texts_that_are_no_utf8_are_refused():
    def latin(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"inputs": b"\xe9", "targets": "x"})

    source = seqio.FunctionDataSource(latin, splits=["train"])
    seqio.TaskRegistry.add("latin_reviews", source=source, preprocessors=[], output_features=features())
    with pytest.raises(UserError, match=r"^--task=latin_reviews: example 1 of train: not UTF-8"):
        list(labelled("latin_reviews").training_records())

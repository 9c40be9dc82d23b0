"""`bertfam entities`: from marked text to a run with entities, on real text, and what is refused."""

import json
from collections import Counter

import numpy as np
import pytest
from model_folders import arrays, cut

from bertfam import cli
from bertfam.data import vocabularies
from bertfam.data.corpora.marked_text import find_names
from bertfam.data.corpora.text_files import TextFiles

RUN = """
include "models/entity_ernie_base.gin"
include "objectives/entities.gin"
include "runs/defaults.gin"
ENTITIES = "{folder}/entities"
TRAIN_STEPS = 4
EVAL_EVERY = 2
CHECKPOINT_EVERY = 2
BATCH_SIZE = 8
Stage.length = 48
Execution.layers = "unroll"
EntityErnieConfig.num_layers = 2
EntityErnieConfig.hidden_size = 16
EntityErnieConfig.num_heads = 2
EntityErnieConfig.feed_forward_size = 32
EntityErnieConfig.max_length = 48
EntityErnieConfig.text_layers = 0
EntityErnieConfig.entity_size = 16
EntityErnieConfig.entity_heads = 2
EntityErnieConfig.dropout_rate = 0.0
LinearDecay.warmup_steps = 1
"""


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """Return a folder with a cache of marked text, its entities and a run file."""
    folder = tmp_path_factory.mktemp("entities")
    texts = trained.folder / "text"
    words = [f"--input={texts / 'train.txt'}", f"--validation_input={texts / 'held-out.txt'}", "--marks=names"]
    assert cli.main(["cache", *words, f"--vocab={trained.folder / 'vocab'}", f"--output={folder / 'cache'}"]) == 0
    (folder / "run.gin").write_text(RUN.format(folder=folder))
    assert cli.main([*entities(folder, trained), f"--output={folder / 'entities'}"]) == 0
    return folder


def entities(folder, trained):
    return ["entities", f"--cache_dir={folder / 'cache'}", f"--model_dir={trained.model_dir}"]


def pretrain(folder, model_dir):
    return ["pretrain", f"--gin_file={folder / 'run.gin'}", f"--cache_dir={folder / 'cache'}", f"--model_dir={model_dir}"]


def test_names_are_those_that_the_text_repeats(folder, trained):
    """Counted again in the marks of each sentence, by the places of its pieces."""
    vocabulary, texts = vocabularies.load(trained.folder / "vocab"), trained.folder / "text"
    listed = json.loads((folder / "entities/entities.json").read_text())
    found = {tuple(entity["pieces"]): entity["count"] for entity in listed["entities"]}
    corpus = TextFiles((str(texts / "train.txt"),), validation=(str(texts / "held-out.txt"),))
    counts = Counter()
    for sentence in (sentence for lines in corpus.texts("train") for sentence in corpus.sentences(lines)):
        encoded = vocabulary.encode(sentence)
        for name in find_names(sentence):
            places = [place for place, (begin, end) in enumerate(encoded.offsets) if name.begin <= begin and end <= name.end]
            counts[tuple(int(encoded.ids[place]) for place in places)] += any(map(str.isalpha, sentence[name.begin : name.end]))
    tokens = vocabulary.token_ids
    assert found == {
        pieces: count
        for pieces, count in counts.items()
        if count >= 5 and tokens.unk not in pieces and tokens.starts_word[pieces[0]]
    }
    assert len(found) > 20 and [entity["count"] for entity in listed["entities"]] == sorted(found.values(), reverse=True)
    vectors = np.load(folder / "entities/vectors.npy")
    assert vectors.shape == (len(found) + 1, 16) and not vectors[0].any() and np.abs(vectors[1:]).sum(axis=1).all()


def test_run_with_entities(folder, tmp_path, capsys):
    """It resumes exactly, is evaluated, and fills blanks without entities; a text with other names is refused."""
    assert cli.main(pretrain(folder, tmp_path / "run")) == 0
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    held_out = [record for record in records if "dea_loss" in record and "dea_majority_accuracy" in record]
    assert held_out and all(np.isfinite(record["dea_loss"]) for record in held_out)
    again = cut(tmp_path / "run", tmp_path / "again", 2)
    assert cli.main(pretrain(folder, again)) == 0
    left, right = arrays(tmp_path / "run", 4), arrays(again, 4)
    assert left.keys() == right.keys() and all(np.array_equal(value, right[name]) for name, value in left.items())
    assert not any("['aux']" in name for name in left)
    capsys.readouterr()
    assert cli.main(["evaluate", f"--model_dir={tmp_path / 'run'}", "--split=train", "--batches=2", "--json"]) == 0
    assert {"mlm_loss", "nsp_loss", "dea_loss", "dea_accuracy"} <= json.loads(capsys.readouterr().out).keys()
    assert cli.main(["fill", f"--model_dir={tmp_path / 'run'}", "the value is [MASK] ."]) == 0
    listed = folder / "entities/entities.json"
    content = json.loads(listed.read_text())
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "vectors.npy").write_bytes((folder / "entities/vectors.npy").read_bytes())
    (moved / "entities.json").write_text(json.dumps(content | {"vocabulary": content["vocabulary"] | {"digest": "another"}}))
    capsys.readouterr()
    assert cli.main([*pretrain(folder, tmp_path / "new"), f"--gin.ENTITIES='{moved}'"]) == 2
    assert "pieces of another vocabulary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["entities", "--output={new}", "--min_count=100000"], ("100000 times", "--min_count")),
        (["entities", "--output={new}", "--min_count=0"], ("--min_count=0",)),
        (["entities", "--output={folder}/entities"], ("{folder}/entities exists already",)),
        (["entities", "--output={new}", "--cache_dir={plain}"], ("no marks of entities", "--marks=names")),
        (
            ["pretrain", "--gin_file={folder}/run.gin", "--gin.ENTITIES=None"],
            ("no folder of entities is named", "bertfam entities"),
        ),
        (["pretrain", "--gin_file={folder}/run.gin", "--gin.ENTITIES='{new}'"], ("{new}", "is no folder of entities")),
        (["pretrain", "--gin_file={folder}/run.gin", "--cache_dir={plain}"], ("no marks", "EntityMasking")),
    ],
)
def test_mistakes(folder, trained, tmp_path, capsys, words, named):
    places = {"folder": folder, "new": tmp_path / "new", "plain": trained.model_dir / "cache"}
    flags = {"entities": f"--model_dir={trained.model_dir}", "pretrain": f"--model_dir={tmp_path / 'model'}"}
    words = [words[0], flags[words[0]], *(word.format(**places) for word in words[1:])]
    words += [] if any("--cache_dir" in word for word in words) else [f"--cache_dir={folder / 'cache'}"]
    assert cli.main(words) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bertfam: error:")]
    assert all(word.format(**places) in line for word in named), line
    assert not (tmp_path / "new").exists()

"""A dual encoder by the command line: a warm start of both towers, a few updates in pieces, an index, a question."""

import json

import numpy as np
import pytest

from bertfam import cli
from bertfam.embedding.towers import TowerSettings, open_towers


def test_a_run_and_its_index(random_model, trained, tmp_path, capsys):
    """Both towers start from one encoder; queries and passages are embedded by their own, projected."""
    (tmp_path / "run.gin").write_text("""
MODEL = @BertConfig()
include "objectives/ict.gin"
include "runs/defaults.gin"
TRAIN_STEPS = 2
EVAL_EVERY = 2
BATCH_SIZE = 4
QUERY_LENGTH = 16
Stage.length = 64
DualEncoder.shared = False
DualEncoder.projection = 8
Run.sample_every = 0
Run.microbatches = 2
Execution.layers = "scan"
""")
    model = tmp_path / "model"
    words = [f"--gin_file={tmp_path / 'run.gin'}", f"--init_from={random_model}", f"--input={trained.folder}/text/held-out.txt"]
    assert cli.main(["pretrain", *words, f"--model_dir={model}", "--gin.TextFiles.validation_fraction=0.2"]) == 0
    assert "passage, query" in capsys.readouterr().out  # the parts of the warm start
    (tmp_path / "passages.jsonl").write_text(
        "".join(json.dumps({"text": f"the {word} of it"}) + "\n" for word in ("list", "name"))
    )
    command = ["index", f"--model_dir={model}", f"--input={tmp_path / 'passages.jsonl'}", f"--output={tmp_path / 'index'}"]
    assert cli.main(command) == 0
    assert "vectors of 8 numbers (cls pooling)" in capsys.readouterr().out
    assert cli.main(["retrieve", f"--index={tmp_path / 'index'}", "the list", "--json"]) == 0
    scores = {one["text"]: one["score"] for one in json.loads(capsys.readouterr().out)[0]["passages"]}
    towers = open_towers(model, TowerSettings())
    query, passage = (tower.embed(["the list", "the list of it"]).vectors for tower in (towers.query, towers.passage))
    assert scores["the list of it"] == pytest.approx(float(query[0] @ passage[1]), rel=1e-4)
    assert np.abs(query - passage).max() > 1e-3
    assert cli.main(["export", f"--model_dir={model}", f"--output={tmp_path / 'out'}", "--sentence_transformers"]) == 2
    assert "projects its vectors" in capsys.readouterr().err

"""RoBERTa by the command line: a byte-level vocabulary, a run, its export, and a vocabulary that pads with another id."""

import json

import numpy as np
import pytest
from command_line import in_process

from bertfam import cli

RUN = """\
include "models/roberta_base.gin"
include "objectives/roberta.gin"
include "runs/defaults.gin"

TRAIN_STEPS = 3
EVAL_EVERY = 0
CHECKPOINT_EVERY = 3
BATCH_SIZE = 4
Run.log_every = 1
Stage.length = 32
Execution.layers = "unroll"
RobertaConfig.num_layers = 1
RobertaConfig.hidden_size = 16
RobertaConfig.num_heads = 2
RobertaConfig.feed_forward_size = 32
RobertaConfig.max_length = 32
"""


def test_pretrain_export_fill(trained, caches_in_process, tmp_path, capsys):
    text = trained.folder / "text/train.txt"
    (tmp_path / "run.gin").write_text(RUN)
    assert cli.main(["vocab", "--kind=byte_bpe", "--size=320", f"--input={text}", f"--output={tmp_path / 'vocab'}"]) == 0
    model, theirs = tmp_path / "model", tmp_path / "theirs"
    words = [f"--gin_file={tmp_path / 'run.gin'}", f"--input={text}", f"--vocab={tmp_path / 'vocab'}"]
    done = in_process("pretrain", *words, f"--model_dir={model}")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert len(losses) == 3 and all(5.2 < loss < 6.4 for loss in losses)  # ln 320 is 5.77

    assert cli.main(["export", f"--model_dir={model}", f"--output={theirs}"]) == 0
    content = json.loads((theirs / "config.json").read_text())
    assert content["architectures"] == ["RobertaForMaskedLM"]
    assert (content["pad_token_id"], content["max_position_embeddings"], content["type_vocab_size"]) == (1, 34, 1)
    capsys.readouterr()
    assert cli.main(["fill", f"--model_dir={model}", "--json", "the <mask> of"]) == 0
    ours = json.loads(capsys.readouterr().out)[0]

    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizer, network = (kind.from_pretrained(theirs) for kind in (transformers.AutoTokenizer, transformers.RobertaForMaskedLM))
    encoded = tokenizer("the <mask> of", return_tensors="pt")
    with torch.no_grad():
        logits = network.eval()(**encoded).logits
    (place,) = (encoded.input_ids[0] == tokenizer.mask_token_id).nonzero()[0].tolist()
    scores = torch.softmax(logits[0, place], dim=-1).numpy()
    found = [(one["token_id"], one["probability"]) for one in ours["masks"][0]["predictions"]]
    assert [token for token, _ in found] == np.argsort(-scores)[: len(found)].tolist()
    np.testing.assert_allclose([probability for _, probability in found], [scores[token] for token, _ in found], rtol=1e-4)


@pytest.mark.parametrize("command", ["pretrain", "check"])
def test_a_vocabulary_that_pads_with_another_id(trained, tmp_path, command, capsys):
    (tmp_path / "run.gin").write_text(RUN)
    words = [f"--gin_file={tmp_path / 'run.gin'}", f"--input={trained.folder / 'text/train.txt'}"]
    model = tmp_path / "model"
    assert cli.main([command, *words, f"--vocab={trained.folder / 'vocab'}", f"--model_dir={model}"]) == 2
    assert capsys.readouterr().err.strip().splitlines() == [
        "bertfam: error: RobertaConfig.position_offset is 2, for a vocabulary whose padding id is 1, and that of "
        f"{trained.folder / 'vocab'} is 0: set RobertaConfig.position_offset = 1, or give another vocabulary"
    ]
    assert not model.exists()

"""Import and export commands for encoders."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from initial_state import initial_state
from safetensors.numpy import load_file

from bertfam.cli import main
from bertfam.data.vocabularies.wordpiece import SPECIAL_PIECES, WordPiece
from bertfam.interop import huggingface
from bertfam.interop.model_card import ModelCard
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BERT, BertConfig
from bertfam.models.ernie import ErnieConfig

pytestmark = pytest.mark.usefixtures("caches_in_process")
PARTS = frozenset({"encoder", "pooler", "mlm_head", "nsp_head"})
VOCABULARY = WordPiece([*SPECIAL_PIECES, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")])
CONFIG = BertConfig(
    vocab_size=VOCABULARY.size, num_layers=2, hidden_size=16, num_heads=2, feed_forward_size=24, max_length=12, activation="relu"
)


def write_model(folder, parts=PARTS, config=CONFIG):
    """Write a Hugging Face folder with its tokenizer and random parameters."""
    generator = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: generator.standard_normal(leaf.shape, np.float32), huggingface.shapes_of(config, frozenset(parts))
    )
    VOCABULARY.save(folder.parent / "tokenizer")
    files = sorted((folder.parent / "tokenizer").iterdir())
    huggingface.write(folder, config, params, tokenizer_files=files)
    return folder


def words_of_one_step(model_dir, tmp_path):
    """Return the command of one update with a learning rate of 0 on new text."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("a bad cab\na fad\nbed a cab" for _ in range(4)) + "\n")
    flags = ["--gin.TRAIN_STEPS=1", "--gin.BATCH_SIZE=2", "--gin.Stage.length=12", "--gin.LinearDecay.peak=0.0"]
    flags += [f"--input={text}", f"--vocab={model_dir / 'vocab'}", "--gin.EVAL_EVERY=0"]
    return ["pretrain", f"--model_dir={model_dir}", *flags]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "theirs")


def test_encoder_round_trip_is_exact(folder, tmp_path, capsys):
    model_dir, out = tmp_path / "model", tmp_path / "out"
    assert main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    assert "BertForPreTraining" in capsys.readouterr().out
    theirs, exported = (load_file(path / "model.safetensors") for path in (folder, out))
    assert theirs.keys() == exported.keys() and all(np.array_equal(theirs[name], exported[name]) for name in theirs)
    assert huggingface.read(out).config == CONFIG

    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer("a bad [MASK]").input_ids == list(VOCABULARY.encode_prompt("a bad [MASK]").ids)
    assert tokenizer.model_max_length == CONFIG.max_length and tokenizer.mask_token_id == VOCABULARY.token_ids.mask
    pytest.importorskip("torch")
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]


@pytest.mark.parametrize("parts", [{"encoder", "pooler"}, {"encoder", "mlm_head"}])
def test_models_without_all_heads(tmp_path, capsys, parts):
    theirs, model_dir, out = write_model(tmp_path / "theirs", parts), tmp_path / "model", tmp_path / "out"
    assert main(["import", f"--input={theirs}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    before, after = (load_file(path / "model.safetensors") for path in (theirs, out))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    if "mlm_head" not in parts:
        assert main(["fill", f"--model_dir={model_dir}", "a [MASK]"]) == 2
        assert capsys.readouterr().err.startswith("bertfam: error: the model has no masked-language-model head")

    # Pretraining continues from the model and adds the missing heads.
    out, state = initial_state(*words_of_one_step(model_dir, tmp_path), initialise=False)
    assert f"started from the model in {model_dir}" in out
    assert state.step == 0 and state.params.keys() == ({"encoder", "mlm_head"} if "mlm_head" in parts else PARTS)
    whole = huggingface.to_tensors(BERT, CONFIG, {name: state.params[name] for name in parts})
    assert all(np.array_equal(whole[name], before[name]) for name in before)


@pytest.mark.parametrize(
    ("config", "parts", "objective"),
    [
        (BertConfig, {"encoder", "mlm_head"}, "mlm"),
        (BertConfig, PARTS, "mlm_nsp"),
        (BertConfig, {"encoder", "pooler"}, "mlm_nsp"),
        (ErnieConfig, {"encoder", "mlm_head"}, "mlm"),
        (AlbertConfig, {"encoder", "mlm_head"}, "mlm"),
        (AlbertConfig, {"encoder", "pooler", "mlm_head", "sop_head"}, "mlm_sop"),
    ],
)
def test_objective_of_an_import_is_that_of_its_heads(config, parts, objective):
    """BertForMaskedLM has no next-sentence prediction."""
    assert huggingface.family_of(config()).objective_of(parts) == f"objectives/{objective}.gin"


def test_embedding_table_with_more_rows_than_tokens(tmp_path, capsys):
    """Keep the extra rows, which many published models have, unchanged and never predict them."""
    theirs, model_dir, out = tmp_path / "theirs", tmp_path / "model", tmp_path / "out"
    config = dataclasses.replace(CONFIG, vocab_size=VOCABULARY.size + 120)
    write_model(theirs, config=config)
    assert main(["import", f"--input={theirs}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    before, after = (load_file(path / "model.safetensors") for path in (theirs, out))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    assert json.loads((out / "config.json").read_text())["vocab_size"] == VOCABULARY.size + 120
    for folder in (theirs, model_dir):  # the exported folder has the tensors of the first
        capsys.readouterr()
        assert main(["fill", f"--model_dir={folder}", "a [MASK]", "--top_k=1000", "--json"]) == 0
        predictions = json.loads(capsys.readouterr().out)[0]["masks"][0]["predictions"]
        assert sorted(prediction["token_id"] for prediction in predictions) == list(range(VOCABULARY.size))
        assert sum(prediction["probability"] for prediction in predictions) == pytest.approx(1)
    _, state = initial_state(*words_of_one_step(model_dir, tmp_path), initialise=False)
    trained = huggingface.to_tensors(BERT, config, {name: state.params[name] for name in PARTS})
    assert all(np.array_equal(trained[name], before[name]) for name in before)


@pytest.mark.parametrize("command", ["import", "export"])
def test_unwritable_outputs_are_reported_in_one_line(folder, tmp_path, capsys, command):
    assert main(["import", f"--input={folder}", f"--output={tmp_path / 'model'}"]) == 0
    (tmp_path / "file").touch()
    capsys.readouterr()
    source = f"--input={folder}" if command == "import" else f"--model_dir={tmp_path / 'model'}"
    out = tmp_path / "file" / "below" / "out"
    assert main([command, source, f"--output={out}"]) == 2
    line = f"bertfam: error: {out} cannot be written: {tmp_path / 'file'} is not a folder; name another\n"
    assert capsys.readouterr() == ("", line)


def test_mistakes_are_reported_in_one_line_and_write_nothing(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", f"--model_dir={tmp_path / 'nowhere'}", f"--output={out}"]) == 2
    assert main(["import", f"--input={tmp_path / 'nowhere'}", f"--output={out}"]) == 2
    assert main(["import", f"--input={folder}", f"--output={folder}"]) == 2
    WordPiece([*SPECIAL_PIECES, *"abcdefghijklmnopqrstuvwxyz"]).save(folder)
    assert main(["import", f"--input={folder}", f"--output={out}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("bertfam: error: ") for line in lines] == [True] * 4
    assert "exists already" in lines[2] and f"vocab_size {VOCABULARY.size} and the tokenizer has 31" in lines[3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["theirs", "tokenizer"]


def test_a_card_escapes_markup():
    facts = {"data|": "a*b_c _d_ <script>`x`\n| # y", "held-out": "12,000 (1 mlm)"}
    card = ModelCard("BertForMaskedLM", facts).text()
    assert "| data\\| | a\\*b_c \\_d\\_ &lt;script&gt;\\`x\\` \\| # y |" in card.splitlines()
    assert "| held-out | 12,000 (1 mlm) |" in card
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n") and card.endswith("```\n")
    embedding = ModelCard("BertModel", {}, "mean pooling").text()
    assert "pipeline_tag: sentence-similarity" in embedding and "by mean pooling" in embedding

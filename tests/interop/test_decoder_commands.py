"""Import and export commands for decoders."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bertfam.cli import main
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.interop import huggingface
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.opt import OptConfig
from bertfam.training.model_dir import open_model

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 24, "max_length": 12}
CONFIGS_AND_IDS = {"gpt2": (Gpt2Config, (261, 261, 261)), "roberta": (OptConfig, (2, 2, 1))}
TEXT = "a bad cab in a bed"


def write_model(folder, layout):
    """Write a Hugging Face folder with a byte-level tokenizer, fewer tokens than rows, and random parameters."""
    vocabulary = ByteBpe.train(["a bad cab", "in a bed"] * 4, size=262, layout=LAYOUTS[layout])
    vocabulary.save(folder.parent / "tokenizer")
    config = CONFIGS_AND_IDS[layout][0](vocab_size=vocabulary.size + 5, **SIZES)
    generator = np.random.default_rng(0)
    parts = frozenset({"embeddings", "decoder"})
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), huggingface.shapes_of(config, parts))
    huggingface.write(folder, config, params, tokenizer_files=sorted((folder.parent / "tokenizer").iterdir()))
    return vocabulary


@pytest.mark.parametrize("layout", CONFIGS_AND_IDS)
def test_decoder_round_trip_is_exact(layout, tmp_path, capsys):
    folder, model_dir, out = tmp_path / "theirs", tmp_path / "model", tmp_path / "out"
    vocabulary = write_model(folder, layout)
    assert main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    architecture = {"gpt2": "GPT2LMHeadModel", "roberta": "OPTForCausalLM"}[layout]
    assert f"{architecture}, float32" in capsys.readouterr().out
    before, after = (load_file(path / "model.safetensors") for path in (folder, out))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    content = json.loads((out / "config.json").read_text())
    ids = tuple(content[f"{name}_token_id"] for name in ("bos", "eos", "pad"))
    assert ids == CONFIGS_AND_IDS[layout][1] and content["vocab_size"] == vocabulary.size + 5
    opened = open_model(model_dir)
    assert opened.run.objective.model.table_rows == vocabulary.size + 5 and opened.run.shape(0).length == 12

    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    # The model continues the text, so no token follows it; OPT's own tokenizer puts one before it.
    before = {"gpt2": [], "roberta": [2]}[layout]
    assert tokenizer(TEXT).input_ids == [*before, *vocabulary.encode(TEXT).ids]
    assert tokenizer.eos_token_id == content["eos_token_id"]
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert type(model).__name__ == architecture and not any(info.values()), info
    stated = model.generation_config
    assert (stated.bos_token_id, stated.eos_token_id, stated.pad_token_id) == CONFIGS_AND_IDS[layout][1]


def test_vocabulary_of_characters_is_refused(tmp_path, capsys):
    """Use a vocabulary like GPT's, with pieces of characters and </w> at the end of words."""
    folder = tmp_path / "theirs"
    write_model(folder, "gpt2")
    for path in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / path).unlink()
    (folder / "vocab.json").write_text(json.dumps({"<unk>": 0, "a": 1, "b": 2, "ab</w>": 3, "b</w>": 4, "a</w>": 5}))
    (folder / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    assert main(["import", f"--input={folder}", f"--output={tmp_path / 'model'}"]) == 2
    error = capsys.readouterr().err
    assert (
        error.count("\n") == 1
        and "vocab.json is a BPE of characters with </w> after words" in error
        and not (tmp_path / "model").exists()
    )

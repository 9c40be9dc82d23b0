"""Import and export commands for encoder-decoders, with the vocabularies of their families."""

import json
import warnings

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bertfam import api
from bertfam.cli import main
from bertfam.config import load
from bertfam.data.vocabularies.byte_bpe import ByteBpe
from bertfam.data.vocabularies.layouts import LAYOUTS
from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece
from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.bart import BartConfig
from bertfam.models.mt5 import MT5Config
from bertfam.models.t5 import T5Config
from bertfam.training.model_dir import open_model
from bertfam.training.teachers import open_teacher, teacher_bindings

SIZES = {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "feed_forward_size": 24}
V1_1 = {"activation": "gelu_tanh", "gated": True, "tie_embeddings": False, "scale_logits": False}
CONFIGS = {
    "T5": T5Config(**SIZES, head_dim=4),
    "T5 1.1": T5Config(**SIZES, head_dim=4, **V1_1),
    "MT5": MT5Config(**SIZES, head_dim=4),
    "Bart": BartConfig(**SIZES, max_length=12),
}
TEXT = "a bad cab <extra_id_0> in a bed"


def train_vocabulary(name):
    """Return a SentencePiece vocabulary with 100 sentinels after the model file's pieces, or a byte-level one for BART."""
    texts = ["a bad cab", "in a bed", "a fad of cabs"] * 4
    if name == "Bart":
        return ByteBpe.train(texts, size=262, layout=LAYOUTS["roberta"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return SentencePiece.train(texts, size=125, layout=LAYOUTS["t5"])


def write_model(folder, name, vocabulary):
    """Write a folder like the published ones, with more rows than tokens; T5's has only spiece.model, without sentinels."""
    vocabulary.save(folder.parent / "tokenizer")
    files = sorted((folder.parent / "tokenizer").iterdir())
    config = CONFIGS[name].__class__(**(vars(CONFIGS[name]) | {"vocab_size": vocabulary.size + 28}))
    parts = max(huggingface.family_of(config).architectures, key=len)
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), huggingface.shapes_of(config, parts))
    alone = [path for path in files if path.name == "spiece.model"]
    huggingface.write(folder, config, params, tokenizer_files=alone or files)
    return config


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_encoder_is_usable_alone(name, tmp_path):
    """The encoder of a folder encodes texts and teaches hidden states; without a masked-token head it teaches no logits."""
    folder = tmp_path / "theirs"
    vocabulary = train_vocabulary(name)
    write_model(folder, name, vocabulary)
    both, encoder = api.load(folder), api.load(folder, network="encoder")
    assert isinstance(encoder, api.Model) and encoder.params.keys() == {"encoder"}
    rows = np.full((2, 9), vocabulary.token_ids.pad, np.int32)
    for row, text in zip(rows, ("a bad cab", "in a bed"), strict=True):
        ids = vocabulary.encode_prompt(text).ids[:9]
        row[: len(ids)] = ids
    real = (rows != vocabulary.token_ids.pad).astype(np.int32)
    expected = both.encode(rows, segment_ids=real)["hidden"]
    np.testing.assert_allclose(encoder.apply(rows)["hidden"], expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(UserError, match="has no network decoder; it has encoder_decoder, encoder"):
        api.load(folder, network="decoder")

    with pytest.raises(UserError, match="a teacher must be an encoder.* --teacher_network=encoder"):
        open_teacher(str(folder))
    opened = open_teacher(str(folder), network="encoder")
    assert not opened.teacher.has_head and opened.teacher.network == "encoder"
    student = [f"BertConfig.{size} = {value}" for size, value in SIZES.items()]
    files, given = ["objectives/distillation.gin"], ["MODEL = @BertConfig()", *student, *teacher_bindings(opened, "--teacher")]
    with pytest.raises(UserError, match="no masked-language-model head .*set Distillation.soft = 0"):
        load(files, given).build("Distillation")
    built = load(files, [*given, "Distillation.soft = 0.0"]).build("Distillation").sized(vocabulary.size)
    assert built.teacher.model == encoder.config and built.teacher.digest == opened.teacher.digest


def test_folder_of_an_encoder_alone_is_refused_in_one_line(tmp_path, capsys):
    write_model(tmp_path, "T5", train_vocabulary("T5"))
    tensors = load_file(tmp_path / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(("decoder.", "lm_head."))}
    save_file(own, tmp_path / "model.safetensors")
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"architectures": ["T5EncoderModel"]}))
    assert main(["import", f"--input={tmp_path}", f"--output={tmp_path / 'model'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} has the encoder of t5 alone" in line and "T5EncoderModel" in line


@pytest.mark.parametrize("name", CONFIGS)
def test_encoder_decoder_round_trip_is_exact(name, tmp_path, capsys):
    folder, model_dir, out = tmp_path / "theirs", tmp_path / "model", tmp_path / "out"
    vocabulary = train_vocabulary(name)
    config = write_model(folder, name, vocabulary)
    assert main(["import", f"--input={folder}", f"--output={model_dir}"]) == 0
    assert main(["export", f"--model_dir={model_dir}", f"--output={out}"]) == 0
    architecture = f"{name.split()[0]}ForConditionalGeneration"
    assert f"{architecture}, float32" in capsys.readouterr().out
    before, after = (load_file(path / "model.safetensors") for path in (folder, out))
    assert before.keys() == after.keys() and all(np.array_equal(before[name], after[name]) for name in before)
    assert huggingface.read(out).config == config

    # Decoder texts start with the padding token in T5 and with the end token in BART.
    content = json.loads((out / "config.json").read_text())
    expected = {"bos": 0, "pad": 1, "eos": 2, "decoder_start": 2} if name == "Bart" else {"pad": 0, "eos": 1, "decoder_start": 0}
    assert {key: content[f"{key}_token_id"] for key in expected} == expected
    assert content["vocab_size"] == vocabulary.size + 28
    opened = open_model(model_dir)
    model, tokens = opened.run.objective.model, opened.vocabulary.token_ids
    assert (model.vocab_size, model.table_rows) == (vocabulary.size, vocabulary.size + 28)
    assert opened.run.shape(0).length == (12 if name == "Bart" else 128) and opened.run.shape(0).targets > 0
    if name == "Bart":
        assert tokens.mask == vocabulary.size - 1 and opened.vocabulary.pieces([tokens.mask]) == ["<mask>"]
    else:
        assert len(tokens.sentinels) == 100 and tokens.sentinels[0] == vocabulary.size - 1

    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer(TEXT).input_ids == list(vocabulary.encode_prompt(TEXT).ids)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (expected["pad"], expected["eos"])
    torch_model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(out, output_loading_info=True)
    assert type(torch_model).__name__ == architecture and not any(info.values()), info
    assert torch_model.generation_config.decoder_start_token_id == expected["decoder_start"]

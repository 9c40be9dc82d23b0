"""Reading and writing Hugging Face folders."""

import dataclasses
import json

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BERT, BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.ernie import ErnieConfig
from bertfam.models.roberta import RobertaConfig
from bertfam.models.sizes import Sizes

CONFIG = BertConfig(vocab_size=37, num_layers=2, hidden_size=16, num_heads=2, feed_forward_size=24, max_length=12)
PARTS = {
    "BertModel": {"encoder", "pooler"},
    "BertForMaskedLM": {"encoder", "mlm_head"},
    "BertForNextSentencePrediction": {"encoder", "pooler", "nsp_head"},
    "BertForPreTraining": {"encoder", "pooler", "mlm_head", "nsp_head"},
}


def random_params(architecture="BertForPreTraining", config=CONFIG):
    generator = np.random.default_rng(0)
    shapes = huggingface.shapes_of(config, frozenset(PARTS[architecture]))
    params = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, dtype=np.float32), shapes)
    flat = traverse_util.flatten_dict(params, sep="/")
    for path in ("encoder/embeddings/word/table", "mlm_head/bias", "mlm_head/decoder"):
        if path in flat:
            flat[path][config.vocab_size :] = 0  # padding rows, which no file has
    return params


def equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    return True


@pytest.fixture
def folder(tmp_path):
    huggingface.write(tmp_path / "model", CONFIG, random_params())
    return tmp_path / "model"


def edit(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    content |= changes
    (folder / "config.json").write_text(json.dumps({name: value for name, value in content.items() if value != "absent"}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", PARTS)
def test_written_model_is_read_back_exactly(architecture, tied, tmp_path):
    config = dataclasses.replace(CONFIG, tie_embeddings=tied, activation="gelu_tanh", dropout_rate=0.2)
    params = random_params(architecture, config)
    assert huggingface.write(tmp_path / "out", config, params) == architecture
    model = huggingface.read(tmp_path / "out")
    assert model.config == config and model.ignored == () and equal(model.params, params)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("architecture", PARTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_the_written_model(architecture, dtype, tied, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    params = random_params(architecture, config)
    huggingface.write(tmp_path / "out", config, params, dtype=dtype)
    model, info = getattr(transformers, architecture).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values()), info
    assert model.dtype == getattr(torch, dtype)
    state = {name: tensor.to(torch.float32).numpy() for name, tensor in model.state_dict().items()}
    for name, tensor in huggingface.to_tensors(BERT, config, params).items():
        np.testing.assert_array_equal(state[name], tensor.astype(np.dtype(dtype)).astype(np.float32))
    if "mlm_head" in params:
        np.testing.assert_array_equal(state["cls.predictions.decoder.bias"], state["cls.predictions.bias"])


@pytest.mark.parametrize("architecture", PARTS)
def test_model_written_by_transformers_keeps_its_tensor_names(architecture, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    content = BERT.config_to_huggingface(CONFIG)
    model = getattr(transformers, architecture)(transformers.BertConfig(**content))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path / "theirs")
    read = huggingface.read(tmp_path / "theirs")
    assert huggingface.write(tmp_path / "ours", read.config, read.params) == architecture
    theirs, rewritten = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == rewritten.keys() and equal(theirs, rewritten)


def test_weights_have_the_permissions_of_other_new_files(tmp_path):
    huggingface.write(tmp_path / "model", CONFIG, random_params())
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1


def test_bfloat16_values_are_kept(tmp_path):
    params = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16).astype(np.float32), random_params())
    huggingface.write(tmp_path / "one", CONFIG, params, dtype="bfloat16")
    read = huggingface.read(tmp_path / "one")
    assert equal(read.params, params) and read.params["pooler"]["dense"]["bias"].dtype == np.float32
    huggingface.write(tmp_path / "two", CONFIG, read.params, dtype="bfloat16")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one["bert.pooler.dense.bias"].dtype == ml_dtypes.bfloat16 and equal(one, two)


def test_sharded_model_is_read(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, shard_names in files.items():
        save_file({name: tensors[name] for name in shard_names}, folder / file)
    weight_map = {name: file for file, shard_names in files.items() for name in shard_names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert equal(huggingface.read(folder).params, random_params())
    (folder / "b.safetensors").unlink()
    with pytest.raises(UserError, match="b.safetensors is missing"):
        huggingface.read(folder)


def test_old_names_buffers_and_copied_tensors_are_accepted(folder):
    def change(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors[old] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = np.arange(12)
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()

    edit_tensors(folder, change)
    read = huggingface.read(folder)
    assert read.config == CONFIG and read.ignored == () and equal(read.params, random_params())


def test_head_with_different_values_is_untied(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"cls.predictions.decoder.weight": np.ones((37, 16), np.float32)}))
    read = huggingface.read(folder)
    assert not read.config.tie_embeddings
    assert np.all(read.params["mlm_head"]["decoder"][:37] == 1) and np.all(read.params["mlm_head"]["decoder"][37:] == 0)


def test_bias_of_the_decoder_takes_precedence(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"cls.predictions.decoder.bias": np.ones(37, np.float32)}))
    assert np.all(huggingface.read(folder).params["mlm_head"]["bias"][:37] == 1)


def test_masked_language_model_with_an_unused_pooler_keeps_its_head(folder):
    """Read BertForMaskedLM as saved before transformers 4."""
    edit_tensors(folder, lambda tensors: [tensors.pop(f"cls.seq_relationship.{name}") for name in ("weight", "bias")])
    read = huggingface.read(folder)
    assert read.params.keys() == {"encoder", "mlm_head"}
    assert read.ignored == ("bert.pooler.dense.bias", "bert.pooler.dense.weight")


def test_unknown_tensors_are_listed_as_ignored(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"classifier.weight": np.ones((3, 16), np.float32)}))
    assert huggingface.read(folder).ignored == ("classifier.weight",)


def test_missing_tensors_and_wrong_shapes_are_reported(folder):
    edit_tensors(folder, lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.bias"))
    with pytest.raises(UserError, match=r"lacks 1 of \d+ tensors, such as bert.encoder.layer.1.output.dense.bias"):
        huggingface.read(folder)
    edit_tensors(folder, lambda t: t.update({"bert.encoder.layer.1.output.dense.bias": np.ones(17, np.float32)}))
    with pytest.raises(UserError, match=r"layer.1.output.dense.bias has shape \(17,\), and config.json asks for \(16,\)"):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', supported: bert, "),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"hidden_act": "mish"}, "config.json: hidden_act = 'mish'"),
        ({"num_attention_heads": 0}, "config.json: BertConfig.num_heads = 0"),
        ({"hidden_size": "absent"}, "hidden_size must be stated"),
        ({"num_attention_heads": 3}, "hidden_size = 16 is not a multiple of num_heads = 3"),
    ],
)
def test_unsupported_configs_are_refused(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(UserError, match=message):
        huggingface.read(folder)


def test_pickles_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="only in pytorch_model.bin, a pickle.*save_pretrained"):
        huggingface.read(folder)


def test_damaged_folders_are_refused(folder, tmp_path):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(UserError, match="no whole safetensors file"):
        huggingface.read(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="config.json is not JSON"):
        huggingface.read(folder)
    with pytest.raises(UserError, match="config.json is missing"):
        huggingface.read(tmp_path / "nowhere")


def test_existing_folder_and_unsupported_parts_are_refused(folder, tmp_path):
    with pytest.raises(UserError, match="exists already"):
        huggingface.write(folder, CONFIG, random_params())
    params = random_params()
    del params["pooler"]
    with pytest.raises(UserError, match="just the parts encoder, mlm_head, nsp_head"):
        huggingface.write(tmp_path / "other", CONFIG, params)
    with pytest.raises(UserError, match="dtype 'float16'"):
        huggingface.write(tmp_path / "other", CONFIG, random_params(), dtype="float16")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        (BertConfig, {"head_activation": "relu"}, "head_activation = 'relu' has no place in .* which has 'gelu'"),
        (BertConfig, {"embedding_size": 8}, "embedding_size = 8"),
        (BertConfig, {"type_vocab_size": 0}, "type_vocab_size = 0"),
        (AlbertConfig, {"head_activation": "relu", "embedding_size": 8}, "head_activation = 'relu'"),
        (DistilBertConfig, {"embedding_size": 8}, "embedding_size = 8"),
        (ElectraConfig, {"head_activation": None, "activation": "relu"}, "head_activation = 'relu'"),
        (ErnieConfig, {"head_activation": "gelu"}, "head_activation = 'gelu' has no place in .* which has 'relu'"),
        (RobertaConfig, {"head_activation": "relu"}, "head_activation = 'relu' has no place"),
        (RobertaConfig, {"embedding_size": 8}, "embedding_size = 8"),
    ],
)
def test_model_without_a_transformers_class_cannot_be_written(tmp_path, family, change, message):
    """Such a folder would be read as another model or not at all."""
    sizes = {field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(Sizes)}
    config = family(**sizes | change)
    with pytest.raises(UserError, match=f"{family.__name__}.{message}"):
        huggingface.write(tmp_path / "out", config, {"encoder": {}, "mlm_head": {}})
    assert not (tmp_path / "out").exists()


def test_failed_write_leaves_no_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        huggingface.write(tmp_path / "out", CONFIG, random_params(), tokenizer_files=[tmp_path / "vocab.txt"])
    assert list(tmp_path.iterdir()) == []

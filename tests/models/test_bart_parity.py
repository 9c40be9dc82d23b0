"""BART against Hugging Face's torch class."""

import functools

import encoder_decoder_parity as seq2seq_parity
import jax
import numpy as np
import parity
import pytest
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.bart import POSITION_OFFSET, BartConfig
from bertfam.models.language_model import init_language_model

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.numpy")

FAMILY = huggingface.FAMILIES["bart"]
SIZES = {"d_model": 32, "max_position_embeddings": 17}
SIZES |= {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in (("attention_heads", 4), ("ffn_dim", 40))}
SIZES |= {"encoder_layers": 2, "decoder_layers": 3}
OPTIONS = [
    pytest.param({}, {"num_encoder_layers": 2, "num_layers": 3, "activation": "gelu", "tie_embeddings": True}, id="as published"),
    pytest.param(
        {"encoder_attention_heads": 2, "decoder_ffn_dim": 24, "encoder_layers": 3, "scale_embedding": True},
        {"num_encoder_heads": 2, "encoder_feed_forward_size": 40, "num_encoder_layers": None, "scale_embeddings": True},
        id="scaled words, unlike stacks",
    ),
    pytest.param(
        {"tied": False, "activation_function": "gelu_new", "decoder_layers": 1},
        {"tie_embeddings": False, "activation": "gelu_tanh", "num_layers": 1},
        id="untied, tanh",
    ),
]


def torch_model(folder, tied=True, **options):
    """Return a model with random parameters and logits bias, saved in `folder`; an untied one has a head of its own."""
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=parity.VOCABULARY, **(SIZES | options)))
    torch.manual_seed(1)
    model.final_logits_bias.normal_(0, 0.3)
    parity.randomised(model, folder)
    return seq2seq_parity.loaded(model, folder, None if tied else "model.shared.weight")


@pytest.mark.parametrize(("options", "fields"), OPTIONS)
def test_outputs_match_torch(tmp_path, options, fields):
    """All hidden states, attention weights and logits agree, with ragged rows in both networks, at all positions."""
    model = torch_model(tmp_path / "theirs", **options)
    config, params, ignored = huggingface.read(tmp_path / "theirs")
    assert isinstance(config, BartConfig) and ignored == ()
    assert {name: getattr(config, name) for name in fields} == fields
    inputs = seq2seq_parity.batch()
    assert inputs["encoder"][0].shape[1] == config.max_length
    actual, expected = seq2seq_parity.jax_outputs(config, params, inputs), seq2seq_parity.torch_outputs(model, inputs)
    assert seq2seq_parity.agree(actual, expected, inputs), seq2seq_parity.errors(actual, expected, inputs)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = seq2seq_parity.batch()
    expected = seq2seq_parity.torch_outputs(torch_model(tmp_path), inputs)
    agrees = functools.partial(seq2seq_parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(
        monkeypatch, tmp_path, functools.partial(seq2seq_parity.jax_outputs, inputs=inputs), agrees
    )


@pytest.mark.parametrize("options", [{}, {"tied": False}])
def test_transformers_loads_exported_model(tmp_path, options):
    original = torch_model(tmp_path / "theirs", **options)
    config, params, _ = huggingface.read(tmp_path / "theirs")
    assert huggingface.write(tmp_path / "ours", config, params) == "BartForConditionalGeneration"
    model, info = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    before, after = original.state_dict(), model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert "final_logits_bias" in before and model.config.max_position_embeddings == 17
    changed = {name for name, value in original.config.to_dict().items() if model.config.to_dict().get(name) != value}
    # The export of a run takes ids from its vocabulary.
    ids = {f"{name}_token_id" for name in ("bos", "eos", "pad", "decoder_start", "forced_eos")}
    assert changed <= {"_name_or_path", "architectures", "dtype"} | ids, changed


def test_mask_token_keeps_its_row(tmp_path):
    """It is the last row of the table; positions begin in row 2, whatever the padding id."""
    torch_model(tmp_path)
    tensors = safetensors.load_file(tmp_path / "model.safetensors")
    config, params, _ = huggingface.read(tmp_path)
    mask = config.vocab_size - 1
    np.testing.assert_array_equal(params["embeddings"]["table"][mask], tensors["model.shared.weight"][mask])
    np.testing.assert_array_equal(params["lm_head"]["bias"][mask], tensors["final_logits_bias"][0, mask])
    assert not np.any(params["embeddings"]["table"][mask + 1 :])
    embeddings = params["encoder"]["embeddings"]
    table = embeddings["position"]["table"]
    assert POSITION_OFFSET == 2 and table.shape == (config.max_length + 2, 32)
    # The two rows before are never read.
    inputs = seq2seq_parity.batch()
    blank = np.where(np.arange(19)[:, None] < 2, np.nan, table)
    other = params | {
        "encoder": params["encoder"] | {"embeddings": params["encoder"]["embeddings"] | {"position": {"table": blank}}}
    }
    np.testing.assert_array_equal(*(seq2seq_parity.jax_outputs(config, which, inputs)["logits"] for which in (params, other)))


@pytest.mark.parametrize("kind", ["BartModel", "BartForSequenceClassification"])
def test_missing_logits_bias_is_zero(tmp_path, kind):
    """The generation class of transformers reads such files in the same way."""
    options = {"vocab_size": parity.VOCABULARY, **SIZES}
    parity.randomised(getattr(transformers, kind)(transformers.BartConfig(**options)), tmp_path)
    config, params, ignored = huggingface.read(tmp_path)
    assert all(name.startswith("classification_head.") for name in ignored) and bool(ignored) == (kind != "BartModel")
    assert params["lm_head"].keys() == {"bias"} and not np.any(params["lm_head"]["bias"])
    torch_tensors = transformers.BartForConditionalGeneration.from_pretrained(tmp_path).state_dict()
    tensors = huggingface.to_tensors(FAMILY, config, params)
    assert all(np.array_equal(torch_tensors[name].numpy(), value) for name, value in tensors.items())


def test_separate_word_tables_are_refused(tmp_path):
    """Version 5 of transformers creates such models for tie_word_embeddings = False."""
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**CONFIG, tie_word_embeddings=False))
    parity.randomised(model, tmp_path)
    with pytest.raises(UserError, match="there are two of model.shared.weight, with different values"):
        huggingface.read(tmp_path)


def test_initial_deviations_match_torch():
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, **SIZES, "d_model": 96, "max_position_embeddings": 60}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes))
    torch_tensors = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    config = FAMILY.config_from_huggingface(model.config.to_dict())
    params = jax.jit(lambda key: nn.unbox(init_language_model(config, key)))(jax.random.key(0))
    for name, value in huggingface.to_tensors(FAMILY, config, params).items():
        error = 5 / np.sqrt(2 * value.size) + 5 / np.sqrt(2 * torch_tensors[name].size)
        assert value.shape == torch_tensors[name].shape and value.std() == pytest.approx(
            torch_tensors[name].std(), rel=error, abs=1e-9
        ), name
        assert abs(value.mean() - torch_tensors[name].mean()) <= error * torch_tensors[name].std() + 1e-9


CONFIG = {"vocab_size": parity.VOCABULARY, **SIZES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": None}, "d_model must be stated, as int"),
        ({"decoder_ffn_dim": 1.5}, "decoder_ffn_dim must be stated, as int"),
        ({"attention_dropout": "none"}, "attention_dropout must be of type int or float"),
        ({"scale_embedding": 1}, "scale_embedding must be of type bool"),
        ({"activation_function": "tanh"}, "activation_function = 'tanh' is not supported, only gelu"),
        ({"normalize_before": True}, "normalize_before = True is not supported, only False"),
        ({"static_position_embeddings": True}, "static_position_embeddings = True"),
        ({"extra_pos_embeddings": 0}, "extra_pos_embeddings = 0 is not supported, only 2"),
        ({"encoder_layerdrop": 0.1}, "encoder_layerdrop = 0.1 is not supported, only 0"),
        ({"encoder_attention_heads": 5}, "is not a multiple of num_encoder_heads = 5"),
    ],
)
def test_unsupported_configs_are_refused(changes, message):
    with pytest.raises(UserError, match=message) as error:
        FAMILY.config_from_huggingface(CONFIG | changes)
    assert "\n" not in str(error.value)


def test_published_config():
    """These are the computational settings in config.json of facebook/bart-base."""
    published = {
        "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False, "add_final_layer_norm": False,
        "attention_dropout": 0.1, "bos_token_id": 0, "classifier_dropout": 0.0, "d_model": 768, "decoder_attention_heads": 12,
        "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0, "decoder_layers": 6, "decoder_start_token_id": 2, "dropout": 0.1,
        "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 2,
        "init_std": 0.02, "is_encoder_decoder": True, "max_position_embeddings": 1024, "model_type": "bart",
        "normalize_before": False, "normalize_embedding": True, "num_hidden_layers": 6, "pad_token_id": 1,
        "scale_embedding": False, "vocab_size": 50265,
    }  # fmt: skip
    assert FAMILY.config_from_huggingface(published) == BartConfig(50265)

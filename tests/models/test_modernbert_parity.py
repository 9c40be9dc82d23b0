"""ModernBERT against Hugging Face's torch class."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import parity
import pytest
import xla
from flax import linen as nn

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.encoder import init_encoder, init_masked_lm_head
from bertfam.models.modernbert import MODERNBERT, ModernBertConfig

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

THETAS = {"full_attention": {"rope_type": "default", "rope_theta": 90.0}}
THETAS |= {"sliding_attention": {"rope_type": "default", "rope_theta": 7.0}}
MIXED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention", "full_attention"]
OPTIONS = [
    pytest.param({"num_hidden_layers": 1}, {"num_layers": 1, "global_every": 3}, id="one layer"),
    pytest.param({"num_hidden_layers": 6, "local_attention": 6}, {"global_every": 3, "window": 6}, id="a rest of two"),
    pytest.param(
        {"num_hidden_layers": 4, "local_attention": 7, "rope_parameters": THETAS, "hidden_activation": "gelu_new"},
        {"global_theta": 90.0, "local_theta": 7.0, "window": 7, "activation": "gelu_tanh", "head_activation": "gelu"},
        id="no rest, other thetas",
    ),
    pytest.param(
        {"num_hidden_layers": 5, "local_attention": 2, "layer_types": MIXED, "classifier_activation": "relu"},
        {"layer_types": ("local", "global", "global", "local", "global"), "head_activation": "relu"},
        id="another pattern",
    ),
    pytest.param(
        {"num_hidden_layers": 3, "global_attn_every_n_layers": 1, "decoder_bias": False, "norm_eps": 0.1},
        {"global_every": 1, "decoder_bias": False, "layer_norm_epsilon": 0.1},
        id="all global, no bias at all",
    ),
    pytest.param(
        {"num_hidden_layers": 5, "global_attn_every_n_layers": 2, "local_attention": 10, "tie_word_embeddings": False},
        {"global_every": 2, "tie_embeddings": False},
        id="every other, untied",
    ),
]


SIZES = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 20, "max_position_embeddings": 17}


def torch_model(folder, kind=None, **options):
    config = transformers.ModernBertConfig(
        vocab_size=parity.VOCABULARY, pad_token_id=0, attn_implementation="eager", **(SIZES | options)
    )
    return parity.randomised((kind or transformers.ModernBertForMaskedLM)(config), folder)


def run(config, params, inputs):
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config))


@pytest.mark.parametrize(("options", "fields"), OPTIONS)
def test_outputs_match_torch(tmp_path, options, fields):
    """All hidden states, attention weights of all layers in order, and logits agree."""
    model = torch_model(tmp_path / "theirs", **options)
    config, params, ignored = huggingface.read(tmp_path / "theirs")
    assert isinstance(config, ModernBertConfig) and ignored == ()
    assert {name: getattr(config, name) for name in fields} == fields
    inputs = parity.batch()
    actual, expected = run(config, params, inputs), parity.torch_outputs(model, inputs, mlm="logits", types=False)
    assert len(expected["attention_probs"]) == config.num_layers
    assert parity.agree(actual, expected, inputs), parity.errors(actual, expected, inputs)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_float64_outputs_match_torch_in_float64(tmp_path, monkeypatch):
    """Differences in float32 are rounding, which grows with width and depth in a residual sum without norms: 1e-3 at 96."""
    model = torch_model(tmp_path, num_hidden_layers=6, local_attention=6, hidden_size=96, intermediate_size=72)
    inputs = parity.batch()
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = Path(__file__).with_name("modernbert_float64.py")
    environment = os.environ | xla.device_environment()
    subprocess.run([sys.executable, str(script), str(tmp_path / "inputs.npz"), str(tmp_path)], check=True, env=environment)

    # transformers computes angles and softmax in float32 in a model of any dtype.
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    model = model.double()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    assert_rows_match(dict(np.load(tmp_path / "outputs.npz")), model, inputs)


def assert_rows_match(actual, model, inputs):
    """Compare rows without padding: a window that sees only padding gives NaN in float64 in torch."""
    for row, length in enumerate(parity.LENGTHS):
        row_inputs = {name: value[row : row + 1, :length] for name, value in inputs.items()}
        expected = parity.torch_outputs(model, row_inputs, mlm="logits", types=False)
        assert {value.dtype.name for value in expected.values()} == {"float64"}
        own_row = {
            "mlm": actual["mlm"][row : row + 1, :length],
            "hidden_states": actual["hidden_states"][:, row : row + 1, :length],
            "attention_probs": actual["attention_probs"][:, row : row + 1, :, :length, :length],
        }
        assert max(parity.errors(own_row, expected, row_inputs).values()) < 1e-10


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch()
    expected = parity.torch_outputs(
        torch_model(tmp_path, num_hidden_layers=4, local_attention=6), inputs, mlm="logits", types=False
    )
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": False}, {"decoder_bias": False}])
def test_transformers_loads_exported_model(tmp_path, options):
    torch_model(tmp_path / "theirs", num_hidden_layers=5, **options)
    config, params, _ = huggingface.read(tmp_path / "theirs")
    assert huggingface.write(tmp_path / "ours", config, params) == "ModernBertForMaskedLM"
    model, info = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    state = model.state_dict()
    for name, tensor in huggingface.to_tensors(MODERNBERT, config, params).items():
        np.testing.assert_array_equal(state[name].numpy(), tensor)
    torch_config = transformers.ModernBertConfig.from_pretrained(tmp_path / "theirs")
    assert model.config.layer_types == torch_config.layer_types and model.config.rope_parameters == torch_config.rope_parameters


def test_classifier_head_is_not_imported_as_masked_lm_head(tmp_path):
    torch_model(tmp_path, transformers.ModernBertForSequenceClassification, num_hidden_layers=2, num_labels=3)
    actual = huggingface.read(tmp_path)
    assert actual.params.keys() == {"encoder"}
    assert actual.ignored == ("classifier.bias", "classifier.weight", "head.dense.weight", "head.norm.weight")


def test_initial_deviations_match_torch():
    """Every tensor agrees; the deviation of 10,000 values has an error of 0.7 %."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes, pad_token_id=0))
    torch_tensors = {name: value.detach().numpy() for name, value in model.named_parameters()}
    config = MODERNBERT.config_from_huggingface(model.config.to_dict())

    def init(key):
        encoder = init_encoder(config, key)
        return nn.unbox({"encoder": encoder, "mlm_head": init_masked_lm_head(config, key, encoder)})

    tensors = huggingface.to_tensors(MODERNBERT, config, jax.jit(init)(jax.random.key(0)))
    assert tensors.keys() == torch_tensors.keys()
    for name, value in tensors.items():
        assert value.shape == torch_tensors[name].shape and value.mean() == pytest.approx(torch_tensors[name].mean(), abs=1e-3)
        assert value.std() == pytest.approx(torch_tensors[name].std(), rel=0.03), name


@pytest.mark.parametrize(("layers", "hidden", "heads", "size"), [(22, 768, 12, 1152), (28, 1024, 16, 2624)])
def test_published_sizes_match_torch(layers, hidden, heads, size):
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": size}
    with torch.device("meta"):
        model = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes))
    config = ModernBertConfig(50368, num_layers=layers, hidden_size=hidden, num_heads=heads, feed_forward_size=size)
    shapes = huggingface.shapes_of(config, frozenset({"encoder", "mlm_head"}))
    count = sum(np.prod(value.shape) for value in flat(shapes).values())
    padding = (config.padded_vocab_size - 50368) * (hidden + 1)
    assert sum(parameter.numel() for parameter in model.parameters()) == count - padding


def flat(tree, path=()):
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: leaf for key, value in tree.items() for name, leaf in flat(value, (*path, key)).items()}


PUBLISHED = {
    "model_type": "modernbert",
    "vocab_size": 50368,
    "hidden_size": 768,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "intermediate_size": 1152,
    "max_position_embeddings": 8192,
}


def test_configs_of_transformers_4():
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "local_attention": 128}
    old |= {"norm_bias": False, "classifier_pooling": "mean", "hidden_activation": "gelu", "decoder_bias": True}
    expected = ModernBertConfig(50368, head_activation="gelu", classifier_pooling="mean")
    assert MODERNBERT.config_from_huggingface(PUBLISHED | old) == expected
    other = PUBLISHED | old | {"global_attn_every_n_layers": 2, "local_rope_theta": 20.0}
    actual = MODERNBERT.config_from_huggingface(other)
    assert (actual.global_every, actual.local_theta, actual.global_theta) == (2, 20.0, 160_000.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_bias": True}, "norm_bias = True is not supported, only False"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"classifier_bias": True}, "classifier_bias = True"),
        ({"hidden_activation": "mish"}, "hidden_activation = 'mish' is not supported, only gelu"),
        ({"hidden_size": None}, "hidden_size must be stated, as int"),
        ({"local_attention": "wide"}, "local_attention must be of type int"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "must be stated for full_attention and sliding_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type 'yarn', only 'default'"),
        ({"global_rope_theta": "big"}, "rope_theta of full_attention = 'big' must be a number"),
        ({"layer_types": ["dense"] * 22}, "must be a list of full_attention and sliding_attention"),
        ({"layer_types": ["full_attention"]}, r"must be 22 \(num_layers\)"),
        ({"global_attn_every_n_layers": 0}, "global_every = 0"),
    ],
)
def test_unsupported_configs_are_refused(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED | changes))
    with pytest.raises(UserError, match=message) as error:
        huggingface.read(tmp_path)
    assert "\n" not in str(error.value)

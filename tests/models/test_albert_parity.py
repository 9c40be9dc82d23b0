"""ALBERT against Hugging Face's torch classes."""

import functools
import json

import parity
import pytest

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.albert import AlbertConfig
from bertfam.models.encoder import pooler, sentence_head

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")


def torch_model(folder, architecture="AlbertForPreTraining", **options):
    config = transformers.AlbertConfig(
        vocab_size=parity.VOCABULARY,
        embedding_size=20,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=20,
        type_vocab_size=3,
        attn_implementation="eager",
        **options,
    )
    return parity.randomised(getattr(transformers, architecture)(config), folder)


@functools.cache
def sentence_order_head(config):
    def head(params, hidden):
        pooled = pooler(config).apply({"params": params["pooler"]}, hidden[:, 0])
        return sentence_head(config).apply({"params": params["sop_head"]}, pooled)

    return head


def run(config, params, inputs):
    heads = {"sop": sentence_order_head(config)} if "sop_head" in params else {}
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config), **heads)


def expected_outputs(model, inputs):
    if isinstance(model, transformers.AlbertForPreTraining):
        return parity.torch_outputs(model, inputs, mlm="prediction_logits", sop="sop_logits")
    return parity.torch_outputs(model, inputs, mlm="logits")


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("AlbertForPreTraining", {}),
        ("AlbertForPreTraining", {"hidden_act": "gelu", "layer_norm_eps": 1e-3}),
        ("AlbertForPreTraining", {"tie_word_embeddings": False}),
        ("AlbertForMaskedLM", {"hidden_act": "relu"}),
    ],
)
def test_outputs_match_torch(tmp_path, architecture, options):
    """The one layer is applied three times; the pooler is a plain linear layer; the head projects to the tables' width."""
    model = torch_model(tmp_path, architecture, **options)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, AlbertConfig) and ignored == ()
    assert (config.embedding_size, config.num_layers, config.sharing) == (20, 3, "all")
    assert config.activation == {"gelu": "gelu", "relu": "relu"}.get(options.get("hidden_act"), "gelu_tanh")
    assert config.tie_embeddings == options.get("tie_word_embeddings", True)
    inputs = parity.batch(types=3)
    actual, expected = run(config, params, inputs), expected_outputs(model, inputs)
    assert len(expected["hidden_states"]) == 4 and ("sop" in expected) == (architecture == "AlbertForPreTraining")
    assert parity.agree(actual, expected, inputs, everywhere=("sop",)), parity.errors(
        actual, expected, inputs, everywhere=("sop",)
    )


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch(types=3)
    expected = expected_outputs(torch_model(tmp_path), inputs)
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs, everywhere=("sop",))
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("architecture", ["AlbertForPreTraining", "AlbertForMaskedLM", "AlbertModel"])
def test_import_and_export_round_trip(tmp_path, architecture):
    torch_model(tmp_path / "theirs", architecture)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == [architecture]
    _, info = getattr(transformers, architecture).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info.values()), info


def test_unsupported_configs_are_refused(tmp_path):
    torch_model(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"num_hidden_groups": 3}, "num_hidden_groups = 3 is not supported, only 1"),
        ({"inner_group_num": 2}, "inner_group_num = 2 is not supported, only 1"),
        ({"embedding_size": 48}, "embedding_size is hidden_size, 48"),
        ({"embedding_size": "20"}, "embedding_size = '20' must be a whole number"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content | change))
        with pytest.raises(UserError, match=message):
            huggingface.read(tmp_path)
    # A value that config.json leaves out has the default of transformers.
    (tmp_path / "config.json").write_text(json.dumps({name: content[name] for name in content if name != "hidden_act"}))
    assert huggingface.read(tmp_path).config.activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("change", "message"), [({"sharing": "attention"}, "sharing = 'attention'"), ({"embedding_size": None}, "is")]
)
def test_models_that_transformers_lacks_are_refused(tmp_path, change, message):
    config = AlbertConfig(vocab_size=30, num_layers=2, hidden_size=16, num_heads=2, feed_forward_size=16, **change)
    with pytest.raises(UserError, match=message):
        huggingface.write(tmp_path / "out", config, {"encoder": {}})
    assert not (tmp_path / "out").exists()

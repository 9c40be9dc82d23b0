"""RoBERTa against Hugging Face's torch class."""

import functools

import parity
import pytest

from bertfam.interop import huggingface
from bertfam.models.roberta import RobertaConfig

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")


def torch_model(folder, pad=1, **options):
    config = transformers.RobertaConfig(
        vocab_size=parity.VOCABULARY,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=pad + 1 + 17,
        type_vocab_size=1,
        pad_token_id=pad,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
        **options,
    )
    return parity.randomised(transformers.RobertaForMaskedLM(config), folder)


def run(config, params, inputs):
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config))


@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_outputs_match_torch(tmp_path, pad, activation):
    """Positions count from the padding id; the head uses exact GELU, whatever the activation of the layers."""
    model = torch_model(tmp_path, pad, hidden_act=activation)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, RobertaConfig) and ignored == ()
    assert (config.max_length, config.position_offset, config.head_activation) == (17, pad + 1, "gelu")
    inputs = parity.batch(pad)
    actual, expected = run(config, params, inputs), parity.torch_outputs(model, inputs, mlm="logits")
    assert parity.agree(actual, expected, inputs), parity.errors(actual, expected, inputs)


def test_second_sentences_use_the_only_token_type(tmp_path):
    """Rows of pairs have type 1 there, but the table has one row."""
    torch_model(tmp_path)
    config, params, _ = huggingface.read(tmp_path)
    inputs = parity.batch(1)
    pairs = inputs | {"token_type_ids": inputs["segment_ids"]}
    actual, expected = (run(config, params, rows) for rows in (pairs, inputs))
    assert all((actual[name] == expected[name]).all() for name in expected)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch(1)
    expected = parity.torch_outputs(torch_model(tmp_path), inputs, mlm="logits")
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


def test_import_and_export_round_trip(tmp_path):
    torch_model(tmp_path / "theirs")
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)

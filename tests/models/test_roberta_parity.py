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
    return parity.ours(config, params, inputs, mlm=parity.masked_lm(config))


@pytest.mark.parametrize("pad", [1, 3])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_outputs_are_those_of_torch(tmp_path, pad, activation):
    """Positions are counted from the padding id; the head's activation is the error function's, whatever the layers' is."""
    model = torch_model(tmp_path, pad, hidden_act=activation)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, RobertaConfig) and ignored == ()
    assert (config.max_length, config.position_offset, config.head_activation) == (17, pad + 1, "gelu")
    inputs = parity.batch(pad)
    found, expected = run(config, params, inputs), parity.theirs(model, inputs, mlm="logits")
    assert parity.agree(found, expected, inputs), parity.errors(found, expected, inputs)


def test_a_second_sentence_has_the_one_type(tmp_path):
    """Rows of pairs say 1 there, and the table has one row."""
    torch_model(tmp_path)
    config, params, _ = huggingface.read(tmp_path)
    inputs = parity.batch(1)
    pairs = inputs | {"token_type_ids": inputs["segment_ids"]}
    found, expected = (run(config, params, rows) for rows in (pairs, inputs))
    assert all((found[name] == expected[name]).all() for name in expected)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch(1)
    expected = parity.theirs(torch_model(tmp_path), inputs, mlm="logits")
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


def test_there_and_back(tmp_path):
    torch_model(tmp_path / "theirs")
    parity.assert_there_and_back(tmp_path / "theirs", tmp_path)

"""ERNIE against Hugging Face's torch class."""

import functools
import json

import parity
import pytest

from bertfam.errors import UserError
from bertfam.interop import huggingface
from bertfam.models.ernie import ErnieConfig

transformers = pytest.importorskip("transformers")
pytest.importorskip("torch")


def torch_model(folder, architecture="ErnieForMaskedLM", **options):
    config = transformers.ErnieConfig(
        vocab_size=parity.VOCABULARY,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=72,
        max_position_embeddings=20,
        type_vocab_size=3,
        attn_implementation="eager",
        **options,
    )
    return parity.randomised(getattr(transformers, architecture)(config), folder)


def run(config, params, inputs):
    return parity.ours(config, params, inputs, mlm=parity.masked_lm(config))


@pytest.mark.parametrize("options", [{"hidden_act": "relu"}, {"tie_word_embeddings": False}])
def test_outputs_are_those_of_torch(tmp_path, options):
    model = torch_model(tmp_path, **options)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, ErnieConfig) and ignored == ()
    inputs = parity.batch(types=3)
    found, expected = run(config, params, inputs), parity.theirs(model, inputs, mlm="logits")
    assert parity.agree(found, expected, inputs), parity.errors(found, expected, inputs)


def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch):
    inputs = parity.batch(types=3)
    expected = parity.theirs(torch_model(tmp_path), inputs, mlm="logits")
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("architecture", ["ErnieForMaskedLM", "ErnieForPreTraining"])
def test_there_and_back(tmp_path, architecture):
    torch_model(tmp_path / "theirs", architecture)
    parity.assert_there_and_back(tmp_path / "theirs", tmp_path)


def test_embeddings_of_tasks_are_refused(tmp_path):
    torch_model(tmp_path, use_task_id=True)
    with pytest.raises(UserError, match="use_task_id = True is not supported"):
        huggingface.read(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["use_task_id"]

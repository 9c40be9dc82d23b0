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


TASKS = {"use_task_id": True, "task_type_vocab_size": 4}


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
    return parity.jax_outputs(config, params, inputs, mlm=parity.masked_lm(config))


@pytest.mark.parametrize("options", [{"hidden_act": "relu"}, {"tie_word_embeddings": False}, TASKS])
def test_outputs_match_torch(tmp_path, options):
    model = torch_model(tmp_path, **options)
    config, params, ignored = huggingface.read(tmp_path)
    assert isinstance(config, ErnieConfig) and ignored == ()
    inputs = parity.batch(types=3)
    actual, expected = run(config, params, inputs), parity.torch_outputs(model, inputs, mlm="logits")
    assert parity.agree(actual, expected, inputs), parity.errors(actual, expected, inputs)


@pytest.mark.parametrize("options", [{}, TASKS], ids=["1.0", "tasks"])
def test_every_entry_of_the_mapping_is_needed(tmp_path, monkeypatch, options):
    inputs = parity.batch(types=3)
    expected = parity.torch_outputs(torch_model(tmp_path, **options), inputs, mlm="logits")
    agrees = functools.partial(parity.agree, expected=expected, inputs=inputs)
    parity.assert_every_entry_is_needed(monkeypatch, tmp_path, functools.partial(run, inputs=inputs), agrees)


@pytest.mark.parametrize("options", [{}, TASKS], ids=["1.0", "tasks"])
@pytest.mark.parametrize("architecture", ["ErnieForMaskedLM", "ErnieForPreTraining"])
def test_import_and_export_round_trip(tmp_path, architecture, options):
    torch_model(tmp_path / "theirs", architecture, **options)
    parity.assert_round_trip(tmp_path / "theirs", tmp_path)


def test_size_of_the_task_table_must_be_an_integer(tmp_path):
    torch_model(tmp_path, use_task_id=True)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["use_task_id"] and huggingface.read(tmp_path).config.task_type_vocab_size == 3
    (tmp_path / "config.json").write_text(json.dumps(content | {"task_type_vocab_size": "3"}))
    with pytest.raises(UserError, match="task_type_vocab_size = '3' must be a whole number"):
        huggingface.read(tmp_path)


def test_size_of_the_task_table_must_not_be_negative():
    with pytest.raises(UserError, match="ErnieConfig.task_type_vocab_size = -1 must be at least 0"):
        ErnieConfig(task_type_vocab_size=-1)

"""Retired gin parameters in the config.gin of an earlier version."""

from dataclasses import dataclass

import pytest

from bertfam import moved
from bertfam.config import load, register, registry
from bertfam.errors import UserError
from bertfam.models.albert import AlbertConfig
from bertfam.models.bert import BertConfig
from bertfam.models.distilbert import DistilBertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.ernie import ErnieConfig
from bertfam.models.gpt import GptConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.mt5 import MT5Config
from bertfam.models.opt import OptConfig
from bertfam.models.palm import PalmConfig
from bertfam.models.roberta import RobertaConfig


@register
@dataclass(frozen=True)
class OutsideConfig(BertConfig):
    """Family from outside the package."""


EXPECTED = {
    "AlbertConfig": AlbertConfig(),
    "BertConfig": BertConfig(),
    "DistilBertConfig": DistilBertConfig(),
    "ElectraConfig": ElectraConfig(),
    "ErnieConfig": ErnieConfig(),
    "MT5Config": MT5Config(),
    "OutsideConfig": OutsideConfig(),
    "RobertaConfig": RobertaConfig(position_offset=1),
    "GptConfig": GptConfig(),
    "Gpt2Config": Gpt2Config(),
    "OptConfig": OptConfig(
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        feed_forward_size=4096,
        embedding_size=512,
        block="post_norm",
        last_norm=False,
    ),
    "PalmConfig": PalmConfig(),
}
# The fields of BERT's and T5's classes that only one family sets; then every field of the former class of all decoders, as
# pretraining wrote it for GPT, GPT-2, OPT-350M and PaLM 8B.
OLD = {
    **{
        name: f"{name}.position_offset = 0\n{name}.sharing = 'none'"
        for name in ("BertConfig", "DistilBertConfig", "ElectraConfig", "ErnieConfig", "OutsideConfig")
    },
    "AlbertConfig": "AlbertConfig.position_offset = 0\nAlbertConfig.sharing = 'all'",
    "MT5Config": "MT5Config.scale_logits = False\nMT5Config.gated = True",
    "RobertaConfig": "RobertaConfig.position_offset = 1\nRobertaConfig.sharing = 'none'",
    "GptConfig": """
GptConfig.vocab_size = None
GptConfig.table_rows = None
GptConfig.num_layers = 12
GptConfig.hidden_size = 768
GptConfig.num_heads = 12
GptConfig.feed_forward_size = 3072
GptConfig.max_length = 512
GptConfig.block = 'post_norm'
GptConfig.last_norm = False
GptConfig.head_size = None
GptConfig.num_key_value_heads = None
GptConfig.rotary_theta = None
GptConfig.position_offset = 0
GptConfig.embedding_size = None
GptConfig.gated = False
GptConfig.activation = 'gelu_tanh'
GptConfig.use_bias = True
GptConfig.norm_bias = True
GptConfig.scale_attention = True
GptConfig.scale_attention_by_layer = False
GptConfig.scale_logits = False
GptConfig.embedding_dropout_rate = 0.1
GptConfig.dropout_rate = 0.1
GptConfig.attention_dropout_rate = 0.1
GptConfig.layer_norm_epsilon = 1e-05
GptConfig.initializer_range = 0.02
GptConfig.table_initializer_range = None
GptConfig.scale_residual_init = False
GptConfig.tie_embeddings = True
""",
    "Gpt2Config": """
Gpt2Config.vocab_size = None
Gpt2Config.table_rows = None
Gpt2Config.num_layers = 12
Gpt2Config.hidden_size = 768
Gpt2Config.num_heads = 12
Gpt2Config.feed_forward_size = 3072
Gpt2Config.max_length = 1024
Gpt2Config.block = 'pre_norm'
Gpt2Config.last_norm = True
Gpt2Config.head_size = None
Gpt2Config.num_key_value_heads = None
Gpt2Config.rotary_theta = None
Gpt2Config.position_offset = 0
Gpt2Config.embedding_size = None
Gpt2Config.gated = False
Gpt2Config.activation = 'gelu_tanh'
Gpt2Config.use_bias = True
Gpt2Config.norm_bias = True
Gpt2Config.scale_attention = True
Gpt2Config.scale_attention_by_layer = False
Gpt2Config.scale_logits = False
Gpt2Config.embedding_dropout_rate = 0.1
Gpt2Config.dropout_rate = 0.1
Gpt2Config.attention_dropout_rate = 0.1
Gpt2Config.layer_norm_epsilon = 1e-05
Gpt2Config.initializer_range = 0.02
Gpt2Config.table_initializer_range = None
Gpt2Config.scale_residual_init = True
Gpt2Config.tie_embeddings = True
""",
    "OptConfig": """
OptConfig.vocab_size = None
OptConfig.table_rows = None
OptConfig.num_layers = 24
OptConfig.hidden_size = 1024
OptConfig.num_heads = 16
OptConfig.feed_forward_size = 4096
OptConfig.max_length = 2048
OptConfig.block = 'post_norm'
OptConfig.last_norm = False
OptConfig.head_size = None
OptConfig.num_key_value_heads = None
OptConfig.rotary_theta = None
OptConfig.position_offset = 2
OptConfig.embedding_size = 512
OptConfig.gated = False
OptConfig.activation = 'relu'
OptConfig.use_bias = True
OptConfig.norm_bias = True
OptConfig.scale_attention = True
OptConfig.scale_attention_by_layer = False
OptConfig.scale_logits = False
OptConfig.embedding_dropout_rate = 0.0
OptConfig.dropout_rate = 0.1
OptConfig.attention_dropout_rate = 0.1
OptConfig.layer_norm_epsilon = 1e-05
OptConfig.initializer_range = 0.006
OptConfig.table_initializer_range = None
OptConfig.scale_residual_init = True
OptConfig.tie_embeddings = True
""",
    "PalmConfig": """
PalmConfig.vocab_size = None
PalmConfig.table_rows = None
PalmConfig.num_layers = 32
PalmConfig.hidden_size = 4096
PalmConfig.num_heads = 16
PalmConfig.feed_forward_size = 16384
PalmConfig.max_length = 2048
PalmConfig.block = 'parallel'
PalmConfig.last_norm = True
PalmConfig.head_size = 256
PalmConfig.num_key_value_heads = 1
PalmConfig.rotary_theta = 10000.0
PalmConfig.position_offset = 0
PalmConfig.embedding_size = None
PalmConfig.gated = True
PalmConfig.activation = 'silu'
PalmConfig.use_bias = False
PalmConfig.norm_bias = False
PalmConfig.scale_attention = True
PalmConfig.scale_attention_by_layer = False
PalmConfig.scale_logits = True
PalmConfig.embedding_dropout_rate = 0.0
PalmConfig.dropout_rate = 0.0
PalmConfig.attention_dropout_rate = 0.0
PalmConfig.layer_norm_epsilon = 1e-05
PalmConfig.initializer_range = None
PalmConfig.table_initializer_range = 1.0
PalmConfig.scale_residual_init = False
PalmConfig.tie_embeddings = True
""",
}


def write_old_file(folder, text):
    path = folder / "config.gin"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", sorted(OLD))
def test_configuration_of_an_earlier_version_builds_the_same_model(name, tmp_path, capsys):
    config = load([write_old_file(tmp_path, OLD[name])])
    assert config.build(name) == EXPECTED[name]
    assert not capsys.readouterr().err
    (configurable,) = registry.find(name)
    own = moved.PARAMETERS.get(configurable.selector, {})
    assert all(f"{name}.{parameter} = {value.default!r}" in OLD[name] for parameter, value in own.items())
    stated = {line.partition(" ")[0].partition(".")[2] for line in OLD[name].strip().splitlines()}
    retired = stated - registry.parameters(configurable.selector).keys()
    assert retired and own.keys() <= retired
    assert not any(f"{name}.{parameter} " in config.complete(name).text() for parameter in retired)


@pytest.mark.parametrize(
    ("name", "parameter", "value", "owner"),
    [
        ("GptConfig", "block", "'pre_norm'", "OptConfig"),
        ("GptConfig", "scale_attention", "False", "Gpt2Config"),
        ("Gpt2Config", "rotary_theta", "10000.0", "PalmConfig"),
        ("OptConfig", "gated", "True", "PalmConfig"),
        ("PalmConfig", "position_offset", "2", "OptConfig"),
        ("AlbertConfig", "position_offset", "2", "RobertaConfig"),
        ("BertConfig", "sharing", "'all'", "AlbertConfig"),
        ("DistilBertConfig", "position_offset", "2", "RobertaConfig"),
        ("MT5Config", "scale_logits", "True", "T5Config"),
        ("OutsideConfig", "position_offset", "1", "RobertaConfig"),
        ("RobertaConfig", "sharing", "'attention'", "AlbertConfig"),
    ],
)
def test_other_values_are_refused_with_the_class_that_supports_them(name, parameter, value, owner, tmp_path):
    lines = OLD[name].strip().splitlines()
    (line,) = (place for place, text in enumerate(lines) if text.startswith(f"{name}.{parameter} = "))
    lines[line] = f"{name}.{parameter} = {value}"
    path = write_old_file(tmp_path, "\n".join(lines))
    with pytest.raises(UserError) as error:
        load([path])
    message = str(error.value)
    assert message.startswith(f"{path}:{line + 1}: {name}.{parameter} is {value}, ") and f"use @{owner}()" in message
    assert "\n" not in message


def test_retired_parameters_in_macros_scopes_and_flags():
    scoped = ["CausalLm.model = @large/OptConfig()", "large/OptConfig.gated = %GATED", "large/OptConfig.hidden_size = 1536"]
    assert load([], ["GATED = False", *scoped]).build("CausalLm").model == OptConfig(hidden_size=1536)
    with pytest.raises(UserError, match="large/OptConfig.gated is %GATED .%GATED from --gin.GATED=True., but gated is now"):
        load([], ["GATED = True", *scoped])
    assert load([], ["OptConfig.gated = True", "OptConfig.gated = False"]).build("OptConfig") == OptConfig()


def test_table_names_classes_without_the_parameters_and_their_owners():
    for selector, parameters in moved.PARAMETERS.items():
        (configurable,) = registry.find(selector)
        assert not set(parameters) & set(registry.parameters(configurable.selector))
        for parameter, retired in parameters.items():
            (owner,) = registry.find(retired.owner)
            assert parameter in registry.parameters(owner.selector)

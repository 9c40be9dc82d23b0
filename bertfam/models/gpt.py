"""GPT (Radford, Narasimhan, Salimans, Sutskever 2018): a decoder that normalises after each residual sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.layers.blocks import PostNormBlock
from bertfam.models.decoder import DecoderConfig
from bertfam.models.gpt2 import BUFFERS, read_values, stack_entries, write_values
from bertfam.models.mapping import Entry, LanguageModelFamily, check_is, language_model_architectures


@dataclass(frozen=True)
class GptConfig(DecoderConfig):
    """Configuration of a GPT; the defaults are the published one. See `DecoderConfig`."""

    published_vocab_size: ClassVar[int | None] = 40_478

    @property
    @override
    def block_class(self) -> type[nn.Module]:
        return PostNormBlock

    @property
    @override
    def last_norm(self) -> bool:
        return False

    @property
    @override
    def fine_tuning_lm(self) -> float:
        # Section 3.2 and 4.1. An untied head has no place in transformers' classifier.
        return 0.5 if self.tie_embeddings else 0.0


# Of their `afn`: "gelu" is the approximation by tanh.
_ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
_WRITTEN_ACTIVATIONS: dict[Activation, str] = {"gelu_tanh": "gelu", "relu": "relu", "silu": "silu"}


def config_from_huggingface(content: Mapping[str, Any]) -> GptConfig:
    """Read config.json's content into GptConfig; raises UserError for any other variant of GPT."""
    values, activation = read_values(content, {}), content.get("afn", "gelu")
    if activation not in list(_ACTIVATIONS):
        raise UserError(f"config.json: afn = {activation!r} is not supported, only {', '.join(_ACTIVATIONS)}")
    return GptConfig(feed_forward_size=4 * values["hidden_size"], activation=_ACTIVATIONS[activation], **values)


def config_to_huggingface(config: GptConfig) -> dict[str, Any]:
    """Write GptConfig as config.json's content, without "architectures".

    Raises:
      UserError: for what transformers' GPT cannot represent.
    """
    theirs = GptConfig(hidden_size=config.hidden_size, num_heads=config.num_heads, feed_forward_size=4 * config.hidden_size)
    check_is(config, theirs, "feed_forward_size", "use_bias")
    if config.activation not in _WRITTEN_ACTIVATIONS:
        known = ", ".join(_WRITTEN_ACTIVATIONS)
        raise UserError(f"GptConfig.activation = {config.activation!r} has no place in transformers' class, which has {known}")
    return {"model_type": "openai-gpt", **write_values(config, {}), "afn": _WRITTEN_ACTIVATIONS[config.activation]}


def entries(config: GptConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter."""
    return stack_entries("tokens_embed", "positions_embed", config)


GPT = LanguageModelFamily(
    model_type="openai-gpt",
    config=GptConfig,
    objective="objectives/causal_lm.gin",
    prefix="transformer.",
    architectures=language_model_architectures("OpenAIGPTLMHeadModel", classifier="OpenAIGPTForSequenceClassification"),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "transformer.tokens_embed.weight"),
    buffers=(*BUFFERS, "position_ids"),
    old_names={},
)

"""mT5 in Hugging Face's files: T5's names."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertfam.models.mt5 import MT5Config
from bertfam.models.t5_huggingface import T5, read_values, written_values


def config_from_huggingface(content: Mapping[str, Any]) -> MT5Config:
    """config.json's content -> MT5Config, which never scales, whatever it says of that; the head is that of the tensors."""
    return MT5Config(**read_values({"feed_forward_proj": "gated-gelu"} | dict(content)), tie_embeddings=True)


def config_to_huggingface(config: MT5Config) -> dict[str, Any]:
    """MT5Config -> config.json's content, without "architectures"."""
    values = written_values(config) | {"tie_word_embeddings": config.tie_embeddings}
    return {"model_type": "mt5", **{name: value for name, value in values.items() if name != "scale_decoder_outputs"}}


MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    config=MT5Config,
    architectures={parts: "MT5ForConditionalGeneration" for parts in T5.architectures},
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
)

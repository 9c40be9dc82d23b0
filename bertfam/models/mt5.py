"""mT5 (Xue et al. 2021): T5 of version 1.1 for 101 languages and a vocabulary of 250,000 pieces."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.t5 import T5, T5BaseConfig, read_values, write_values


@dataclass(frozen=True)
class MT5Config(T5BaseConfig):
    """Configuration of an mT5; the defaults are mT5-base. See `T5BaseConfig`."""

    published_vocab_size: ClassVar[int | None] = 250_100

    feed_forward_size: int = 2048
    activation: Activation = "gelu_tanh"
    gated: bool = True
    tie_embeddings: bool = False


def config_from_huggingface(content: Mapping[str, Any]) -> MT5Config:
    """Read config.json's content into MT5Config, which never scales the output; the tensors decide the head."""
    return MT5Config(**read_values({"feed_forward_proj": "gated-gelu"} | dict(content)), tie_embeddings=True)


def config_to_huggingface(config: MT5Config) -> dict[str, Any]:
    """Write MT5Config as config.json's content, without "architectures"."""
    return {"model_type": "mt5", **write_values(config)}


MT5 = dataclasses.replace(
    T5,
    model_type="mt5",
    config=MT5Config,
    architectures={parts: f"M{name}" for parts, name in T5.architectures.items()},
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
)

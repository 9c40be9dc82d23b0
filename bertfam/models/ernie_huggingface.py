"""ERNIE in Hugging Face's files: BERT under another name, as long as there are no embeddings of tasks."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from bertfam.errors import UserError
from bertfam.models.bert_huggingface import BERT, entries, read_values, written_values
from bertfam.models.ernie import ErnieConfig


def config_from_huggingface(content: Mapping[str, Any]) -> ErnieConfig:
    """config.json's content -> ErnieConfig; raises UserError for a model that is not this ERNIE."""
    if content.get("use_task_id"):
        raise UserError("config.json: use_task_id = True is not supported: ERNIE 2.0's embeddings of tasks are not there")
    return ErnieConfig(**read_values(content))


def config_to_huggingface(config: ErnieConfig) -> dict[str, Any]:
    """ErnieConfig -> config.json's content, without "architectures"."""
    return {"model_type": "ernie", **written_values(config), "use_task_id": False}


ERNIE = dataclasses.replace(
    BERT,
    model_type="ernie",
    config=ErnieConfig,
    prefix="ernie.",
    architectures={parts: name.replace("Bert", "Ernie") for parts, name in BERT.architectures.items()},
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=partial(entries, prefix="ernie."),
    tied=("cls.predictions.decoder.weight", "ernie.embeddings.word_embeddings.weight"),
)

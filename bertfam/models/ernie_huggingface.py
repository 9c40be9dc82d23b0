"""ERNIE in Hugging Face's files: BERT under another name, and from version 2.0 on with a table of tasks."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertfam.errors import UserError
from bertfam.models.bert_huggingface import BERT, read_values, written_values
from bertfam.models.bert_huggingface import entries as bert_entries
from bertfam.models.ernie import ErnieConfig
from bertfam.models.mapping import Entry


def config_from_huggingface(content: Mapping[str, Any]) -> ErnieConfig:
    """config.json's content -> ErnieConfig; raises UserError for a model that is not this ERNIE."""
    tasks = content.get("task_type_vocab_size", 3) if content.get("use_task_id") else 0
    if type(tasks) is not int:
        raise UserError(f"config.json: task_type_vocab_size = {tasks!r} must be a whole number")
    return ErnieConfig(task_type_vocab_size=tasks, **read_values(content))


def config_to_huggingface(config: ErnieConfig) -> dict[str, Any]:
    """ErnieConfig -> config.json's content, without "architectures"."""
    tasks = config.task_type_vocab_size
    table = {"task_type_vocab_size": tasks} if tasks else {}
    return {"model_type": "ernie", **written_values(config), "use_task_id": bool(tasks), **table}


def entries(config: ErnieConfig) -> tuple[Entry, ...]:
    """Every parameter of the encoder and of all heads."""
    tables = [
        Entry(f"encoder/embeddings/{name}/table", f"ernie.embeddings.{name}_embeddings.weight", "matrix")
        for name in config.first_rows
    ]
    return (*bert_entries(config, prefix="ernie."), *tables)


ERNIE = dataclasses.replace(
    BERT,
    model_type="ernie",
    config=ErnieConfig,
    prefix="ernie.",
    architectures={parts: name.replace("Bert", "Ernie") for parts, name in BERT.architectures.items()},
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("cls.predictions.decoder.weight", "ernie.embeddings.word_embeddings.weight"),
)

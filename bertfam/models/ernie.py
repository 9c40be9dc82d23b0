"""ERNIE 1.0 of Baidu (Sun et al. 2019): a BERT, trained on text that is masked by whole phrases and entities."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.models.bert import BERT, BertConfig, read_values, write_values
from bertfam.models.bert import entries as bert_entries
from bertfam.models.mapping import Entry


@dataclass(frozen=True)
class ErnieConfig(BertConfig):
    """Configuration of an ERNIE; the defaults are the published model's, version 1.0. See `BertConfig`.

    Attributes:
      task_type_vocab_size: rows of a task table, as in ERNIE 2.0 and 3.0 (3). All text belongs to the first task, the one of
        words. 0: no such table.
    """

    published_vocab_size: ClassVar[int | None] = 18_000

    activation: Activation = "relu"
    task_type_vocab_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(task_type_vocab_size=0)

    @property
    def first_rows(self) -> Mapping[str, int]:
        """Rows of the task table, whose first row every token is given."""
        return {"task_type": self.task_type_vocab_size} if self.task_type_vocab_size else {}


def config_from_huggingface(content: Mapping[str, Any]) -> ErnieConfig:
    """Read config.json's content into ErnieConfig; raises UserError for any other variant of ERNIE."""
    tasks = content.get("task_type_vocab_size", 3) if content.get("use_task_id") else 0
    if type(tasks) is not int:
        raise UserError(f"config.json: task_type_vocab_size = {tasks!r} must be a whole number")
    return ErnieConfig(task_type_vocab_size=tasks, **read_values(content))


def config_to_huggingface(config: ErnieConfig) -> dict[str, Any]:
    """Write ErnieConfig as config.json's content, without "architectures"."""
    tasks = config.task_type_vocab_size
    table = {"task_type_vocab_size": tasks} if tasks else {}
    return {"model_type": "ernie", **write_values(config), "use_task_id": bool(tasks), **table}


def entries(config: ErnieConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
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
    wrappers=(),
)

"""ERNIE 1.0 of Baidu (Sun et al. 2019): a BERT, whose text is masked by whole phrases and entities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig


@dataclass(frozen=True)
class ErnieConfig(BertConfig):
    """Sizes and rates of an ERNIE; the defaults are the published model's, version 1.0. See `BertConfig`.

    Attributes:
      task_type_vocab_size: rows of a table of tasks, as ERNIE 2.0 and 3.0 have one (3). All text is of the first task, the one of
        words. 0: there is no such table.
    """

    published_vocab_size: ClassVar[int | None] = 18_000

    activation: Activation = "relu"
    task_type_vocab_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(task_type_vocab_size=0)

    @property
    def first_rows(self) -> Mapping[str, int]:
        """See `BertConfig.first_rows`: that of tasks."""
        return {"task_type": self.task_type_vocab_size} if self.task_type_vocab_size else {}

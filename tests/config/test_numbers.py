"""No setting takes a number that is none: what Python code makes, which gin's own check does not see, included."""

import math
from typing import Any

import pytest

from bertfam.config import registry
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.errors import UserError
from bertfam.models.bert import BertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.t5 import T5Config

# What the classes need besides.
NEEDS: dict[str, dict[str, Any]] = {
    "TextFiles": {"train": ("a.txt",)},
    "PairFiles": {"train": ("a.jsonl",)},
    "SeqioTask": {"name": "books"},
    "Mixture": {"corpora": (PythonDocs(),), "names": ("docs",)},
    "Stage": {"steps": 8},
    "Ramp": {"steps": 8},
    "Electra": {"model": ElectraConfig()},
    "Mlm": {"model": BertConfig()},
    "MlmNsp": {"model": BertConfig()},
    "MlmSop": {"model": BertConfig()},
    "MlmSbo": {"model": BertConfig()},
    "MlmStructure": {"model": BertConfig()},
    "Distillation": {"model": BertConfig()},
    "CausalLm": {"model": Gpt2Config()},
    "SequenceToSequence": {"model": T5Config()},
}
SETTINGS = [
    (path, name)
    for path in registry.CONFIGURABLES
    if registry.find(path) and not path.endswith(".Run")  # whose objective and data these are
    for name, parameter in registry.parameters(path).items()
    if parameter.hint in (float, float | None)
]


@pytest.mark.parametrize(("path", "name"), SETTINGS)
def test_a_number_that_is_none(path, name):
    make, needs = registry.get(path).wrapped, NEEDS.get(path.rpartition(".")[2], {})
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises((ValueError, UserError), match=name):
            make(**needs, **{name: value})


def test_they_are_many():
    assert len(SETTINGS) > 60

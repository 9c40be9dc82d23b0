"""Settings refuse NaN and infinities, also from Python code, which gin does not check."""

import math
from typing import Any

import pytest

from bertfam.config import registry
from bertfam.data.corpora.labelled.labelled_files import LabelledFiles
from bertfam.data.corpora.python_docs.corpus import PythonDocs
from bertfam.errors import UserError
from bertfam.models.bert import BertConfig
from bertfam.models.electra import ElectraConfig
from bertfam.models.entity_ernie import EntityErnieConfig
from bertfam.models.gpt2 import Gpt2Config
from bertfam.models.t5 import T5Config
from bertfam.objectives.fine_tuning.heads import Regression
from bertfam.studies.scores.masked_loss import MaskedLoss

# Other required arguments of the classes.
REQUIRED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "TextFiles": {"train": ("a.txt",)},
    "PairFiles": {"train": ("a.jsonl",)},
    "LabelledFiles": {"train": ("a.tsv",)},
    "TaggedFiles": {"train": ("a.conll",)},
    "TargetFiles": {"train": ("a.tsv",)},
    "PassageFiles": {"train": ("a.json",)},
    "AnswerFiles": {"train": ("a.json",)},
    "QuestionFiles": {"train": ("a.json",)},
    "SeqioTask": {"name": "books"},
    "FeatureProbe": {"corpus": LabelledFiles(("a.tsv",))},
    "Mixture": {"corpora": (PythonDocs(),), "names": ("docs",)},
    "Stage": {"steps": 8},
    "Ramp": {"steps": 8},
    "Electra": {"model": ElectraConfig()},
    "Mlm": {"model": BertConfig()},
    "CausalAndMasked": {"model": BertConfig()},
    "MlmNsp": {"model": BertConfig()},
    "MlmNspDea": {"model": EntityErnieConfig()},
    "MlmSop": {"model": BertConfig()},
    "MlmSbo": {"model": BertConfig()},
    "MlmStructure": {"model": BertConfig()},
    "DualEncoder": {"model": BertConfig()},
    "RetroMae": {"model": BertConfig()},
    "Realm": {"model": BertConfig()},
    "Distillation": {"model": BertConfig()},
    "CausalLm": {"model": Gpt2Config()},
    "FineTuning": {"model": Gpt2Config(), "head": Regression()},
    "SequenceToSequence": {"model": T5Config()},
    "Claim": {"score": "masked_loss", "better": "one", "worse": "other"},
    "FineTuned": {"data_dir": "GLUE"},
    "Study": {"budget": 1e6, "scores": (MaskedLoss(),)},
}
SETTINGS = [
    (path, name)
    for path in registry.CONFIGURABLES
    if registry.find(path) and not path.endswith(".Run")  # it consists of these classes
    for name, parameter in registry.parameters(path).items()
    if parameter.hint in (float, float | None)
]


@pytest.mark.parametrize(("path", "name"), SETTINGS)
def test_nan_and_infinite_settings_are_refused(path, name):
    make, arguments = registry.get(path).wrapped, REQUIRED_ARGUMENTS.get(path.rpartition(".")[2], {})
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises((ValueError, UserError), match=name):
            make(**arguments | {name: value})


def test_many_settings_are_tested():
    assert len(SETTINGS) > 60

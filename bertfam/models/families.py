"""Table of the model families, which the gin registry, import and export read; a new family is one line here.

A family outside the package calls `register_family`.
"""

from typing import NamedTuple


class FamilyModule(NamedTuple):
    """Location of a family, as text: its module is imported when it is first used.

    Attributes:
      module: the file of the family.
      config: name of its config class there.
      table: name of its `bertfam.models.mapping.Family` there; None where transformers does not have the family.
    """

    module: str
    config: str
    table: str | None


FAMILIES = (
    FamilyModule("bertfam.models.bert", "BertConfig", "BERT"),
    FamilyModule("bertfam.models.albert", "AlbertConfig", "ALBERT"),
    FamilyModule("bertfam.models.bart", "BartConfig", "BART"),
    FamilyModule("bertfam.models.bigbird", "BigBirdConfig", "BIGBIRD"),
    FamilyModule("bertfam.models.distilbert", "DistilBertConfig", "DISTILBERT"),
    FamilyModule("bertfam.models.electra", "ElectraConfig", "ELECTRA"),
    FamilyModule("bertfam.models.elmo", "BilmConfig", None),
    FamilyModule("bertfam.models.entity_ernie", "EntityErnieConfig", None),
    FamilyModule("bertfam.models.ernie", "ErnieConfig", "ERNIE"),
    FamilyModule("bertfam.models.gpt", "GptConfig", "GPT"),
    FamilyModule("bertfam.models.gpt2", "Gpt2Config", "GPT2"),
    FamilyModule("bertfam.models.longformer", "LongformerConfig", "LONGFORMER"),
    FamilyModule("bertfam.models.modernbert", "ModernBertConfig", "MODERNBERT"),
    FamilyModule("bertfam.models.mt5", "MT5Config", "MT5"),
    FamilyModule("bertfam.models.opt", "OptConfig", "OPT"),
    FamilyModule("bertfam.models.palm", "PalmConfig", None),
    FamilyModule("bertfam.models.roberta", "RobertaConfig", "ROBERTA"),
    FamilyModule("bertfam.models.t5", "T5Config", "T5"),
    FamilyModule("bertfam.models.word2vec", "Word2VecConfig", None),
    FamilyModule("bertfam.models.xlnet", "XLNetConfig", "XLNET"),
)

_registered: list[FamilyModule] = []


def register_family(module: str, config: str, table: str | None = None) -> None:
    """Add a family from outside the package, whose module a command names with --module_import.

    Args:
      module: the module of the family, `__name__` within it.
      config: the name of its config class there.
      table: the name of its `bertfam.models.mapping.Family` there; None for a family without Hugging Face folders.
    """
    family = FamilyModule(module, config, table)
    if family not in _registered:
        _registered.append(family)


def registered() -> tuple[FamilyModule, ...]:
    """Return the families from outside the package, in the order of their registration."""
    return tuple(_registered)

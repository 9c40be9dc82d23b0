"""RoBERTa (Liu et al. 2019): BERT's encoder with another vocabulary, other positions and one sentence type."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.activations import Activation
from bertfam.layers.execution import Execution
from bertfam.layers.heads.classification import Classifier
from bertfam.models.bert import (
    BertConfig,
    dense_classifier_entries,
    encoder_entries,
    masked_lm_entries,
    read_values,
    write_values,
)
from bertfam.models.encoder import pooler
from bertfam.models.mapping import Entry, Family, PaddedVocabulary, dense
from bertfam.models.sizes import OffsetPositions

_EXECUTION = Execution()


@dataclass(frozen=True)
class RobertaConfig(OffsetPositions, BertConfig):
    """Configuration of a RoBERTa; the defaults are RoBERTa-base. See `BertConfig`.

    Attributes:
      position_offset: rows of the position table that lie before that of position 0 and are never read: the padding id + 1, as
        published, from which transformers counts positions.
    """

    published_vocab_size: ClassVar[int | None] = 50_265

    position_offset: int = 2
    type_vocab_size: int = 1
    head_activation: Activation | None = "gelu"
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(position_offset=0)

    @override
    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        return self.dense_classifier(outputs, execution, "tanh")


def values_from_huggingface(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json's content into the fields of a config like RoBERTa's; raises UserError for any other variant."""
    values, pad = read_values(content), content.get("pad_token_id", 1)
    if type(pad) is not int or pad < 0:
        raise UserError(f"config.json: pad_token_id = {pad!r} must be a whole number: positions are counted from it")
    offset = pad + 1
    if values["max_length"] <= offset:
        raise UserError(f"config.json: max_position_embeddings = {values['max_length']} leaves no position after {offset}")
    values["max_length"] -= offset
    return values | {"position_offset": offset}


def config_from_huggingface(content: Mapping[str, Any]) -> RobertaConfig:
    """Read config.json's content into RobertaConfig; raises UserError for any other variant of RoBERTa."""
    return RobertaConfig(**values_from_huggingface(content))


def config_to_huggingface(config: RobertaConfig) -> dict[str, Any]:
    """Write RobertaConfig as config.json's content, without "architectures"."""
    values = write_values(config, head="gelu")
    return {"model_type": "roberta", **values, "max_position_embeddings": config.position_rows}


def fit_vocabulary(config: RobertaConfig, vocabulary: PaddedVocabulary) -> RobertaConfig:
    """Return the config of a model read from a folder, with the positions that transformers gives to texts of its tokenizer.

    transformers counts positions from pad_token_id + 1, and leaves out tokens with this id, wherever they stand. If it is the
    first token's, such as <s>, the next token has the first position.

    Raises:
      UserError: when the id stands elsewhere in texts, where positions differ from text to text.
    """
    pad = config.position_offset - 1
    if pad == vocabulary.token_ids.pad or not vocabulary.occurs(pad):
        return config
    if not _is_first_only(pad, vocabulary):
        raise UserError(
            f"config.json: pad_token_id = {pad} is not the padding id of the tokenizer, {vocabulary.token_ids.pad}, but that "
            "of a token in texts, which transformers leaves out when it counts positions: put the tokenizer there that the model "
            "was trained with"
        )
    return dataclasses.replace(config, position_offset=pad, max_length=config.max_length + 1)


def padding_id(config: RobertaConfig, vocabulary: PaddedVocabulary) -> int:
    """Return config.json's pad_token_id, from which transformers counts the positions that the model has.

    Raises:
      UserError: when that is the id of a token in texts, so that positions would differ from text to text.
    """
    pad = config.position_offset - 1
    if pad == vocabulary.token_ids.pad or (0 <= pad < config.require_table_rows and not vocabulary.occurs(pad)):
        return pad
    if _is_first_only(config.position_offset, vocabulary):
        return config.position_offset
    raise UserError(
        f"RobertaConfig.position_offset = {config.position_offset} has no place in transformers' class with this vocabulary: it "
        f"counts positions from the padding id, which is {vocabulary.token_ids.pad}; a model like it cannot be written"
    )


def _is_first_only(id: int, vocabulary: PaddedVocabulary) -> bool:
    """Return True for the id of the token that begins a row, if it stands nowhere else."""
    tokens = vocabulary.token_ids
    return id == tokens.cls and id not in (tokens.sep, tokens.eos, tokens.mask, tokens.unk)


def entries(config: RobertaConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
    head = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
    return (
        *encoder_entries("roberta.", config),
        *masked_lm_entries(config, *head),
        *dense_classifier_entries(),
        *dense("choice_classifier/output", "classifier"),
    )


ROBERTA = Family(
    model_type="roberta",
    config=RobertaConfig,
    objective="objectives/roberta.gin",
    prefix="roberta.",
    architectures={
        frozenset({"encoder"}): "RobertaModel",
        frozenset({"encoder", "mlm_head"}): "RobertaForMaskedLM",
        frozenset({"encoder", "pooler"}): "RobertaModel",
        frozenset({"encoder", "classifier"}): "RobertaForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "RobertaForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "RobertaForQuestionAnswering",
        frozenset({"encoder", "pooler", "choice_classifier"}): "RobertaForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    fit_vocabulary=fit_vocabulary,
    padding_id=padding_id,
    heads=lambda config: {"pooler": pooler(config)},
    aliases={"lm_head.decoder.bias": "lm_head.bias"},
    tied=("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
    buffers=("position_ids", "token_type_ids"),
)
